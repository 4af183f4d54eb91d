/*
 * Network plugins, of others and ours, all with the same behaviour. The one that the library works
 * through is the file that UCCL_TCPX_PLUGIN_PATH names, else the one at the usual place of
 * installation, else none, and that means the built-in transport.
 *
 * A comm of a plugin is one direction, with messages in order, at most IMPORT_REQUESTS of them in
 * flight. Differences between plugins are handled here: only a plugin's oldest request is tested,
 * receives are consumed in order, one thread at a time calls it for each comm, it is given nothing
 * that it would lose or not survive, and what it publishes is checked before it is used. Nothing
 * here waits, except for a plugin's call that does not return: that is an error after
 * UCCL_TCPX_TIMEOUT_MS (bounded.h). Several threads may call on one comm.
 */
#ifndef TCPX_PLUGIN_HOST_PLUGIN_HOST_H
#define TCPX_PLUGIN_HOST_PLUGIN_HOST_H

#include "plugin_host/table.h"

enum { IMPORT_REQUESTS = 16 }; /* in flight on one comm, at most */

/* A plugin that is loaded: what its table is, what it needs, and what it has found. */
struct import_plugin {
    const char *path; /* "builtin": there is no file */
    const struct import_quirks *quirks;
    struct import_table table;
    int devices;
    size_t longest; /* request that it can be given */
};

struct import_listener;
struct import_comm;
struct import_memory;
struct import_request;
struct unpack_list;

/* --- loader.c: which plugin ------------------------------------------------------------------ */

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

/* A number that no device has is refused with a text. */
MUST_CHECK int import_check_device(const struct import_plugin *plugin, int device);

bool import_is_builtin(const struct import_plugin *plugin);

/* Whether it takes GPU memory at all: only our own transport knows emulated GPUs. */
MUST_CHECK int import_reaches_gpus(const struct import_plugin *plugin, bool *reaches);

/* --- bounded.c ------------------------------------------------------------------------------- */

MUST_CHECK int bounded_properties(const struct import_plugin *plugin, int device,
                                  struct net_properties_v12 *properties);

/* --- connection.c: listen and accept on one side, connect on the other ----------------------- */

/* Plugins work with the GPU that is current in the calling thread. */
MUST_CHECK int import_comm_listen(const struct import_plugin *plugin, int device,
                                  uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                  struct import_listener **listener);

/* *comm is NULL: not yet. Serves as many peers as the plugin does. */
MUST_CHECK int import_comm_accept(struct import_listener *listener, struct import_comm **comm);
MUST_CHECK int import_listener_close(struct import_listener *listener);

/*
 * *comm is NULL: not yet; call again with the same handle. The handle is not written to: the plugin
 * gets a copy of it for each attempt. An attempt is found by the address and the bytes of its
 * handle, and is forgotten when it ends.
 */
MUST_CHECK int import_comm_connect(const struct import_plugin *plugin, int device,
                                   const uint8_t handle[NET_TABLE_HANDLE_BYTES],
                                   struct import_comm **comm);

/* The caller will not call again for this attempt. */
void import_comm_connect_forget(const struct import_plugin *plugin,
                                const uint8_t handle[NET_TABLE_HANDLE_BYTES]);

/*
 * With its requests and memories. `delivered`: the caller knows that what was sent has arrived;
 * otherwise the connections stay open for a while where the plugin would lose it (held.h).
 */
MUST_CHECK int import_comm_close(struct import_comm *comm, bool delivered);

/* What does not change while the comm is there. */
struct import_comm_facts {
    size_t longest; /* message */
    bool unpacks;   /* receives into GPU memory have to be unpacked */
    bool steered;   /* receives into GPU memory only: into host memory takes more copies */
    const struct net_device_handle *on_gpu; /* that accept returned, for the caller's own kernels */
};
struct import_comm_facts import_comm_facts(const struct import_comm *comm);

/* --- memory.c -------------------------------------------------------------------------------- */

/*
 * `type`: NET_POINTER_HOST or NET_POINTER_CUDA. A call that does not return loses the comm: all its
 * requests fail.
 */
MUST_CHECK int import_comm_register(struct import_comm *comm, void *data, size_t bytes, int type,
                                    struct import_memory **memory);
MUST_CHECK int import_comm_deregister(struct import_comm *comm, struct import_memory *memory);

/* --- request.c ------------------------------------------------------------------------------- */

/* *request is NULL: busy. `memory` may be NULL only over our own transport, for host memory. */
MUST_CHECK int import_comm_isend(struct import_comm *comm, void *data, size_t bytes, int tag,
                                 struct import_memory *memory, struct import_request **request);
MUST_CHECK int import_comm_irecv(struct import_comm *comm, void *data, size_t room, int tag,
                                 struct import_memory *memory, struct import_request **request);

/*
 * A request that is done or has failed is gone, but a receive that has to be unpacked lives until
 * it is consumed. *bytes is IMPORT_BYTES_UNSAID where the plugin does not report it.
 */
MUST_CHECK int import_request_test(struct import_request *request, bool *done, uint64_t *bytes);

/* Of a receive that is done: what has to be unpacked; a count of 0: nothing. */
MUST_CHECK int import_request_received(const struct import_request *request,
                                       struct unpack_list *received);

/* In any order; without effect for one that is gone. */
MUST_CHECK int import_request_consumed(struct import_request *request);

#endif
