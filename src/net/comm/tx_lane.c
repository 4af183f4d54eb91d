/* Loading and writing a sender's sockets. */
#include "net/comm/tx_lane.h"

#include "net/comm/accounting.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/parts.h"
#include "net/comm/request.h"
#include "net/comm/slices.h"
#include "net/comm/tx_cancel.h"
#include "net/comm/tx_match.h"
#include "net/comm/tx_work.h"
#include "net/comm/unsent.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* --- loading ------------------------------------------------------------------------------- */

static void tx_add_record(struct outgoing *outgoing, const struct wire_record *record)
{
    wire_record_write(record, outgoing->records + outgoing->records_bytes);
    outgoing->records_bytes += WIRE_RECORD_BYTES;
}

static bool tx_has_record_room(const struct outgoing *outgoing)
{
    return outgoing->records_bytes < sizeof outgoing->records;
}

/* NULL: the request's source sends it by itself, its parts are listed for each call, or it is
 * empty. */
static const uint8_t *tx_payload_at(const struct net_request *request, uint64_t offset)
{
    bool is_elsewhere = request->source->write != NULL || request->parts != NULL;

    return is_elsewhere || request->bytes == 0 ? NULL : request->data + offset;
}

/* As many of the planned records as fit, up to one that has a payload. */
static void tx_load_planned(struct net_comm *comm, struct outgoing *outgoing)
{
    struct planned planned;

    while (tx_has_record_room(outgoing) && outgoing->payload_left == 0 &&
           outgoing->request == NULL && queue_pop(&comm->tx.planned, &planned)) {
        tx_add_record(outgoing, &planned.record);
        outgoing->record_owners[outgoing->record_owner_count++] = planned.request;
        comm->tx.ownerless -= planned.request == NULL;
        if (planned.record.type != WIRE_EAGER ||
            (planned.request == NULL && planned.own == NULL)) /* a cancelled one without a byte */
            continue;
        outgoing->request = planned.request;
        outgoing->own = planned.own;
        outgoing->payload = planned.own != NULL ? planned.own : tx_payload_at(planned.request, 0);
        outgoing->at = 0;
        outgoing->payload_left = planned.record.length;
        outgoing->counts = outgoing->payload_left;
    }
}

/* The next piece that the mover has ready, if it is older than `request`, which may be NULL. */
static bool tx_next_piece(struct net_comm *comm, const struct net_request *request,
                          struct tx_piece *piece)
{
    return comm->mover != NULL && comm->mover->next_piece(comm, piece) &&
           (request == NULL || piece->request->order < request->order);
}

/* Writes or plans the record of a slice. False: too many records wait for socket 0. */
static bool tx_announce_slice(struct net_comm *comm, uint16_t socket, const struct tx_piece *slice)
{
    struct net_request *request = slice->request;
    const struct wire_record record = {.type = WIRE_SLICE,
                                       .flags = request->ahead      ? WIRE_ON_CREDIT
                                                : request->is_place ? WIRE_TO_PLACE
                                                                    : 0,
                                       .socket = socket,
                                       .sequence = request->sequence,
                                       .offset = slice->offset,
                                       .length = slice->bytes,
                                       .tag = request->bytes};

    if (comm->link.framing == WIRE_INLINE) {
        tx_add_record(&comm->tx.outgoing[socket], &record);
        return true;
    }
    if (!tx_match_can_plan_slice(comm) || !tx_match_plan(comm, request, &record))
        return false;
    lane_wake(comm, 0);
    return true;
}

static void tx_load_slice(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    struct net_request *request = tx_work_next(comm);
    struct tx_piece slice;

    if (!tx_next_piece(comm, request, &slice)) {
        if (request == NULL)
            return;
        slice = (struct tx_piece){.request = request,
                                  .offset = request->handed_out,
                                  .bytes = slice_bytes(comm, request->bytes - request->handed_out,
                                                       slice_largest(comm, request)),
                                  .data = tx_payload_at(request, request->handed_out)};
    }
    if (!tx_announce_slice(comm, socket, &slice))
        return;
    request = slice.request;
    if (slice.piece != NULL)
        comm->mover->take_piece(comm);
    outgoing->piece = slice.piece;
    outgoing->request = request;
    outgoing->payload = slice.data;
    outgoing->at = slice.offset;
    outgoing->payload_left = slice.bytes;
    outgoing->counts = slice.bytes;
    tx_work_taken(comm, request, slice.bytes);
}

