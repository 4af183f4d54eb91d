/*
 * Plots of a measurement as SVG inside an HTML page; perf_html.c has the styles of their classes.
 * Exact values are in titles, which browsers show under the pointer.
 */
#ifndef TCPX_TOOLS_PERF_PLOT_H
#define TCPX_TOOLS_PERF_PLOT_H

#include "tools/perf_report.h"

/* The lines of the latency plot; the page's legend has the same. */
enum { PERF_LINES = 4 };

struct perf_line {
    const char *name;
    const char *style; /* its class */
};

extern const struct perf_line perf_line_list[PERF_LINES];

/* False: none of the sizes has a value for it. */
bool perf_plot_has_line(const struct perf_result *result, unsigned line);

/* Against size, for two sizes or more. */
void perf_plot_rates(FILE *out, const struct perf_result *result);
void perf_plot_times(FILE *out, const struct perf_result *result);
void perf_plot_stages(FILE *out, const struct perf_result *result);

/* Bars, for a single size. */
void perf_plot_one_times(FILE *out, const struct perf_row *row);
void perf_plot_one_stages(FILE *out, const struct perf_row *row);

#endif
