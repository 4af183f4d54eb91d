/* Whether a text that somebody gave us is JSON (RFC 8259), before it is put into a page. */
#ifndef TCPX_TOOLS_JSON_READ_H
#define TCPX_TOOLS_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Behind the value that begins at `at`, and blanks behind it; NULL: there is none, or it is nested
 * too deeply. Nothing behind `end` is read.
 */
const char *json_skip(const char *at, const char *end);

/* The value of a member of the object at `at`, which json_skip() has accepted; NULL: there is none.
 */
const char *json_member(const char *at, const char *end, const char *name);

#endif
