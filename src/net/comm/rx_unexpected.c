/* Keeps unexpected messages, and delivers them. */
#include "net/comm/rx_unexpected.h"

#include "net/comm/accounting.h"
#include "net/comm/fail.h"
#include "net/comm/request.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_done.h"
#include "net/comm/rx_match.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t unexpected_charge(uint64_t bytes)
{
    return bytes + WIRE_EAGER_CHARGE;
}

/* --- memory -------------------------------------------------------------------------------- */

/* Fresh memory would be cleared by the kernel page by page; but not much more than is needed. */
static struct unexpected *unexpected_take_spare(struct net_comm *comm, uint64_t bytes)
{
    enum { SLACK = WIRE_EAGER_CHARGE }; /* so that the credit bounds this, too */
    struct unexpected **at = &comm->rx.spare;
    struct unexpected *message;

    while (*at != NULL && ((*at)->capacity < bytes || (*at)->capacity > 2 * bytes + SLACK))
        at = &(*at)->next;
    message = *at;
    if (message != NULL)
        *at = message->next;
    return message;
}

static struct unexpected *unexpected_allocate(struct net_comm *comm, uint64_t bytes)
{
    struct comm_rx *rx = &comm->rx;
    struct unexpected *message = unexpected_take_spare(comm, bytes);

    if (message != NULL)
        return message;
    while (rx->spare != NULL && rx->memory + bytes > comm->link.eager_credit) {
        message = rx->spare;
        rx->spare = message->next;
        rx->memory -= message->capacity;
        free(message);
    }
    message = malloc(sizeof *message + bytes);
    if (message == NULL)
        return NULL;
    message->capacity = bytes;
    rx->memory += bytes;
    return message;
}

void rx_unexpected_free(struct net_comm *comm, struct unexpected *message)
{
    COMM_LOCKED(comm);
    if (message->capacity == 0) {
        free(message);
        return;
    }
    message->next = comm->rx.spare;
    comm->rx.spare = message;
}

static void unexpected_free_list(struct unexpected *first)
{
    while (first != NULL) {
        struct unexpected *next = first->next;

        free(first);
        first = next;
    }
}

void rx_unexpected_create(struct net_comm *comm)
{
    comm->rx.last_tagged = &comm->rx.first_tagged;
}

void rx_unexpected_destroy(struct net_comm *comm)
{
    struct comm_rx *rx = &comm->rx;

    for (unsigned i = 0; i < comm->used_requests; i++)
        free(comm->requests[i].arrived);
    for (int i = 0; i < WIRE_MOST_SOCKETS; i++)
        if (!comm_is_in_order(comm)) /* in order, it is one of the numbered or claimed ones */
            free(rx->incoming[i].payload.message);
    for (int i = 0; i < WIRE_MOST_AHEAD; i++)
        free(rx->numbered[i]);
    unexpected_free_list(rx->claimed);
    unexpected_free_list(rx->spare);
    unexpected_free_list(rx->first_tagged);
}

/* --- delivering ---------------------------------------------------------------------------- */

/* A long copy is made while the lock is free. */
static void unexpected_copy_out(struct net_comm *comm, struct net_request *request,
                                const struct unexpected *message)
{
    enum { SHORT_BYTES = 16384 };
    bool is_long = message->bytes > SHORT_BYTES;

    request->moved = message->bytes;
    if (message->bytes == 0)
        return;
    if (is_long) {
        request_hold(request);
        comm_lock_release(&comm->lock);
    }
    request->sink->copy_in(comm, request, message->data, message->bytes);
    if (is_long) {
        comm_lock_take(&comm->lock);
        request_let_go(request);
    }
}

void rx_unexpected_deliver(struct net_comm *comm, struct net_request *request,
                           struct unexpected *message)
{
    COMM_LOCKED(comm);
    if (message->bytes > request->room) {
        rx_fail_too_long(comm, request, message->bytes);
        rx_unexpected_free(comm, message);
        return;
    }
    account_satisfied(comm, request);
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = message->bytes;
    request->begun = message->bytes;
    if (request->sink->copy_in == NULL && message->bytes > 0) {
        request->arrived = message;
        comm->mover->deliver_unexpected(comm);
        return;
    }
    unexpected_copy_out(comm, request, message);
    rx_unexpected_free(comm, message);
    if (request->state == REQUEST_MOVING) /* and not ended while the lock was free */
        rx_done(comm, request);
}

/* --- in order: by number ------------------------------------------------------------------- */

