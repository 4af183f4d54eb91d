/*
 * A comm: one direction of messages between two processes, over the sockets of a link. Sends and
 * receives are requests; at most COMM_REQUESTS are in flight, or as many as the link says, and then
 * the answer is "busy". Only net_wait() waits: isend, irecv and test move the comm's sockets on as
 * far as that goes now, but a receive so small that its message may come unannounced is announced
 * with the next call. Such a call moves at most 2 MiB over a socket, by at most 64 system calls,
 * once or twice; a receive whose message has come first also copies that, up to the credit that the
 * link gives to such messages (8 MiB, usually). I/O threads (net/io/io.h) help with large messages,
 * and take over when no call has come for a while.
 *
 * A failure of the comm is told once by each of its requests, with the peer and what had been
 * moved; other comms do not notice. Calls on one comm may come from several threads.
 */
#ifndef TCPX_NET_COMM_COMM_H
#define TCPX_NET_COMM_COMM_H

#include "net/comm/stages.h"
#include "net/link/link.h"

enum { COMM_REQUESTS = 32 };

struct net_comm;
struct net_request;

enum net_side { NET_SENDER, NET_RECEIVER };

/*
 * Takes the link's sockets over, and closes them if it fails. net_comm_create() (net/transport.h)
 * is this, and prepares the comm for device memory if the link receives into it.
 */
MUST_CHECK int comm_create(const struct net_link *link, enum net_side side, struct net_comm **comm);

/*
 * *request is NULL if the comm is busy: nothing was started, try again after some progress. The
 * buffer belongs to the request until test says done or fails.
 */
MUST_CHECK int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
                         struct net_request **request);

/* `room`: of the buffer. A longer message is TCPX_INVALID_USAGE, and not one byte is written. */
MUST_CHECK int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
                         struct net_request **request);

struct net_memory;

/* What must have been reached on the GPU before a send reads its data. */
enum net_after {
    NET_AFTER_NOTHING, /* whatever wrote the data has been waited for by the caller */
    NET_AFTER_STREAM,  /* all that is on the caller's stream now: a CUstream */
    NET_AFTER_EVENT,   /* the caller's event, a CUevent, as it was last recorded */
};

/* Where a message is, or goes. */
struct net_buffer {
    void *data;                /* in GPU memory: the device address */
    uint64_t bytes;            /* of the message; of the room */
    struct net_memory *memory; /* NULL: host memory */
    enum net_after after;      /* sends from GPU memory */
    void *after_what;
};

/*
 * The same for any memory. A send from GPU memory goes out when its receive is posted, however
 * small it is. A receive into GPU memory is done when its bytes are there for all work that is
 * started afterwards.
 */
MUST_CHECK int net_isend_buffer(struct net_comm *comm, const struct net_buffer *buffer,
                                uint64_t tag, struct net_request **request);
MUST_CHECK int net_irecv_buffer(struct net_comm *comm, const struct net_buffer *buffer,
                                uint64_t tag, struct net_request **request);

/* The caller has unpacked a receive that is done, on a comm with an unpack queue. */
MUST_CHECK int net_consumed(struct net_request *request);

/*
 * When done, `bytes` is the length of the message, and the request is gone; a failure ends it too.
 * A send that is done may be followed by close and exit: its bytes arrive.
 */
MUST_CHECK int net_test(struct net_request *request, bool *done, uint64_t *bytes);

/*
 * The same for a receive into GPU memory, but done as soon as the caller's stream, a CUstream, has
 * been made to wait for the rest: its bytes are there for work that is put on the stream from now
 * on, and for no one else yet. A stream that cannot be made to wait fails the request, once nothing
 * is written to its memory any more.
 */
MUST_CHECK int net_test_on_stream(struct net_request *request, void *stream, bool *done,
                                  uint64_t *bytes);

/*
 * The same, but waits until the request has ended or the deadline, a moment of base/clock.h, has
 * passed; then *done is false, and the request goes on.
 */
MUST_CHECK int net_wait(struct net_request *request, uint64_t deadline, bool *done,
                        uint64_t *bytes);

/* Whether I/O threads move it on while no call does: none may have been possible to start. */
bool net_has_threads(const struct net_comm *comm);

/* Whether what it receives arrives in device memory, by devmem TCP. */
bool net_receives_by_devmem(const struct net_comm *comm);

/* How long its stages were at work up to now. */
void net_get_stages(struct net_comm *comm, struct stage_times *times);

/* Ends the comm and all of its requests without waiting for the peer. NULL is allowed. */
void net_comm_close(struct net_comm *comm);

#endif
