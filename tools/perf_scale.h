/*
 * From values to places on a plot: linear and logarithmic scales with ticks at round values. Any
 * number has a place inside the scale's range; values that are equal, zero or huge do not break it.
 */
#ifndef TCPX_TOOLS_PERF_SCALE_H
#define TCPX_TOOLS_PERF_SCALE_H

#include <stdbool.h>
#include <stdint.h>

enum { PERF_MOST_TICKS = 80 };

struct perf_scale {
    bool logarithmic;
    double low; /* of a logarithmic one these are logarithms to base 2 */
    double high;
    double from; /* where these are, in pixels */
    double to;
    unsigned tick_count;
    double ticks[PERF_MOST_TICKS]; /* values */
};

/* 0 to at least `most`, in steps of 1, 2 or 5 times a power of ten. */
struct perf_scale perf_scale_linear(double most, double from, double to);

/* Powers of ten, and 2 and 5 times these where there are few. */
struct perf_scale perf_scale_decades(double least, double most, double from, double to);

/* Powers of two, for sizes; 0 has a place of its own at the low end. */
struct perf_scale perf_scale_sizes(uint64_t least, uint64_t most, bool zero, double from,
                                   double to);

double perf_scale_at(const struct perf_scale *scale, double value);

#endif
