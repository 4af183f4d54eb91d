/* Loads the plugin in a child, which writes what it found into a pipe. */
#include "tools/plugin_probe.h"

#include "base/clock.h"
#include "plugin_host/plugin_host.h"
#include "tools/child.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { PATIENCE_MS = 10000 };

static void probe_describe(const struct import_plugin *plugin, FILE *out)
{
    fprintf(out, "%s, table version %d, %d device%s:", plugin->table.name, plugin->table.version,
            plugin->devices, plugin->devices == 1 ? "" : "s");
    for (int i = 0; i < plugin->devices; i++) {
        struct net_properties_v12 properties;

        if (bounded_properties(plugin, i, &properties) != TCPX_SUCCESS)
            fprintf(out, "%s device %d (%s)", i > 0 ? "," : "", i, error_text());
        else
            fprintf(out, "%s %s (%d Mbit/s)", i > 0 ? "," : "", properties.name, properties.speed);
    }
}

static int probe_load(void *argument, int to_parent)
{
    const struct plugin_probe *probe = argument;
    const struct import_plugin *plugin;
    FILE *out = fdopen(to_parent, "w");
    int result = import_open(probe->path, &plugin);

    if (out == NULL)
        return 1;
    if (result == TCPX_SUCCESS)
        probe_describe(plugin, out);
    else
        fprintf(out, "%s", error_text());
    fclose(out);
    return result == TCPX_SUCCESS ? 0 : 1;
}

static void try_in_child(struct plugin_probe *probe)
{
    struct child child;
    bool in_time;
    int status;

    if (child_start(probe_load, probe, &child) != TCPX_SUCCESS) {
        snprintf(probe->text, sizeof probe->text, "%s", error_text());
        return;
    }
    in_time = child_read(&child, probe->text, sizeof probe->text - 1,
                         deadline_after_ms(PATIENCE_MS)) >= 0;
    status = child_end(&child, !in_time);
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
