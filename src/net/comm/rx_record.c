/* What each record of a sender means. */
#include "net/comm/rx_record.h"

#include "base/checked.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_done.h"
#include "net/comm/rx_match.h"
#include "net/comm/rx_unexpected.h"

/* The payload of the record belongs to a receive. */
static void rx_expect(struct rx_payload *payload, struct net_request *request, uint64_t offset,
                      uint64_t bytes)
{
    *payload = (struct rx_payload){
        .sink = request->sink, .request = request, .at = offset, .left = bytes, .bytes = bytes};
    if (request->sink->in_host && bytes > 0)
        payload->place = request->data + offset;
}

/* --- whole messages ------------------------------------------------------------------------ */

static void rx_open(struct net_comm *comm, const struct wire_record *record)
{
    struct net_request *request = rx_match_by_number(comm, record->sequence);

    if (comm_is_in_order(comm) || request == NULL || request->matched ||
        request->tag != record->tag || record->length > request->room ||
        request != rx_match_first(comm, record->tag) || request->begun > record->length ||
        request->reach > record->length) {
        comm_fail_protocol(
            comm,
            "OPEN of %llu bytes with tag %llu for receive %u, which is not there, not "
            "large enough or has a message already",
            (unsigned long long)record->length, (unsigned long long)record->tag, record->sequence);
        return;
    }
    rx_match_first_ends(comm, record->tag);
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = record->length;
    rx_done_if_complete(comm, request);
}

/* The receive of an EAGER message. NULL: it is kept as unexpected, or the comm has failed. */
static struct net_request *rx_receive_of_eager(struct net_comm *comm, struct rx_payload *payload,
                                               const struct wire_record *record)
{
    bool in_order = comm_is_in_order(comm);
    struct unexpected *message = NULL;
    struct net_request *request;

    if (in_order && rx_unexpected_has_begun(comm, record->sequence)) {
        comm_fail_protocol(comm, "a second message %u", record->sequence);
        return NULL;
    }
    if (in_order && !rx_unexpected_place(comm, record->sequence, record->length, true, &message))
        return NULL;
    if (message != NULL) {
        rx_unexpected_expect(comm, payload, message, 0, record->length);
        return NULL;
    }
    request =
        in_order ? rx_match_by_number(comm, record->sequence) : rx_match_first(comm, record->tag);
    if (request == NULL) {
        rx_unexpected_expect_tagged(comm, payload, record);
    } else if (request->matched || request->begun > 0) {
        comm_fail_protocol(comm, "an eager message for receive %u, which has one already",
                           request->sequence);
        return NULL;
    }
    return request;
}

static void rx_eager(struct net_comm *comm, struct rx_payload *payload,
                     const struct wire_record *record)
{
    struct net_request *request;

    if (record->length > comm->link.eager_limit ||
        (comm_is_in_order(comm) ? record->tag != 0 : record->sequence != 0)) {
        comm_fail_protocol(comm, "an eager message of %llu bytes with tag %llu that may not be",
                           (unsigned long long)record->length, (unsigned long long)record->tag);
        return;
    }
    request = rx_receive_of_eager(comm, payload, record);
    if (request == NULL)
        return;
    rx_match_first_ends(comm, record->tag);
    rx_free_credit(comm, record->length);
    if (record->length > request->room) {
        *payload = (struct rx_payload){
            .sink = &sink_discard, .left = record->length, .bytes = record->length};
        rx_fail_too_long(comm, request, record->length);
        return;
    }
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = record->length;
    request->begun = record->length;
    request->reach = record->length;
    rx_expect(payload, request, 0, record->length);
}

static void rx_too_long(struct net_comm *comm, const struct wire_record *record)
{
    struct net_request *request = rx_match_by_number(comm, record->sequence);

    if (request == NULL || request->matched || record->length <= request->room ||
        request->begun > 0 ||
        (!comm_is_in_order(comm) && request != rx_match_first(comm, request->tag))) {
        comm_fail_protocol(comm, "TOOLONG for receive %u, which is not there or large enough",
                           record->sequence);
        return;
    }
    rx_match_first_ends(comm, request->tag);
    rx_fail_too_long(comm, request, record->length);
}

/* --- slices -------------------------------------------------------------------------------- */

/*
 * In order, every slice has the length of its message. False: it is kept as unexpected, or the comm
 * has failed.
 */
static bool rx_place_slice_in_order(struct net_comm *comm, struct rx_payload *payload,
                                    const struct wire_record *record)
{
    bool on_credit = (record->flags & WIRE_ON_CREDIT) != 0;
    struct unexpected *message;
    struct net_request *request;

    if (record->length > comm->link.largest_slice ||
        (on_credit && comm->link.framing != WIRE_INLINE)) {
        comm_fail_protocol(comm, "a slice of %llu bytes for receive %u, which may not be",
                           (unsigned long long)record->length, record->sequence);
        return false;
    }
    if (!rx_unexpected_place(comm, record->sequence, record->tag, on_credit, &message))
        return false;
    if (message != NULL) {
        rx_unexpected_expect(comm, payload, message, record->offset, record->length);
        return false;
    }
    request = rx_match_by_number(comm, record->sequence);
    if (request->matched ? request->bytes != record->tag : request->room < record->tag) {
        comm_fail_protocol(comm, "a slice of a message of %llu bytes for receive %u of %llu",
                           (unsigned long long)record->tag, record->sequence,
                           (unsigned long long)request->bytes);
        return false;
    }
    if (!request->matched && on_credit)
        rx_free_credit(comm, record->tag);
    request->matched = true;
    request->bytes = record->tag;
    return true;
}

