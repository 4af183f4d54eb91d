/* The table of what particular plugins need. */
#include "import/quirks.h"

#include "base/log.h"
#include "base/parse.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct import_quirks table[] = {
    {
        .plugin = "GPUDirectTCPX",
        .variable = "NCCL_DYNAMIC_CHUNK_SIZE", /* without it: chunks of 0 bytes for ever */
        .value = "524288",
        .state_at = 80,
        .state_bytes = 8,
        .sockets_at = 36,
        /* 2048 fragments of a page each, if an MTU of 1500 fills a third of it */
        .longest = 2 << 20,
        .raises_sigpipe = true,
        .one_peer = true,
        .linger_ms = 500,
    },
};

static const struct import_quirks none = {.plugin = NULL};

const struct import_quirks *import_quirks_of(const char *plugin)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncmp(plugin, table[i].plugin, strlen(table[i].plugin)) == 0)
            return &table[i];
    return &none;
}

int import_quirks_complete_environment(const struct import_quirks *quirks, const char *plugin)
{
    if (quirks->variable == NULL || getenv(quirks->variable) != NULL)
        return TCPX_SUCCESS;
    if (setenv(quirks->variable, quirks->value, 0) != 0)
        return error_system(errno, "cannot set %s for %s", quirks->variable, plugin);
    log_tcpx("%s=%s set for %s", quirks->variable, quirks->value, plugin);
    return TCPX_SUCCESS;
}

/* What the plugin works with: the user's value, if it is a number. */
static uint64_t chunk_bytes(const struct import_quirks *quirks)
{
    const char *set = getenv(quirks->variable);
    uint64_t bytes = 0;

    if (set == NULL || !parse_number(set, &bytes) || bytes == 0)
        parse_number(quirks->value, &bytes);
    return bytes;
}

size_t import_quirks_longest(const struct import_quirks *quirks, const uint8_t *handle)
{
    enum { MOST_SOCKETS = 8 };
    size_t longest = quirks->longest != 0 ? quirks->longest : SIZE_MAX;
    uint64_t bytes;
    int32_t sockets;

    if (quirks->sockets_at == 0)
        return longest;
    memcpy(&sockets, handle + quirks->sockets_at, sizeof sockets);
    if (sockets < 1 || sockets > MOST_SOCKETS)
        sockets = 1;
    bytes = chunk_bytes(quirks);
    return bytes < longest / (size_t)sockets ? bytes * (size_t)sockets : longest;
}

static sigset_t only_sigpipe(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
}

static bool is_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

void import_guard_begin(const struct import_quirks *quirks, struct import_guard *guard)
{
    const sigset_t set = only_sigpipe();
    sigset_t before;

    *guard = (struct import_guard){.is_on = false};
    if (!quirks->raises_sigpipe || pthread_sigmask(SIG_BLOCK, &set, &before) != 0)
        return;
    guard->is_on = true;
    guard->was_blocked = sigismember(&before, SIGPIPE) == 1;
    guard->was_pending = is_pending();
}

/* One that was there before is the program's own. */
void import_guard_end(const struct import_guard *guard)
{
    const struct timespec at_once = {0};
    const sigset_t set = only_sigpipe();

    if (!guard->is_on)
        return;
    if (!guard->was_pending && is_pending())
        sigtimedwait(&set, NULL, &at_once);
    if (!guard->was_blocked)
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
