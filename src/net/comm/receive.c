/*
 * The receiving side of a comm. Every receive is announced to the sender; what comes is placed
 * straight into its buffer, by the receive's number and offset, whichever socket it comes on. An
 * eager message without a receive is put aside, within the credit that the sender was given.
 * Nothing a peer says is believed: docs/protocol.md has the rules, and a broken one ends the comm.
 */
#include "net/comm/comm_state.h"

#include "base/checked.h"
#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum {
    MOST_SLICES = 64,      /* announced for one socket and not begun; then socket 0 has to wait */
    SCRATCH_BYTES = 16384, /* on the stack of the calling thread */
};

static size_t most_to_say(const struct net_comm *comm)
{
    return 4 * (size_t)comm->most_requests;
}

int receiver_create(struct net_comm *comm)
{
    int result = queue_init(&comm->to_say, most_to_say(comm), sizeof(struct wire_record));

    comm->eager_last = &comm->eager_first;
    comm->by_sequence_mask = 1;
    while (comm->by_sequence_mask < comm->most_requests)
        comm->by_sequence_mask = 2 * comm->by_sequence_mask + 1;
    comm->by_sequence = calloc(comm->by_sequence_mask + 1u, sizeof(struct net_request *));
    if (comm->by_sequence == NULL)
        result = error_system(ENOMEM, "a comm");
    if (result == TCPX_SUCCESS)
        result = key_fifo_init(&comm->unmatched, comm->most_requests, sizeof(struct unmatched));
    for (unsigned i = 1; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        if (comm->link.framing == WIRE_SEPARATE)
            result = queue_init(&comm->incoming[i].slices, MOST_SLICES, sizeof(struct wire_record));
    if (result != TCPX_SUCCESS)
        receiver_destroy(comm);
    return result;
}

void receiver_destroy(struct net_comm *comm)
{
    while (comm->eager_first != NULL) {
        struct eager_message *message = comm->eager_first;

        comm->eager_first = message->next;
        free(message);
    }
    for (unsigned i = 0; i < comm->used_requests; i++)
        free(comm->requests[i].aside);
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++) {
        free(comm->incoming[i].eager);
        queue_destroy(&comm->incoming[i].slices);
    }
    queue_destroy(&comm->to_say);
    key_fifo_destroy(&comm->unmatched);
    free(comm->by_sequence);
    ahead_destroy(comm);
    shutdown(comm->link.reverse, SHUT_WR);
}

void receiver_broken(struct net_comm *comm, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    comm_fail(comm,
              error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: %s", comm->link.peer, what));
}

/* --- what we say to the sender ------------------------------------------------------------- */

static void say(struct net_comm *comm, const struct wire_record *record)
{
    if (!queue_push(&comm->to_say, record))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room to say %s",
                                  wire_type_name(record->type)));
}

/*
 * Messages in order have the numbers of their receives, so that no number can be skipped: the next
 * receive waits until the numbers of outstanding ones, and of messages that may come ahead, cannot
 * meet. Its predecessors do not depend on it, so that they end.
 */
static bool would_meet_old_receive(const struct net_comm *comm)
{
    const uint64_t most = ((uint64_t)1 << WIRE_SEQUENCE_BITS) - WIRE_MOST_AHEAD;

    if (comm->link.match != WIRE_MATCH_FIFO || comm->next_order < most)
        return false;
    for (unsigned i = 0; i < comm->used_requests; i++)
        if ((comm->requests[i].state == REQUEST_WAITING ||
             comm->requests[i].state == REQUEST_MOVING) &&
            comm->next_order - comm->requests[i].order >= most)
            return true;
    return false;
}

bool receiver_has_room(const struct net_comm *comm)
{
    return queue_length(&comm->to_say) < most_to_say(comm) / 2 && !would_meet_old_receive(comm);
}

/* A batch of records, as many as there are and fit. */
static void fill_saying(struct net_comm *comm)
{
    struct wire_record record;

    comm->say_now = false;
    comm->said_bytes = 0;
    comm->saying_bytes = 0;
    while (comm->saying_bytes < sizeof comm->saying && queue_pop(&comm->to_say, &record)) {
        wire_record_write(&record, comm->saying + comm->saying_bytes);
        comm->saying_bytes += WIRE_RECORD_BYTES;
    }
}

/*
 * The forward sockets decide: what was sent there still arrives. A sender that lives learns by the
 * end of this socket that its receives are not announced any more.
 */
static void stop_speaking(struct net_comm *comm)
{
    comm->deaf = true;
    shutdown(comm->link.reverse, SHUT_RDWR);
}

