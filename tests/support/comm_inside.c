#include "tests/support/comm_inside.h"

#include "net/comm/progress.h"
#include "net/comm/request.h"
#include "net/comm/rx_match.h"
#include "net/comm/rx_unexpected.h"
#include "net/gpu/comm_gpu.h"
#include "net/gpu/gpu_mover.h"
#include "net/gpu/tx_dmabuf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A field of the comm, read with its lock. */
#define LOCKED(comm, type, expression)                                                             \
    do {                                                                                           \
        type locked_;                                                                              \
                                                                                                   \
        comm_lock_take(&(comm)->lock);                                                             \
        locked_ = (expression);                                                                    \
        comm_lock_release(&(comm)->lock);                                                          \
        return locked_;                                                                            \
    } while (0)

void inside_move_on(struct net_comm *comm)
{
    comm_lock_take(&comm->lock);
    progress(comm, false);
    comm_lock_release(&comm->lock);
}

int inside_result(struct net_comm *comm)
{
    int result;

    comm_lock_take(&comm->lock);
    result = comm->result;
    if (result != TCPX_SUCCESS)
        error_keep("%s", comm->text);
    comm_lock_release(&comm->lock);
    return result;
}

bool inside_has_ended(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, bool, request_has_ended(request));
}

const struct net_link *inside_link(const struct net_comm *comm)
{
    return &comm->link;
}

uint64_t inside_most_turn_bytes(void)
{
    return COMM_TURN_BYTES;
}

unsigned inside_most_turn_calls(void)
{
    return COMM_TURN_CALLS;
}

void inside_jump_to(struct net_comm *comm, uint64_t receives)
{
    comm_lock_take(&comm->lock);
    comm->next_sequence = wire_sequence(receives);
    comm->next_order = receives;
    comm_lock_release(&comm->lock);
}

void inside_set_next_order(struct net_comm *comm, uint64_t order)
{
    comm_lock_take(&comm->lock);
    comm->next_order = order;
    comm_lock_release(&comm->lock);
}

uint64_t inside_moved(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, uint64_t, request->moved);
}

/* --- rules ----------------------------------------------------------------------------------- */

#define RULE(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return #condition;                                                                     \
    } while (0)

static uint64_t charge_of(const struct unexpected *message)
{
    return message->bytes + WIRE_EAGER_CHARGE;
}

static const char *broken_by_kept(const struct net_comm *comm, const struct unexpected *message)
{
    uint64_t coming = 0;

    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->rx.incoming[i].payload.message == message)
            coming += comm->rx.incoming[i].payload.bytes;
    RULE(message->begun <= message->bytes && message->bytes <= message->capacity);
    RULE(message->begun - message->moved == coming);
    return NULL;
}

/* Messages that are kept by their number: each once, within the credit; and memory for more. */
static const char *broken_by_ahead(struct net_comm *comm, uint64_t *most_kept, uint64_t *held)
{
    enum { SLACK = 4096 };
    uint64_t memory = 0;
    unsigned stalled = 0;
    const char *broken = NULL;

    for (uint32_t i = 0; i < WIRE_MOST_AHEAD && broken == NULL; i++) {
        const struct unexpected *one = comm->rx.numbered[i];

        if (one == NULL)
            continue;
        broken = broken_by_kept(comm, one);
        RULE(one->sequence % WIRE_MOST_AHEAD == i);
        RULE((uint32_t)(one->sequence - comm->next_sequence) < WIRE_MOST_AHEAD);
        *held += charge_of(one);
        memory += one->capacity;
    }
    for (const struct unexpected *one = comm->rx.claimed; one != NULL && broken == NULL;
         one = one->next) {
        const struct net_request *request = rx_match_by_number(comm, one->sequence);

        broken = broken_by_kept(comm, one);
        RULE(comm->result != TCPX_SUCCESS || (request != NULL && request->matched));
        *held += charge_of(one);
        memory += one->capacity;
    }
    if (broken != NULL)
        return broken;
    /* Memory of an earlier message may be larger than what is in it now, but is not hoarded. */
    if (*most_kept < memory)
        *most_kept = memory;
    RULE(memory <= 2 * *held + SLACK * (comm->link.eager_credit / WIRE_EAGER_CHARGE));
    for (const struct unexpected *one = comm->rx.spare; one != NULL; one = one->next)
        memory += one->capacity;
    RULE(memory == comm->rx.memory);
    RULE(memory <= *most_kept + comm->link.eager_credit);
    for (unsigned i = 0; i < comm->link.sockets; i++) {
        stalled += comm->rx.incoming[i].stalled;
        RULE(!comm->rx.incoming[i].stalled ||
             comm->rx.incoming[i].record_have == WIRE_RECORD_BYTES);
    }
    RULE(stalled == comm->rx.stalled);
    return NULL;
}

static const char *broken_rule(struct net_comm *comm, uint64_t reported, uint64_t *most_kept)
{
    uint64_t done = 0;
    uint64_t aside = 0;
    const char *broken = broken_by_ahead(comm, most_kept, &aside);

    if (broken != NULL)
        return broken;
    for (unsigned i = 0; i < comm->used_requests; i++) {
        const struct net_request *request = &comm->requests[i];

        done += request->state == REQUEST_DONE;
        if (request->state == REQUEST_FAILED)
            RULE(request->result != TCPX_SUCCESS && request->text != NULL);
        if (comm->result != TCPX_SUCCESS)
            RULE(request->state != REQUEST_WAITING && request->state != REQUEST_MOVING);
    }
    RULE(comm->messages == reported + done);
    if (comm->result != TCPX_SUCCESS)
        RULE(comm->text[0] != '\0');
    for (const struct unexpected *one = comm->rx.first_tagged; one != NULL; one = one->next)
        aside += charge_of(one);
    RULE(aside == comm->rx.held && aside <= comm->link.eager_credit);
    return NULL;
}

