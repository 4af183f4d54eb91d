/* What each record of a sender means. */
#include "net/comm/rx_record.h"

#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_cancel.h"
#include "net/comm/rx_done.h"
#include "net/comm/rx_match.h"
#include "net/comm/rx_place.h"
#include "net/comm/rx_unexpected.h"

/* The payload of the record belongs to a receive. */
static void rx_expect(struct rx_payload *payload, struct net_request *request, uint64_t offset,
                      uint64_t bytes)
{
    *payload = (struct rx_payload){
        .sink = request->sink, .request = request, .at = offset, .left = bytes, .bytes = bytes};
    if (request->sink->in_host && request->parts == NULL && bytes > 0)
        payload->place = request->data + offset;
}

/* A receive gets its message. */
static void rx_begin(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    rx_match_ends(comm, request);
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = bytes;
}

/* The receive whose number the record has; NULL: there is none. */
static struct net_request *rx_named(struct net_comm *comm, const struct wire_record *record)
{
    return (record->flags & WIRE_TO_PLACE) != 0 ? rx_place_find(comm, record->sequence)
                                                : rx_match_by_number(comm, record->sequence);
}

/* Of a place both sides know the length. */
static bool rx_has_room(const struct net_request *request, uint64_t bytes)
{
    return request != NULL && (request->is_place ? bytes == request->room : bytes <= request->room);
}

/* --- whole messages ------------------------------------------------------------------------ */

static void rx_eager_begin(struct net_comm *comm, struct rx_payload *payload,
                           struct net_request *request, uint64_t bytes)
{
    rx_begin(comm, request, bytes);
    request->begun = bytes;
    rx_expect(payload, request, 0, bytes);
}

/* The sender knew its receive, and the room there. */
static void rx_eager_placed(struct net_comm *comm, struct rx_payload *payload,
                            const struct wire_record *record)
{
    struct net_request *request = rx_named(comm, record);

    if (!rx_has_room(request, record->length) || request->matched)
        comm_fail_protocol(comm,
                           "an eager message of %llu bytes for receive %u, which is not there, not "
                           "large enough or has a message already",
                           (unsigned long long)record->length, record->sequence);
    else
        rx_eager_begin(comm, payload, request, record->length);
}

/* NULL: it is kept as unexpected, or the comm has failed. */
static struct net_request *rx_receive_in_order(struct net_comm *comm, struct rx_payload *payload,
                                               const struct wire_record *record)
{
    struct unexpected *message;
    struct net_request *request;

    if (rx_unexpected_has_begun(comm, record->sequence)) {
        comm_fail_protocol(comm, "a second message %u", record->sequence);
        return NULL;
    }
    if (!rx_unexpected_place(comm, record->sequence, record->length, true, &message))
        return NULL;
    if (message != NULL) {
        rx_unexpected_expect(comm, payload, message, 0, record->length);
        return NULL;
    }
    request = rx_match_by_number(comm, record->sequence);
    if (!request->matched)
        return request;
    comm_fail_protocol(comm, "an eager message for receive %u, which has one already",
                       request->sequence);
    return NULL;
}

static struct net_request *rx_receive_of_tag(struct net_comm *comm, struct rx_payload *payload,
                                             const struct wire_record *record)
{
    struct net_request *request = rx_match_by_tag(comm, record->tag, record->offset);

    if (request == NULL)
        rx_unexpected_expect_tagged(comm, payload, record);
    return request;
}

/* Only the receiver knows whether its receive is posted, and large enough. */
static void rx_eager_on_credit(struct net_comm *comm, struct rx_payload *payload,
                               const struct wire_record *record)
{
    struct net_request *request = comm_is_in_order(comm)
                                      ? rx_receive_in_order(comm, payload, record)
                                      : rx_receive_of_tag(comm, payload, record);

    if (request == NULL)
        return;
    rx_free_credit(comm, record->length);
    if (record->length <= request->room) {
        rx_eager_begin(comm, payload, request, record->length);
        return;
    }
    rx_match_ends(comm, request);
    *payload =
        (struct rx_payload){.sink = &sink_discard, .left = record->length, .bytes = record->length};
    rx_fail_too_long(comm, request, record->length);
}

