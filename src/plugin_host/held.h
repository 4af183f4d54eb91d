/*
 * Connections of closed senders that stay open. A plugin may report what its peer has sent as lost
 * when it finds the end of the control connection behind it. So the connections of such a sender
 * are kept until its peer has closed them, or UCCL_TCPX_TIMEOUT_MS has passed: the peer can take
 * what was sent until then. No call here waits, but held_wait_at_exit() does.
 */
#ifndef TCPX_PLUGIN_HOST_HELD_H
#define TCPX_PLUGIN_HOST_HELD_H

#include "plugin_host/quirks.h"

/*
 * Keeps the connections to the addresses in `handle` open although the plugin is about to close
 * them. False: they were not found, or cannot be kept.
 */
bool held_keep(const struct import_quirks *quirks, const uint8_t *handle);

/* How many connections are kept: for tests. */
unsigned held_count(void);

/* The process ends, and its connections with it: gives the peers HELD_EXIT_MS. */
enum { HELD_EXIT_MS = 5000 };
void held_wait_at_exit(void);

#endif