static struct unexpected **unexpected_place_of(struct net_comm *comm, uint32_t sequence)
{
    return &comm->rx.numbered[sequence % WIRE_MOST_AHEAD];
}

/* Also finds messages whose receive is posted and waits for the rest. */
static struct unexpected *unexpected_find(struct net_comm *comm, uint32_t sequence)
{
    struct unexpected *message = *unexpected_place_of(comm, sequence);

    if (message != NULL && message->sequence == sequence)
        return message;
    message = comm->rx.claimed;
    while (message != NULL && message->sequence != sequence)
        message = message->next;
    return message;
}

/* The receive has its message, but waits for the rest of it. */
static void unexpected_claim(struct net_comm *comm, struct net_request *request,
                             struct unexpected *message)
{
    message->next = comm->rx.claimed;
    comm->rx.claimed = message;
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = message->bytes;
}

/* It is not held any more. */
static void unexpected_remove(struct net_comm *comm, struct unexpected *message)
{
    struct unexpected **at = &comm->rx.claimed;

    if (*unexpected_place_of(comm, message->sequence) == message) {
        *unexpected_place_of(comm, message->sequence) = NULL;
    } else {
        while (*at != message)
            at = &(*at)->next;
        *at = message->next;
    }
    comm->rx.held -= unexpected_charge(message->bytes);
    rx_free_credit(comm, message->bytes);
}

static bool unexpected_has_arrived(const struct unexpected *message)
{
    return message->moved == message->bytes;
}

/* The sender stays within the credit, and does not run away from the receives. */
static bool unexpected_may_come(struct net_comm *comm, const struct net_request *request,
                                uint32_t sequence, uint64_t bytes)
{
    uint64_t credit = comm->link.eager_credit;

    return (request != NULL ||
            (wire_sequence_distance(comm->next_sequence, sequence) < WIRE_MOST_AHEAD &&
             *unexpected_place_of(comm, sequence) == NULL)) &&
           bytes <= credit && unexpected_charge(bytes) <= credit &&
           comm->rx.held <= credit - unexpected_charge(bytes);
}

static struct unexpected *unexpected_begin(struct net_comm *comm, uint32_t sequence, uint64_t bytes)
{
    struct unexpected *message = unexpected_allocate(comm, bytes);

    if (message == NULL) {
        comm_fail(comm, error_system(ENOMEM, "a message ahead of its receive"));
        return NULL;
    }
    message->bytes = bytes;
    message->sequence = sequence;
    message->begun = 0;
    message->moved = 0;
    comm->rx.held += unexpected_charge(bytes);
    return message;
}

/* A receive is there already, but it is too small: the message is kept apart from it. */
static bool unexpected_is_too_long_for(const struct net_request *request, uint64_t bytes)
{
    return request != NULL && !request->matched && request->begun == 0 && bytes > request->room;
}

bool rx_unexpected_place(struct net_comm *comm, uint32_t sequence, uint64_t bytes, bool on_credit,
                         struct unexpected **message)
{
    struct net_request *request = rx_match_by_number(comm, sequence);

    COMM_LOCKED(comm);
    *message = unexpected_find(comm, sequence);
    if (*message == NULL && request != NULL && !unexpected_is_too_long_for(request, bytes))
        return true;
    if (*message != NULL ? (*message)->bytes != bytes
                         : !on_credit || !unexpected_may_come(comm, request, sequence, bytes)) {
        comm_fail_protocol(comm, "a message of %llu bytes for receive %u, which may not be",
                           (unsigned long long)bytes, sequence);
        return false;
    }
    if (*message != NULL)
        return true;
    *message = unexpected_begin(comm, sequence, bytes);
    if (*message == NULL)
        return false;
    if (request == NULL)
        *unexpected_place_of(comm, sequence) = *message;
    else
        unexpected_claim(comm, request, *message);
    return true;
}

static void unexpected_numbered_complete(struct net_comm *comm, const struct rx_payload *payload)
{
    struct unexpected *message = payload->message;
    struct net_request *request = rx_match_by_number(comm, message->sequence);

    message->moved += payload->bytes;
    if (!unexpected_has_arrived(message) || request == NULL)
        return;
    unexpected_remove(comm, message);
    rx_unexpected_deliver(comm, request, message);
}

static const struct sink_ops sink_unexpected_numbered = {.next = sink_next_at_place,
                                                         .filled = sink_filled_at_place,
                                                         .complete = unexpected_numbered_complete};

