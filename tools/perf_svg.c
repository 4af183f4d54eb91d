/* The parts that plots are made of. */
#include "tools/perf_svg.h"

#include <stdarg.h>

void svg_begin(FILE *out, unsigned height, const char *label)
{
    fprintf(out, "<div class=\"plot\"><svg viewBox=\"0 0 %d %u\" role=\"img\" aria-label=\"%s\">\n",
            SVG_WIDTH, height, label);
}

void svg_end(FILE *out)
{
    fprintf(out, "</svg></div>\n");
}

void svg_text(FILE *out, double x, double y, const char *style, const char *format, ...)
{
    va_list arguments;

    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fprintf(out, "</text>\n");
}

void svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *style)
{
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1,
            x2, y2, style);
}

void svg_bar_begin(FILE *out, double x, double y, double width, double height, const char *style)
{
    fprintf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"%s\"><title>",
            x, y, width > 0 ? width : 0, height > 0 ? height : 0, style);
}

void svg_bar_end(FILE *out)
{
    fprintf(out, "</title></rect>\n");
}

unsigned svg_sorted(const struct perf_result *result, const struct perf_row *rows[PERF_MOST_SIZES])
{
    unsigned count = 0;

    for (unsigned i = 0; i < result->row_count; i++) {
        unsigned at = count++;

        for (; at > 0 && rows[at - 1]->bytes > result->rows[i].bytes; at--)
            rows[at] = rows[at - 1];
        rows[at] = &result->rows[i];
    }
    return count;
}
