/*
 * Bars: where the time went, size by size, and all there is to show of a single size. Stages go on
 * at the same time, so they stand beside each other and are never stacked.
 */
#include "tools/perf_plot.h"
#include "tools/perf_svg.h"

enum {
    PANELS_A_ROW = 3,
    PANEL_LEFT = 48,
    PANEL_WIDTH = 274,
    PANEL_APART = 334, /* from one's left end to the next one's */
    PANEL_TOP = 34,
    PANEL_HEIGHT = 120,
    PANEL_BELOW = 206, /* from one's top to that of the next below */
    PANEL_LABELS = 4,
    BAR_LEFT = 190, /* of a single size's bars */
    BAR_RIGHT = 720,
    BAR_HEIGHT = 18,
    BAR_APART = 34,
    MOST_PERCENT = 1000, /* bars of more are cut off; their title still says how much */
};

struct panels {
    FILE *out;
    unsigned count;
    const struct perf_row *rows[PERF_MOST_SIZES];
    double most_percent;
};

static const char *bar_style(unsigned stage)
{
    return !perf_stage_list[stage].waits
               ? perf_stage_list[stage].of_sender ? "c-sender" : "c-receiver"
           : perf_stage_list[stage].of_sender ? "c-sender waits"
                                              : "c-receiver waits";
}

static void bar_title(FILE *out, const struct perf_row *row, unsigned stage)
{
    double percent = perf_stage_percent(row, stage);
    double rate = perf_stage_rate(row, stage);
    char size[24];
    char text[PERF_NAME];

    fprintf(out, "%s, %s: %s", perf_size_name(row->bytes, size), perf_stage_list[stage].name,
            perf_time_name(perf_stage_us(row, stage), text));
    if (perf_known(percent))
        fprintf(out, ", %s %% of the median", perf_percent(percent, text));
    if (perf_known(rate))
        fprintf(out, ", %s GB/s", perf_number(rate, text));
}

/* --- one panel per stage --- */

static void panel_axes(const struct panels *panels, double left, double top,
                       const struct perf_scale *y)
{
    double slot = (double)PANEL_WIDTH / panels->count;
    unsigned step = (panels->count + PANEL_LABELS - 1) / PANEL_LABELS;

    for (unsigned i = 0; i < y->tick_count; i++) {
        double at = perf_scale_at(y, y->ticks[i]);

        svg_line(panels->out, left, at, left + PANEL_WIDTH, at, i == 0 ? "axis" : "grid");
        svg_text(panels->out, left - 8, at + 4, "tick end", "%g %%", y->ticks[i]);
    }
    for (unsigned i = 0; i < panels->count; i += step) {
        char text[PERF_NAME];

        svg_text(panels->out, left + (i + 0.5) * slot, top + PANEL_HEIGHT + 18, "tick middle", "%s",
                 perf_amount_name((double)panels->rows[i]->bytes, text));
    }
}

static void panel_bars(const struct panels *panels, unsigned stage, double left,
                       const struct perf_scale *y)
{
    double slot = (double)PANEL_WIDTH / panels->count;
    double bottom = perf_scale_at(y, 0);
    double width = slot * 0.72 < 36 ? slot * 0.72 : 36;

    for (unsigned i = 0; i < panels->count; i++) {
        double top = perf_scale_at(y, perf_stage_percent(panels->rows[i], stage));

        svg_bar_begin(panels->out, left + i * slot + (slot - width) / 2, top, width, bottom - top,
                      bar_style(stage));
        bar_title(panels->out, panels->rows[i], stage);
        svg_bar_end(panels->out);
        svg_bar_begin(panels->out, left + i * slot, bottom - PANEL_HEIGHT, slot, PANEL_HEIGHT,
                      "hover");
        bar_title(panels->out, panels->rows[i], stage);
        svg_bar_end(panels->out);
    }
}

static bool stage_is_used(const struct panels *panels, unsigned stage)
{
    for (unsigned i = 0; i < panels->count; i++)
        if (perf_stage_us(panels->rows[i], stage) > 0)
            return true;
    return false;
}

static void draw_panel(const struct panels *panels, unsigned stage)
{
    unsigned column = stage % PANELS_A_ROW;
    unsigned row = stage / PANELS_A_ROW;
    double left = PANEL_LEFT + column * PANEL_APART;
    double top = PANEL_TOP + row * PANEL_BELOW;
    struct perf_scale y = perf_scale_linear(panels->most_percent, top + PANEL_HEIGHT, top);

    svg_text(panels->out, left, top - 16, "heading start", "%s: %s",
             perf_stage_list[stage].of_sender ? "Sender" : "Receiver", perf_stage_list[stage].name);
    panel_axes(panels, left, top, &y);
    if (stage_is_used(panels, stage))
        panel_bars(panels, stage, left, &y);
    else
        svg_text(panels->out, left + PANEL_WIDTH / 2.0, top + PANEL_HEIGHT / 2.0 + 4, "none middle",
                 "nothing of this kind");
}

