/*
 * A comm: one direction of messages between two processes, over the sockets of a link. Sends and
 * receives are requests; at most COMM_REQUESTS are in flight, and then the answer is "busy". Only
 * net_wait() waits: isend, irecv and test move the comm's sockets on as far as that goes now, but a
 * receive so small that its message may come unannounced is announced with the next call. I/O
 * threads (net/io.h) help with large messages, and take over when no call has come for a while.
 *
 * A failure of the comm is told once by each of its requests, with the peer and what had been
 * moved; other comms do not notice. Calls on one comm may come from several threads.
 */
#ifndef TCPX_NET_COMM_H
#define TCPX_NET_COMM_H

#include "net/link.h"

enum { COMM_REQUESTS = 32 };

struct net_comm;
struct net_request;

enum net_side { NET_SENDER, NET_RECEIVER };

/* Takes the link's sockets over, and closes them if it fails. */
MUST_CHECK int net_comm_create(const struct net_link *link, enum net_side side,
                               struct net_comm **comm);

/*
 * *request is NULL if the comm is busy: nothing was started, try again after some progress. The
 * buffer belongs to the request until test says done or fails.
 */
MUST_CHECK int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
                         struct net_request **request);

/* `room`: of the buffer. A longer message is TCPX_INVALID_USAGE, and not one byte is written. */
MUST_CHECK int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
                         struct net_request **request);

/*
 * When done, `bytes` is the length of the message, and the request is gone; a failure ends it too.
 * A send that is done may be followed by close and exit: its bytes arrive.
 */
MUST_CHECK int net_test(struct net_request *request, bool *done, uint64_t *bytes);

/*
 * The same, but waits until the request has ended or the deadline, a moment of base/clock.h, has
 * passed; then *done is false, and the request goes on.
 */
MUST_CHECK int net_wait(struct net_request *request, uint64_t deadline, bool *done,
                        uint64_t *bytes);

/* Ends the comm and all of its requests without waiting for the peer. NULL is allowed. */
void net_comm_close(struct net_comm *comm);

#endif
