/*
 * Which network plugin the library works through: the file that UCCL_TCPX_PLUGIN_PATH names, else
 * the one at the usual place of installation, else none, and that means the built-in transport.
 */
#ifndef TCPX_PLUGIN_HOST_LOADER_H
#define TCPX_PLUGIN_HOST_LOADER_H

#include "plugin_host/plugin.h"

enum { IMPORT_PATH_BYTES = 256 };

/* Where Google's plugin is installed. */
#define IMPORT_USUAL_PATH "/usr/local/tcpx/lib64/libnccl-net-tcpx.so"

/* *builtin: there is no file, and `path` is empty. A file that the environment names must exist. */
MUST_CHECK int import_choose(char path[IMPORT_PATH_BYTES], bool *builtin);

/*
 * Loads and starts a plugin, once for each file: a second start is an error with some. It stays
 * loaded, since its threads and exit handlers may outlive every use of it. What it needs in the
 * environment and the user has not set is set, and logged.
 */
MUST_CHECK int import_open(const char *path, const struct import_plugin **plugin);

/*
 * Opens a file; "builtin", the built-in transport, which is called through a table too; or, with
 * NULL, what import_choose() chooses.
 */
MUST_CHECK int import_open_named(const char *name, const struct import_plugin **plugin);

/* Fails with a text for a number that is none of its devices. */
MUST_CHECK int import_check_device(const struct import_plugin *plugin, int device);

bool import_is_builtin(const struct import_plugin *plugin);

/* Whether it takes GPU memory at all: only our own transport knows emulated GPUs. */
MUST_CHECK int import_reaches_gpus(const struct import_plugin *plugin, bool *reaches);

#endif
