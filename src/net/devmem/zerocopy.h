/*
 * Sends of one socket whose bytes the kernel takes from where they lie, until the peer has them. It
 * counts such sends, and tells by their numbers, on the socket's error queue, which are over.
 */
#ifndef TCPX_NET_DEVMEM_ZEROCOPY_H
#define TCPX_NET_DEVMEM_ZEROCOPY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { ZEROCOPY_MOST = 256 };

struct zerocopy_flight {
    void *owner;
    uint64_t bytes;
    bool over;
};

/* All zero for a fresh socket. Numbers are the kernel's: from 0, and they wrap. */
struct zerocopy {
    struct zerocopy_flight flights[ZEROCOPY_MOST];
    uint32_t oldest; /* that has not been taken out */
    uint32_t next;
};

/* Before the first send. */
MUST_CHECK int zerocopy_allow(int socket);

bool zerocopy_has_room(const struct zerocopy *sends);
bool zerocopy_is_flying(const struct zerocopy *sends);
/* Bytes of this owner in sends that have not been taken out. */
uint64_t zerocopy_bytes_of(const struct zerocopy *sends, const void *owner);

/* A sendmsg() with MSG_ZEROCOPY has taken that many bytes. */
void zerocopy_began(struct zerocopy *sends, void *owner, uint64_t bytes);

/* Reads what the socket tells, without waiting. */
MUST_CHECK int zerocopy_hear(struct zerocopy *sends, int socket);

/* Sends `first` to `last`, both included, are over; false: they have not all been made. */
MUST_CHECK bool zerocopy_ended(struct zerocopy *sends, uint32_t first, uint32_t last);

/* Whether the oldest one is over. */
bool zerocopy_has_news(const struct zerocopy *sends);

/* Takes the oldest one out, if it is over; false: it is not, or there is none. */
bool zerocopy_take(struct zerocopy *sends, void **owner, uint64_t *bytes);

#endif
