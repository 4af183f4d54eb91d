/*
 * A bar on standard error, drawn at most some times a second: how much of all sizes is done, how
 * fast the size at hand goes and how long the rest may take. When it is cleared, its line is free
 * again for other output.
 */
#include "base/clock.h"
#include "tools/perf_side.h"

#include <stdio.h>
#include <string.h>

enum { BAR_WIDTH = 30, BAR_LINE = 79, BAR_PAUSE_NS = 100000000 };

/* A guess of how long a size takes, in s, where --time does not say it: an iteration and its bytes.
 */
static double effort_of(const struct perf_plan *plan, unsigned number)
{
    static const double each = 1e-4;
    static const double rate = 1e9;
    double iterations = (double)perf_iterations_of(plan, plan->sizes[number]);

    if (plan->time_ms != 0)
        return (double)plan->time_ms * 1e-3;
    return iterations * (each + (double)plan->sizes[number] / rate);
}

/* From 0 to 1. */
static double part_of_size(const struct perf_plan *plan, const struct perf_size *size)
{
    double part = plan->time_ms != 0
                      ? (double)size->timed_ns / ((double)plan->time_ms * 1e6)
                      : (double)size->counted / (double)perf_iterations_of(plan, size->bytes);

    return part < 1 ? part : 1;
}

static double part_done(const struct perf_side *side, unsigned number)
{
    double all = 0;
    double done = 0;

    for (unsigned i = 0; i < side->plan.size_count; i++) {
        double effort = effort_of(&side->plan, i);

        all += effort;
        done += i < number    ? effort
                : i == number ? effort * part_of_size(&side->plan, &side->at_hand)
                              : 0;
    }
    return done / all;
}

static double rate_of(const struct perf_side *side)
{
    const struct perf_size *size = &side->at_hand;

    return size->latest_ns > 0 ? (double)size->bytes / (double)size->latest_ns : 0;
}

void perf_bar_show(struct perf_side *side, unsigned number)
{
    uint64_t now = clock_now();
    double done = part_done(side, number);
    double passed = (double)(now - side->bar.began) * 1e-9;
    char bar[BAR_WIDTH + 1];
    char size[24];
    char rate[PERF_NAME];

    if (!side->end->progress || now - side->bar.shown_at < BAR_PAUSE_NS)
        return;
    side->bar.shown_at = now;
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)(done * BAR_WIDTH));
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%9s [%s] %3.0f %%  %8s GB/s", perf_size_name(side->at_hand.bytes, size), bar,
            done * 100, perf_number(rate_of(side), rate));
    if (done > 0.01)
        fprintf(stderr, "  %4.0f s left", passed / done * (1 - done));
}

void perf_bar_clear(struct perf_side *side)
{
    if (side->bar.shown_at != 0)
        fprintf(stderr, "\r%*s\r", BAR_LINE, "");
    side->bar.shown_at = 0;
}
