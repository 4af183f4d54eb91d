/* Reading a receiver's sockets. */
#include "net/comm/rx_lane.h"

#include "net/comm/accounting.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/parts.h"
#include "net/comm/request.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_cancel.h"
#include "net/comm/rx_end.h"
#include "net/comm/rx_match.h"
#include "net/comm/rx_place.h"
#include "net/comm/rx_record.h"
#include "net/comm/rx_unexpected.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* --- what has arrived ---------------------------------------------------------------------- */

/*
 * An unexpected slice would have to be copied once more, by the calling thread, which then posts
 * its next receive later still. While receives are being posted it is left in its socket, since its
 * receive is likely to be the next. Where calls read the sockets, one unexpected message is always
 * buffered, so that a receive finds it at once.
 */
static bool rx_is_better_left(struct net_comm *comm, struct incoming *incoming)
{
    struct wire_record record;

    if (wire_record_read(incoming->record, WIRE_FORWARD, &record) != WIRE_FINE)
        return false;
    incoming->stalled_for = record.sequence;
    return record.type == WIRE_SLICE && rx_match_by_number(comm, record.sequence) == NULL &&
           !rx_unexpected_has_begun(comm, record.sequence) &&
           (comm->rx.held > 0 || !comm->callers_move) && rx_announce_is_posting(comm);
}

static bool rx_must_stall(struct net_comm *comm, struct incoming *incoming)
{
    bool stall = comm_is_in_order(comm) ? rx_is_better_left(comm, incoming)
                                        : rx_place_is_awaited(comm, incoming);

    comm->rx.stalled += stall - incoming->stalled;
    incoming->stalled = stall;
    return stall;
}

static void rx_payload_complete(struct net_comm *comm, struct incoming *incoming)
{
    const struct rx_payload complete = incoming->payload;

    incoming->payload = (struct rx_payload){0};
    complete.sink->complete(comm, &complete);
}

/* Finishes and begins what needs no further bytes. False: a record waits for its receive. */
static bool rx_process_arrived(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    bool payload_only = comm->link.framing == WIRE_SEPARATE && socket > 0;
    struct wire_record slice;
    bool moved = true;

    while (moved && comm->result == TCPX_SUCCESS) {
        bool has_payload = incoming->payload.sink != NULL;

        moved = false;
        if (has_payload && incoming->payload.left == 0) {
            rx_payload_complete(comm, incoming);
            moved = true;
        } else if (incoming->record_have == WIRE_RECORD_BYTES && !has_payload) {
            if (rx_must_stall(comm, incoming))
                return false;
            rx_record_arrived(comm, socket);
            moved = true;
        } else if (payload_only && !has_payload && queue_pop(&incoming->slices, &slice)) {
            rx_record_begin_slice(comm, socket, &slice);
            moved = true;
        }
        /* There may be room for the next slice's record now, or this was the end. */
        if (moved && payload_only)
            lane_wake(comm, 0);
    }
    return true;
}

/* Whether a record on socket 0 could be a slice that has no room to wait. */
static bool rx_must_wait(const struct net_comm *comm, unsigned socket)
{
    if (comm->link.framing == WIRE_INLINE)
        return false;
    if (socket > 0) /* no record has announced the next bytes */
        return comm->rx.incoming[socket].payload.sink == NULL;
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (queue_length(&comm->rx.incoming[i].slices) == RX_MOST_SLICES)
            return true;
    return false;
}

/* --- reading ------------------------------------------------------------------------------- */

static bool rx_has_ahead(const struct incoming *incoming)
{
    return incoming->ahead_from < incoming->ahead_to;
}

/* Where the bytes of one call go: payload, record, and what is read ahead. */
struct rx_room {
    struct iovec list[PARTS_OF_CALL + 2];
    unsigned count;
    size_t payload; /* bytes of the first vectors, */
    size_t record;  /* of the next one, */
    size_t ahead;   /* and of the last */
};

static void rx_room_add(struct rx_room *room, void *place, size_t bytes)
{
    room->list[room->count++] = (struct iovec){.iov_base = place, .iov_len = bytes};
}

static void rx_room_add_payload(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                struct rx_room *room)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;

    if (payload->sink->scatter != NULL) {
        room->count =
            payload->sink->scatter(comm, socket, payload->left, room->list, PARTS_OF_CALL);
    } else {
        room->list[0] = payload->sink->next(comm, socket, scratch, payload->left);
        room->count = 1;
    }
    for (unsigned i = 0; i < room->count; i++)
        room->payload += room->list[i].iov_len;
}

/*
 * The rest of the payload, the record behind it and, if both are short, what comes then, so that
 * small messages do not take a call for each of them.
 */
static void rx_make_room(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                         struct rx_room *room)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    const struct rx_payload *payload = &incoming->payload;
    bool records_here = comm->link.framing == WIRE_INLINE || socket == 0;

    room->count = 0;
    room->payload = room->record = room->ahead = 0;
    if (payload->left > 0)
        rx_room_add_payload(comm, socket, scratch, room);
    if (!records_here || room->payload < payload->left)
        return;
    room->record = WIRE_RECORD_BYTES - incoming->record_have;
    if (room->record > 0)
        rx_room_add(room, incoming->record + incoming->record_have, room->record);
    if (payload->left > INCOMING_AHEAD)
        return;
    room->ahead = INCOMING_AHEAD;
    rx_room_add(room, incoming->ahead, room->ahead);
}

