/* Sends, posted receives, and the credit for messages that go ahead. */
#include "net/comm/tx_match.h"

#include "net/comm/fail.h"
#include "net/comm/request.h"
#include "net/comm/tx_work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * Records for socket 0: one for each send, one for each receive that the peer has cancelled, those
 * that are left of cancelled sends, and the slices of the other sockets.
 */
static size_t tx_most_planned(const struct net_comm *comm)
{
    return 3 * (size_t)comm->most_requests + (size_t)4 * WIRE_MOST_SOCKETS;
}

int tx_match_create(struct net_comm *comm)
{
    struct comm_tx *tx = &comm->tx;
    uint64_t most = comm->link.eager_credit / WIRE_EAGER_CHARGE + 1;
    int result;

    if (most > 1 << 20)
        return error_set(TCPX_REMOTE_ERROR, "%s grants %llu bytes of eager credit: too many",
                         comm->link.peer, (unsigned long long)comm->link.eager_credit);
    tx->unposted_room = (unsigned)most;
    if (!comm_is_in_order(comm)) {
        tx->unposted = calloc(most, sizeof *tx->unposted);
        if (tx->unposted == NULL)
            return error_system(ENOMEM, "a comm");
    }
    result = queue_init(&tx->planned, tx_most_planned(comm), sizeof(struct planned));
    if (result == TCPX_SUCCESS)
        result = key_fifo_init(&tx->posts, comm->most_requests, sizeof(struct post));
    if (result == TCPX_SUCCESS)
        result = key_fifo_init(&tx->waiting, comm->most_requests, sizeof(struct net_request *));
    if (result != TCPX_SUCCESS)
        tx_match_destroy(comm);
    return result;
}

void tx_match_destroy(struct net_comm *comm)
{
    struct planned planned;

    while (queue_pop(&comm->tx.planned, &planned))
        free(planned.own);
    queue_destroy(&comm->tx.planned);
    key_fifo_destroy(&comm->tx.posts);
    key_fifo_destroy(&comm->tx.waiting);
    free(comm->tx.unposted);
    comm->tx.unposted = NULL;
}

/* --- planned records ----------------------------------------------------------------------- */

bool tx_match_plan(struct net_comm *comm, struct net_request *request,
                   const struct wire_record *record)
{
    const struct planned planned = {.record = *record, .request = request};

    COMM_LOCKED(comm);
    if (!queue_push(&comm->tx.planned, &planned)) {
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room to plan a %s",
                                  wire_type_name(record->type)));
        return false;
    }
    if (request != NULL)
        request->records_queued++;
    else
        comm->tx.ownerless++;
    return true;
}

bool tx_match_has_room(const struct net_comm *comm, unsigned most_left)
{
    COMM_LOCKED(comm);
    return comm->tx.ownerless < most_left;
}

bool tx_match_can_plan_slice(const struct net_comm *comm)
{
    return queue_length(&comm->tx.planned) + 2 * (size_t)comm->most_requests <
           tx_most_planned(comm);
}

/* --- opening ------------------------------------------------------------------------------- */

/* A message in GPU memory would hold up everything behind it on socket 0. */
static bool tx_may_be_eager(const struct net_comm *comm, const struct net_request *request)
{
    return request->bytes == 0 ||
           (request->source->in_host && request->bytes <= comm->link.eager_limit);
}

static void tx_open_eagerly(struct net_comm *comm, struct net_request *request,
                            struct wire_record record)
{
    record.type = WIRE_EAGER;
    record.length = request->bytes;
    request->state = REQUEST_MOVING;
    request->handed_out = request->bytes;
    tx_match_plan(comm, request, &record);
}

/*
 * With tags, the receiver finds the receive: the oldest of the tag behind the POSTs that have come,
 * since those of this tag among them have their messages.
 */
static void tx_open_eagerly_ahead(struct net_comm *comm, struct net_request *request)
{
    struct wire_record record = {.flags = WIRE_ON_CREDIT, .tag = request->tag};

    if (comm_is_in_order(comm))
        record.sequence = wire_sequence(request->order);
    else
        record.offset = comm->tx.posts_heard;
    comm->tx.credit_charged += request->bytes + WIRE_EAGER_CHARGE;
    tx_open_eagerly(comm, request, record);
}

/*
 * The send fails only when TOOLONG has been written: after its last failed request a program need
 * not call again, and the receiver would wait for ever.
 */
static void tx_open_too_long(struct net_comm *comm, struct net_request *request,
                             const struct post *post)
{
    request->state = REQUEST_MOVING;
    request->too_long = true;
    request->room = post->room;
    request->handed_out = request->bytes;
    request->gpu.staged = request->bytes;
    tx_match_plan(comm, request,
                  &(struct wire_record){
                      .type = WIRE_TOOLONG, .sequence = post->sequence, .length = request->bytes});
}

/* Its receive is posted, so the receiver need not keep it: the credit does not matter. */
static void tx_open_numbered(struct net_comm *comm, struct net_request *request, uint8_t flags)
{
    if (tx_may_be_eager(comm, request)) {
        tx_open_eagerly(comm, request,
                        (struct wire_record){.flags = flags, .sequence = request->sequence});
        return;
    }
    request->state = REQUEST_MOVING;
    tx_work_add(comm, request);
}

