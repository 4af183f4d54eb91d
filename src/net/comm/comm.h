/*
 * A comm: one direction of messages between two processes, over the sockets of a link. Sends and
 * receives are requests. At most COMM_REQUESTS, or the link's number, are in flight; then isend and
 * irecv report "busy". Only net_wait() waits. I/O
 * threads (net/io/io.h) own the sockets and move the bytes; isend sends small messages itself, and
 * test only looks. Without I/O threads, or with few CPUs, isend, irecv and test move bytes as far
 * as is possible now: one call moves at most 2 MiB over a socket, in at most 64 system calls, once
 * or twice. A receive whose message is unexpected copies it, up to the eager credit of the link
 * (usually 8 MiB).
 *
 * Each request of a failed comm reports the failure once, with the peer and how much had been
 * moved; other comms are not affected. Several threads may call on one comm.
 */
#ifndef TCPX_NET_COMM_COMM_H
#define TCPX_NET_COMM_COMM_H

#include "net/comm/stages.h"
#include "net/link/link.h"

enum { COMM_REQUESTS = 32 };

struct io_task;
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
 * buffer belongs to the request until test reports done or a failure.
 */
MUST_CHECK int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
                         struct net_request **request);

/* `room`: of the buffer. A longer message is TCPX_INVALID_USAGE, and not one byte is written. */
MUST_CHECK int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
                         struct net_request **request);

struct net_memory;

/* What must have been reached on the GPU before a send reads its data. */
enum net_after {
    NET_AFTER_NOTHING, /* nothing: the caller has waited for the data */
    NET_AFTER_STREAM,  /* everything on the caller's stream now, a CUstream */
    NET_AFTER_EVENT,   /* the caller's event, a CUevent, as it was last recorded */
};

/* One of several ranges that are a message, in their order. */
struct net_part {
    void *data;
    uint64_t bytes;  /* may be 0 */
    uint64_t offset; /* in the message: the sum of the bytes of those before it */
};

/*
 * Where a message is, or goes. The other end need not cut it into the same parts, or into any. The
 * array belongs to the request as long as the memory does; all parts are in the memory that
 * `memory` says.
 */
struct net_buffer {
    void *data;                   /* in GPU memory: the device address */
    uint64_t bytes;               /* of the message; of the room */
    struct net_memory *memory;    /* NULL: host memory */
    const struct net_part *parts; /* instead of `data`, with the sum of their bytes; NULL: none */
    uint32_t part_count;
    enum net_after after; /* sends from GPU memory */
    void *after_what;
};

/*
 * isend and irecv for any memory. A send from GPU memory is sent when its receive is posted,
 * however small it is. A receive into GPU memory is done when its bytes are visible to all work
 * that is started afterwards.
 */
MUST_CHECK int net_isend_buffer(struct net_comm *comm, const struct net_buffer *buffer,
                                uint64_t tag, struct net_request **request);
MUST_CHECK int net_irecv_buffer(struct net_comm *comm, const struct net_buffer *buffer,
                                uint64_t tag, struct net_request **request);

/*
 * A place: a send and a receive of exactly these bytes, at least one, which both sides know by a
 * number, so that nothing has to be announced. Numbers below NET_OPEN_PLACE count up from 1, and
 * wrap to 1; their receives are posted in this order, at most NET_PLACES of them late: bytes that
 * come before wait in their socket. From NET_OPEN_PLACE on, the receive is posted before the send
 * begins, and the number is any that is free. Only where messages match by tag. A send that is
 * cancelled ends its receive with TCPX_CANCELLED, not the other way round; if all of its bytes had
 * been given to the sockets, both are done instead. Without memory (`data`
 * and `parts` NULL) both have been cancelled from the beginning: the receive discards, and the send
 * ends its receive. A place is tested when net_next_ended() has handed out its owner, and not
 * before.
 */
#define NET_OPEN_PLACE WIRE_PLACE_IS_OPEN
enum { NET_PLACES = WIRE_MOST_PLACES };

