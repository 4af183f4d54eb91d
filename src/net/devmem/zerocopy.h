/*
 * Zero-copy sends of one socket: the kernel reads the bytes where they lie, until the peer has
 * acknowledged them. It numbers such sends, and reports their completions by number on the socket's
 * error queue.
 */
#ifndef TCPX_NET_DEVMEM_ZEROCOPY_H
#define TCPX_NET_DEVMEM_ZEROCOPY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { ZEROCOPY_MOST = 256 };

struct zerocopy_send {
    void *owner;
    uint64_t bytes;
    bool completed;
};

/* All zero for a fresh socket. Numbers are the kernel's: from 0, and they wrap. */
struct zerocopy {
    struct zerocopy_send ring[ZEROCOPY_MOST];
    uint32_t oldest; /* that zerocopy_take() has not returned */
    uint32_t next;   /* number of the next send */
};

/* Called before the first send. */
MUST_CHECK int zerocopy_allow(int socket);

/* Whether one more send can be in flight. */
bool zerocopy_has_room(const struct zerocopy *sends);

/* Whether there is a send that zerocopy_take() has not returned. */
bool zerocopy_in_flight(const struct zerocopy *sends);

/* Bytes of this owner in such sends. */
uint64_t zerocopy_bytes_of(const struct zerocopy *sends, const void *owner);

/* A sendmsg() with MSG_ZEROCOPY has taken that many bytes. */
void zerocopy_started(struct zerocopy *sends, void *owner, uint64_t bytes);

/* Reads the completions that have arrived, without waiting. */
MUST_CHECK int zerocopy_poll(struct zerocopy *sends, int socket);

/* Sends `first` to `last`, both included, have completed; false: not all of them are in flight. */
MUST_CHECK bool zerocopy_complete(struct zerocopy *sends, uint32_t first, uint32_t last);

/* Whether the oldest one has completed. */
bool zerocopy_has_completed(const struct zerocopy *sends);

/* Removes the oldest one, if it has completed; false: it has not, or there is none. */
bool zerocopy_take(struct zerocopy *sends, void **owner, uint64_t *bytes);

#endif
