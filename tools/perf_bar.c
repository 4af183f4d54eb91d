/*
 * A bar on standard error, drawn at most some times a second. When it is cleared, its line is free
 * again for other output.
 */
#include "base/clock.h"
#include "tools/perf_side.h"

#include <stdio.h>
#include <string.h>

enum { BAR_WIDTH = 40, BAR_PAUSE_NS = 100000000 };

void perf_bar_show(struct perf_side *side, const char *what, uint64_t done, uint64_t all)
{
    uint64_t now = clock_now();
    int filled = (int)(done * BAR_WIDTH / all);
    char bar[BAR_WIDTH + 1];

    if (!side->end->progress || now - side->shown_at < BAR_PAUSE_NS)
        return;
    side->shown_at = now;
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)filled);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%10s [%s] %3d %%", what, bar, filled * 100 / BAR_WIDTH);
}

void perf_bar_clear(const struct perf_side *side)
{
    if (side->shown_at != 0)
        fprintf(stderr, "\r%*s\r", BAR_WIDTH + 20, "");
}
