/* Receives by number and by tag. */
#include "net/comm/rx_match.h"

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
    rx->by_tag = calloc(rx->by_sequence_mask + 1u, sizeof *rx->by_tag);
    if (rx->by_sequence == NULL || rx->by_tag == NULL)
        return error_system(ENOMEM, "a comm");
    return TCPX_SUCCESS;
}

void rx_match_destroy(struct net_comm *comm)
{
    free(comm->rx.by_tag);
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

static struct receive_row *rx_row_of(struct net_comm *comm, uint64_t tag)
{
    const uint64_t spread = 0x9e3779b97f4a7c15u;

    return &comm->rx.by_tag[((tag ^ tag >> 32) * spread >> 32) & comm->rx.by_sequence_mask];
}

/*
 * The sender had heard of the first `posts_heard` receives, and has messages for all of this tag
 * among them. Mostly the row has few that it had not heard of; or, where receives are posted much
 * earlier than they are announced, none that it had.
 */
struct net_request *rx_match_by_tag(struct net_comm *comm, uint64_t tag, uint64_t posts_heard)
{
    const struct receive_row *row = rx_row_of(comm, tag);
    struct net_request *request = row->last;
    struct net_request *found = NULL;

    COMM_LOCKED(comm);
    if (row->first != NULL && row->first->order >= posts_heard) {
        request = row->first;
        while (request != NULL && request->tag != tag)
            request = request->later_in_row;
        return request;
    }
    for (; request != NULL && request->order >= posts_heard; request = request->earlier_in_row)
        if (request->tag == tag)
            found = request;
    return found;
}

void rx_match_wait(struct net_comm *comm, struct net_request *request)
{
    struct receive_row *row = rx_row_of(comm, request->tag);

    COMM_LOCKED(comm);
    if (comm_is_in_order(comm))
        return;
    request->is_in_row = true;
    request->earlier_in_row = row->last;
    *(row->last != NULL ? &row->last->later_in_row : &row->first) = request;
    row->last = request;
}

void rx_match_ends(struct net_comm *comm, struct net_request *request)
{
    struct receive_row *row = rx_row_of(comm, request->tag);
    struct net_request *earlier = request->earlier_in_row;
    struct net_request *later = request->later_in_row;

    COMM_LOCKED(comm);
    if (!request->is_in_row)
        return;
    request->is_in_row = false;
    *(earlier != NULL ? &earlier->later_in_row : &row->first) = later;
    *(later != NULL ? &later->earlier_in_row : &row->last) = earlier;
}
