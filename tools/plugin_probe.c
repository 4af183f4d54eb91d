/* Loads the plugin in a child, which writes what it found into a pipe. */
#include "tools/plugin_probe.h"

#include "base/clock.h"
#include "import/loader.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

static void describe(const struct import_plugin *plugin, FILE *out)
{
    fprintf(out, "%s, table version %d, %d device%s:", plugin->table.name, plugin->table.version,
            plugin->devices, plugin->devices == 1 ? "" : "s");
    for (int i = 0; i < plugin->devices; i++) {
        struct net_properties_v12 properties;

        if (import_properties(&plugin->table, i, &properties) != TCPX_SUCCESS)
            fprintf(out, "%s device %d (%s)", i > 0 ? "," : "", i, error_text());
        else
            fprintf(out, "%s %s (%d Mbit/s)", i > 0 ? "," : "", properties.name, properties.speed);
    }
}

static void run_child(const char *path, int to_parent)
{
    const struct import_plugin *plugin;
    FILE *out = fdopen(to_parent, "w");
    int result = import_open(path, &plugin);

    if (out == NULL)
        _exit(1);
    if (result == TCPX_SUCCESS)
        describe(plugin, out);
    else
        fprintf(out, "%s", error_text());
    fclose(out);
    _exit(result == TCPX_SUCCESS ? 0 : 1);
}

/* Until the child has closed its end, or is too late. */
static bool read_all(int from_child, char *text, size_t room)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    size_t have = 0;

    while (!deadline_passed(deadline)) {
        struct pollfd readable = {.fd = from_child, .events = POLLIN};
        ssize_t got;

        if (poll(&readable, 1, 100) <= 0)
            continue;
        got = read(from_child, text + have, room - 1 - have);
        if (got <= 0)
            return got == 0;
        have += (size_t)got;
        text[have] = '\0';
        if (have == room - 1)
            return true;
    }
    return false;
}

static void try_in_child(struct plugin_probe *probe)
{
    int ends[2];
    int status = 0;
    pid_t child;
    bool in_time;

    if (pipe(ends) != 0) {
        snprintf(probe->text, sizeof probe->text, "pipe: %s", strerror(errno));
        return;
    }
    fflush(stdout);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        run_child(probe->path, ends[1]);
    }
    close(ends[1]);
    in_time = child > 0 && read_all(ends[0], probe->text, sizeof probe->text);
    close(ends[0]);
    if (child < 0) {
        snprintf(probe->text, sizeof probe->text, "fork: %s", strerror(errno));
        return;
    }
    if (!in_time)
        kill(child, SIGKILL);
    if (waitpid(child, &status, 0) != child)
        status = 1;
    probe->works = in_time && status == 0;
    if (!in_time)
        snprintf(probe->text, sizeof probe->text, "it did not start within %d ms", PATIENCE_MS);
    else if (WIFSIGNALED(status))
        snprintf(probe->text, sizeof probe->text, "it crashed: %s", strsignal(WTERMSIG(status)));
    else if (*probe->text == '\0')
        snprintf(probe->text, sizeof probe->text, "it ended the process with status %d",
                 WEXITSTATUS(status));
}

int plugin_probe(struct plugin_probe *probe)
{
    int result;

    *probe = (struct plugin_probe){0};
    result = import_choose(probe->path, &probe->builtin);
    if (result != TCPX_SUCCESS)
        return result;
    if (probe->builtin)
        probe->works = true;
    else
        try_in_child(probe);
    return TCPX_SUCCESS;
}
