/* Spans of time in nanoseconds, and what of them is shown: microseconds. */
#ifndef TCPX_TOOLS_SPANS_H
#define TCPX_TOOLS_SPANS_H

#include <stdint.h>
#include <stdlib.h>

static inline int spans_compare(const void *left, const void *right)
{
    const uint64_t *a = left;
    const uint64_t *b = right;

    return (*a > *b) - (*a < *b);
}

static inline void spans_sort(uint64_t *spans, uint64_t count)
{
    qsort(spans, count, sizeof *spans, spans_compare);
}

/* The smallest that at least this many in a thousand do not exceed. */
static inline double spans_percentile_us(const uint64_t *sorted, uint64_t count,
                                         unsigned thousandths)
{
    uint64_t rank = (count * thousandths + 999) / 1000;

    return (double)sorted[rank > 0 ? rank - 1 : 0] * 1e-3;
}

#endif
