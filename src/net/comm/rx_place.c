/* Receives with numbers that both sides know. */
#include "net/comm/rx_place.h"

#include "net/comm/accounting.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"

int rx_place_create(struct net_comm *comm)
{
    if (comm_is_in_order(comm))
        return TCPX_SUCCESS;
    return key_fifo_init(&comm->rx.places, comm->most_requests, sizeof(struct net_request *));
}

void rx_place_destroy(struct net_comm *comm)
{
    key_fifo_destroy(&comm->rx.places);
}

struct net_request *rx_place_find(struct net_comm *comm, uint32_t place)
{
    struct net_request **found;

    COMM_LOCKED(comm);
    found = comm_is_in_order(comm) ? NULL : key_fifo_peek(&comm->rx.places, place);
    return found != NULL ? *found : NULL;
}

/* --- opening ------------------------------------------------------------------------------- */

/* How many numbers it is after the newest place that was opened in order. */
static uint32_t rx_place_distance(const struct net_comm *comm, uint32_t place)
{
    const uint32_t numbers = NET_OPEN_PLACE - 1; /* 1 to this */
    uint32_t newest = comm->rx.newest_place;

    return place > newest ? place - newest : place + numbers - newest;
}

int rx_place_check(struct net_comm *comm, uint32_t place)
{
    COMM_LOCKED(comm);
    if (place == 0 || (place < NET_OPEN_PLACE ? rx_place_distance(comm, place) != 1
                                              : rx_place_find(comm, place) != NULL))
        return error_set(TCPX_INVALID_USAGE,
                         "place %u cannot be opened: it is neither the next one after %u nor a "
                         "free open one",
                         place, comm->rx.newest_place);
    return TCPX_SUCCESS;
}

void rx_place_open(struct net_comm *comm, struct net_request *request)
{
    struct comm_rx *rx = &comm->rx;

    COMM_LOCKED(comm);
    if (!key_fifo_push(&rx->places, request->sequence, &request)) {
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room for a place"));
        return;
    }
    account_posted(comm, clock_now());
    if (request->sequence >= NET_OPEN_PLACE)
        return;
    rx->newest_place = request->sequence;
    for (unsigned i = 0; i < comm->link.sockets && rx->stalled > 0; i++)
        if (rx->incoming[i].stalled && rx->incoming[i].stalled_for == request->sequence)
            lane_wake(comm, i);
}

/* --- records that come before --------------------------------------------------------------- */

bool rx_place_is_awaited(struct net_comm *comm, struct incoming *incoming)
{
    const uint64_t longest_ns = 120000000000u;
    const uint64_t at_once_ns = 100000000; /* what is longer, this process was stopped */
    struct wire_record record;
    uint64_t now = clock_now();
    uint64_t since;

    COMM_LOCKED(comm);
    if (wire_record_read(incoming->record, WIRE_FORWARD, &record) != WIRE_FINE ||
        (record.flags & WIRE_TO_PLACE) == 0 || record.sequence == 0 ||
        record.sequence >= NET_OPEN_PLACE || rx_place_find(comm, record.sequence) != NULL ||
        rx_place_distance(comm, record.sequence) > NET_PLACES)
        return false;
    if (!incoming->stalled) {
        incoming->stalled_seen = now;
        incoming->stalled_ns = 0;
    }
    since = now - incoming->stalled_seen;
    incoming->stalled_ns += since < at_once_ns ? since : at_once_ns;
    incoming->stalled_seen = now;
    incoming->stalled_for = record.sequence;
    if (incoming->stalled_ns < longest_ns)
        return true;
    comm_fail_protocol(comm, "bytes for place %u, which nothing has opened", record.sequence);
    return false;
}
