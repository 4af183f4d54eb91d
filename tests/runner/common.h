/*
 * What all files of the runner use: an end with a message, and lists of texts.
 */
#ifndef TESTS_RUNNER_COMMON_H
#define TESTS_RUNNER_COMMON_H

#include "tests/support/basics.h"

#include <stddef.h>

/* Prints why and ends the process with status 2. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

struct list {
    char **items;
    size_t count;
};

void list_add(struct list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
void list_clear(struct list *list);

/* Removes blanks and line ends behind the text. */
void trim(char *text);

#endif
