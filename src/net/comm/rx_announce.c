/* POST and CREDIT, and the writing of them. */
#include "net/comm/rx_announce.h"

#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/rx_match.h"

#include <errno.h>
#include <sys/socket.h>

static size_t rx_most_queued(const struct net_comm *comm)
{
    return 4 * (size_t)comm->most_requests;
}

int rx_announce_create(struct net_comm *comm)
{
    return queue_init(&comm->rx.queued, rx_most_queued(comm), sizeof(struct wire_record));
}

void rx_announce_destroy(struct net_comm *comm)
{
    queue_destroy(&comm->rx.queued);
}

bool rx_announce_has_room(const struct net_comm *comm)
{
    COMM_LOCKED(comm);
    return queue_length(&comm->rx.queued) < rx_most_queued(comm) / 2 &&
           !rx_match_numbers_meet(comm);
}

/* --- records ------------------------------------------------------------------------------- */

static void rx_queue_record(struct net_comm *comm, const struct wire_record *record)
{
    if (!queue_push(&comm->rx.queued, record))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room to say %s",
                                  wire_type_name(record->type)));
}

/* Small enough that many such messages fit into the credit before their POSTs have arrived. */
static bool rx_may_come_unannounced(const struct net_comm *comm, uint64_t room)
{
    return comm_is_in_order(comm) && comm->link.framing == WIRE_INLINE &&
           room <= comm->link.eager_credit / 8;
}

/* Any message that fits goes ahead of its receive, in an EAGER record. */
static bool rx_must_be_small(const struct net_comm *comm, uint64_t room,
                             const struct sink_ops *sink)
{
    return room <= comm->link.eager_limit && sink->in_host;
}

/* The sender has enough receives to go on with, and an owner announces this one in time. */
static bool rx_is_well_ahead(const struct net_comm *comm)
{
    enum { AHEAD = 8 };

    return !comm->callers_move && comm->pending > AHEAD;
}

bool rx_announce_can_wait(const struct net_comm *comm, const struct net_buffer *buffer)
{
    return rx_may_come_unannounced(comm, buffer->bytes) ||
           rx_must_be_small(comm, buffer->bytes,
                            buffer->memory != NULL ? buffer->memory->sink : &sink_host);
}

void rx_announce_post(struct net_comm *comm, const struct net_request *request)
{
    struct comm_rx *rx = &comm->rx;

    COMM_LOCKED(comm);
    if (comm->result != TCPX_SUCCESS)
        return;
    if (queue_length(&rx->queued) == 0)
        rx->queued_since = rx->last_post;
    rx->announce_soon |= !rx_must_be_small(comm, request->room, request->sink);
    rx->announce_now |= !rx_must_be_small(comm, request->room, request->sink) &&
                        !rx_may_come_unannounced(comm, request->room) && !rx_is_well_ahead(comm);
    rx->credit_announced = rx->credit_freed;
    rx_queue_record(comm, &(struct wire_record){.type = WIRE_POST,
                                                .sequence = request->sequence,
                                                .offset = rx->credit_announced,
                                                .length = request->room,
                                                .tag = request->tag});
}

void rx_announce_cancel(struct net_comm *comm, uint32_t sequence)
{
    COMM_LOCKED(comm);
    comm->rx.announce_now = true;
    rx_queue_record(comm, &(struct wire_record){.type = WIRE_CANCEL, .sequence = sequence});
    lane_wake(comm, comm_reverse_lane(comm));
}

/* Credit also travels with every POST; without one, before the sender runs out of it. */
static void rx_queue_credit(struct net_comm *comm)
{
    struct comm_rx *rx = &comm->rx;

    if (rx->credit_freed - rx->credit_announced <= comm->link.eager_credit / 2 ||
        !rx_announce_has_room(comm))
        return;
    rx->credit_announced = rx->credit_freed;
    rx_queue_record(comm,
                    &(struct wire_record){.type = WIRE_CREDIT, .offset = rx->credit_announced});
}