void rx_unexpected_expect(struct net_comm *comm, struct rx_payload *payload,
                          struct unexpected *message, uint64_t offset, uint64_t bytes)
{
    COMM_LOCKED(comm);
    if (bytes > message->bytes - message->begun) {
        comm_fail_protocol(comm, "more bytes than message %u has", message->sequence);
        return;
    }
    message->begun += bytes;
    *payload = (struct rx_payload){.sink = &sink_unexpected_numbered,
                                   .message = message,
                                   .place = message->data + offset,
                                   .left = bytes,
                                   .bytes = bytes};
}

bool rx_unexpected_has_begun(struct net_comm *comm, uint32_t sequence)
{
    return unexpected_find(comm, sequence) != NULL;
}

static struct unexpected *unexpected_take_numbered(struct net_comm *comm,
                                                   struct net_request *request)
{
    struct unexpected *message = unexpected_find(comm, request->sequence);

    if (message == NULL)
        return NULL;
    if (unexpected_has_arrived(message)) {
        unexpected_remove(comm, message);
        return message;
    }
    /* A later message may need its place before it is complete. */
    *unexpected_place_of(comm, request->sequence) = NULL;
    unexpected_claim(comm, request, message);
    return NULL;
}

/* --- with tags: a list --------------------------------------------------------------------- */

/* Its receive may have been posted while it came. */
static void unexpected_tagged_complete(struct net_comm *comm, const struct rx_payload *payload)
{
    struct unexpected *message = payload->message;
    struct net_request *request = rx_match_by_tag(comm, message->tag, message->posts_heard);

    if (request == NULL) {
        message->next = NULL;
        *comm->rx.last_tagged = message;
        comm->rx.last_tagged = &message->next;
        comm->rx.held += unexpected_charge(message->bytes);
    } else {
        rx_match_ends(comm, request);
        rx_free_credit(comm, message->bytes);
        rx_unexpected_deliver(comm, request, message);
    }
}

static const struct sink_ops sink_unexpected_tagged = {.next = sink_next_at_place,
                                                       .filled = sink_filled_at_place,
                                                       .complete = unexpected_tagged_complete};

void rx_unexpected_expect_tagged(struct net_comm *comm, struct rx_payload *payload,
                                 const struct wire_record *record)
{
    uint64_t charge = unexpected_charge(record->length);
    struct unexpected *message;

    COMM_LOCKED(comm);
    if (record->length > comm->link.eager_limit || charge > comm->link.eager_credit ||
        comm->rx.held > comm->link.eager_credit - charge) {
        comm_fail_protocol(comm, "an eager message of %llu bytes beyond its credit",
                           (unsigned long long)record->length);
        return;
    }
    message = malloc(sizeof *message + record->length);
    if (message == NULL) {
        comm_fail(comm, error_system(ENOMEM, "an eager message"));
        return;
    }
    message->tag = record->tag;
    message->posts_heard = record->offset;
    message->bytes = record->length;
    message->capacity = 0;
    *payload = (struct rx_payload){.sink = &sink_unexpected_tagged,
                                   .message = message,
                                   .place = message->data,
                                   .left = record->length,
                                   .bytes = record->length};
}

/* The first one of this tag, taken out of the list. */
static struct unexpected *unexpected_take_tagged(struct net_comm *comm, uint64_t tag)
{
    struct comm_rx *rx = &comm->rx;

    for (struct unexpected **link = &rx->first_tagged; *link != NULL; link = &(*link)->next)
        if ((*link)->tag == tag) {
            struct unexpected *message = *link;

            *link = message->next;
            if (*link == NULL)
                rx->last_tagged = link;
            rx->held -= unexpected_charge(message->bytes);
            rx_free_credit(comm, message->bytes);
            return message;
        }
    return NULL;
}

/* --- receives ------------------------------------------------------------------------------ */

struct unexpected *rx_unexpected_take(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    return comm_is_in_order(comm) ? unexpected_take_numbered(comm, request)
                                  : unexpected_take_tagged(comm, request->tag);
}

bool rx_unexpected_is_complete(struct net_comm *comm, uint64_t tag)
{
    const struct unexpected *message;

    COMM_LOCKED(comm);
    if (comm_is_in_order(comm)) {
        message = unexpected_find(comm, comm->next_sequence);
        return message != NULL && unexpected_has_arrived(message);
    }
    message = comm->rx.first_tagged;
    while (message != NULL && message->tag != tag)
        message = message->next;
    return message != NULL;
}