MUST_CHECK int net_isend_place(struct net_comm *comm, const struct net_buffer *buffer,
                               uint32_t place, void *owner, struct net_request **request);
MUST_CHECK int net_irecv_place(struct net_comm *comm, const struct net_buffer *buffer,
                               uint32_t place, void *owner, struct net_request **request);

/*
 * The owner of a place whose request has ended, each once, in the order of their ends; NULL: none.
 * Where there are no I/O threads, it moves the comm on.
 */
void *net_next_ended(struct net_comm *comm);

/* Whether another place can begin: the comm is not busy. */
bool net_has_room(struct net_comm *comm);

/*
 * Whether records or bytes wait for its sockets, also of sends that have ended: without I/O threads
 * they go only when the comm is moved on.
 */
bool net_has_unsent(struct net_comm *comm);

/* The caller has unpacked a receive that is done, on a comm with an unpack queue. */
MUST_CHECK int net_consumed(struct net_request *request);

/*
 * When done, `bytes` is the length of the message, and the request is freed; so it is after a
 * failure. A send that is done may be followed by close and exit: its bytes arrive.
 */
MUST_CHECK int net_test(struct net_request *request, bool *done, uint64_t *bytes);

/*
 * As net_test() for a receive into GPU memory, but done as soon as the caller's stream, a CUstream,
 * waits for the rest: the bytes are there for work that is put on the stream from now on, and only
 * for that. If the stream cannot be made to wait, the request fails once nothing writes to its
 * memory any more.
 */
MUST_CHECK int net_test_on_stream(struct net_request *request, void *stream, bool *done,
                                  uint64_t *bytes);

/*
 * Ends it with TCPX_CANCELLED, unless it has ended: test says which, as soon as nothing touches its
 * memory any more. That needs no peer. The other side's request, if there is one, fails. What was
 * sent before its receive was posted may still arrive. A send to a place that has been given to the
 * sockets as a whole is done: all of it arrives, from a copy. Only where messages match by tag.
 */
MUST_CHECK int net_cancel(struct net_request *request);

/*
 * The same for a message that another thread may be waiting for: when that has seen its end, the
 * request can be another one already, with another number. A request has its number from its
 * beginning to its end.
 */
uint64_t net_request_number(const struct net_request *request);
MUST_CHECK int net_cancel_numbered(struct net_request *request, uint64_t number);

/*
 * As net_test(), but waits until the request has ended or the deadline, a time of base/clock.h, has
 * passed; then *done is false, and the request goes on.
 */
MUST_CHECK int net_wait(struct net_request *request, uint64_t deadline, bool *done,
                        uint64_t *bytes);

/* Whether I/O threads move it while no call does: they may have failed to start. */
bool net_has_threads(const struct net_comm *comm);

/* Whether what it receives arrives in device memory, by devmem TCP. */
bool net_receives_by_devmem(const struct net_comm *comm);

/*
 * Wakes this task of an I/O thread whenever a request ends; NULL: none. The caller sets NULL before
 * it removes the task. From the first task on, I/O threads move the comm even where CPUs are few:
 * the task only tests requests, and no other thread may be polling.
 */
void net_notify(struct net_comm *comm, struct io_task *task);

/* How long its stages have been at work. */
void net_get_stages(struct net_comm *comm, struct stage_times *times);

/*
 * Of a comm that receives into device memory, and whose receives the GPU unpacks by itself: those
 * whose descriptors name the pages of the NIC only, and those with bytes in bounce memory.
 */
struct unpack_counts {
    uint64_t in_place;
    uint64_t in_place_bytes;
    uint64_t copied;
    uint64_t copied_bytes;
};
void net_get_unpack_counts(struct net_comm *comm, struct unpack_counts *counts);

/* Ends the comm and all of its requests without waiting for the peer. NULL is allowed. */
void net_comm_close(struct net_comm *comm);

#endif