/* Takes from what was read ahead. */
static size_t rx_take_ahead(struct incoming *incoming, const struct rx_room *room)
{
    size_t wanted = room->payload + room->record;
    size_t taken = 0;

    for (unsigned i = 0; i < room->count && taken < wanted; i++) {
        size_t have = incoming->ahead_to - incoming->ahead_from;
        size_t bytes = room->list[i].iov_len < have ? room->list[i].iov_len : have;

        if (bytes == 0)
            break;
        memcpy(room->list[i].iov_base, incoming->ahead + incoming->ahead_from, bytes);
        incoming->ahead_from += bytes;
        taken += bytes;
    }
    return taken;
}

/*
 * One call, while the lock is free. *emptied: it did not fill its room, so that there is no more
 * for now. *error is errno.
 */
static ssize_t rx_call(struct net_comm *comm, unsigned socket, struct rx_room *room, bool *emptied,
                       int *error)
{
    struct net_request *request = comm->rx.incoming[socket].payload.request;
    struct msghdr message = {.msg_iov = room->list, .msg_iovlen = room->count};
    ssize_t got;

    request_hold(request);
    stages_call_begins(&comm->calling);
    comm_lock_release(&comm->lock);
    got = recvmsg(comm->link.forward[socket], &message, MSG_DONTWAIT);
    *error = errno;
    comm_lock_take(&comm->lock);
    account_throttle(comm, CONFIG_THROTTLE_RECEIVE, got);
    rx_cancel_payload(comm, socket);
    stages_call_ended(&comm->calling, got > 0);
    request_let_go(request);
    *emptied = got > 0 && (size_t)got < room->payload + room->record + room->ahead;
    return got;
}

/* The rest of the payload and the record behind it, as far as they are there: how many bytes. */
static ssize_t rx_read(struct net_comm *comm, unsigned socket, bool *emptied, int *error)
{
    uint8_t scratch[SINK_SCRATCH_BYTES];
    struct incoming *incoming = &comm->rx.incoming[socket];
    struct rx_payload *payload = &incoming->payload;
    struct rx_room room;
    size_t of_payload;
    ssize_t got;
    size_t wanted;

    rx_make_room(comm, socket, scratch, &room);
    wanted = room.payload + room.record;
    if (rx_has_ahead(incoming))
        got = (ssize_t)rx_take_ahead(incoming, &room);
    else
        got = rx_call(comm, socket, &room, emptied, error);
    if (got <= 0)
        return got;
    if ((size_t)got > wanted) {
        incoming->ahead_from = 0;
        incoming->ahead_to = (size_t)got - wanted;
        got = (ssize_t)wanted;
    }
    of_payload = (size_t)got < room.payload ? (size_t)got : room.payload;
    payload->left -= of_payload;
    incoming->record_have += (size_t)got - of_payload;
    incoming->total += (size_t)got;
    if (of_payload > 0)
        payload->sink->filled(comm, socket, of_payload);
    return got;
}

static bool rx_has_memory(struct net_comm *comm, unsigned socket)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;

    return payload->left == 0 || payload->sink->reserve == NULL ||
           payload->sink->reserve(comm, socket);
}

static bool rx_sink_reads(const struct rx_payload *payload)
{
    return payload->left > 0 && payload->sink->read != NULL;
}

enum lane_wait rx_receive(struct net_comm *comm, uint16_t socket)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    enum lane_wait wait = LANE_FOR_INPUT;
    uint64_t moved = 0;
    int calls = 0;
    bool emptied = false;

    COMM_LOCKED(comm);
    for (;;) {
        ssize_t got;
        int error;

        if (!rx_process_arrived(comm, socket) || comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (rx_must_wait(comm, socket)) {
            /* Socket 0 waits for other lanes; another one has received all that was announced. */
            account_read(comm, socket, socket == 0);
            return LANE_IDLE;
        }
        /* No event reports an end that came with the last bytes. */
        if (emptied && !rx_has_ahead(incoming) && !comm->lanes[socket].peer_has_ended)
            return LANE_FOR_INPUT;
        if (moved >= COMM_TURN_BYTES || calls++ == COMM_TURN_CALLS)
            return LANE_MORE;
        if (rx_sink_reads(&incoming->payload)) {
            got = incoming->payload.sink->read(comm, socket, &error, &wait);
        } else if (!rx_has_memory(comm, socket)) {
            account_no_memory(comm, socket);
            return LANE_SOON;
        } else {
            got = rx_read(comm, socket, &emptied, &error);
        }
        if (got < 0 && wait == LANE_SOON)
            account_no_memory(comm, socket);
        else
            account_read(comm, socket, got > 0 && (!emptied || rx_has_ahead(incoming)));
        if (comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (got < 0 && error == EINTR)
            continue;
        if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))
            return wait;
        if (got < 0) {
            error_keep_system(error, "the connection from %s broke", comm->link.peer);
            rx_connection_lost(comm, socket);
            return LANE_IDLE;
        }
        if (got == 0) {
            rx_stream_ended(comm, socket);
            return LANE_IDLE;
        }
        moved += (uint64_t)got;
        if (comm->lost_at != 0)
            comm->lost_at = clock_now(); /* the other connections still deliver bytes */
    }
}
