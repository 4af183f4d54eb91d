/*
 * A channel: one direction of a session, over a comm of whichever transport there is. It carries
 * chunks in order, a bounded number at once; the built-in one also carries whole messages, which
 * session/whole.c posts itself.
 */
#ifndef TCPX_SESSION_CHANNEL_H
#define TCPX_SESSION_CHANNEL_H

#include "net/transport.h"
#include "plugin_host/plugin_host.h"
#include "unpack/unpack.h"

/*
 * The most whole messages in flight; beyond it, the order in which the two sides post them matters.
 * Besides, a comm has room for the chunks, and for all accesses of both sides.
 */
enum { CHANNEL_MESSAGES = 4096, CHANNEL_REQUESTS = CHANNEL_MESSAGES + 128 + 2 * NET_PLACES };

/* A comm of a plugin or of the built-in transport. */
struct channel {
    struct import_comm *plugin;
    struct net_comm *builtin;
    char nic[IFNAMSIZ]; /* that a connected one of the built-in transport leaves through */
};

struct channel_memory {
    struct import_memory *plugin;
    struct net_memory *builtin;
};

/* An import_request or a net_request. */
typedef void *channel_request;

/* --- making ---------------------------------------------------------------------------------- */

struct channel_listener {
    struct import_listener *plugin;
    struct net_listener *builtin;
};

/* Of the built-in transport. */
struct channel_devices {
    struct net_device list[NET_DEVICES_MOST];
    int count;
    int all;         /* with spare ones */
    bool no_kernels; /* as in net_link_options */
};

/*
 * `plugin`: NULL for the built-in transport, whose devices these are; they stay until the channels
 * are made. `number`: which device. `gpu`: whose memory will be received into; -1: host memory
 * only.
 */
MUST_CHECK int channel_listen(const struct import_plugin *plugin,
                              const struct channel_devices *devices, int number, int gpu,
                              uint8_t handle[NET_TABLE_HANDLE_BYTES],
                              struct channel_listener *listener);
/* *there: whether the channel was made; if not, call again. */
MUST_CHECK int channel_accept(struct channel_listener *listener, struct channel *channel,
                              bool *there);
/* `deadline`: half of the time until then is enough to find a path that works. */
MUST_CHECK int channel_connect(const struct import_plugin *plugin,
                               const struct channel_devices *devices, int number, uint64_t deadline,
                               uint8_t handle[NET_TABLE_HANDLE_BYTES], struct channel *channel,
                               bool *there);
/* What channel_connect() waits for, for texts; "": not known. */
void channel_connect_describe(const struct import_plugin *plugin,
                              const uint8_t handle[NET_TABLE_HANDLE_BYTES], char *text,
                              size_t size);
/* channel_connect() is not called for it again. */
void channel_connect_cancel(const struct import_plugin *plugin,
                            uint8_t handle[NET_TABLE_HANDLE_BYTES]);
void channel_listener_close(struct channel_listener *listener);

/* The caller knows that what was sent has arrived, or does not need it any more. */
void channel_close(struct channel *channel);

/* --- using ----------------------------------------------------------------------------------- */

/* Host memory of the built-in transport needs none; `memory` is then zero. */
MUST_CHECK int channel_register(struct channel *channel, void *data, uint64_t bytes, bool on_gpu,
                                struct channel_memory *memory);
void channel_deregister(struct channel *channel, struct channel_memory *memory);

/* A send or a receive. *request is NULL: busy. */
MUST_CHECK int channel_post(struct channel *channel, bool sends, void *data, uint64_t bytes,
                            const struct channel_memory *memory, channel_request *request);

/* *bytes is IMPORT_BYTES_UNSAID where a plugin does not report it. */
MUST_CHECK int channel_test(struct channel *channel, channel_request request, bool *done,
                            uint64_t *bytes);

/* The fragments of a completed receive that have to be unpacked; count 0: none. */
MUST_CHECK int channel_received(struct channel *channel, channel_request request,
                                struct unpack_list *received);
MUST_CHECK int channel_consumed(struct channel *channel, channel_request request);

#endif
