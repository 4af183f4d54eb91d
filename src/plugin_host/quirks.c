/* The table of what particular plugins need. */
#include "plugin_host/quirks.h"

#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct import_quirks table[] = {
    {
        .plugin = "GPUDirectTCPX",
        .variable = "NCCL_DYNAMIC_CHUNK_SIZE", /* without it: chunks of 0 bytes for ever */
        .value = "524288",
        .state_at = 80,
        .state_bytes = 8,
        .sockets_at = 36,
        .most_sockets = 8,
        .data_at = 0,
        .control_at = 48,
        /* 2048 fragments of a page each, if an MTU of 1500 fills a third of it */
        .longest = 2 << 20,
        .raises_sigpipe = true,
        .one_peer = true,
        .steers = true,
        .overruns = true,
        .needs_pci_path = true,
        .loses_at_close = true,
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

/* --- the environment ----------------------------------------------------------------------- */

/*
 * Other threads may be reading the environment, ours and the program's, and setenv() may free the
 * array that they read. Here they find the old one or the new one, and neither is ever freed.
 */
static int extend_environment(const char *name, const char *value)
{
    static char **extended; /* found here by leak checkers, whatever the program does to environ */
    size_t name_bytes = strlen(name);
    size_t count = 0;
    size_t kept = 0;
    char *entry;

    while (environ != NULL && environ[count] != NULL)
        count++;
    extended = malloc((count + 2) * sizeof *extended);
    if (extended == NULL || asprintf(&entry, "%s=%s", name, value) < 0)
        return error_system(ENOMEM, "cannot set %s", name);
    for (size_t i = 0; i < count; i++) /* it may be there, and empty */
        if (strncmp(environ[i], entry, name_bytes + 1) != 0)
            extended[kept++] = environ[i];
    extended[kept++] = entry;
    extended[kept] = NULL;
    __atomic_store_n(&environ, extended, __ATOMIC_RELEASE);
    return TCPX_SUCCESS;
}

static int set_quirk_variable(const struct import_quirks *quirks, const char *plugin)
{
    int result = extend_environment(quirks->variable, quirks->value);

    if (result != TCPX_SUCCESS)
        return result;
    log_tcpx("%s=%s set for %s", quirks->variable, quirks->value, plugin);
    return TCPX_SUCCESS;
}

/* By the plugin's own rule, which takes as much of a text as is a number and does not complain. */
static int read_quirk_variable(const struct import_quirks *quirks, const char *plugin,
                               const char *text, long long *value)
{
    const long long most = 1 << 30;
    char *end;

    *value = strtoll(text, &end, 0);
    if (end != text && *end == '\0' && *value >= 1 && *value <= most)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_USAGE,
                     "%s=%s: %s reads that as %lld; it takes a plain number of bytes from 1 to "
                     "%lld, such as %s",
                     quirks->variable, text, plugin, *value, most, quirks->value);
}

int import_quirks_prepare(const struct import_quirks *quirks, const char *plugin, size_t *longest,
                          bool *was_set)
{
    const char *text = quirks->variable != NULL ? getenv(quirks->variable) : NULL;
    size_t most = quirks->longest != 0 ? quirks->longest : SIZE_MAX;
    long long chunk = 0;
    int result = TCPX_SUCCESS;

    *was_set = quirks->variable == NULL || (text != NULL && *text != '\0');
    if (!*was_set) {
        result = set_quirk_variable(quirks, plugin);
        text = quirks->value;
    }
    if (result == TCPX_SUCCESS && text != NULL)
        result = read_quirk_variable(quirks, plugin, text, &chunk);
    if (result != TCPX_SUCCESS)
        return result;
    *longest = text != NULL && (size_t)chunk < most ? (size_t)chunk : most;
    return TCPX_SUCCESS;
}

/* --- handles ------------------------------------------------------------------------------- */

int import_quirks_check_handle(const struct import_quirks *quirks, const char *plugin,
                               const uint8_t *handle)
{
    int32_t sockets;

    if (quirks->most_sockets == 0)
        return TCPX_SUCCESS;
    memcpy(&sockets, handle + quirks->sockets_at, sizeof sockets);
    if (sockets >= 1 && sockets <= quirks->most_sockets)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT, "this is not a handle of %s: it has %d sockets", plugin,
                     (int)sockets);
}

/* --- signals ------------------------------------------------------------------------------- */

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
