/*
 * What a text may be that is shown or sent: a second reading of base/text.h, by the grammar of
 * RFC 3629.
 */
#ifndef TCPX_TESTS_SHOWN_H
#define TCPX_TESTS_SHOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool shown_within(const uint8_t *bytes, size_t left, const uint8_t (*ranges)[2],
                                size_t count)
{
    if (left < count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (bytes[i] < ranges[i][0] || bytes[i] > ranges[i][1])
            return false;
    return true;
}

/* How many bytes the first character has; 0: it may not be shown. */
static inline size_t shown_character(const uint8_t *bytes, size_t left)
{
    static const struct {
        size_t count;
        uint8_t ranges[4][2];
    } forms[] = {
        {1, {{0x20, 0x7e}}},
        {2, {{0xc2, 0xc2}, {0xa0, 0xbf}}},
        {2, {{0xc3, 0xdf}, {0x80, 0xbf}}},
        {3, {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}},
        {3, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {3, {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}},
        {3, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}},
    };

    if (left >= 3 && bytes[0] == 0xe2 &&
        ((bytes[1] == 0x80 && bytes[2] >= 0xa8 && bytes[2] <= 0xae) ||
         (bytes[1] == 0x81 && bytes[2] >= 0xa6 && bytes[2] <= 0xa9)))
        return 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (shown_within(bytes, left, forms[i].ranges, forms[i].count))
            return forms[i].count;
    return 0;
}

static inline bool is_shown(const void *text, size_t length)
{
    const uint8_t *bytes = text;
    size_t one = 1;

    for (size_t at = 0; at < length && one > 0; at += one)
        one = shown_character(bytes + at, length - at);
    return one > 0;
}

#endif
