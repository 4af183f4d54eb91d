/*
 * Results in files: opened before the work begins, so that a file that cannot be written is known
 * at once, and pages, which are a static template with the result as JSON in it.
 */
#ifndef TCPX_TOOLS_PAGE_H
#define TCPX_TOOLS_PAGE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>

/* A text of any length that is printed in memory. False: there was no memory. `text` is the
 * caller's to free. */
struct page_text {
    char *text;
    size_t length;
    FILE *out;
};

MUST_CHECK bool page_text_begin(struct page_text *text);
MUST_CHECK bool page_text_end(struct page_text *text);

/* The template with the JSON where it has the line @RESULT@. Nothing in the JSON ends its script.
 */
void page_print(FILE *out, const char *page, const char *json);

struct page_file {
    const char *path; /* NULL: there is none, and nothing is done */
    FILE *out;
    bool is_new; /* nothing but page_open() has made it */
};

/* What is there stays there until something is printed. */
MUST_CHECK int page_open(struct page_file *file);

/* Fails if not all that was printed is in the file; half a page is removed. */
MUST_CHECK int page_close(struct page_file *file);

/* Nothing was printed: an earlier file of this name stays as it was. */
void page_discard(struct page_file *file);

#endif