const char *inside_broken_rule(struct net_comm *comm, uint64_t reported, uint64_t *most_kept)
{
    LOCKED(comm, const char *, broken_rule(comm, reported, most_kept));
}

/* --- a sender -------------------------------------------------------------------------------- */

uint64_t inside_charged(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->tx.credit_charged);
}

uint64_t inside_handed_out(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, uint64_t, request->handed_out);
}

bool inside_has_said_all(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, bool, request->records_queued == 0);
}

bool inside_sends_by_reference(struct net_comm *comm)
{
    return comm->tx.zero_copy;
}

int inside_allow_references(struct net_comm *comm)
{
    int result = gpu_mover_attach(comm, 0);

    for (unsigned i = 0; i < comm->link.sockets && result == TCPX_SUCCESS; i++) {
        comm->gpu->zero_copy[i] = calloc(1, sizeof *comm->gpu->zero_copy[i]);
        result = comm->gpu->zero_copy[i] != NULL ? zerocopy_allow(comm->link.forward[i])
                                                 : error_system(ENOMEM, "sends without a copy");
    }
    comm->gpu->sends_by_reference = result == TCPX_SUCCESS;
    comm->tx.zero_copy = result == TCPX_SUCCESS;
    return result;
}

bool inside_refer(struct net_comm *comm, struct net_request *send, uint32_t source_id)
{
    bool in_time;

    comm_lock_take(&comm->lock);
    in_time = send->state == REQUEST_WAITING;
    if (in_time) {
        send->source = &source_dmabuf;
        send->gpu.source_id = source_id;
    }
    comm_lock_release(&comm->lock);
    return in_time;
}

uint64_t inside_taken_by_sockets(struct net_comm *comm, const struct net_request *send)
{
    uint64_t bytes;

    comm_lock_take(&comm->lock);
    bytes = send->moved;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        bytes += zerocopy_bytes_of(comm->gpu->zero_copy[i], send);
    comm_lock_release(&comm->lock);
    return bytes;
}

/* --- a receiver ------------------------------------------------------------------------------ */

uint64_t inside_held(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->rx.held);
}

uint64_t inside_given_back(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->rx.credit_freed);
}

uint64_t inside_kept_memory(struct net_comm *comm)
{
    uint64_t all = 0;

    comm_lock_take(&comm->lock);
    for (int i = 0; i < WIRE_MOST_AHEAD; i++)
        all += comm->rx.numbered[i] != NULL ? comm->rx.numbered[i]->capacity : 0;
    for (const struct unexpected *spare = comm->rx.spare; spare != NULL; spare = spare->next)
        all += spare->capacity;
    comm_lock_release(&comm->lock);
    return all;
}

bool inside_has_unexpected(struct net_comm *comm, uint64_t tag)
{
    LOCKED(comm, bool, rx_unexpected_is_complete(comm, tag));
}

unsigned inside_stalled(struct net_comm *comm)
{
    LOCKED(comm, unsigned, comm->rx.stalled);
}

void inside_keep_posting(struct net_comm *comm, bool just_now)
{
    comm_lock_take(&comm->lock);
    comm->rx.last_post = just_now ? UINT64_MAX / 2 : 0;
    comm_lock_release(&comm->lock);
}

void inside_let_time_pass(struct net_comm *comm)
{
    comm_lock_take(&comm->lock);
    comm->rx.last_post = 0;
    comm->rx.queued_since = 0;
    comm_lock_release(&comm->lock);
}

bool inside_calls_move(const struct net_comm *comm, unsigned socket)
{
    (void)socket;
    return comm->callers_move;
}

uint64_t inside_received(struct net_comm *comm, unsigned socket)
{
    LOCKED(comm, uint64_t, comm->rx.incoming[socket].total);
}

/* --- staging slots --------------------------------------------------------------------------- */

enum { INSIDE_MOST_SLOTS = 64 };

static struct pinned_share pool;

unsigned inside_slots_used(const struct net_comm *comm)
{
    return comm->gpu->share.used;
}

int inside_slots_open(unsigned most)
{
    return pinned_join(PINNED_STAGING, 0, 0, most, NULL, &pool);
}

void inside_slots_close(void)
{
    pinned_leave(&pool);
}

unsigned inside_free_slots(const uint8_t **hosts, unsigned most)
{
    struct pinned_slot *taken[INSIDE_MOST_SLOTS];
    unsigned count = 0;

    while (count < most && count < INSIDE_MOST_SLOTS &&
           (taken[count] = pinned_take(&pool)) != NULL) {
        hosts[count] = taken[count]->host;
        count++;
    }
    for (unsigned i = count; i > 0; i--)
        pinned_give(&pool, taken[i - 1]);
    return count;
}

unsigned inside_posts_waiting(struct net_comm *comm)
{
    unsigned count = 0;

    comm_lock_take(&comm->lock);
    for (uint32_t i = 0; i < comm->tx.posts.capacity; i++)
        count += key_fifo_at(&comm->tx.posts, i) != NULL;
    comm_lock_release(&comm->lock);
    return count;
}

uint64_t inside_messages(struct net_comm *comm)
{
    uint64_t messages;

    comm_lock_take(&comm->lock);
    messages = comm->messages;
    comm_lock_release(&comm->lock);
    return messages;
}

uint64_t inside_posts_heard(struct net_comm *comm)
{
    uint64_t posts;

    comm_lock_take(&comm->lock);
    posts = comm->tx.posts_heard;
    comm_lock_release(&comm->lock);
    return posts;
}