/* In order, a message has no tag, and its number needs no count of POSTs. */
static bool rx_eager_may_be(const struct net_comm *comm, const struct wire_record *record)
{
    if (record->length > comm->link.eager_limit)
        return false;
    if ((record->flags & WIRE_ON_CREDIT) == 0)
        return true;
    return comm_is_in_order(comm) ? record->tag == 0 && record->offset == 0
                                  : record->sequence == 0 && record->offset <= comm->next_order;
}

static void rx_eager(struct net_comm *comm, struct rx_payload *payload,
                     const struct wire_record *record)
{
    if (!rx_eager_may_be(comm, record))
        comm_fail_protocol(comm,
                           "an eager message of %llu bytes with tag %llu behind %llu receives that "
                           "may not be",
                           (unsigned long long)record->length, (unsigned long long)record->tag,
                           (unsigned long long)record->offset);
    else if ((record->flags & WIRE_ON_CREDIT) == 0)
        rx_eager_placed(comm, payload, record);
    else
        rx_eager_on_credit(comm, payload, record);
}

static void rx_too_long(struct net_comm *comm, const struct wire_record *record)
{
    struct net_request *request = rx_match_by_number(comm, record->sequence);

    if (request == NULL || request->matched || record->length <= request->room) {
        comm_fail_protocol(comm, "TOOLONG for receive %u, which is not there or large enough",
                           record->sequence);
        return;
    }
    rx_match_ends(comm, request);
    rx_fail_too_long(comm, request, record->length);
}

/* --- slices -------------------------------------------------------------------------------- */

/*
 * A slice that may have come before its receive. False: it is kept as unexpected, or the comm has
 * failed.
 */
static bool rx_slice_has_receive(struct net_comm *comm, struct rx_payload *payload,
                                 const struct wire_record *record)
{
    bool on_credit = (record->flags & WIRE_ON_CREDIT) != 0;
    struct unexpected *message;

    if (!rx_unexpected_place(comm, record->sequence, record->tag, on_credit, &message))
        return false;
    if (message != NULL)
        rx_unexpected_expect(comm, payload, message, record->offset, record->length);
    return message == NULL;
}

static bool rx_slice_may_be(const struct net_comm *comm, const struct wire_record *record)
{
    return record->length <= comm->link.largest_slice &&
           ((record->flags & WIRE_ON_CREDIT) == 0 ||
            (comm_is_in_order(comm) && comm->link.framing == WIRE_INLINE));
}

/* The first slice that arrives gives a receive its message; the others must be of the same. */
static bool rx_slice_fits(const struct net_request *request, const struct wire_record *record)
{
    if (!rx_has_room(request, record->tag) || (request->matched && record->tag != request->bytes))
        return false;
    return record->length <= (request->is_cut ? request->cut_at : record->tag) - request->begun;
}

void rx_record_begin_slice(struct net_comm *comm, unsigned socket, const struct wire_record *record)
{
    struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    struct net_request *request;

    COMM_LOCKED(comm);
    if (!rx_slice_may_be(comm, record)) {
        comm_fail_protocol(comm, "a slice of %llu bytes for receive %u, which may not be",
                           (unsigned long long)record->length, record->sequence);
        return;
    }
    if (comm_is_in_order(comm) && !rx_slice_has_receive(comm, payload, record))
        return;
    request = rx_named(comm, record);
    if (!rx_slice_fits(request, record)) {
        comm_fail_protocol(comm,
                           "a slice of %llu bytes at %llu of a message of %llu for receive %u, "
                           "which is not there or not as large",
                           (unsigned long long)record->length, (unsigned long long)record->offset,
                           (unsigned long long)record->tag, record->sequence);
        return;
    }
    if (!request->matched && (record->flags & WIRE_ON_CREDIT) != 0)
        rx_free_credit(comm, record->tag);
    rx_begin(comm, request, record->tag);
    request->begun += record->length;
    rx_expect(payload, request, record->offset, record->length);
    if (comm->rx.lane_sinks[socket] == NULL)
        return;
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
    case WIRE_EAGER:
        rx_eager(comm, &incoming->payload, &record);
        break;
    case WIRE_SLICE:
        rx_slice(comm, socket, &record);
        break;
    case WIRE_TOOLONG:
        rx_too_long(comm, &record);
        break;
    case WIRE_CANCELLED:
        rx_cancelled_by_sender(comm, rx_named(comm, &record), record.length);
        break;
    case WIRE_FIN:
        rx_fin(comm, incoming, &record);
        break;
    default: /* ABORT */
        rx_abort(comm, &incoming->payload, &record);
        break;
    }
}
