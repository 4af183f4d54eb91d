/* Numbers of what was measured. */
#ifndef TCPX_BENCH_NUMBERS_H
#define TCPX_BENCH_NUMBERS_H

#include <stdlib.h>

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts them; the median is at 0.5. Between two of them it is as far as between their places. */
static inline double sorted_at(double *values, int count, double part)
{
    double place = part * (count - 1);
    int below = (int)place;
    int above = below + 1 < count ? below + 1 : below;

    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[below] + (place - below) * (values[above] - values[below]);
}

#endif