/*
 * The sender of a small message does not need the POST of its receive, only the credit that travels
 * with it.
 */
static bool rx_can_announce_later(const struct net_comm *comm)
{
    enum { TOGETHER = 8, SOON_NS = 20000, SMALL_TOGETHER = 16, LATER_NS = 1000000 };
    const struct comm_rx *rx = &comm->rx;
    bool small = !rx->announce_soon;

    return !rx->announce_now && queue_length(&rx->queued) < (small ? SMALL_TOGETHER : TOGETHER) &&
           rx->credit_freed - rx->credit_sent < comm->link.eager_credit / 4 &&
           clock_now() < rx->queued_since + (small ? LATER_NS : SOON_NS);
}

bool rx_announce_is_due(struct net_comm *comm, bool now)
{
    COMM_LOCKED(comm);
    rx_queue_credit(comm);
    if (comm->rx.output_sent < comm->rx.output_bytes)
        return true;
    return queue_length(&comm->rx.queued) > 0 && (now || !rx_can_announce_later(comm));
}

bool rx_announce_is_posting(const struct net_comm *comm)
{
    enum { POSTING_NS = 2000000, POSTING_BY_CALLS_NS = 30000 };

    return clock_now() <
           comm->rx.last_post + (comm->callers_move ? POSTING_BY_CALLS_NS : POSTING_NS);
}

/* --- writing ------------------------------------------------------------------------------- */

/* A batch of records, as many as there are and fit. */
static void rx_fill_output(struct net_comm *comm)
{
    struct comm_rx *rx = &comm->rx;
    struct wire_record record;

    rx->announce_now = false;
    rx->announce_soon = false;
    rx->output_sent = 0;
    rx->output_bytes = 0;
    while (rx->output_bytes < sizeof rx->output && queue_pop(&rx->queued, &record)) {
        wire_record_write(&record, rx->output + rx->output_bytes);
        if (record.type != WIRE_CANCEL)
            rx->credit_sent = record.offset;
        rx->output_bytes += WIRE_RECORD_BYTES;
    }
}

/*
 * The forward sockets decide whether the comm goes on: what was sent there still arrives. A sender
 * that is alive sees the end of this socket.
 */
static void rx_close_reverse(struct net_comm *comm)
{
    comm->rx.peer_closed_reverse = true;
    shutdown(comm->link.reverse, SHUT_RDWR);
}

/* One write, without the lock. False: the socket is full or closed. */
static bool rx_write_output(struct net_comm *comm, enum lane_wait *wait)
{
    struct comm_rx *rx = &comm->rx;
    ssize_t sent;
    int error;

    comm_lock_release(&comm->lock);
    sent = send(comm->link.reverse, rx->output + rx->output_sent,
                rx->output_bytes - rx->output_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    error = errno;
    comm_lock_take(&comm->lock);
    if (sent > 0)
        rx->output_sent += (size_t)sent;
    else if (socket_is_full(error))
        *wait = LANE_FOR_ROOM;
    else if (error != EINTR)
        rx_close_reverse(comm);
    return *wait != LANE_FOR_ROOM && comm->result == TCPX_SUCCESS;
}

/* A sender that has closed does not read any more, but what it sent may still arrive. */
enum lane_wait rx_write_reverse(struct net_comm *comm)
{
    enum lane_wait wait = LANE_IDLE;
    struct wire_record ignored;

    COMM_LOCKED(comm);
    while (!comm->rx.peer_closed_reverse) {
        if (comm->rx.output_sent == comm->rx.output_bytes)
            rx_fill_output(comm);
        if (comm->rx.output_bytes == 0 || !rx_write_output(comm, &wait))
            return wait;
    }
    while (queue_pop(&comm->rx.queued, &ignored))
        ;
    return LANE_IDLE;
}