static void tx_open_posted(struct net_comm *comm, struct net_request *request,
                           const struct post *post)
{
    request->sequence = post->sequence;
    request->has_sequence = true;
    if (request->bytes > post->room)
        tx_open_too_long(comm, request, post);
    else
        tx_open_numbered(comm, request, 0);
}

void tx_match_start_place(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    tx_open_numbered(comm, request, WIRE_TO_PLACE);
}

/* Ahead of its receive, in slices. */
static void tx_open_ahead(struct net_comm *comm, struct net_request *request)
{
    comm->tx.credit_charged += request->bytes + WIRE_EAGER_CHARGE;
    request->state = REQUEST_MOVING;
    request->ahead = true;
    tx_work_add(comm, request);
    request->sequence = wire_sequence(request->order);
}

/* --- sends that wait for their receive ----------------------------------------------------- */

static void tx_waiting_add(struct net_comm *comm, struct net_request *request)
{
    struct comm_tx *tx = &comm->tx;

    if (!key_fifo_push(&tx->waiting, request->tag, &request)) {
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room for a send that waits"));
        return;
    }
    request->later = NULL;
    request->earlier = tx->last_waiting;
    if (tx->last_waiting != NULL)
        tx->last_waiting->later = request;
    else
        tx->first_waiting = request;
    tx->last_waiting = request;
}

/* The first waiting send of this tag; NULL if there is none. */
static struct net_request *tx_waiting_first(struct net_comm *comm, uint64_t tag)
{
    struct net_request **first = key_fifo_peek(&comm->tx.waiting, tag);

    return first != NULL ? *first : NULL;
}

static bool tx_is_this_send(const void *element, const void *request)
{
    return *(struct net_request *const *)element == request;
}

static void tx_waiting_remove(struct net_comm *comm, struct net_request *request)
{
    struct comm_tx *tx = &comm->tx;

    key_fifo_remove(&tx->waiting, request->tag, tx_is_this_send, request);
    if (request->earlier != NULL)
        request->earlier->later = request->later;
    else
        tx->first_waiting = request->later;
    if (request->later != NULL)
        request->later->earlier = request->earlier;
    else
        tx->last_waiting = request->earlier;
}

void tx_match_forget(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    tx_waiting_remove(comm, request);
}

/* --- credit -------------------------------------------------------------------------------- */

static bool tx_is_near(const struct net_comm *comm, const struct net_request *request)
{
    return wire_sequence_distance(comm->next_sequence, wire_sequence(request->order)) <
           WIRE_MOST_AHEAD;
}

static uint64_t tx_credit_left(const struct net_comm *comm)
{
    uint64_t used = comm->tx.credit_charged - comm->tx.credit_freed;

    return used < comm->link.eager_credit ? comm->link.eager_credit - used : 0;
}

static bool tx_credit_suffices(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t left = tx_credit_left(comm);

    return left >= WIRE_EAGER_CHARGE && request->bytes <= left - WIRE_EAGER_CHARGE;
}

static bool tx_may_go_eagerly(const struct net_comm *comm, const struct net_request *request)
{
    return tx_may_be_eager(comm, request) && tx_credit_suffices(comm, request) &&
           (comm_is_in_order(comm) ? tx_is_near(comm, request)
                                   : comm->tx.unposted_count < comm->tx.unposted_room);
}

/* In order, the number of its receive is known before that is posted, so even slices may go. */
static bool tx_may_go_ahead(const struct net_comm *comm, const struct net_request *request)
{
    return comm_is_in_order(comm) && comm->link.framing == WIRE_INLINE &&
           tx_is_near(comm, request) && tx_credit_suffices(comm, request);
}

static void tx_note_unposted(struct net_comm *comm, uint64_t tag)
{
    if (!comm_is_in_order(comm))
        comm->tx.unposted[comm->tx.unposted_count] = tag;
    comm->tx.unposted_count++;
}

/* Opens the send before its POST, if it may be. */
static bool tx_open_on_credit(struct net_comm *comm, struct net_request *request)
{
    if (tx_may_go_eagerly(comm, request))
        tx_open_eagerly_ahead(comm, request);
    else if (!tx_may_be_eager(comm, request) && tx_may_go_ahead(comm, request))
        tx_open_ahead(comm, request);
    else
        return false;
    tx_note_unposted(comm, request->tag);
    return true;
}

/* No send of its tag waits. */
static bool tx_open_at_once(struct net_comm *comm, struct net_request *request)
{
    struct post post;

    if (!key_fifo_pop(&comm->tx.posts, request->tag, &post))
        return tx_open_on_credit(comm, request);
    tx_open_posted(comm, request, &post);
    return true;
}

