/*
 * What particular plugins need without documenting it, by the beginning of their name. Callers of
 * plugin_host/plugin_host.h need not know of it.
 */
#ifndef TCPX_PLUGIN_HOST_QUIRKS_H
#define TCPX_PLUGIN_HOST_QUIRKS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct import_quirks {
    const char *plugin; /* how its name begins; NULL: any other */

    /*
     * A number of bytes in the environment: how it cuts requests into chunks. It does not work
     * without one. A request of more than one chunk loses bounce memory for ever as soon as two of
     * its chunks meet on one socket.
     */
    const char *variable;
    const char *value;

    /*
     * Bytes of a handle in which it keeps a pointer of its own while it connects, and that it
     * follows if they are not 0: those of a peer must not get there.
     */
    size_t state_at;
    size_t state_bytes;

    /* The number of its sockets in the handle, an int32_t: it does not survive a wrong one. */
    size_t sockets_at;
    int most_sockets; /* 0: the handle has no such number */

    /* The addresses in the handle that a sender connects to, struct sockaddr_in or sockaddr_in6. */
    size_t data_at;
    size_t control_at;

    size_t longest; /* a longer request may be cut into more fragments than it can note, and ends
                       the process; 0: there is no such limit */

    bool raises_sigpipe;
    bool one_peer;       /* for each listener */
    bool steers;         /* its sockets, where it has an unpack queue: into GPU memory only */
    bool overruns;       /* host memory, where a message is longer than its receive */
    bool needs_pci_path; /* of the NIC, to register GPU memory; it crashes without */
    bool loses_at_close; /* what was sent and the peer has not looked at yet */
    unsigned linger_ms;  /* to wait before such a close if its connections cannot be found */
};

/* Never NULL. */
const struct import_quirks *import_quirks_of(const char *plugin);

/*
 * Sets what it needs and the user has not set, and logs that: *was_set is false then. A value that
 * the plugin would read as another number, or cannot work with, is refused. `longest`: how long a
 * request may be.
 */
MUST_CHECK int import_quirks_prepare(const struct import_quirks *quirks, const char *plugin,
                                     size_t *longest, bool *was_set);

/* Whether the plugin survives this handle of a peer. */
MUST_CHECK int import_quirks_check_handle(const struct import_quirks *quirks, const char *plugin,
                                          const uint8_t *handle);

/* Around each call of a plugin: keeps its SIGPIPE from the process, and from threads it starts. */
struct import_guard {
    bool is_on;
    bool was_pending;
    bool was_blocked;
};
void import_guard_begin(const struct import_quirks *quirks, struct import_guard *guard);
void import_guard_end(const struct import_guard *guard);

#endif
