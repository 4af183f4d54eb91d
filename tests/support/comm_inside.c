#include "tests/support/comm_inside.h"

#include "net/comm/comm_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A field of the comm, read with its lock. */
#define LOCKED(comm, type, expression)                                                             \
    do {                                                                                           \
        type locked_;                                                                              \
                                                                                                   \
        pthread_mutex_lock(&(comm)->lock);                                                         \
        locked_ = (expression);                                                                    \
        pthread_mutex_unlock(&(comm)->lock);                                                       \
        return locked_;                                                                            \
    } while (0)

void inside_move_on(struct net_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    progress(comm);
    pthread_mutex_unlock(&comm->lock);
}

int inside_result(struct net_comm *comm)
{
    int result;

    pthread_mutex_lock(&comm->lock);
    result = comm->result;
    if (result != TCPX_SUCCESS)
        error_keep("%s", comm->text);
    pthread_mutex_unlock(&comm->lock);
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
    pthread_mutex_lock(&comm->lock);
    comm->next_sequence = wire_sequence(receives);
    comm->next_order = receives;
    pthread_mutex_unlock(&comm->lock);
}

void inside_set_next_order(struct net_comm *comm, uint64_t order)
{
    pthread_mutex_lock(&comm->lock);
    comm->next_order = order;
    pthread_mutex_unlock(&comm->lock);
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

static uint64_t charge_of(const struct eager_message *message)
{
    return message->bytes + WIRE_EAGER_CHARGE;
}

static const char *broken_by_kept(const struct net_comm *comm, const struct eager_message *message)
{
    uint64_t coming = 0;

    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->incoming[i].ahead == message)
            coming += comm->incoming[i].counts;
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
        const struct eager_message *one = comm->ahead[i];

        if (one == NULL)
            continue;
        broken = broken_by_kept(comm, one);
        RULE(one->sequence % WIRE_MOST_AHEAD == i);
        RULE((uint32_t)(one->sequence - comm->next_sequence) < WIRE_MOST_AHEAD);
        *held += charge_of(one);
        memory += one->capacity;
    }
    for (const struct eager_message *one = comm->claimed; one != NULL && broken == NULL;
         one = one->next) {
        const struct net_request *request = receiver_by_sequence(comm, one->sequence);

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
    for (const struct eager_message *one = comm->spare; one != NULL; one = one->next)
        memory += one->capacity;
    RULE(memory == comm->ahead_memory);
    RULE(memory <= *most_kept + comm->link.eager_credit);
    for (unsigned i = 0; i < comm->link.sockets; i++) {
        stalled += comm->incoming[i].stalled;
        RULE(!comm->incoming[i].stalled || comm->incoming[i].record_have == WIRE_RECORD_BYTES);
    }
    RULE(stalled == comm->stalled);
    return NULL;
}

static const char *broken_rule(struct net_comm *comm, uint64_t reported, uint64_t *most_kept)
{
    uint64_t done = 0;
    uint64_t aside = 0;
    const char *broken = broken_by_ahead(comm, most_kept, &aside);

    if (broken != NULL)
        return broken;
    for (int i = 0; i < COMM_REQUESTS; i++) {
        const struct net_request *request = &comm->requests[i];

        done += request->state == REQUEST_DONE;
        if (request->state == REQUEST_FAILED)
            RULE(request->result != TCPX_SUCCESS && request->text[0] != '\0');
        if (comm->result != TCPX_SUCCESS)
            RULE(request->state != REQUEST_WAITING && request->state != REQUEST_MOVING);
    }
    RULE(comm->messages == reported + done);
    if (comm->result != TCPX_SUCCESS)
        RULE(comm->text[0] != '\0');
    for (const struct eager_message *one = comm->eager_first; one != NULL; one = one->next)
        aside += charge_of(one);
    RULE(aside == comm->eager_held && aside <= comm->link.eager_credit);
    return NULL;
}

const char *inside_broken_rule(struct net_comm *comm, uint64_t reported, uint64_t *most_kept)
{
    LOCKED(comm, const char *, broken_rule(comm, reported, most_kept));
}

/* --- a sender -------------------------------------------------------------------------------- */

uint64_t inside_charged(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->eager_charged);
}

uint64_t inside_handed_out(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, uint64_t, request->handed_out);
}

