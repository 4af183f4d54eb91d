/* One line of standard error, drawn again and again. */
#include "tools/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 40, PAUSE_NS = 100000000 };

bool progress_possible(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void progress_show(struct progress *progress, const char *what, uint64_t done, uint64_t all)
{
    uint64_t now = clock_now();
    int filled = all != 0 ? (int)(done * WIDTH / all) : WIDTH;
    char bar[WIDTH + 1];

    if (!progress->shown || now - progress->printed_at < PAUSE_NS)
        return;
    progress->printed_at = now;
    memset(bar, ' ', WIDTH);
    memset(bar, '=', (size_t)filled);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%10s [%s] %3d %%", what, bar, filled * 100 / WIDTH);
}

void progress_clear(struct progress *progress)
{
    if (progress->shown && progress->printed_at != 0)
        fprintf(stderr, "\r%*s\r", WIDTH + 20, "");
    progress->printed_at = 0;
}
