/*
 * What particular plugins need and do not say, by the beginning of their name. Whoever uses a
 * plugin through import/comm.h does not notice.
 */
#ifndef TCPX_IMPORT_QUIRKS_H
#define TCPX_IMPORT_QUIRKS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct import_quirks {
    const char *plugin; /* how its name begins; NULL: any other */

    const char *variable; /* it does not work without this in its environment */
    const char *value;

    /*
     * Bytes of a handle in which it keeps a pointer of its own while it connects, and that it
     * follows if they are not 0: those of a peer must not get there.
     */
    size_t state_at;
    size_t state_bytes;

    /*
     * A request that is longer than `variable` says times the number of its sockets, an int32_t
     * here in the handle, loses bounce memory for ever; 0: there is no such limit.
     */
    size_t sockets_at;
    size_t longest; /* a longer one may be cut into more fragments than it can note, and ends the
                       process; 0: there is no such limit */

    bool raises_sigpipe;
    bool one_peer;      /* for each listener */
    unsigned linger_ms; /* what was sent is lost if its comm is closed sooner */
};

/* Never NULL. */
const struct import_quirks *import_quirks_of(const char *plugin);

/* Sets what it needs and the user has not set, and logs that. */
MUST_CHECK int import_quirks_complete_environment(const struct import_quirks *quirks,
                                                  const char *plugin);

/* How long a request may be on a comm with this handle. */
size_t import_quirks_longest(const struct import_quirks *quirks, const uint8_t *handle);

/* Around each call of a plugin: keeps its SIGPIPE from the process, and from threads it starts. */
struct import_guard {
    bool is_on;
    bool was_pending;
    bool was_blocked;
};
void import_guard_begin(const struct import_quirks *quirks, struct import_guard *guard);
void import_guard_end(const struct import_guard *guard);

#endif