bool inside_has_said_all(struct net_comm *comm, const struct net_request *request)
{
    LOCKED(comm, bool, request->unsaid == 0);
}

bool inside_sends_by_reference(struct net_comm *comm)
{
    return comm->sends_by_reference;
}

int inside_allow_references(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++) {
        struct outgoing *outgoing = &comm->outgoing[i];
        int result = zerocopy_allow(comm->link.forward[i]);

        if (result != TCPX_SUCCESS)
            return result;
        outgoing->by_reference = calloc(1, sizeof *outgoing->by_reference);
        if (outgoing->by_reference == NULL)
            return error_system(ENOMEM, "sends without a copy");
    }
    comm->sends_by_reference = true;
    return TCPX_SUCCESS;
}

bool inside_refer(struct net_comm *comm, struct net_request *send, uint32_t source_id)
{
    bool in_time;

    pthread_mutex_lock(&comm->lock);
    in_time = send->state == REQUEST_WAITING;
    if (in_time) {
        send->in_gpu = true;
        send->source_id = source_id;
    }
    pthread_mutex_unlock(&comm->lock);
    return in_time;
}

uint64_t inside_taken_by_sockets(struct net_comm *comm, const struct net_request *send)
{
    uint64_t bytes;

    pthread_mutex_lock(&comm->lock);
    bytes = send->moved;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        bytes += zerocopy_bytes_of(comm->outgoing[i].by_reference, send);
    pthread_mutex_unlock(&comm->lock);
    return bytes;
}

/* --- a receiver ------------------------------------------------------------------------------ */

uint64_t inside_held(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->eager_held);
}

uint64_t inside_given_back(struct net_comm *comm)
{
    LOCKED(comm, uint64_t, comm->eager_given_back);
}

uint64_t inside_kept_memory(struct net_comm *comm)
{
    uint64_t all = 0;

    pthread_mutex_lock(&comm->lock);
    for (int i = 0; i < WIRE_MOST_AHEAD; i++)
        all += comm->ahead[i] != NULL ? comm->ahead[i]->capacity : 0;
    for (const struct eager_message *spare = comm->spare; spare != NULL; spare = spare->next)
        all += spare->capacity;
    pthread_mutex_unlock(&comm->lock);
    return all;
}

bool inside_has_unexpected(struct net_comm *comm, uint64_t tag)
{
    LOCKED(comm, bool, receiver_has_put_aside(comm, tag));
}

unsigned inside_stalled(struct net_comm *comm)
{
    LOCKED(comm, unsigned, comm->stalled);
}

void inside_keep_posting(struct net_comm *comm, bool just_now)
{
    pthread_mutex_lock(&comm->lock);
    comm->last_post = just_now ? UINT64_MAX / 2 : 0;
    pthread_mutex_unlock(&comm->lock);
}

void inside_let_time_pass(struct net_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->last_post = 0;
    comm->unsaid_since = 0;
    pthread_mutex_unlock(&comm->lock);
}

bool inside_calls_move(const struct net_comm *comm, unsigned socket)
{
    return socket < comm->own_lanes;
}

uint64_t inside_received(struct net_comm *comm, unsigned socket)
{
    LOCKED(comm, uint64_t, comm->incoming[socket].total);
}

/* --- staging slots --------------------------------------------------------------------------- */

enum { INSIDE_MOST_SLOTS = 64 };

static struct staging_share pool;

unsigned inside_slots_used(const struct net_comm *comm)
{
    return comm->gpu.share.used;
}

int inside_slots_open(unsigned most)
{
    return staging_join(0, most, &pool);
}

void inside_slots_close(void)
{
    staging_leave(&pool);
}

int inside_free_slots(const uint8_t **hosts, unsigned most, unsigned *count)
{
    struct staging_slot *taken[INSIDE_MOST_SLOTS];
    int result = TCPX_SUCCESS;
    unsigned i = 0;

    for (; i < most && i < INSIDE_MOST_SLOTS; i++) {
        result = staging_take(&pool, &taken[i]);
        if (result != TCPX_SUCCESS || taken[i] == NULL)
            break;
        hosts[i] = taken[i]->host;
    }
    *count = i;
    while (i > 0)
        staging_give(&pool, taken[--i]);
    return result;
}