/* Gives an idle socket its next work; false: there is none. */
static bool tx_load(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];

    outgoing->records_bytes = 0;
    outgoing->records_sent = 0;
    outgoing->record_owner_count = 0;
    if (comm->mover != NULL && !outgoing->records_only)
        comm->mover->prepare(comm);
    if (socket == 0)
        tx_load_planned(comm, outgoing);
    if (outgoing->request == NULL && outgoing->payload_left == 0 && tx_has_record_room(outgoing) &&
        !outgoing->records_only && (socket != 0 || comm->link.framing == WIRE_INLINE))
        tx_load_slice(comm, socket);
    /* Copies may have ended while this lane was sending: other lanes share them. */
    if (comm->mover != NULL &&
        (comm->mover->count_pieces(comm) > 0 || (comm->tx.zero_copy && tx_work_next(comm) != NULL)))
        tx_work_wake_lanes(comm);
    return !outgoing_is_idle(outgoing);
}

/* All that it was loaded with is sent. */
static void tx_finish(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    struct net_request *request = outgoing->request;

    if (request != NULL)
        unsent_adapt(comm, socket);
    if (outgoing->piece != NULL)
        comm->mover->piece_sent(comm, outgoing->piece);
    free(outgoing->own);
    outgoing->own = NULL;
    outgoing->piece = NULL;
    outgoing->request = NULL;
    /* Zero-copy sends count when they have arrived. */
    if (request != NULL && request->source->write == NULL)
        request->moved += outgoing->counts;
    for (unsigned i = 0; i < outgoing->record_owner_count; i++)
        if (outgoing->record_owners[i] != NULL)
            outgoing->record_owners[i]->records_queued--;
    for (unsigned i = 0; i < outgoing->record_owner_count; i++)
        if (outgoing->record_owners[i] != NULL)
            tx_moved(outgoing->record_owners[i], 0);
    if (request != NULL)
        tx_moved(request, 0);
    outgoing->record_owner_count = 0;
}

/* --- writing ------------------------------------------------------------------------------- */

static bool tx_source_writes(const struct outgoing *outgoing)
{
    return outgoing->request != NULL && outgoing->request->source->write != NULL;
}

/* The payload of a call that sends it from memory; *bytes: how many that are. */
static unsigned tx_list_payload(const struct outgoing *outgoing, struct iovec *list,
                                uint64_t *bytes)
{
    *bytes = outgoing->payload_left;
    if (outgoing->payload_left == 0)
        return 0;
    if (outgoing->payload == NULL)
        return parts_list(outgoing->request, outgoing->at, outgoing->payload_left, list,
                          PARTS_OF_CALL, bytes);
    *list = (struct iovec){.iov_base = (void *)(uintptr_t)outgoing->payload,
                           .iov_len = outgoing->payload_left};
    return 1;
}

/*
 * Records and payload in memory together; payload that its source writes alone. *wanted: the bytes
 * that a socket with enough room takes.
 */
static ssize_t tx_call(struct net_comm *comm, uint16_t socket, uint64_t *wanted)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    bool alone = tx_source_writes(outgoing);
    struct iovec list[1 + PARTS_OF_CALL];
    struct msghdr message = {.msg_iov = list, .msg_iovlen = 1};
    uint64_t payload = 0;

    list[0] = (struct iovec){.iov_base = outgoing->records + outgoing->records_sent,
                             .iov_len = outgoing->records_bytes - outgoing->records_sent};
    *wanted = list[0].iov_len;
    if (alone && *wanted == 0) {
        *wanted = outgoing->payload_left;
        return outgoing->request->source->write(comm, socket);
    }
    if (!alone)
        message.msg_iovlen += tx_list_payload(outgoing, list + 1, &payload);
    *wanted += payload;
    return sendmsg(comm->link.forward[socket], &message,
                   MSG_NOSIGNAL | MSG_DONTWAIT | (alone ? MSG_MORE : 0));
}

