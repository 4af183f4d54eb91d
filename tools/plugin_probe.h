/* What network plugin the library would use, tried out in a process of its own. */
#ifndef TCPX_TOOLS_PLUGIN_PROBE_H
#define TCPX_TOOLS_PLUGIN_PROBE_H

#include <stdbool.h>

struct plugin_probe {
    bool builtin;
    char path[256];
    bool works;
    char text[1024]; /* its name, table and devices; or what went wrong */
};

/*
 * Some plugins end the process that they fail in, and some hang. Comes before anything that does
 * not survive fork(). Fails only if the variable that names a plugin does.
 */
int plugin_probe(struct plugin_probe *probe);

#endif
