/*
 * Small helpers of the runner. None of them fails: without memory the run ends.
 */
#include "tests/runner/common.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(const char *format, ...)
{
    va_list arguments;

    fputs("runner: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

void list_add(struct list *list, const char *format, ...)
{
    char **grown = reallocarray(list->items, list->count + 1, sizeof *grown);
    va_list arguments;

    if (grown == NULL)
        die("out of memory");
    list->items = grown;
    va_start(arguments, format);
    if (vasprintf(&list->items[list->count], format, arguments) < 0)
        die("out of memory");
    va_end(arguments);
    list->count++;
}

void list_clear(struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct list){0};
}

void trim(char *text)
{
    size_t length = strlen(text);

    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
}
