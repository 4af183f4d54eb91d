/* Rate and latency against size, as lines. */
#include "tools/perf_plot.h"
#include "tools/perf_svg.h"

enum { LEFT = 60, RIGHT = 936, TOP = 34, BOTTOM = 320, HEIGHT = 346, LABEL_APART = 16 };

const struct perf_line perf_line_list[PERF_LINES] = {
    {"p99.9", "c-p999"}, {"p99", "c-p99"}, {"median", "c-median"}, {"min", "c-min"}};

/* What all lines of a plot have in common. */
struct plot {
    FILE *out;
    unsigned count;
    const struct perf_row *rows[PERF_MOST_SIZES];
    double x[PERF_MOST_SIZES];
    struct perf_scale y;
};

static double plot_line_value(const struct perf_row *row, unsigned line)
{
    return line == 0   ? perf_p999(row)
           : line == 1 ? perf_p99(row)
           : line == 2 ? row->median_us
                       : row->least_us;
}

/* --- axes --- */

/* Places the rows, and draws the axis. */
static void plot_sizes(struct plot *plot)
{
    bool zero = plot->rows[0]->bytes == 0;
    uint64_t least = 0;
    struct perf_scale scale;

    for (unsigned i = 0; i < plot->count && least == 0; i++)
        least = plot->rows[i]->bytes;
    scale = perf_scale_sizes(least, plot->rows[plot->count - 1]->bytes, zero, LEFT, RIGHT);
    for (unsigned i = 0; i < plot->count; i++)
        plot->x[i] = perf_scale_at(&scale, (double)plot->rows[i]->bytes);
    for (unsigned i = 0; i < scale.tick_count; i++) {
        double x = perf_scale_at(&scale, scale.ticks[i]);
        char text[PERF_NAME];

        svg_line(plot->out, x, BOTTOM, x, BOTTOM + 5, "axis");
        svg_text(plot->out, x, BOTTOM + 21, "tick middle", "%s",
                 perf_amount_name(scale.ticks[i], text));
    }
    svg_line(plot->out, LEFT, BOTTOM, RIGHT, BOTTOM, "axis");
}

static void plot_time_tick(double us, char text[PERF_NAME])
{
    if (us < 0.9999 && us >= 0.000999)
        snprintf(text, PERF_NAME, "%g ns", us * 1e3);
    else if (us >= 999999)
        snprintf(text, PERF_NAME, "%g s", us / 1e6);
    else if (us >= 999.9)
        snprintf(text, PERF_NAME, "%g ms", us / 1e3);
    else
        snprintf(text, PERF_NAME, "%g µs", us);
}

static void plot_y_axis(const struct plot *plot, bool times)
{
    for (unsigned i = 0; i < plot->y.tick_count; i++) {
        double y = perf_scale_at(&plot->y, plot->y.ticks[i]);
        char text[PERF_NAME];

        if (times)
            plot_time_tick(plot->y.ticks[i], text);
        else
            snprintf(text, sizeof text, "%g", plot->y.ticks[i]);
        svg_line(plot->out, LEFT, y, RIGHT, y, "grid");
        svg_text(plot->out, LEFT - 10, y + 4, "tick end", "%s", text);
    }
}

/* --- what lies on them --- */

/* Invisible columns round the points, so that the pointer need not hit one. */
static void plot_hover(const struct plot *plot, bool times)
{
    for (unsigned i = 0; i < plot->count; i++) {
        const struct perf_row *row = plot->rows[i];
        double left = i > 0 ? (plot->x[i - 1] + plot->x[i]) / 2 : LEFT;
        double right = i + 1 < plot->count ? (plot->x[i] + plot->x[i + 1]) / 2 : RIGHT;
        char size[24];
        char text[PERF_NAME];

        svg_bar_begin(plot->out, left, TOP, right - left, BOTTOM - TOP, "hover");
        fprintf(plot->out, "%s, %llu iterations", perf_size_name(row->bytes, size),
                (unsigned long long)row->iterations);
        if (!times)
            fprintf(plot->out, "\n%s GB/s", perf_number(row->gigabytes_per_second, text));
        for (unsigned line = 0; times && line < PERF_LINES; line++)
            fprintf(plot->out, "\n%s %s", perf_line_list[line].name,
                    perf_time_name(plot_line_value(row, line), text));
        svg_bar_end(plot->out);
    }
}

static void plot_point(const struct plot *plot, unsigned i, double value, const char *style)
{
    fprintf(plot->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"%s dot\"/>\n", plot->x[i],
            perf_scale_at(&plot->y, value), style);
}

/* A line through what is known; where nothing is, it has a gap. */
static void plot_line(const struct plot *plot, const double values[], const char *style)
{
    bool drawing = false;

    fprintf(plot->out, "<path class=\"%s line\" d=\"", style);
    for (unsigned i = 0; i < plot->count; i++) {
        if (perf_known(values[i]))
            fprintf(plot->out, "%s%.1f %.1f", drawing ? " L" : " M", plot->x[i],
                    perf_scale_at(&plot->y, values[i]));
        drawing = perf_known(values[i]);
    }
    fprintf(plot->out, "\"/>\n");
    for (unsigned i = 0; i < plot->count; i++)
        if (perf_known(values[i]))
            plot_point(plot, i, values[i], style);
}

