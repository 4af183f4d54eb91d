/* What fuzz targets share that read bytes a second time, to know what must be accepted. */
#ifndef TCPX_TESTS_FUZZ_SECOND_READING_H
#define TCPX_TESTS_FUZZ_SECOND_READING_H

#include "tests/fuzz/promise.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Little endian. */
static inline uint64_t number(const uint8_t *bytes, size_t at, size_t size)
{
    uint64_t value = 0;

    while (size-- > 0)
        value = value << 8 | bytes[at + size];
    return value;
}

/* What an output is full of before a call that must not write it. */
enum { UNTOUCHED = 0x5a };

static inline bool all_are(const void *output, uint8_t value, size_t size)
{
    const uint8_t *bytes = output;

    for (size_t i = 0; i < size; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* A block of exactly `wanted` bytes, so that ASan sees a read beyond the end; zeros behind `size`.
 */
static inline uint8_t *exact(const uint8_t *data, size_t size, size_t wanted)
{
    uint8_t *bytes = calloc(1, wanted > 0 ? wanted : 1);

    PROMISE(bytes != NULL);
    memcpy(bytes, data, size < wanted ? size : wanted);
    return bytes;
}

#endif
