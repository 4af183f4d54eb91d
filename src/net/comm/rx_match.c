/* Receives by number and by tag. */
#include "net/comm/rx_match.h"

#include "net/comm/fail.h"
#include "net/comm/request.h"

#include <errno.h>
#include <stdlib.h>

int rx_match_create(struct net_comm *comm)
{
    struct comm_rx *rx = &comm->rx;

    rx->by_sequence_mask = 1;
    while (rx->by_sequence_mask < comm->most_requests)
        rx->by_sequence_mask = 2 * rx->by_sequence_mask + 1;
    rx->by_sequence = calloc(rx->by_sequence_mask + 1u, sizeof(struct net_request *));
    if (rx->by_sequence == NULL)
        return error_system(ENOMEM, "a comm");
    return key_fifo_init(&rx->unmatched, comm->most_requests, sizeof(struct unmatched));
}

void rx_match_destroy(struct net_comm *comm)
{
    key_fifo_destroy(&comm->rx.unmatched);
    free(comm->rx.by_sequence);
}

/* --- by number ----------------------------------------------------------------------------- */

static bool rx_has_number(const struct net_request *request, uint32_t sequence)
{
    return request_is_outstanding(request) && request->has_sequence &&
           request->sequence == sequence;
}

/* Only a receive that many later ones have passed has to be searched for. */
struct net_request *rx_match_by_number(struct net_comm *comm, uint32_t sequence)
{
    struct net_request *request = comm->rx.by_sequence[sequence & comm->rx.by_sequence_mask];

    COMM_LOCKED(comm);
    if (request != NULL && rx_has_number(request, sequence))
        return request;
    for (unsigned i = 0; comm->rx.has_displaced && i < comm->used_requests; i++)
        if (rx_has_number(&comm->requests[i], sequence))
            return &comm->requests[i];
    return NULL;
}

/*
 * With tags a receive can stay outstanding while numbers wrap: its number is skipped. There are
 * fewer outstanding receives than numbers.
 */
static uint32_t rx_next_free_number(struct net_comm *comm)
{
    uint32_t sequence = comm->next_sequence;

    while (comm->sequence_wrapped && !comm_is_in_order(comm) &&
           rx_match_by_number(comm, sequence) != NULL)
        sequence = wire_sequence((uint64_t)sequence + 1);
    return sequence;
}

void rx_match_number(struct net_comm *comm, struct net_request *request)
{
    struct comm_rx *rx = &comm->rx;
    struct net_request *before;
    unsigned place;

    COMM_LOCKED(comm);
    request->sequence = rx_next_free_number(comm);
    request->has_sequence = true;
    place = request->sequence & rx->by_sequence_mask;
    before = rx->by_sequence[place];
    if (comm->pending == 1) /* this one */
        rx->has_displaced = false;
    else if (before != NULL && before != request && request_is_outstanding(before) &&
             (before->sequence & rx->by_sequence_mask) == place)
        rx->has_displaced = true;
    rx->by_sequence[place] = request;
    comm_advance_sequence(comm, request->sequence);
}

/*
 * Messages in order have the numbers of their receives, so that no number can be skipped: the next
 * receive waits until the numbers of outstanding ones, and of messages that may come ahead, cannot
 * meet. Its predecessors do not depend on it, so that they end.
 */
bool rx_match_numbers_meet(const struct net_comm *comm)
{
    const uint64_t most = ((uint64_t)1 << WIRE_SEQUENCE_BITS) - WIRE_MOST_AHEAD;

    COMM_LOCKED(comm);
    if (!comm_is_in_order(comm) || comm->next_order < most)
        return false;
    for (unsigned i = 0; i < comm->used_requests; i++)
        if (request_is_outstanding(&comm->requests[i]) &&
            comm->next_order - comm->requests[i].order >= most)
            return true;
    return false;
}

/* --- by tag -------------------------------------------------------------------------------- */

struct net_request *rx_match_first(struct net_comm *comm, uint64_t tag)
{
    const struct unmatched *first;

    COMM_LOCKED(comm);
    while ((first = key_fifo_peek(&comm->rx.unmatched, tag)) != NULL) {
        if (request_is_outstanding(first->request) && first->request->order == first->order &&
            !first->request->matched)
            return first->request;
        key_fifo_pop(&comm->rx.unmatched, tag, NULL);
    }
    return NULL;
}

void rx_match_wait(struct net_comm *comm, struct net_request *request)
{
    const struct unmatched unmatched = {.request = request, .order = request->order};

    COMM_LOCKED(comm);
    if (!comm_is_in_order(comm) && !key_fifo_push(&comm->rx.unmatched, request->tag, &unmatched))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room for a receive that waits"));
}

void rx_match_first_ends(struct net_comm *comm, uint64_t tag)
{
    COMM_LOCKED(comm);
    if (!comm_is_in_order(comm))
        key_fifo_pop(&comm->rx.unmatched, tag, NULL);
}