/* --- the rate --- */

static unsigned plot_best(const struct plot *plot, const double values[])
{
    unsigned best = 0;

    for (unsigned i = 1; i < plot->count; i++)
        if (perf_known(values[i]) && (!perf_known(values[best]) || values[i] > values[best]))
            best = i;
    return best;
}

/* Beside the best point, where no line is: above it, and inside the plot. */
static void plot_best_label(const struct plot *plot, unsigned best, double value)
{
    double x = plot->x[best];
    double y = perf_scale_at(&plot->y, value);
    char text[PERF_NAME];

    fprintf(plot->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5.5\" class=\"c-rate ring\"/>\n", x, y);
    svg_text(plot->out, x < LEFT + 50 ? LEFT + 4 : x, y - 13,
             x < LEFT + 50 ? "value start" : "value middle", "%s GB/s", perf_number(value, text));
}

static void plot_area(const struct plot *plot, const double values[])
{
    fprintf(plot->out, "<path class=\"c-rate area\" d=\"M%.1f %d", plot->x[0], BOTTOM);
    for (unsigned i = 0; i < plot->count; i++)
        fprintf(plot->out, " L%.1f %.1f", plot->x[i], perf_scale_at(&plot->y, values[i]));
    fprintf(plot->out, " L%.1f %d Z\"/>\n", plot->x[plot->count - 1], BOTTOM);
}

void perf_plot_rates(FILE *out, const struct perf_result *result)
{
    struct plot plot = {.out = out};
    double values[PERF_MOST_SIZES] = {0};
    unsigned best;

    plot.count = svg_sorted(result, plot.rows);
    for (unsigned i = 0; i < plot.count; i++)
        values[i] = plot.rows[i]->gigabytes_per_second;
    best = plot_best(&plot, values);
    plot.y = perf_scale_linear(values[best], BOTTOM, TOP);
    svg_begin(out, HEIGHT, "Rate against size");
    plot_y_axis(&plot, false);
    svg_text(out, LEFT - 10, TOP - 20, "tick end", "GB/s");
    plot_sizes(&plot);
    plot_area(&plot, values);
    plot_line(&plot, values, "c-rate");
    if (perf_known(values[best]))
        plot_best_label(&plot, best, values[best]);
    plot_hover(&plot, false);
    svg_end(out);
}

/* --- latency --- */

static void plot_time_scale(struct plot *plot)
{
    double least = 0;
    double most = 0;

    for (unsigned i = 0; i < plot->count; i++) {
        for (unsigned line = 0; line < PERF_LINES; line++) {
            double value = plot_line_value(plot->rows[i], line);

            if (!perf_known(value) || value == 0)
                continue;
            least = least == 0 || value < least ? value : least;
            most = value > most ? value : most;
        }
    }
    plot->y = perf_scale_decades(least, most, BOTTOM, TOP);
}

/* The number of rows up to the last one that has a value; 0: none has. */
static unsigned plot_line_end(const struct plot *plot, unsigned line)
{
    unsigned end = plot->count;

    while (end > 0 && !perf_known(plot_line_value(plot->rows[end - 1], line)))
        end--;
    return end;
}

static void plot_name(const struct plot *plot, unsigned line, double x, double y, const char *side)
{
    fprintf(plot->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s name %s\">%s</text>\n", x, y,
            perf_line_list[line].style, side, perf_line_list[line].name);
}

/*
 * Each line has its name at its end: beside the last points, apart from each other, or above the
 * end of a line that stops before the others.
 */
static void plot_line_names(const struct plot *plot)
{
    double above = BOTTOM + LABEL_APART; /* the highest name so far, from the lowest line up */

    for (unsigned line = PERF_LINES; line-- > 0;) {
        unsigned end = plot_line_end(plot, line);
        double x = end > 0 ? plot->x[end - 1] : 0;
        double y;

        if (end == 0)
            continue;
        y = perf_scale_at(&plot->y, plot_line_value(plot->rows[end - 1], line)) + 4;
        if (end == plot->count) {
            above = y < above - LABEL_APART ? y : above - LABEL_APART;
            plot_name(plot, line, x + 12, above, "start");
        } else if (x < LEFT + 50) {
            plot_name(plot, line, x + 8, y, "start");
        } else {
            plot_name(plot, line, x - 2, y - 14, "end");
        }
    }
}

bool perf_plot_has_line(const struct perf_result *result, unsigned line)
{
    for (unsigned i = 0; i < result->row_count; i++)
        if (perf_known(plot_line_value(&result->rows[i], line)))
            return true;
    return false;
}

void perf_plot_times(FILE *out, const struct perf_result *result)
{
    struct plot plot = {.out = out};

    plot.count = svg_sorted(result, plot.rows);
    plot_time_scale(&plot);
    svg_begin(out, HEIGHT, "Latency against size");
    plot_y_axis(&plot, true);
    plot_sizes(&plot);
    for (unsigned line = 0; line < PERF_LINES; line++) {
        double values[PERF_MOST_SIZES] = {0};

        for (unsigned i = 0; i < plot.count; i++)
            values[i] = plot_line_value(plot.rows[i], line);
        plot_line(&plot, values, perf_line_list[line].style);
    }
    plot_line_names(&plot);
    plot_hover(&plot, true);
    svg_end(out);
}
