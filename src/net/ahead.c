/*
 * Messages that come ahead of their receives, on credit, where messages match receives in order:
 * then both sides know the number of its receive before that is posted. What comes first waits here
 * and is copied; what comes to a posted receive goes straight to its place.
 */
#include "net/comm_state.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t charge_of(uint64_t bytes)
{
    return bytes + WIRE_EAGER_CHARGE;
}

static struct eager_message **place_of(struct net_comm *comm, uint32_t sequence)
{
    return &comm->ahead[sequence % WIRE_MOST_AHEAD];
}

static struct eager_message *find(struct net_comm *comm, uint32_t sequence)
{
    struct eager_message *message = *place_of(comm, sequence);

    return message != NULL && message->sequence == sequence ? message : NULL;
}

static bool is_complete(const struct eager_message *message)
{
    return message->moved == message->bytes;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Fresh memory would be cleared by the kernel page by page. One that does not fit makes room. */
static struct eager_message *allocate(struct net_comm *comm, uint64_t bytes)
{
    struct eager_message **at = &comm->spare;
    struct eager_message *message;

    while (*at != NULL && (*at)->capacity < bytes)
        at = &(*at)->next;
    message = *at;
    if (message != NULL) {
        *at = message->next;
        return message;
    }
    if (comm->spare != NULL) {
        message = comm->spare;
        comm->spare = message->next;
        free(message);
    }
    message = malloc(sizeof *message + bytes);
    if (message != NULL)
        message->capacity = bytes;
    return message;
}

void ahead_free(struct net_comm *comm, struct eager_message *message)
{
    if (message->capacity == 0) {
        free(message);
        return;
    }
    message->next = comm->spare;
    comm->spare = message;
}

void ahead_destroy(struct net_comm *comm)
{
    for (int i = 0; i < WIRE_MOST_AHEAD; i++)
        free(comm->ahead[i]);
    while (comm->spare != NULL) {
        struct eager_message *message = comm->spare;

        comm->spare = message->next;
        free(message);
    }
}

/* --- coming -------------------------------------------------------------------------------- */

/* The sender stays within the credit, and does not run away from the receives. */
static bool may_come(struct net_comm *comm, const struct net_request *request, uint32_t sequence,
                     uint64_t bytes)
{
    uint64_t credit = comm->link.eager_credit;

    return *place_of(comm, sequence) == NULL &&
           (request != NULL || (uint32_t)(sequence - comm->next_sequence) < WIRE_MOST_AHEAD) &&
           bytes <= credit && charge_of(bytes) <= credit &&
           comm->eager_held <= credit - charge_of(bytes);
}

static struct eager_message *begin(struct net_comm *comm, uint32_t sequence, uint64_t bytes)
{
    struct eager_message *message = allocate(comm, bytes);

    if (message == NULL) {
        comm_fail(comm, error_system(ENOMEM, "a message ahead of its receive"));
        return NULL;
    }
    message->bytes = bytes;
    message->sequence = sequence;
    message->moved = 0;
    *place_of(comm, sequence) = message;
    comm->eager_held += charge_of(bytes);
    return message;
}

/* A receive is there already, but it is too small: what comes is kept from it. */
static bool is_in_the_way(const struct net_request *request, uint64_t bytes)
{
    return request != NULL && !request->matched && request->begun == 0 && bytes > request->room;
}

bool ahead_place(struct net_comm *comm, uint32_t sequence, uint64_t bytes, bool on_credit,
                 struct eager_message **message)
{
    struct net_request *request = receiver_by_sequence(comm, sequence);

    *message = find(comm, sequence);
    if (*message == NULL && request != NULL && !is_in_the_way(request, bytes))
        return true;
    if (*message != NULL ? (*message)->bytes != bytes
                         : !on_credit || !may_come(comm, request, sequence, bytes)) {
        receiver_broken(comm, "a message of %llu bytes for receive %u, which may not be",
                        (unsigned long long)bytes, sequence);
        return false;
    }
    if (*message == NULL)
        *message = begin(comm, sequence, bytes);
    if (*message != NULL && request != NULL)
        request->matched = true;
    return *message != NULL;
}

static void take_out(struct net_comm *comm, const struct eager_message *message)
{
    *place_of(comm, message->sequence) = NULL;
    comm->eager_held -= charge_of(message->bytes);
    comm->eager_given_back += charge_of(message->bytes);
}

static void deliver_if_complete(struct net_comm *comm, struct eager_message *message)
{
    struct net_request *request;

    if (message->moved > message->bytes) {
        receiver_broken(comm, "more bytes than the message has");
        return;
    }
    request = receiver_by_sequence(comm, message->sequence);
    if (!is_complete(message) || request == NULL)
        return;
    take_out(comm, message);
    receiver_deliver(comm, request, message);
}

void ahead_aim(struct incoming *incoming, struct eager_message *message, uint64_t offset,
               uint64_t bytes)
{
    incoming->ahead = message;
    incoming->counts = bytes;
    incoming->payload = message->data + offset;
    incoming->payload_left = bytes;
}

void ahead_arrived(struct net_comm *comm, struct eager_message *message, uint64_t bytes)
{
    message->moved += bytes;
    deliver_if_complete(comm, message);
}

/* --- receives ------------------------------------------------------------------------------ */

bool ahead_has_begun(struct net_comm *comm, uint32_t sequence)
{
    return find(comm, sequence) != NULL;
}

bool ahead_is_complete(struct net_comm *comm, uint32_t sequence)
{
    const struct eager_message *message = find(comm, sequence);

    return message != NULL && is_complete(message);
}

struct eager_message *ahead_take(struct net_comm *comm, struct net_request *request)
{
    struct eager_message *message = find(comm, request->sequence);

    if (message == NULL)
        return NULL;
    if (is_complete(message)) {
        take_out(comm, message);
        return message;
    }
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = message->bytes;
    return NULL;
}