/* In the order of their sends. None of them has a POST: that would have opened it. */
void tx_match_open_waiting(struct net_comm *comm)
{
    struct net_request *request = comm->tx.first_waiting;

    COMM_LOCKED(comm);
    while (request != NULL && comm->result == TCPX_SUCCESS &&
           tx_credit_left(comm) >= WIRE_EAGER_CHARGE) {
        struct net_request *later = request->later;
        bool opened =
            tx_waiting_first(comm, request->tag) == request && tx_open_on_credit(comm, request);

        if (opened)
            tx_waiting_remove(comm, request);
        else if (comm_is_in_order(comm))
            return;
        request = later;
    }
}

void tx_match_start(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    if (tx_waiting_first(comm, request->tag) != NULL || !tx_open_at_once(comm, request))
        tx_waiting_add(comm, request);
}

/* --- what the receiver has sent ------------------------------------------------------------ */

/* Whether this POST is for a message that went ahead of it. */
static bool tx_pair_with_unposted(struct net_comm *comm, uint64_t tag)
{
    struct comm_tx *tx = &comm->tx;

    if (comm_is_in_order(comm) && tx->unposted_count > 0) {
        tx->unposted_count--;
        return true;
    }
    for (unsigned i = 0; i < tx->unposted_count; i++)
        if (tx->unposted[i] == tag) {
            tx->unposted_count--;
            memmove(&tx->unposted[i], &tx->unposted[i + 1],
                    (tx->unposted_count - i) * sizeof *tx->unposted);
            return true;
        }
    return false;
}

static int tx_note_freed(struct net_comm *comm, uint64_t freed)
{
    if (freed < comm->tx.credit_freed || freed > comm->tx.credit_charged)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: it freed %llu eager bytes after %llu, of %llu",
                         comm->link.peer, (unsigned long long)freed,
                         (unsigned long long)comm->tx.credit_freed,
                         (unsigned long long)comm->tx.credit_charged);
    comm->tx.credit_freed = freed;
    return TCPX_SUCCESS;
}

/* A CREDIT that frees nothing could come without end. */
int tx_match_credit(struct net_comm *comm, uint64_t freed)
{
    COMM_LOCKED(comm);
    if (freed == comm->tx.credit_freed)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: CREDIT that frees nothing, at %llu eager bytes",
                         comm->link.peer, (unsigned long long)freed);
    return tx_note_freed(comm, freed);
}

/* Whether a receive of this number cannot have got its whole message yet. */
static bool tx_number_is_outstanding(const struct net_comm *comm, uint32_t sequence)
{
    for (unsigned i = 0; i < comm->tx.posts.capacity; i++) {
        const struct post *post = key_fifo_at(&comm->tx.posts, i);

        if (post != NULL && post->sequence == sequence)
            return true;
    }
    for (unsigned i = 0; i < comm->used_requests; i++)
        if (comm->requests[i].state == REQUEST_MOVING && comm->requests[i].has_sequence &&
            comm->requests[i].sequence == sequence &&
            comm->requests[i].handed_out < comm->requests[i].bytes)
            return true;
    return false;
}

/*
 * The receiver counts, but with tags it skips the numbers of receives that are outstanding; there
 * are some only when the numbers have wrapped.
 */
static bool tx_number_may_be_posted(const struct net_comm *comm, uint32_t sequence)
{
    uint32_t skipped = wire_sequence_distance(comm->next_sequence, sequence);

    if (comm_is_in_order(comm) || !comm->sequence_wrapped)
        return skipped == 0;
    return skipped < comm->most_requests && !tx_number_is_outstanding(comm, sequence);
}

int tx_match_post(struct net_comm *comm, const struct wire_record *record)
{
    const struct post post = {
        .sequence = record->sequence, .tag = record->tag, .room = record->length};
    struct net_request *request;
    int result = tx_note_freed(comm, record->offset);

    COMM_LOCKED(comm);
    if (result != TCPX_SUCCESS)
        return result;
    if (!tx_number_may_be_posted(comm, post.sequence) || (comm_is_in_order(comm) && post.tag != 0))
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: POST of receive %u with tag %llu, expected %u",
                         comm->link.peer, post.sequence, (unsigned long long)post.tag,
                         comm->next_sequence);
    comm_advance_sequence(comm, post.sequence);
    comm->tx.posts_heard++;
    if (tx_pair_with_unposted(comm, post.tag))
        return TCPX_SUCCESS;
    request = tx_waiting_first(comm, post.tag);
    if (request != NULL) {
        tx_waiting_remove(comm, request);
        tx_open_posted(comm, request, &post);
        return TCPX_SUCCESS;
    }
    if (!key_fifo_push(&comm->tx.posts, post.tag, &post))
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: more than %u receives posted",
                         comm->link.peer, comm->most_requests);
    return TCPX_SUCCESS;
}

static bool tx_is_post_of(const void *element, const void *sequence)
{
    return ((const struct post *)element)->sequence == *(const uint32_t *)sequence;
}

bool tx_match_withdraw_post(struct net_comm *comm, uint32_t sequence)
{
    COMM_LOCKED(comm);
    for (unsigned i = 0; i < comm->tx.posts.capacity; i++) {
        const struct post *post = key_fifo_at(&comm->tx.posts, i);

        if (post != NULL && post->sequence == sequence)
            return key_fifo_remove(&comm->tx.posts, post->tag, tx_is_post_of, &sequence);
    }
    return false;
}