void rx_record_begin_slice(struct net_comm *comm, unsigned socket, const struct wire_record *record)
{
    struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    struct net_request *request = rx_match_by_number(comm, record->sequence);

    COMM_LOCKED(comm);
    if (comm_is_in_order(comm) && record->tag != 0 &&
        !rx_place_slice_in_order(comm, payload, record))
        return;
    if (request == NULL || comm_is_in_order(comm) != (record->tag != 0) ||
        !range_inside(record->offset, record->length,
                      request->matched ? request->bytes : request->room) ||
        record->length > comm->link.largest_slice ||
        record->length > (request->matched ? request->bytes : request->room) - request->begun) {
        comm_fail_protocol(
            comm,
            "a slice of %llu bytes at %llu for receive %u, which is not there or not as "
            "large",
            (unsigned long long)record->length, (unsigned long long)record->offset,
            record->sequence);
        return;
    }
    request->state = REQUEST_MOVING;
    request->begun += record->length;
    if (request->reach < record->offset + record->length)
        request->reach = record->offset + record->length;
    rx_expect(payload, request, record->offset, record->length);
    if (comm->rx.lane_sinks[socket] != NULL)
        payload->sink = comm->rx.lane_sinks[socket];
}

static void rx_slice(struct net_comm *comm, unsigned socket, const struct wire_record *record)
{
    bool separate = comm->link.framing == WIRE_SEPARATE;

    if (separate ? record->socket == 0 || record->socket >= comm->link.sockets
                 : record->socket != socket)
        comm_fail_protocol(comm, "a slice for socket %u on socket %u", record->socket, socket);
    else if (!separate)
        rx_record_begin_slice(comm, socket, record);
    else if (!queue_push(&comm->rx.incoming[record->socket].slices, record))
        comm_fail_protocol(comm, "more than %d slices ahead on socket %u", RX_MOST_SLICES,
                           record->socket);
    else
        lane_wake(comm, record->socket);
}

/* --- ends ---------------------------------------------------------------------------------- */

static void rx_fin(struct net_comm *comm, struct incoming *incoming,
                   const struct wire_record *record)
{
    if (incoming->total - WIRE_RECORD_BYTES != record->length)
        comm_fail_protocol(comm, "an end after %llu bytes, but %llu have come",
                           (unsigned long long)record->length,
                           (unsigned long long)(incoming->total - WIRE_RECORD_BYTES));
    else
        incoming->ended = true;
}

static void rx_abort_complete(struct net_comm *comm, const struct rx_payload *payload)
{
    (void)payload;
    comm_fail(comm, error_set(TCPX_REMOTE_ERROR, "%s gave up with %s: %s", comm->link.peer,
                              tcpx_result_name((int)comm->rx.abort_result), comm->rx.abort_text));
}

/* The text of an ABORT is in host memory of the comm. */
static struct iovec rx_abort_next(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                  uint64_t room)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;

    return payload->place != NULL ? sink_next_at_place(comm, socket, scratch, room)
                                  : sink_discard.next(comm, socket, scratch, room);
}

static void rx_abort_filled(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    if (comm->rx.incoming[socket].payload.place != NULL)
        sink_filled_at_place(comm, socket, bytes);
}

static const struct sink_ops sink_abort = {
    .next = rx_abort_next, .filled = rx_abort_filled, .complete = rx_abort_complete};

/* One text is enough: that of another socket is discarded. */
static void rx_abort(struct net_comm *comm, struct rx_payload *payload,
                     const struct wire_record *record)
{
    struct comm_rx *rx = &comm->rx;

    *payload =
        (struct rx_payload){.sink = &sink_abort, .left = record->length, .bytes = record->length};
    if (rx->abort_begun)
        return;
    rx->abort_begun = true;
    rx->abort_result = record->sequence;
    payload->place = (uint8_t *)rx->abort_text;
}

/* --- any record ---------------------------------------------------------------------------- */

void rx_record_arrived(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    struct wire_record record;

    COMM_LOCKED(comm);
    incoming->record_have = 0;
    if (incoming->ended) {
        comm_fail_protocol(comm, "a record behind FIN");
        return;
    }
    if (wire_record_read(incoming->record, WIRE_FORWARD, &record) != WIRE_FINE) {
        comm_fail_protocol(comm, "%s", error_text());
        return;
    }
    if (socket != 0 && record.type != WIRE_SLICE && record.type != WIRE_FIN &&
        record.type != WIRE_ABORT) {
        comm_fail_protocol(comm, "%s on socket %u", wire_type_name(record.type), socket);
        return;
    }
    switch (record.type) {
    case WIRE_OPEN:
        rx_open(comm, &record);
        break;
    case WIRE_EAGER:
        rx_eager(comm, &incoming->payload, &record);
        break;
    case WIRE_SLICE:
        rx_slice(comm, socket, &record);
        break;
    case WIRE_TOOLONG:
        rx_too_long(comm, &record);
        break;
    case WIRE_FIN:
        rx_fin(comm, incoming, &record);
        break;
    default: /* ABORT */
        rx_abort(comm, &incoming->payload, &record);
        break;
    }
}
