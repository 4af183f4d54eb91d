/* The parts that plots are made of. Nothing here escapes: texts come from our own tables. */
#ifndef TCPX_TOOLS_PERF_SVG_H
#define TCPX_TOOLS_PERF_SVG_H

#include "tools/perf_report.h"
#include "tools/perf_scale.h"

enum { SVG_WIDTH = 1000 };

void svg_begin(FILE *out, unsigned height, const char *label);
void svg_end(FILE *out);

/* `style`: one or more classes; "start", "middle" or "end" also say where the text lies. */
void svg_text(FILE *out, double x, double y, const char *style, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *style);

/* A rectangle; between the two its title is to be printed. */
void svg_bar_begin(FILE *out, double x, double y, double width, double height, const char *style);
void svg_bar_end(FILE *out);

/* The rows in the order of their sizes. */
unsigned svg_sorted(const struct perf_result *result, const struct perf_row *rows[PERF_MOST_SIZES]);

#endif