void perf_plot_stages(FILE *out, const struct perf_result *result)
{
    struct panels panels = {.out = out, .most_percent = 100};

    panels.count = svg_sorted(result, panels.rows);
    for (unsigned i = 0; i < panels.count * PERF_STAGE_COUNT; i++) {
        double percent =
            perf_stage_percent(panels.rows[i / PERF_STAGE_COUNT], i % PERF_STAGE_COUNT);

        if (percent > panels.most_percent)
            panels.most_percent = percent < MOST_PERCENT ? percent : MOST_PERCENT;
    }
    svg_begin(out, 2 * PANEL_BELOW - 16, "Time of each stage against size");
    for (unsigned stage = 0; stage < PERF_STAGE_COUNT; stage++)
        draw_panel(&panels, stage);
    svg_end(out);
}

/* --- a single size --- */

static void one_bar_name(FILE *out, double y, const char *name)
{
    svg_text(out, BAR_LEFT - 14, y + BAR_HEIGHT / 2.0 + 4, "label end", "%s", name);
}

struct one_time {
    const char *name;
    const char *style;
    double us;
    const char *unknown; /* what is said instead of a value */
};

static void one_time(FILE *out, const struct one_time *bar, double y, const struct perf_scale *x)
{
    double end = perf_scale_at(x, bar->us);
    double middle = y + BAR_HEIGHT / 2.0 + 4;
    char text[PERF_NAME];

    one_bar_name(out, y, bar->name);
    if (!perf_known(bar->us)) {
        svg_text(out, BAR_LEFT + 2, middle, "label start", "%s", bar->unknown);
        return;
    }
    svg_bar_begin(out, BAR_LEFT, y, end - BAR_LEFT, BAR_HEIGHT, bar->style);
    fprintf(out, "%s %s", bar->name, perf_time_name(bar->us, text));
    svg_bar_end(out);
    svg_text(out, end + 10, middle, "value start", "%s", perf_time_name(bar->us, text));
}

void perf_plot_one_times(FILE *out, const struct perf_row *row)
{
    const struct one_time bars[] = {
        {"min", "c-min", row->least_us, "not measured"},
        {"median", "c-median", row->median_us, "not measured"},
        {"mean", "c-min", row->mean_us, "not measured"},
        {"p99", "c-p99", perf_p99(row), "fewer than 100 iterations"},
        {"p99.9", "c-p999", perf_p999(row), "fewer than 1000 iterations"},
        {"max", "c-max", row->most_us, "not measured"},
    };
    enum { BARS = sizeof bars / sizeof bars[0] };
    struct perf_scale x;
    double most = 0;

    for (unsigned i = 0; i < BARS; i++)
        most = perf_known(bars[i].us) && bars[i].us > most ? bars[i].us : most;
    x = perf_scale_linear(most, BAR_LEFT, BAR_RIGHT);
    /* there are no ticks, so the longest bar takes all the room */
    x.high = most > 0 && most < x.high ? most : x.high;
    svg_begin(out, BARS * BAR_APART, "Latency");
    for (unsigned i = 0; i < BARS; i++)
        one_time(out, &bars[i], i * BAR_APART + 8, &x);
    svg_end(out);
}

static void one_stage(FILE *out, const struct perf_row *row, unsigned stage, double y,
                      const struct perf_scale *x)
{
    double percent = perf_stage_percent(row, stage);
    double end = perf_scale_at(x, percent);
    double rate = perf_stage_rate(row, stage);
    double middle = y + BAR_HEIGHT / 2.0 + 4;
    char text[PERF_NAME];

    one_bar_name(out, y, perf_stage_list[stage].name);
    svg_bar_begin(out, BAR_LEFT, y, end - BAR_LEFT, BAR_HEIGHT, bar_style(stage));
    bar_title(out, row, stage);
    svg_bar_end(out);
    if (perf_known(percent))
        svg_text(out, BAR_RIGHT + 78, middle, "value end", "%s %%", perf_percent(percent, text));
    svg_text(out, BAR_RIGHT + 170, middle, "label end", "%s",
             perf_time_name(perf_stage_us(row, stage), text));
    if (perf_known(rate))
        svg_text(out, SVG_WIDTH - 4, middle, "label end", "%s GB/s", perf_number(rate, text));
}

void perf_plot_one_stages(FILE *out, const struct perf_row *row)
{
    double most = 100;
    double bottom = 40 + PERF_STAGE_COUNT * BAR_APART + 14;
    struct perf_scale x;

    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        most = perf_stage_percent(row, i) > most ? perf_stage_percent(row, i) : most;
    x = perf_scale_linear(most < MOST_PERCENT ? most : MOST_PERCENT, BAR_LEFT, BAR_RIGHT);
    svg_begin(out, (unsigned)bottom + 8, "Time of each stage");
    for (unsigned i = 0; i < x.tick_count; i++) {
        double at = perf_scale_at(&x, x.ticks[i]);

        svg_line(out, at, 24, at, bottom, i == 0 ? "axis" : "grid");
        svg_text(out, at, 14, "tick middle", "%g %%", x.ticks[i]);
    }
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++) {
        double y = 36 + i * BAR_APART + (perf_stage_list[i].of_sender ? 0 : 14);

        if (i == 0 || perf_stage_list[i].of_sender != perf_stage_list[i - 1].of_sender)
            svg_text(out, 0, y + BAR_HEIGHT / 2.0 + 4, "heading start", "%s",
                     perf_stage_list[i].of_sender ? "Sender" : "Receiver");
        one_stage(out, row, i, y, &x);
    }
    svg_end(out);
}