static void tx_note_sent(struct net_comm *comm, uint16_t socket, size_t sent)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    size_t records = outgoing->records_bytes - outgoing->records_sent;
    size_t of_records = sent < records ? sent : records;
    size_t of_payload = sent - of_records;

    outgoing->records_sent += of_records;
    outgoing->payload_left -= of_payload;
    outgoing->at += of_payload;
    outgoing->total += sent;
    if (outgoing->payload != NULL)
        outgoing->payload += of_payload;
    else if (of_payload > 0 && tx_source_writes(outgoing))
        outgoing->request->source->taken(comm, socket, of_payload);
}

/* The lock is free during the call; *error is errno. */
static ssize_t tx_write(struct net_comm *comm, uint16_t socket, uint64_t *wanted, int *error)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    struct net_request *request = outgoing->request;
    ssize_t sent;

    request_hold(request);
    stages_call_begins(&comm->calling);
    comm_lock_release(&comm->lock);
    sent = tx_call(comm, socket, wanted);
    *error = errno;
    comm_lock_take(&comm->lock);
    account_throttle(comm, CONFIG_THROTTLE_SEND, sent);
    account_written(comm, socket, sent, *wanted);
    if (sent > 0)
        tx_note_sent(comm, socket, (size_t)sent);
    tx_cancel_after_call(comm, socket);
    request_let_go(request);
    return sent;
}

/*
 * An idle socket does not show that its connection has died, for instance because the host is gone.
 * An I/O thread gets an event. Without one, the error of the socket is read now and then only,
 * since that is a system call.
 */
static void tx_ask_idle(struct net_comm *comm, uint16_t socket)
{
    enum { TURNS = 64 };

    if (comm->io.crew == NULL && ++comm->tx.outgoing[socket].idle_turns % TURNS == 0)
        tx_connection_has_failed(comm, socket);
}

static bool tx_may_have_piece_soon(const struct net_comm *comm, uint16_t socket)
{
    return comm->mover != NULL && comm->mover->has_copies(comm) &&
           (socket != 0 || comm->link.framing == WIRE_INLINE);
}

static void tx_write_failed(struct net_comm *comm, uint16_t socket, int error)
{
    const struct outgoing *outgoing = &comm->tx.outgoing[socket];

    if (!tx_source_writes(outgoing) || outgoing->records_sent != outgoing->records_bytes ||
        !outgoing->request->source->explain(comm, error))
        tx_connection_failed(comm, socket, error);
}

enum lane_wait tx_send(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    uint64_t moved = 0;
    int calls = 0;

    COMM_LOCKED(comm);
    if (outgoing->lost)
        return LANE_IDLE;
    if (comm->mover != NULL)
        comm->mover->poll_socket(comm, socket);
    while (moved < COMM_TURN_BYTES && calls++ < COMM_TURN_CALLS && comm->result == TCPX_SUCCESS) {
        uint64_t wanted;
        ssize_t sent;
        int error;

        if (outgoing_is_idle(outgoing) && !tx_load(comm, socket)) {
            tx_ask_idle(comm, socket);
            outgoing->loaded_at = 0;
            return tx_may_have_piece_soon(comm, socket) ? LANE_SOON : LANE_IDLE;
        }
        if (outgoing->loaded_at == 0 && comm->link.sockets > 1)
            outgoing->loaded_at = clock_now();
        /* Completions are reported like errors of the socket. */
        if (tx_source_writes(outgoing) && !outgoing->request->source->has_room(comm, socket))
            return LANE_FOR_ARRIVALS;
        sent = tx_write(comm, socket, &wanted, &error);
        if (comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (sent < 0 && error == EINTR)
            continue;
        if (sent < 0 && (tx_source_writes(outgoing) ? error == EAGAIN || error == EWOULDBLOCK
                                                    : socket_is_full(error))) {
            if (comm->mover != NULL)
                comm->mover->poll(comm); /* also accounts for the time of copies that have ended */
            return LANE_FOR_ROOM;
        }
        if (sent < 0 && error == ENOBUFS && comm->mover != NULL &&
            comm->mover->has_zero_copy(comm, socket))
            return LANE_FOR_ARRIVALS;
        if (sent < 0) {
            tx_write_failed(comm, socket, error);
            return LANE_IDLE;
        }
        moved += (uint64_t)sent;
        if ((uint64_t)sent < wanted)
            return LANE_FOR_ROOM;
        if (outgoing_is_idle(outgoing))
            tx_finish(comm, socket);
    }
    return LANE_MORE;
}