/* One write of what there is to say, without the lock; false: not now, or never again. */
static bool speak_once(struct net_comm *comm, enum lane_wait *wait)
{
    ssize_t sent;
    int error;

    pthread_mutex_unlock(&comm->lock);
    sent = send(comm->link.reverse, comm->saying + comm->said_bytes,
                comm->saying_bytes - comm->said_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    error = errno;
    pthread_mutex_lock(&comm->lock);
    if (sent > 0)
        comm->said_bytes += (size_t)sent;
    else if (socket_is_full(error))
        *wait = LANE_FOR_ROOM;
    else if (error != EINTR)
        stop_speaking(comm);
    return *wait != LANE_FOR_ROOM && comm->result == TCPX_SUCCESS;
}

/* A sender that has closed does not listen any more, but what it sent may still be coming. */
enum lane_wait receiver_speak(struct net_comm *comm)
{
    enum lane_wait wait = LANE_IDLE;
    struct wire_record ignored;

    while (!comm->deaf) {
        if (comm->said_bytes == comm->saying_bytes)
            fill_saying(comm);
        if (comm->saying_bytes == 0 || !speak_once(comm, &wait))
            return wait;
    }
    while (queue_pop(&comm->to_say, &ignored))
        ;
    return LANE_IDLE;
}

bool receiver_ends_record(struct net_comm *comm)
{
    size_t sent = comm->said_bytes % WIRE_RECORD_BYTES;
    size_t rest = sent == 0 ? 0 : WIRE_RECORD_BYTES - sent;

    if (comm->deaf)
        return false;
    sent = socket_send_now(comm->link.reverse, comm->saying + comm->said_bytes, rest);
    comm->said_bytes += sent;
    return sent == rest;
}

static void give_back(struct net_comm *comm, uint64_t bytes)
{
    comm->eager_given_back += bytes + WIRE_EAGER_CHARGE;
}

/* Credit also travels with every POST; without one, before the sender runs out of it. */
static void say_credit(struct net_comm *comm)
{
    if (comm->eager_given_back - comm->eager_said <= comm->link.eager_credit / 2 ||
        !receiver_has_room(comm))
        return;
    comm->eager_said = comm->eager_given_back;
    say(comm, &(struct wire_record){.type = WIRE_CREDIT, .offset = comm->eager_said});
}

/* So small that messages like it can come before their POST has been heard, again and again. */
static bool may_come_unannounced(const struct net_comm *comm, uint64_t room)
{
    return comm->link.match == WIRE_MATCH_FIFO && comm->link.framing == WIRE_INLINE &&
           room <= comm->link.eager_credit / 8;
}

bool receiver_can_wait(const struct net_comm *comm, const struct net_buffer *buffer)
{
    return may_come_unannounced(comm, buffer->bytes) ||
           (buffer->bytes <= comm->link.eager_limit && !memory_is_in_gpu(buffer->memory));
}

/*
 * What nobody waits for is said together with what comes next: a system call for each receive would
 * cost as much as all else that is done for it.
 */
static bool can_say_it_later(const struct net_comm *comm)
{
    enum { TOGETHER = 4, SOON_NS = 20000 };

    return !comm->say_now && queue_length(&comm->to_say) < TOGETHER &&
           comm->eager_given_back - comm->eager_said < comm->link.eager_credit / 4 &&
           clock_now() < comm->unsaid_since + SOON_NS;
}

bool receiver_has_to_speak(struct net_comm *comm, bool now)
{
    say_credit(comm);
    if (comm->said_bytes < comm->saying_bytes)
        return true;
    return queue_length(&comm->to_say) > 0 && (now || !can_say_it_later(comm));
}

/* --- for how long it waits ----------------------------------------------------------------- */

/*
 * A receiver waits when a receive misses bytes and every socket was found empty: one that may have
 * some is held up by this side.
 */
static void note_wait(struct net_comm *comm, uint64_t now)
{
    stages_wait(&comm->calling, comm->unmet > 0 && comm->left == 0, now);
}

/* Most often right behind the call that brought the bytes. */
void receiver_met(struct net_comm *comm, struct net_request *request)
{
    comm->unmet -= !request->met;
    request->met = true;
    note_wait(comm, comm->calling.since);
}

/* --- matching ------------------------------------------------------------------------------ */

static bool is_outstanding(const struct net_request *request)
{
    return request->state == REQUEST_WAITING || request->state == REQUEST_MOVING;
}

/* The earliest receive of this tag whose message has not begun; with tags only. */
static struct net_request *first_unmatched(struct net_comm *comm, uint64_t tag)
{
    const struct unmatched *first;

    while ((first = key_fifo_peek(&comm->unmatched, tag)) != NULL) {
        if (is_outstanding(first->request) && first->request->order == first->order &&
            !first->request->matched)
            return first->request;
        key_fifo_pop(&comm->unmatched, tag, NULL);
    }
    return NULL;
}

/* It waits for a message that has not begun. */
static void note_unmatched(struct net_comm *comm, struct net_request *request)
{
    const struct unmatched unmatched = {.request = request, .order = request->order};

    if (comm->link.match == WIRE_MATCH_TAG &&
        !key_fifo_push(&comm->unmatched, request->tag, &unmatched))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room for a receive that waits"));
}

/* The first of its tag has its message, or has failed. */
static void note_matched(struct net_comm *comm, uint64_t tag)
{
    if (comm->link.match == WIRE_MATCH_TAG)
        key_fifo_pop(&comm->unmatched, tag, NULL);
}

static bool has_number(const struct net_request *request, uint32_t sequence)
{
    return is_outstanding(request) && request->has_sequence && request->sequence == sequence;
}

static void note_sequence(struct net_comm *comm, struct net_request *request)
{
    unsigned number = request->sequence & comm->by_sequence_mask;
    struct net_request *before = comm->by_sequence[number];

    if (comm->pending == 1) /* this one */
        comm->has_displaced = false;
    else if (before != NULL && before != request && is_outstanding(before) &&
             (before->sequence & comm->by_sequence_mask) == number)
        comm->has_displaced = true;
    comm->by_sequence[number] = request;
}

/* Only a receive that many later ones have passed has to be searched for. */
struct net_request *receiver_by_sequence(struct net_comm *comm, uint32_t sequence)
{
    struct net_request *request = comm->by_sequence[sequence & comm->by_sequence_mask];

    if (request != NULL && has_number(request, sequence))
        return request;
    for (unsigned i = 0; comm->has_displaced && i < comm->used_requests; i++)
        if (has_number(&comm->requests[i], sequence))
            return &comm->requests[i];
    return NULL;
}

/*
 * With tags a receive can stay outstanding while numbers wrap: its number is skipped. There are
 * fewer outstanding receives than numbers.
 */
static uint32_t next_free_sequence(struct net_comm *comm)
{
    uint32_t sequence = comm->next_sequence;

    while (comm->sequence_wrapped && comm->link.match == WIRE_MATCH_TAG &&
           receiver_by_sequence(comm, sequence) != NULL)
        sequence = wire_sequence((uint64_t)sequence + 1);
    return sequence;
}

static void fail_too_long(struct net_comm *comm, struct net_request *request, uint64_t bytes)
{
    request_fail(request,
                 error_set(TCPX_INVALID_USAGE,
                           "a receive with tag %llu has room for %llu bytes, but its message from "
                           "%s has %llu",
                           (unsigned long long)request->tag, (unsigned long long)request->room,
                           comm->link.peer, (unsigned long long)bytes));
}

static void finish(struct net_comm *comm, struct net_request *request)
{
    publish(comm, request);
    request_done(request);
}

static void copy_to_bounce(const struct net_comm *comm, const struct net_request *request,
                           const struct eager_message *message)
{
    uint64_t at = 0;

    while (at < message->bytes) {
        uint64_t most;
        uint8_t *place = publish_where(comm, request, at, &most);

        most = most < message->bytes - at ? most : message->bytes - at;
        memcpy(place, message->data + at, most);
        at += most;
    }
}

/* Into the caller's buffer, or bounce memory; a long one while the lock is free. */
static void copy_to_place(struct net_comm *comm, struct net_request *request,
                          const struct eager_message *message)
{
    enum { SHORT = 16384 };
    bool is_long = message->bytes > SHORT;

    request->moved = message->bytes;
    if (is_long) {
        request_hold(request);
        pthread_mutex_unlock(&comm->lock);
    }
    if (request->bounced)
        copy_to_bounce(comm, request, message);
    else if (message->bytes > 0)
        memcpy(request->data, message->data, message->bytes);
    if (is_long) {
        pthread_mutex_lock(&comm->lock);
        request_let_go(request);
    }
}

void receiver_deliver(struct net_comm *comm, struct net_request *request,
                      struct eager_message *message)
{
    if (message->bytes > request->room) {
        fail_too_long(comm, request, message->bytes);
        ahead_free(comm, message);
        return;
    }
    receiver_met(comm, request);
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = message->bytes;
    request->begun = message->bytes;
    request->reach = message->bytes;
    if (request_lands(request) && message->bytes > 0) {
        request->aside = message;
        land_all_put_aside(comm);
        return;
    }
    copy_to_place(comm, request, message);
    ahead_free(comm, message);
    if (request->state == REQUEST_MOVING) /* and not ended while the lock was free */
        finish(comm, request);
}

/* The first message of this tag that was put aside, taken out of the list. */
static struct eager_message *take_aside(struct net_comm *comm, uint64_t tag)
{
    for (struct eager_message **link = &comm->eager_first; *link != NULL; link = &(*link)->next)
        if ((*link)->tag == tag) {
            struct eager_message *message = *link;

            *link = message->next;
            if (*link == NULL)
                comm->eager_last = link;
            comm->eager_held -= message->bytes + WIRE_EAGER_CHARGE;
            give_back(comm, message->bytes);
            return message;
        }
    return NULL;
}

bool receiver_has_put_aside(struct net_comm *comm, uint64_t tag)
{
    if (comm->link.match == WIRE_MATCH_FIFO)
        return ahead_is_complete(comm, comm->next_sequence);
    for (const struct eager_message *message = comm->eager_first; message != NULL;
         message = message->next)
        if (message->tag == tag)
            return true;
    return false;
}

void receiver_start(struct net_comm *comm, struct net_request *request)
{
    struct eager_message *message;

    request->sequence = next_free_sequence(comm);
    request->has_sequence = true;
    note_sequence(comm, request);
    comm_advance_sequence(comm, request->sequence);
    message = comm->link.match == WIRE_MATCH_FIFO ? ahead_take(comm, request)
                                                  : take_aside(comm, request->tag);
    comm->last_post = clock_now();
    comm->unmet++;
    note_wait(comm, comm->last_post);
    for (unsigned i = 0; i < comm->link.sockets && comm->stalled > 0; i++)
        if (comm->incoming[i].stalled && comm->incoming[i].stalled_for == request->sequence)
            progress_wake(comm, i);
    if (comm->result == TCPX_SUCCESS) {
        if (queue_length(&comm->to_say) == 0)
            comm->unsaid_since = comm->last_post;
        comm->say_now |= !may_come_unannounced(comm, request->room);
        comm->eager_said = comm->eager_given_back;
        say(comm, &(struct wire_record){.type = WIRE_POST,
                                        .sequence = request->sequence,
                                        .offset = comm->eager_said,
                                        .length = request->room,
                                        .tag = request->tag});
    }
    if (message != NULL)
        receiver_deliver(comm, request, message);
    else
        note_unmatched(comm, request);
}

/* --- records ------------------------------------------------------------------------------- */

void receiver_done_if_all_here(struct net_comm *comm, struct net_request *request)
{
    if (!request->matched || request->moved < request->bytes)
        return;
    receiver_met(comm, request);
    if (request->landed < request->landing)
        return;
    if (request->moved > request->bytes)
        receiver_broken(comm, "more bytes than the message has");
    else
        finish(comm, request);
}

static void hear_open(struct net_comm *comm, const struct wire_record *record)
{
    struct net_request *request = receiver_by_sequence(comm, record->sequence);

    if (comm->link.match != WIRE_MATCH_TAG || request == NULL || request->matched ||
        request->tag != record->tag || record->length > request->room ||
        request != first_unmatched(comm, record->tag) || request->begun > record->length ||
        request->reach > record->length) {
        receiver_broken(comm,
                        "OPEN of %llu bytes with tag %llu for receive %u, which is not there, not "
                        "large enough or has a message already",
                        (unsigned long long)record->length, (unsigned long long)record->tag,
                        record->sequence);
        return;
    }
    note_matched(comm, record->tag);
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = record->length;
    receiver_done_if_all_here(comm, request);
}

/* Puts a message aside that nobody has asked for; its bytes follow. */
static void begin_aside(struct net_comm *comm, struct incoming *incoming,
                        const struct wire_record *record)
{
    uint64_t charge = record->length + WIRE_EAGER_CHARGE;

    if (record->length > comm->link.eager_limit || charge > comm->link.eager_credit ||
        comm->eager_held > comm->link.eager_credit - charge) {
        receiver_broken(comm, "an eager message of %llu bytes beyond its credit",
                        (unsigned long long)record->length);
        return;
    }
    incoming->eager = malloc(sizeof *incoming->eager + record->length);
    if (incoming->eager == NULL) {
        comm_fail(comm, error_system(ENOMEM, "an eager message"));
        return;
    }
    incoming->eager->tag = record->tag;
    incoming->eager->bytes = record->length;
    incoming->eager->capacity = 0;
    incoming->payload = incoming->eager->data;
    incoming->payload_left = record->length;
}

/* The next bytes of the socket belong there. */
static void aim(struct incoming *incoming, struct net_request *request, uint64_t offset,
                uint64_t bytes)
{
    incoming->request = request;
    incoming->counts = bytes;
    incoming->payload = request->in_gpu || bytes == 0 ? NULL : request->data + offset;
    incoming->payload_left = bytes;
    incoming->landing_at = offset;
}

static bool is_for_gpu(const struct incoming *incoming)
{
    return incoming->request != NULL && request_lands(incoming->request) &&
           incoming->payload_left > 0;
}

static bool is_for_bounce(const struct incoming *incoming)
{
    return incoming->request != NULL && incoming->request->bounced && incoming->payload_left > 0;
}

/* False: it is kept, or the comm has failed. */
static bool find_receive_for_eager(struct net_comm *comm, struct incoming *incoming,
                                   const struct wire_record *record, struct net_request **request)
{
    bool in_order = comm->link.match == WIRE_MATCH_FIFO;
    struct eager_message *ahead = NULL;

    if (in_order && ahead_has_begun(comm, record->sequence)) {
        receiver_broken(comm, "a second message %u", record->sequence);
        return false;
    }
    if (in_order && !ahead_place(comm, record->sequence, record->length, true, &ahead))
        return false;
    if (ahead != NULL) {
        ahead_aim(comm, incoming, ahead, 0, record->length);
        return false;
    }
    *request = in_order ? receiver_by_sequence(comm, record->sequence)
                        : first_unmatched(comm, record->tag);
    if (*request != NULL && ((*request)->matched || (*request)->begun > 0)) {
        receiver_broken(comm, "an eager message for receive %u, which has one already",
                        (*request)->sequence);
        return false;
    }
    if (*request == NULL)
        begin_aside(comm, incoming, record);
    return *request != NULL;
}

static void hear_eager(struct net_comm *comm, struct incoming *incoming,
                       const struct wire_record *record)
{
    bool in_order = comm->link.match == WIRE_MATCH_FIFO;
    struct net_request *request;

    if (record->length > comm->link.eager_limit ||
        (in_order ? record->tag != 0 : record->sequence != 0)) {
        receiver_broken(comm, "an eager message of %llu bytes with tag %llu that may not be",
                        (unsigned long long)record->length, (unsigned long long)record->tag);
        return;
    }
    if (!find_receive_for_eager(comm, incoming, record, &request))
        return;
    note_matched(comm, record->tag);
    give_back(comm, record->length);
    incoming->payload_left = record->length;
    if (record->length > request->room) {
        incoming->payload = NULL;
        fail_too_long(comm, request, record->length);
        return;
    }
    request->state = REQUEST_MOVING;
    request->matched = true;
    request->bytes = record->length;
    request->begun = record->length;
    request->reach = record->length;
    aim(incoming, request, 0, record->length);
}

/* In order, every slice says how long its message is. False: it is kept, or the comm has failed. */
static bool place_in_order(struct net_comm *comm, struct incoming *incoming,
                           const struct wire_record *record)
{
    bool on_credit = (record->flags & WIRE_ON_CREDIT) != 0;
    struct eager_message *ahead;
    struct net_request *request;

    if (record->length > comm->link.largest_slice ||
        (on_credit && comm->link.framing != WIRE_INLINE)) {
        receiver_broken(comm, "a slice of %llu bytes for receive %u, which may not be",
                        (unsigned long long)record->length, record->sequence);
        return false;
    }
    if (!ahead_place(comm, record->sequence, record->tag, on_credit, &ahead))
        return false;
    if (ahead != NULL) {
        ahead_aim(comm, incoming, ahead, record->offset, record->length);
        return false;
    }
    request = receiver_by_sequence(comm, record->sequence);
    if (request->matched ? request->bytes != record->tag : request->room < record->tag) {
        receiver_broken(comm, "a slice of a message of %llu bytes for receive %u of %llu",
                        (unsigned long long)record->tag, record->sequence,
                        (unsigned long long)request->bytes);
        return false;
    }
    if (!request->matched && on_credit)
        give_back(comm, record->tag);
    request->matched = true;
    request->bytes = record->tag;
    return true;
}

static void begin_slice(struct net_comm *comm, struct incoming *incoming,
                        const struct wire_record *record)
{
    struct net_request *request = receiver_by_sequence(comm, record->sequence);

    if (comm->link.match == WIRE_MATCH_FIFO && record->tag != 0 &&
        !place_in_order(comm, incoming, record))
        return;
    if (request == NULL || (comm->link.match == WIRE_MATCH_FIFO) != (record->tag != 0) ||
        !range_inside(record->offset, record->length,
                      request->matched ? request->bytes : request->room) ||
        record->length > comm->link.largest_slice ||
        record->length > (request->matched ? request->bytes : request->room) - request->begun) {
        receiver_broken(
            comm,
            "a slice of %llu bytes at %llu for receive %u, which is not there or not as "
            "large",
            (unsigned long long)record->length, (unsigned long long)record->offset,
            record->sequence);
        return;
    }
    request->state = REQUEST_MOVING;
    request->begun += record->length;
    if (request->reach < record->offset + record->length)
        request->reach = record->offset + record->length;
    aim(incoming, request, record->offset, record->length);
}

static void hear_slice(struct net_comm *comm, unsigned socket, const struct wire_record *record)
{
    bool separate = comm->link.framing == WIRE_SEPARATE;

    if (separate ? record->socket == 0 || record->socket >= comm->link.sockets
                 : record->socket != socket) {
        receiver_broken(comm, "a slice for socket %u on socket %u", record->socket, socket);
        return;
    }
    if (!separate)
        begin_slice(comm, &comm->incoming[socket], record);
    else if (!queue_push(&comm->incoming[record->socket].slices, record))
        receiver_broken(comm, "more than %d slices ahead on socket %u", MOST_SLICES,
                        record->socket);
    else
        progress_wake(comm, record->socket);
}

static void hear_toolong(struct net_comm *comm, const struct wire_record *record)
{
    struct net_request *request = receiver_by_sequence(comm, record->sequence);

    if (request == NULL || request->matched || record->length <= request->room ||
        request->begun > 0 ||
        (comm->link.match == WIRE_MATCH_TAG && request != first_unmatched(comm, request->tag)))
        receiver_broken(comm, "TOOLONG for receive %u, which is not there or large enough",
                        record->sequence);
    else {
        note_matched(comm, request->tag);
        fail_too_long(comm, request, record->length);
    }
}

static void hear_fin(struct net_comm *comm, struct incoming *incoming,
                     const struct wire_record *record)
{
    if (incoming->total - WIRE_RECORD_BYTES != record->length)
        receiver_broken(comm, "an end after %llu bytes, but %llu have come",
                        (unsigned long long)record->length,
                        (unsigned long long)(incoming->total - WIRE_RECORD_BYTES));
    else
        incoming->ended = true;
}

/* One text is enough: that of another socket is thrown away. */
static void begin_abort(struct net_comm *comm, struct incoming *incoming,
                        const struct wire_record *record)
{
    incoming->aborting = true;
    incoming->payload = NULL;
    incoming->payload_left = record->length;
    if (comm->abort_begun)
        return;
    comm->abort_begun = true;
    comm->abort_result = record->sequence;
    incoming->payload = (uint8_t *)comm->abort_text;
}

static void hear_record(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->incoming[socket];
    struct wire_record record;

    incoming->record_have = 0;
    if (incoming->ended) {
        receiver_broken(comm, "a record behind FIN");
        return;
    }
    if (wire_record_read(incoming->record, WIRE_FORWARD, &record) != WIRE_FINE) {
        receiver_broken(comm, "%s", error_text());
        return;
    }
    if (socket != 0 && record.type != WIRE_SLICE && record.type != WIRE_FIN &&
        record.type != WIRE_ABORT) {
        receiver_broken(comm, "%s on socket %u", wire_type_name(record.type), socket);
        return;
    }
    switch (record.type) {
    case WIRE_OPEN:
        hear_open(comm, &record);
        break;
    case WIRE_EAGER:
        hear_eager(comm, incoming, &record);
        break;
    case WIRE_SLICE:
        hear_slice(comm, socket, &record);
        break;
    case WIRE_TOOLONG:
        hear_toolong(comm, &record);
        break;
    case WIRE_FIN:
        hear_fin(comm, incoming, &record);
        break;
    default: /* ABORT */
        begin_abort(comm, incoming, &record);
        break;
    }
}

/* --- bytes --------------------------------------------------------------------------------- */

/* All bytes behind a record are here, also where that are none. */
static void finish_payload(struct net_comm *comm, struct incoming *incoming)
{
    struct net_request *request = incoming->request;
    struct eager_message *message = incoming->eager;
    struct eager_message *ahead = incoming->ahead;

    incoming->request = NULL;
    incoming->eager = NULL;
    incoming->ahead = NULL;
    if (incoming->aborting) {
        comm_fail(comm, error_set(TCPX_REMOTE_ERROR, "%s gave up with %s: %s", comm->link.peer,
                                  tcpx_result_name((int)comm->abort_result), comm->abort_text));
    } else if (request != NULL) {
        request->moved += incoming->counts;
        receiver_done_if_all_here(comm, request);
    } else if (ahead != NULL) {
        ahead_arrived(comm, ahead, incoming->counts);
    } else if (message != NULL) {
        /* Its receive may have been posted while it came. */
        request = first_unmatched(comm, message->tag);
        if (request != NULL) {
            if (request->begun > 0) {
                receiver_broken(comm, "slices for a receive whose message is an eager one");
                free(message);
            } else {
                note_matched(comm, message->tag);
                give_back(comm, message->bytes);
                receiver_deliver(comm, request, message);
            }
            return;
        }
        message->next = NULL;
        *comm->eager_last = message;
        comm->eager_last = &message->next;
        comm->eager_held += message->bytes + WIRE_EAGER_CHARGE;
    }
}

static bool has_payload(const struct incoming *incoming)
{
    return incoming->request != NULL || incoming->eager != NULL || incoming->ahead != NULL ||
           incoming->aborting || incoming->payload_left != 0;
}

/* A socket that carries nothing but payload is not read without any, and so cannot tell its end. */
static bool has_ended(const struct net_comm *comm, unsigned socket)
{
    const struct incoming *incoming = &comm->incoming[socket];

    return incoming->ended || (comm->link.framing == WIRE_SEPARATE && socket > 0 &&
                               !has_payload(incoming) && queue_length(&incoming->slices) == 0);
}

static bool is_missing_bytes(const struct net_request *request)
{
    return request->state == REQUEST_MOVING && request->aside == NULL &&
           (!request->matched || request->moved < request->bytes);
}

/* The sender closed, and its socket did not take the whole FIN. */
static bool is_part_of_fin(const struct incoming *incoming)
{
    return incoming->record_have > 0 && incoming->record[0] == WIRE_FIN && !has_payload(incoming);
}

static bool have_all_ended(const struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (!has_ended(comm, i))
            return false;
    return true;
}

/* All that will come is here. A lost connection has a text of its own. */
static void fail_at_end(struct net_comm *comm)
{
    bool in_the_middle = false;

    if (comm->lost_at != 0) {
        comm_fail_lost(comm);
        return;
    }
    for (unsigned i = 0; i < comm->used_requests; i++)
        in_the_middle = in_the_middle || is_missing_bytes(&comm->requests[i]);
    comm_fail(comm, error_set(TCPX_REMOTE_ERROR,
                              in_the_middle ? "the sender at %s was lost in the middle of a message"
                                            : "the sender at %s has closed the comm",
                              comm->link.peer));
}

void receiver_lose(struct net_comm *comm, unsigned socket)
{
    comm->incoming[socket].ended = true;
    comm_lose(comm);
    if (have_all_ended(comm))
        fail_at_end(comm);
}

static void hear_end(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->incoming[socket];
    bool in_the_middle =
        has_payload(incoming) || (incoming->record_have != 0 && !is_part_of_fin(incoming));

    if (in_the_middle && !incoming->ended) {
        error_keep("the sender at %s was lost in the middle of a message", comm->link.peer);
        receiver_lose(comm, socket);
        return;
    }
    incoming->ended = true;
    if (have_all_ended(comm))
        fail_at_end(comm);
}

/* The place for as many of *room bytes as there is; those that nobody wants go to the scratch. */
static struct iovec where_to(const struct net_comm *comm, const struct incoming *incoming,
                             uint8_t *scratch, uint64_t *room)
{
    uint8_t *place = incoming->payload;
    uint64_t most = *room;

    if (is_for_gpu(incoming)) {
        place = incoming->slot->host + incoming->slot_bytes;
        most = incoming->slot_room - incoming->slot_bytes;
    } else if (is_for_bounce(incoming)) {
        place = publish_where(comm, incoming->request, incoming->landing_at, &most);
    } else if (place == NULL) {
        place = scratch;
        most = SCRATCH_BYTES;
    }
    *room = *room < most ? *room : most;
    return (struct iovec){.iov_base = place, .iov_len = *room};
}

/*
 * One read, while the lock is free: the rest of the payload, and the record behind it in the same
 * call. *emptied: it did not fill its room, so that there is no more for now. *error is errno.
 */
static ssize_t read_some(struct net_comm *comm, unsigned socket, bool *emptied, int *error)
{
    uint8_t scratch[SCRATCH_BYTES];
    struct incoming *incoming = &comm->incoming[socket];
    struct net_request *request = incoming->request;
    bool records_here = comm->link.framing == WIRE_INLINE || socket == 0;
    uint64_t room = incoming->payload_left;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    ssize_t got;
    size_t of_payload;

    parts[0] = where_to(comm, incoming, scratch, &room);
    if (records_here && room == incoming->payload_left) {
        parts[1] = (struct iovec){.iov_base = incoming->record + incoming->record_have,
                                  .iov_len = WIRE_RECORD_BYTES - incoming->record_have};
        message.msg_iovlen = 2;
    }
    request_hold(request);
    stages_call_begins(&comm->calling);
    pthread_mutex_unlock(&comm->lock);
    got = recvmsg(comm->link.forward[socket], &message, MSG_DONTWAIT);
    *error = errno;
    pthread_mutex_lock(&comm->lock);
    if (got > 0)
        stages_sleep(&comm->lock,
                     stages_slow_until(&comm->throttle, CONFIG_THROTTLE_RECEIVE, (uint64_t)got));
    stages_call_ended(&comm->calling, got > 0);
    request_let_go(request);
    if (got <= 0)
        return got;
    *emptied = (size_t)got < room + (message.msg_iovlen == 2 ? parts[1].iov_len : 0);
    of_payload = (size_t)got < room ? (size_t)got : room;
    incoming->payload_left -= of_payload;
    if (incoming->payload != NULL)
        incoming->payload += of_payload;
    incoming->slot_bytes += of_payload;
    if (request != NULL && request->bounced)
        incoming->landing_at += of_payload;
    incoming->record_have += (size_t)got - of_payload;
    incoming->total += (size_t)got;
    return got;
}

/*
 * A slice ahead of its receive would have to be copied once more. While receives are being posted
 * it is left in its socket, since its own is likely to be the next; but one message is always kept,
 * so that a receive finds it at once.
 */
bool receiver_posts(const struct net_comm *comm)
{
    enum { PATIENCE_NS = 30000 };

    return clock_now() < comm->last_post + PATIENCE_NS;
}

static bool must_stall(struct net_comm *comm, struct incoming *incoming)
{
    struct wire_record record;
    bool stall = comm->link.match == WIRE_MATCH_FIFO &&
                 wire_record_read(incoming->record, WIRE_FORWARD, &record) == WIRE_FINE &&
                 record.type == WIRE_SLICE && receiver_by_sequence(comm, record.sequence) == NULL &&
                 !ahead_has_begun(comm, record.sequence) && comm->eager_held > 0 &&
                 receiver_posts(comm);

    comm->stalled += stall - incoming->stalled;
    incoming->stalled = stall;
    if (stall)
        incoming->stalled_for = record.sequence;
    return stall;
}

/* What can be finished or begun without reading; false: it has to wait for a receive. */
static bool settle(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->incoming[socket];
    struct wire_record slice;
    bool moved = true;

    while (moved && comm->result == TCPX_SUCCESS) {
        moved = false;
        if (incoming->payload_left == 0 && has_payload(incoming)) {
            finish_payload(comm, incoming);
            moved = true;
        } else if (incoming->record_have == WIRE_RECORD_BYTES && !has_payload(incoming)) {
            if (must_stall(comm, incoming))
                return false;
            hear_record(comm, socket);
            moved = true;
        } else if (comm->link.framing == WIRE_SEPARATE && socket > 0 && !has_payload(incoming) &&
                   queue_pop(&incoming->slices, &slice)) {
            begin_slice(comm, incoming, &slice);
            incoming->by_devmem = devmem_carries(comm, socket);
            moved = true;
        }
        /* There may be room for the next slice's record now, or this was the end. */
        if (moved && comm->link.framing == WIRE_SEPARATE && socket > 0)
            progress_wake(comm, 0);
    }
    return true;
}

/* Whether a record on socket 0 could be a slice that has no room to wait. */
static bool must_wait(const struct net_comm *comm, unsigned socket)
{
    if (comm->link.framing == WIRE_INLINE)
        return false;
    if (socket > 0) /* nothing is known about the next bytes */
        return !has_payload(&comm->incoming[socket]);
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (queue_length(&comm->incoming[i].slices) == MOST_SLICES)
            return true;
    return false;
}

/* Right behind a call, which has accounted for the time until now. */
static void note_left(struct net_comm *comm, struct incoming *incoming, bool left)
{
    comm->left += left - incoming->left;
    incoming->left = left;
    note_wait(comm, comm->calling.since);
}

/* There may be bytes, but no page or slot for them, whether or not that took a call to see. */
static void note_held(struct net_comm *comm, struct incoming *incoming)
{
    if (incoming->left)
        return;
    comm->left++;
    incoming->left = true;
    note_wait(comm, clock_now());
}

enum lane_wait receiver_receive(struct net_comm *comm, uint16_t socket)
{
    struct incoming *incoming = &comm->incoming[socket];
    enum lane_wait wait = LANE_FOR_INPUT;
    uint64_t moved = 0;
    int calls = 0;
    bool emptied = false;

    for (;;) {
        ssize_t got;
        int error;

        if (!settle(comm, socket) || comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (must_wait(comm, socket)) {
            /* Of socket 0 other lanes are late; a further one has had all that was announced. */
            note_left(comm, incoming, socket == 0);
            return LANE_IDLE;
        }
        if (emptied)
            return LANE_FOR_INPUT;
        if (moved >= COMM_TURN_BYTES || calls++ == COMM_TURN_CALLS)
            return LANE_MORE;
        if (incoming->by_devmem && incoming->payload_left > 0) {
            got = devmem_read(comm, socket, &error, &wait);
        } else if (is_for_gpu(incoming) && !land_has_room(comm, incoming)) {
            note_held(comm, incoming);
            return LANE_SOON;
        } else {
            got = read_some(comm, socket, &emptied, &error);
        }
        if (got < 0 && wait == LANE_SOON)
            note_held(comm, incoming);
        else
            note_left(comm, incoming, got > 0 && !emptied);
        if (comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (got < 0 && error == EINTR)
            continue;
        if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))
            return wait;
        if (got < 0) {
            error_keep_system(error, "the connection from %s broke", comm->link.peer);
            receiver_lose(comm, socket);
            return LANE_IDLE;
        }
        if (got == 0) {
            hear_end(comm, socket);
            return LANE_IDLE;
        }
        moved += (uint64_t)got;
        if (comm->lost_at != 0)
            comm->lost_at = clock_now(); /* the others still bring bytes */
        if (!incoming->by_devmem && incoming->request != NULL && request_lands(incoming->request))
            land_if_full(comm, incoming);
    }
}
