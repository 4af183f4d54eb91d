/*
 * Messages that come ahead of their receives, on credit, where messages match receives in order:
 * then both sides know the number of its receive before that is posted. What comes first waits here
 * and is copied; what comes to a posted receive goes straight to its place.
 */
#include "net/comm/comm_state.h"

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

/* Of those whose receive is not posted, and of those whose receive waits for the rest. */
static struct eager_message *find(struct net_comm *comm, uint32_t sequence)
{
    struct eager_message *message = *place_of(comm, sequence);

    if (message != NULL && message->sequence == sequence)
        return message;
    message = comm->claimed;
    while (message != NULL && message->sequence != sequence)
        message = message->next;
    return message;
}

static void claim(struct net_comm *comm, struct eager_message *message)
{
    message->next = comm->claimed;
    comm->claimed = message;
}

static bool is_complete(const struct eager_message *message)
{
    return message->moved == message->bytes;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Fresh memory would be cleared by the kernel page by page; but not much more than is needed. */
static struct eager_message *take_spare(struct net_comm *comm, uint64_t bytes)
{
    enum { SLACK = WIRE_EAGER_CHARGE }; /* so that the credit bounds this, too */
    struct eager_message **at = &comm->spare;
    struct eager_message *message;

    while (*at != NULL && ((*at)->capacity < bytes || (*at)->capacity > 2 * bytes + SLACK))
        at = &(*at)->next;
    message = *at;
    if (message != NULL)
        *at = message->next;
    return message;
}

static struct eager_message *allocate(struct net_comm *comm, uint64_t bytes)
{
    struct eager_message *message = take_spare(comm, bytes);

    if (message != NULL)
        return message;
    while (comm->spare != NULL && comm->ahead_memory + bytes > comm->link.eager_credit) {
        message = comm->spare;
        comm->spare = message->next;
        comm->ahead_memory -= message->capacity;
        free(message);
    }
    message = malloc(sizeof *message + bytes);
    if (message == NULL)
        return NULL;
    message->capacity = bytes;
    comm->ahead_memory += bytes;
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

static void free_list(struct eager_message *first)
{
    while (first != NULL) {
        struct eager_message *next = first->next;

        free(first);
        first = next;
    }
}

void ahead_destroy(struct net_comm *comm)
{
    for (int i = 0; i < WIRE_MOST_AHEAD; i++)
        free(comm->ahead[i]);
    free_list(comm->claimed);
    free_list(comm->spare);
}

/* --- coming -------------------------------------------------------------------------------- */

/* The sender stays within the credit, and does not run away from the receives. */
static bool may_come(struct net_comm *comm, const struct net_request *request, uint32_t sequence,
                     uint64_t bytes)
{
    uint64_t credit = comm->link.eager_credit;

    return (request != NULL ||
            (wire_sequence_distance(comm->next_sequence, sequence) < WIRE_MOST_AHEAD &&
             *place_of(comm, sequence) == NULL)) &&
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
    message->begun = 0;
    message->moved = 0;
    comm->eager_held += charge_of(bytes);
    return message;
}

/* The receive has its message, but waits for the rest of it. */
static void occupy(struct net_request *request, const struct eager_message *message)
{
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = message->bytes;
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
    if (*message != NULL)
        return true;
    *message = begin(comm, sequence, bytes);
    if (*message == NULL)
        return false;
    if (request == NULL) {
        *place_of(comm, sequence) = *message;
    } else {
        claim(comm, *message);
        occupy(request, *message);
    }
    return true;
}

static void take_out(struct net_comm *comm, struct eager_message *message)
{
    struct eager_message **at = &comm->claimed;

    if (*place_of(comm, message->sequence) == message) {
        *place_of(comm, message->sequence) = NULL;
    } else {
        while (*at != message)
            at = &(*at)->next;
        *at = message->next;
    }
    comm->eager_held -= charge_of(message->bytes);
    comm->eager_given_back += charge_of(message->bytes);
}

void ahead_aim(struct net_comm *comm, struct incoming *incoming, struct eager_message *message,
               uint64_t offset, uint64_t bytes)
{
    if (bytes > message->bytes - message->begun) {
        receiver_broken(comm, "more bytes than message %u has", message->sequence);
        return;
    }
    message->begun += bytes;
    incoming->ahead = message;
    incoming->counts = bytes;
    incoming->payload = message->data + offset;
    incoming->payload_left = bytes;
}

void ahead_arrived(struct net_comm *comm, struct eager_message *message, uint64_t bytes)
{
    struct net_request *request = receiver_by_sequence(comm, message->sequence);

    message->moved += bytes;
    if (!is_complete(message) || request == NULL)
        return;
    take_out(comm, message);
    receiver_deliver(comm, request, message);
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
    /* Its place may be needed by a later one before it is complete. */
    *place_of(comm, request->sequence) = NULL;
    claim(comm, message);
    occupy(request, message);
    return NULL;
}
