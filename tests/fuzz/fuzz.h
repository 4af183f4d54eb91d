/*
 * What fuzz targets share: how one says that a promise was broken, with the promise and by ending
 * the program, and what those need that read bytes a second time, to know what must be accepted.
 */
#ifndef TCPX_TESTS_FUZZ_FUZZ_H
#define TCPX_TESTS_FUZZ_FUZZ_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PROMISE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s (%s)\n", __FILE__, __LINE__, #condition,            \
                    error_text());                                                                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* An input that says what happens, byte by byte; behind its end there are zeros. */
struct script {
    const uint8_t *data;
    size_t left;
};

static inline uint8_t script_next(struct script *script)
{
    if (script->left == 0)
        return 0;
    script->left--;
    return *script->data++;
}

/* Little endian. */
static inline uint64_t number(const uint8_t *bytes, size_t at, size_t size)
{
    uint64_t value = 0;

    while (size-- > 0)
        value = value << 8 | bytes[at + size];
    return value;
}

static inline bool all_are(const void *output, uint8_t value, size_t size)
{
    const uint8_t *bytes = output;

    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* What an output is full of before a call. */
enum { UNTOUCHED = 0x5a };

/* The same, of a call that has refused its input: that needs a text, and writes no output. */
static inline bool is_taken(bool taken, const void *output, size_t size)
{
    PROMISE(taken || (*error_text() != '\0' && all_are(output, UNTOUCHED, size)));
    return taken;
}

/* A block of exactly `wanted` bytes, so that ASan sees a read beyond the end; zeros behind `size`.
 */
static inline uint8_t *exact(const uint8_t *data, size_t size, size_t wanted)
{
    uint8_t *bytes = calloc(1, wanted > 0 ? wanted : 1);

    PROMISE(bytes != NULL);
    if (size > 0)
        memcpy(bytes, data, size < wanted ? size : wanted);
    return bytes;
}

#endif
