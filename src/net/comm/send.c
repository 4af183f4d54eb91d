/*
 * The sending side of a comm. A send waits until it is paired with a posted receive, or is small
 * enough to go ahead of that on credit; it is opened on forward socket 0, in an order that both
 * sides compute alike; and its bytes go out in slices, each taken by whichever socket is idle.
 * docs/protocol.md has the rules.
 */
#include "base/clock.h"
#include "base/log.h"
#include "net/comm/comm_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

/* Records for socket 0: one or two for each send, and the slices of the other sockets. */
static size_t most_planned(const struct net_comm *comm)
{
    return 2 * (size_t)comm->most_requests + (size_t)4 * WIRE_MOST_SOCKETS;
}

/* Cutting a message more finely costs more than sockets that share it gain. */
enum { SMALLEST_SLICE = 128 << 10 };

/*
 * A socket on a slow path must not fill itself with slices that the others could have sent. How
 * much it may hold follows from how fast it is: what it sends in some milliseconds, so that it
 * stays busy until whoever feeds it comes back. A single socket may hold all it wants.
 */
enum { LEAST_UNSENT = 128 << 10, FIRST_UNSENT = 256 << 10, MOST_UNSENT = 4 << 20 };
#define UNSENT_NS 5000000u

/* Without it the sockets only share less evenly. */
static void limit_unsent(struct net_comm *comm, unsigned socket, int bytes)
{
    comm->outgoing[socket].unsent_limit = bytes;
    if (socket_limit_unsent(comm->link.forward[socket], bytes) != TCPX_SUCCESS)
        log_debug("%s", error_text());
}

static void adapt_unsent(struct net_comm *comm, unsigned socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    uint64_t now = clock_now();
    uint64_t span = now - outgoing->loaded_at + 1;
    uint64_t bytes;

    outgoing->loaded_at = now;
    if (outgoing->counts < SMALLEST_SLICE)
        return;
    bytes = outgoing->counts * UNSENT_NS / span;
    bytes = bytes < LEAST_UNSENT ? LEAST_UNSENT : bytes > MOST_UNSENT ? MOST_UNSENT : bytes;
    if (bytes >= 2 * (uint64_t)outgoing->unsent_limit ||
        2 * bytes <= (uint64_t)outgoing->unsent_limit)
        limit_unsent(comm, socket, (int)bytes);
}

int sender_create(struct net_comm *comm)
{
    uint64_t most = comm->link.eager_credit / WIRE_EAGER_CHARGE + 1;
    int result = stages_slow_network(&comm->throttle, comm->link.forward, comm->link.sockets);

    if (result != TCPX_SUCCESS)
        return result;
    if (most > 1 << 20)
        return error_set(TCPX_REMOTE_ERROR, "%s grants %llu bytes of eager credit: too many",
                         comm->link.peer, (unsigned long long)comm->link.eager_credit);
    for (unsigned i = 0; i < comm->link.sockets && comm->link.sockets > 1; i++)
        limit_unsent(comm, i, FIRST_UNSENT);
    comm->eager_unposted_room = (unsigned)most;
    if (comm->link.match == WIRE_MATCH_TAG) {
        comm->eager_unposted = calloc(most, sizeof *comm->eager_unposted);
        if (comm->eager_unposted == NULL)
            return error_system(ENOMEM, "a comm");
    }
    result = queue_init(&comm->planned, most_planned(comm), sizeof(struct planned));
    if (result == TCPX_SUCCESS)
        result = key_fifo_init(&comm->posts, comm->most_requests, sizeof(struct post));
    if (result == TCPX_SUCCESS)
        result = key_fifo_init(&comm->waiting, comm->most_requests, sizeof(struct net_request *));
    if (result != TCPX_SUCCESS)
        sender_destroy(comm);
    return result;
}

void sender_destroy(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        free(comm->outgoing[i].by_reference);
    queue_destroy(&comm->planned);
    key_fifo_destroy(&comm->posts);
    key_fifo_destroy(&comm->waiting);
    free(comm->eager_unposted);
}

/* --- opening ------------------------------------------------------------------------------- */

static bool plan(struct net_comm *comm, struct net_request *request,
                 const struct wire_record *record)
{
    const struct planned planned = {.record = *record, .request = request};

    if (!queue_push(&comm->planned, &planned)) {
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room to plan a %s",
                                  wire_type_name(record->type)));
        return false;
    }
    if (request != NULL)
        request->unsaid++;
    return true;
}

/* What is in GPU memory would hold up all that comes behind it on socket 0. */
static bool may_be_eager(const struct net_comm *comm, const struct net_request *request)
{
    return request->bytes == 0 || (!request->in_gpu && request->bytes <= comm->link.eager_limit);
}

/* Then a message has the number of its receive. */
static bool is_in_order(const struct net_comm *comm)
{
    return comm->link.match == WIRE_MATCH_FIFO;
}

static void open_eagerly(struct net_comm *comm, struct net_request *request)
{
    comm->eager_charged += request->bytes + WIRE_EAGER_CHARGE;
    request->state = REQUEST_MOVING;
    request->handed_out = request->bytes;
    plan(comm, request,
         &(struct wire_record){.type = WIRE_EAGER,
                               .sequence = is_in_order(comm) ? wire_sequence(request->order) : 0,
                               .length = request->bytes,
                               .tag = request->tag});
}

/*
 * The send fails only when TOOLONG has been written: after its last failed request a program need
 * not call again, and the receiver would wait for ever.
 */
static void refuse_too_long(struct net_comm *comm, struct net_request *request,
                            const struct post *post)
{
    request->state = REQUEST_MOVING;
    request->too_long = true;
    request->room = post->room;
    request->handed_out = request->bytes;
    request->staged = request->bytes;
    plan(comm, request,
         &(struct wire_record){
             .type = WIRE_TOOLONG, .sequence = post->sequence, .length = request->bytes});
}

static void fail_too_long(struct net_request *request)
{
    request_fail(request,
                 error_set(TCPX_INVALID_USAGE,
                           "a message of %llu bytes with tag %llu, but its receive at %s has "
                           "room for %llu",
                           (unsigned long long)request->bytes, (unsigned long long)request->tag,
                           request->comm->link.peer, (unsigned long long)request->room));
}

static void open_posted(struct net_comm *comm, struct net_request *request, const struct post *post)
{
    request->sequence = post->sequence;
    request->has_sequence = true;
    if (request->bytes > post->room) {
        refuse_too_long(comm, request, post);
        return;
    }
    /* Its receive is there, so that nobody has to keep it: the credit does not matter. */
    if (may_be_eager(comm, request)) {
        open_eagerly(comm, request);
        return;
    }
    request->state = REQUEST_MOVING;
    comm->slicing++;
    if (is_in_order(comm))
        return; /* its slices say all */
    plan(comm, request,
         &(struct wire_record){.type = WIRE_OPEN,
                               .sequence = post->sequence,
                               .length = request->bytes,
                               .tag = request->tag});
}

/* --- sends that wait --- */

static void wait_in_line(struct net_comm *comm, struct net_request *request)
{
    if (!key_fifo_push(&comm->waiting, request->tag, &request)) {
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "no room for a send that waits"));
        return;
    }
    request->later = NULL;
    request->earlier = comm->last_waiting;
    if (comm->last_waiting != NULL)
        comm->last_waiting->later = request;
    else
        comm->first_waiting = request;
    comm->last_waiting = request;
}

/* The first waiting send of this tag; NULL if there is none. */
static struct net_request *first_waiting(struct net_comm *comm, uint64_t tag)
{
    struct net_request **first = key_fifo_peek(&comm->waiting, tag);

    return first != NULL ? *first : NULL;
}

/* It is the first of its tag. */
static void leave_line(struct net_comm *comm, struct net_request *request)
{
    key_fifo_pop(&comm->waiting, request->tag, NULL);
    if (request->earlier != NULL)
        request->earlier->later = request->later;
    else
        comm->first_waiting = request->later;
    if (request->later != NULL)
        request->later->earlier = request->earlier;
    else
        comm->last_waiting = request->earlier;
}

static bool is_near(const struct net_comm *comm, const struct net_request *request)
{
    return wire_sequence_distance(comm->next_sequence, wire_sequence(request->order)) <
           WIRE_MOST_AHEAD;
}

static uint64_t credit_left(const struct net_comm *comm)
{
    uint64_t used = comm->eager_charged - comm->eager_freed;

    return used < comm->link.eager_credit ? comm->link.eager_credit - used : 0;
}

static bool credit_suffices(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t left = credit_left(comm);

    return left >= WIRE_EAGER_CHARGE && request->bytes <= left - WIRE_EAGER_CHARGE;
}

/* Ahead of its receive, on credit. */
static bool may_go_eagerly(const struct net_comm *comm, const struct net_request *request)
{
    return may_be_eager(comm, request) && credit_suffices(comm, request) &&
           (is_in_order(comm) ? is_near(comm, request)
                              : comm->eager_unposted_count < comm->eager_unposted_room);
}

/* Even a large one may go, in slices, where the number of its receive is known before it is posted.
 */
static bool may_go_ahead(const struct net_comm *comm, const struct net_request *request)
{
    return is_in_order(comm) && comm->link.framing == WIRE_INLINE && is_near(comm, request) &&
           credit_suffices(comm, request);
}

static void open_ahead(struct net_comm *comm, struct net_request *request)
{
    comm->eager_charged += request->bytes + WIRE_EAGER_CHARGE;
    request->state = REQUEST_MOVING;
    request->ahead = true;
    comm->slicing++;
    request->sequence = wire_sequence(request->order);
}

static void note_unposted(struct net_comm *comm, uint64_t tag)
{
    if (!is_in_order(comm))
        comm->eager_unposted[comm->eager_unposted_count] = tag;
    comm->eager_unposted_count++;
}

/* Opens the send before its POST, if it may be. */
static bool open_on_credit(struct net_comm *comm, struct net_request *request)
{
    if (may_go_eagerly(comm, request))
        open_eagerly(comm, request);
    else if (!may_be_eager(comm, request) && may_go_ahead(comm, request))
        open_ahead(comm, request);
    else
        return false;
    note_unposted(comm, request->tag);
    return true;
}

/* None of its tag waits. */
static bool open_at_once(struct net_comm *comm, struct net_request *request)
{
    struct post post;

    if (!key_fifo_pop(&comm->posts, request->tag, &post))
        return open_on_credit(comm, request);
    open_posted(comm, request, &post);
    return true;
}

/*
 * In the order of their sends, as far as the credit goes. None of them has a POST: that would have
 * opened it when it came.
 */
static void open_waiting(struct net_comm *comm)
{
    struct net_request *request = comm->first_waiting;

    while (request != NULL && comm->result == TCPX_SUCCESS &&
           credit_left(comm) >= WIRE_EAGER_CHARGE) {
        struct net_request *later = request->later;
        bool opened = first_waiting(comm, request->tag) == request && open_on_credit(comm, request);

        if (opened)
            leave_line(comm, request);
        else if (is_in_order(comm))
            return;
        request = later;
    }
}

/*
 * Large sends that follow each other are left to the I/O threads: whoever calls has the next one to
 * prepare. A single one is faster without a hand-over.
 */
enum { LARGE = 64 << 10, CLOSE_NS = 50000 };

static void notice_stream(struct net_comm *comm, const struct net_request *request)
{
    if (request->bytes >= LARGE && comm->own_lanes < comm->link.sockets)
        comm->streams = comm->pending > 1 || clock_now() < comm->last_large_end + CLOSE_NS;
}

void sender_start(struct net_comm *comm, struct net_request *request)
{
    notice_stream(comm, request);
    if (first_waiting(comm, request->tag) != NULL || !open_at_once(comm, request))
        wait_in_line(comm, request);
}

/* --- what the receiver says ---------------------------------------------------------------- */

static bool pair_with_unposted(struct net_comm *comm, uint64_t tag)
{
    if (is_in_order(comm) && comm->eager_unposted_count > 0) {
        comm->eager_unposted_count--;
        return true;
    }
    for (unsigned i = 0; i < comm->eager_unposted_count; i++)
        if (comm->eager_unposted[i] == tag) {
            comm->eager_unposted_count--;
            memmove(&comm->eager_unposted[i], &comm->eager_unposted[i + 1],
                    (comm->eager_unposted_count - i) * sizeof *comm->eager_unposted);
            return true;
        }
    return false;
}

static int hear_freed(struct net_comm *comm, uint64_t freed)
{
    if (freed < comm->eager_freed || freed > comm->eager_charged)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: it freed %llu eager bytes after %llu, of %llu",
                         comm->link.peer, (unsigned long long)freed,
                         (unsigned long long)comm->eager_freed,
                         (unsigned long long)comm->eager_charged);
    comm->eager_freed = freed;
    return TCPX_SUCCESS;
}

/* Whether a receive of this number cannot have got its whole message yet. */
static bool is_outstanding(const struct net_comm *comm, uint32_t sequence)
{
    for (unsigned i = 0; i < comm->posts.capacity; i++) {
        const struct post *post = key_fifo_at(&comm->posts, i);

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
static bool may_be_posted(const struct net_comm *comm, uint32_t sequence)
{
    uint32_t skipped = wire_sequence_distance(comm->next_sequence, sequence);

    if (is_in_order(comm) || !comm->sequence_wrapped)
        return skipped == 0;
    return skipped < comm->most_requests && !is_outstanding(comm, sequence);
}

/* One that frees nothing would be work without end. */
static int hear_credit(struct net_comm *comm, uint64_t freed)
{
    if (freed == comm->eager_freed)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: CREDIT that frees nothing, at %llu eager bytes",
                         comm->link.peer, (unsigned long long)freed);
    return hear_freed(comm, freed);
}

static int hear_post(struct net_comm *comm, const struct wire_record *record)
{
    const struct post post = {
        .sequence = record->sequence, .tag = record->tag, .room = record->length};
    struct net_request *request;
    int result = hear_freed(comm, record->offset);

    if (result != TCPX_SUCCESS)
        return result;
    if (!may_be_posted(comm, post.sequence) ||
        (comm->link.match == WIRE_MATCH_FIFO && post.tag != 0))
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: POST of receive %u with tag %llu, expected %u",
                         comm->link.peer, post.sequence, (unsigned long long)post.tag,
                         comm->next_sequence);
    comm_advance_sequence(comm, post.sequence);
    if (pair_with_unposted(comm, post.tag))
        return TCPX_SUCCESS;
    request = first_waiting(comm, post.tag);
    if (request != NULL) {
        leave_line(comm, request);
        open_posted(comm, request, &post);
        return TCPX_SUCCESS;
    }
    if (!key_fifo_push(&comm->posts, post.tag, &post))
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: more than %u receives posted",
                         comm->link.peer, comm->most_requests);
    return TCPX_SUCCESS;
}

/* One record of those heard; *used: its bytes, 0 if it is not all there yet. */
static int hear_record(struct net_comm *comm, const uint8_t *bytes, size_t have, size_t *used)
{
    struct wire_record record;

    *used = 0;
    if (have < WIRE_RECORD_BYTES)
        return TCPX_SUCCESS;
    if (wire_record_read(bytes, WIRE_REVERSE, &record) != WIRE_FINE)
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: %s", comm->link.peer,
                         error_text());
    if (record.type == WIRE_ABORT && have < WIRE_RECORD_BYTES + record.length)
        return TCPX_SUCCESS;
    *used = WIRE_RECORD_BYTES;
    switch (record.type) {
    case WIRE_POST:
        return hear_post(comm, &record);
    case WIRE_CREDIT:
        return hear_credit(comm, record.offset);
    case WIRE_ABORT:
        return error_set(TCPX_REMOTE_ERROR, "%s gave up with %s: %.*s", comm->link.peer,
                         tcpx_result_name((int)record.sequence), (int)record.length,
                         (const char *)bytes + WIRE_RECORD_BYTES);
    default:
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: a second READY",
                         comm->link.peer);
    }
}

static int hear_records(struct net_comm *comm)
{
    size_t at = 0;
    size_t used = 1;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && used != 0) {
        result = hear_record(comm, comm->heard + at, comm->heard_bytes - at, &used);
        at += used;
    }
    comm->heard_bytes -= at;
    memmove(comm->heard, comm->heard + at, comm->heard_bytes);
    return result;
}

static bool is_sending(const struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->lanes[i].busy)
            return true;
    return false;
}

/*
 * A read that did not fill its room has emptied the socket. The number of reads is bounded, so that
 * a peer that floods this socket holds neither the caller nor an I/O thread.
 */
enum lane_wait sender_hear(struct net_comm *comm)
{
    enum { MOST_READS = 8 };

    for (int reads = 0; comm->result == TCPX_SUCCESS; reads++) {
        int result;
        size_t room = sizeof comm->heard - comm->heard_bytes;
        ssize_t got;
        int error;

        if (reads == MOST_READS)
            return LANE_MORE;
        pthread_mutex_unlock(&comm->lock);
        got = recv(comm->link.reverse, comm->heard + comm->heard_bytes, room, MSG_DONTWAIT);
        error = errno;
        pthread_mutex_lock(&comm->lock);
        if (got < 0 && error == EINTR)
            continue;
        if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))
            break;
        if (got < 0) {
            error_keep_system(error, "the connection from %s broke", comm->link.peer);
            result = TCPX_REMOTE_ERROR;
        } else if (got == 0 && is_sending(comm)) {
            break; /* perhaps the very last bytes: that is known when the call returns */
        } else if (got == 0) {
            result = error_set(TCPX_REMOTE_ERROR, "the receiver at %s has closed the comm",
                               comm->link.peer);
        } else {
            comm->heard_bytes += (size_t)got;
            result = hear_records(comm);
            open_waiting(comm);
            comm->news = true;
        }
        if (result != TCPX_SUCCESS)
            comm_fail(comm, result);
        if ((size_t)got < room)
            break;
    }
    return LANE_FOR_INPUT;
}

/* --- bytes --------------------------------------------------------------------------------- */

/* The oldest opened send, of those that need no copy, with bytes that no socket has taken. */
static struct net_request *next_to_slice(struct net_comm *comm)
{
    struct net_request *oldest = NULL;

    for (unsigned i = 0; comm->slicing > 0 && i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_MOVING && !request_is_staged(request) && !request->gated &&
            request->handed_out < request->bytes &&
            (oldest == NULL || request->order < oldest->order))
            oldest = request;
    }
    return oldest;
}

uint64_t sender_bytes_to_slice(const struct net_comm *comm)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; comm->slicing > 0 && i < comm->used_requests; i++)
        if (comm->requests[i].state == REQUEST_MOVING && !request_is_staged(&comm->requests[i]) &&
            !comm->requests[i].gated)
            bytes += comm->requests[i].bytes - comm->requests[i].handed_out;
    if (comm->gpu.stream != NULL)
        bytes += queue_length(&comm->gpu.ready) * sender_smallest_slice(comm);
    return bytes;
}

uint64_t sender_smallest_slice(const struct net_comm *comm)
{
    return comm->link.largest_slice < SMALLEST_SLICE ? comm->link.largest_slice : SMALLEST_SLICE;
}

static uint64_t largest_slice(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t share = comm->link.largest_slice / (request->in_gpu ? 1 : NET_HOST_SHARE);

    return share >= WIRE_LEAST_SLICE ? share : comm->link.largest_slice;
}

/* Large at first, then smaller, so that all sockets come to an end at about the same time. */
uint64_t sender_slice_bytes(const struct net_comm *comm, uint64_t left, uint64_t most)
{
    /* Where one thread feeds them all, they gain nothing by it. */
    bool shared = comm->own_lanes < comm->link.sockets;
    uint64_t slice = shared ? left / 2 / comm->link.sockets : most;

    if (slice < sender_smallest_slice(comm))
        slice = sender_smallest_slice(comm);
    return piece_bytes(left, slice < most ? slice : most);
}

static void add_record(struct outgoing *outgoing, const struct wire_record *record)
{
    wire_record_write(record, outgoing->records + outgoing->records_bytes);
    outgoing->records_bytes += WIRE_RECORD_BYTES;
}

static bool has_place(const struct outgoing *outgoing)
{
    return outgoing->records_bytes < sizeof outgoing->records;
}

/* As many of the planned records as there are places, up to one that has a payload. */
static void load_planned(struct net_comm *comm, struct outgoing *outgoing)
{
    struct planned planned;

    while (has_place(outgoing) && outgoing->request == NULL &&
           queue_pop(&comm->planned, &planned)) {
        add_record(outgoing, &planned.record);
        if (planned.request == NULL)
            continue;
        outgoing->said[outgoing->said_count++] = planned.request;
        if (planned.record.type != WIRE_EAGER)
            continue;
        outgoing->request = planned.request;
        outgoing->payload = planned.request->data;
        outgoing->payload_left = planned.request->bytes;
        outgoing->counts = outgoing->payload_left;
    }
}

/* Its record is there to be sent, and whoever moves that lane on may be asleep. */
static void wake_socket_0(struct net_comm *comm)
{
    progress_wake(comm, 0);
    progress_alarm(comm);
}

static void load_slice(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    struct net_request *request = next_to_slice(comm);
    const struct copy *staged = stage_peek(comm);
    struct wire_record record = {.type = WIRE_SLICE, .socket = socket};
    struct copy copy;

    if (socket == 0 && comm->streams && progress_is_shared_out(comm))
        return;
    if (staged != NULL && (request == NULL || staged->request->order < request->order))
        request = staged->request;
    else
        staged = NULL;
    if (request == NULL)
        return;
    record.sequence = request->sequence;
    record.tag = is_in_order(comm) ? request->bytes : 0;
    record.flags = request->ahead ? WIRE_ON_CREDIT : 0;
    record.offset = staged != NULL ? staged->offset : request->handed_out;
    record.length = staged != NULL ? staged->bytes
                                   : sender_slice_bytes(comm, request->bytes - request->handed_out,
                                                        largest_slice(comm, request));
    if (comm->link.framing == WIRE_INLINE) {
        add_record(outgoing, &record);
    } else if (queue_length(&comm->planned) + comm->most_requests >= most_planned(comm) ||
               !plan(comm, request, &record)) {
        return; /* socket 0 is behind with the records of earlier slices */
    } else {
        wake_socket_0(comm);
    }
    if (staged != NULL) {
        stage_take(comm, &copy);
        outgoing->slot = copy.slot;
    }
    outgoing->request = request;
    outgoing->payload = staged != NULL                    ? copy.slot->host
                        : request_is_referred_to(request) ? NULL
                                                          : request->data + request->handed_out;
    outgoing->source_at = request->source_at + request->handed_out;
    outgoing->payload_left = record.length;
    outgoing->counts = record.length;
    request->handed_out += record.length;
    comm->slicing -= request->handed_out == request->bytes;
}

static bool is_idle(const struct outgoing *outgoing)
{
    return outgoing->records_sent == outgoing->records_bytes && outgoing->payload_left == 0;
}

bool sender_is_idle(const struct net_comm *comm, unsigned socket)
{
    return is_idle(&comm->outgoing[socket]);
}

/* Gives an idle socket its next work; false: there is none. */
static bool load(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];

    outgoing->records_bytes = 0;
    outgoing->records_sent = 0;
    outgoing->said_count = 0;
    stage_ahead(comm);
    if (socket == 0)
        load_planned(comm, outgoing);
    if (outgoing->request == NULL && has_place(outgoing) &&
        (socket != 0 || comm->link.framing == WIRE_INLINE))
        load_slice(comm, socket);
    /*
     * Copies that ended while this lane was sending: it would take them all one by one. And what
     * the GPU has completed meanwhile, which this lane may be none for.
     */
    if (stage_peek(comm) != NULL || (comm->sends_by_reference && next_to_slice(comm) != NULL))
        progress_share_out(comm);
    return !is_idle(outgoing);
}

static void done_if_all_sent(struct net_request *request)
{
    if (request->state != REQUEST_MOVING || request->unsaid != 0)
        return;
    if (request->too_long) {
        fail_too_long(request);
        return;
    }
    if (request->moved != request->bytes)
        return;
    if (request->bytes >= LARGE)
        request->comm->last_large_end = clock_now();
    request_done(request);
}

void sender_moved(struct net_request *request, uint64_t bytes)
{
    request->moved += bytes;
    done_if_all_sent(request);
}

static void finish(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    struct net_request *request = outgoing->request;

    if (request != NULL && comm->link.sockets > 1)
        adapt_unsent(comm, socket);
    if (outgoing->slot != NULL)
        staging_give(&comm->gpu.share, outgoing->slot);
    outgoing->slot = NULL;
    outgoing->request = NULL;
    /* What the NIC reads by itself counts when it has arrived. */
    if (request != NULL && !request_is_referred_to(request))
        request->moved += outgoing->counts;
    for (unsigned i = 0; i < outgoing->said_count; i++)
        outgoing->said[i]->unsaid--;
    for (unsigned i = 0; i < outgoing->said_count; i++)
        done_if_all_sent(outgoing->said[i]);
    if (request != NULL)
        done_if_all_sent(request);
    outgoing->said_count = 0;
}

/* A socket that did not take all is full; with one, and no call under way, the sender waits. */
static void note_written(struct net_comm *comm, struct outgoing *outgoing, ssize_t sent,
                         uint64_t wanted)
{
    bool full = sent < 0 || (uint64_t)sent < wanted;

    stages_call_ended(&comm->calling, sent > 0);
    comm->full += full - outgoing->full;
    outgoing->full = full;
    comm->calling.waits = comm->full > 0 && comm->result == TCPX_SUCCESS;
}

static bool refers(const struct outgoing *outgoing)
{
    return outgoing->request != NULL && request_is_referred_to(outgoing->request);
}

/* By one call: records and what is in host memory together, what the NIC reads by itself alone. */
static uint64_t bytes_of_call(const struct outgoing *outgoing)
{
    uint64_t records = outgoing->records_bytes - outgoing->records_sent;

    return refers(outgoing) && records > 0 ? records : records + outgoing->payload_left;
}

static ssize_t call(struct net_comm *comm, uint16_t socket, struct iovec parts[2])
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    bool alone = refers(outgoing);
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = outgoing->payload_left > 0 && !alone ? 2 : 1};

    if (alone && parts[0].iov_len == 0)
        return devmem_send_some(comm->link.forward[socket], outgoing->request->source_id,
                                outgoing->source_at, outgoing->payload_left);
    return sendmsg(comm->link.forward[socket], &message,
                   MSG_NOSIGNAL | MSG_DONTWAIT | (alone ? MSG_MORE : 0));
}

static void note_taken(struct outgoing *outgoing, size_t of_records, size_t of_payload)
{
    outgoing->records_sent += of_records;
    outgoing->payload_left -= of_payload;
    outgoing->source_at += of_payload;
    if (outgoing->payload != NULL)
        outgoing->payload += of_payload;
    else if (of_payload > 0)
        zerocopy_began(outgoing->by_reference, outgoing->request, of_payload);
    outgoing->total += of_records + of_payload;
}

/* The lock is free during the call; *error is errno. */
static ssize_t write_some(struct net_comm *comm, uint16_t socket, int *error)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    struct iovec parts[2] = {
        {.iov_base = outgoing->records + outgoing->records_sent,
         .iov_len = outgoing->records_bytes - outgoing->records_sent},
        {.iov_base = (void *)(uintptr_t)outgoing->payload, .iov_len = outgoing->payload_left},
    };
    struct net_request *request = outgoing->request;
    uint64_t wanted = bytes_of_call(outgoing);
    ssize_t sent;
    size_t of_records;

    request_hold(request);
    stages_call_begins(&comm->calling);
    pthread_mutex_unlock(&comm->lock);
    sent = call(comm, socket, parts);
    *error = errno;
    pthread_mutex_lock(&comm->lock);
    if (sent > 0)
        stages_sleep(&comm->lock,
                     stages_slow_until(&comm->throttle, CONFIG_THROTTLE_SEND, (uint64_t)sent));
    note_written(comm, outgoing, sent, wanted);
    request_let_go(request);
    if (sent <= 0)
        return sent;
    of_records = (size_t)sent < parts[0].iov_len ? (size_t)sent : parts[0].iov_len;
    note_taken(outgoing, of_records, (size_t)sent - of_records);
    return sent;
}

/*
 * A socket that has nothing to send does not tell that its connection has died in between, as when
 * the host behind it is gone. An I/O thread is told; without one it is asked now and then, since
 * that costs a system call.
 */
static void ask_idle(struct net_comm *comm, uint16_t socket)
{
    enum { TURNS = 64 };

    if (comm->io.crew == NULL && ++comm->outgoing[socket].idle_turns % TURNS == 0)
        comm_has_broken(comm, socket);
}

static bool may_be_staged_soon(const struct net_comm *comm, uint16_t socket)
{
    return comm->gpu.stream != NULL && queue_length(&comm->gpu.copies) > 0 &&
           (socket != 0 || comm->link.framing == WIRE_INLINE);
}

/* Too many sends are under way to begin another: notices of those come as errors do. */
static bool must_wait_for_arrivals(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];

    if (!refers(outgoing) || zerocopy_has_room(outgoing->by_reference))
        return false;
    devmem_send_poll(comm, socket);
    return !zerocopy_has_room(outgoing->by_reference);
}

bool sender_may_learn_why(int error)
{
    return error == EPIPE || error == ECONNRESET;
}

/* A receiver that gives up sends its reason on the reverse socket first, and that may be unread. */
static void broke(struct net_comm *comm, struct outgoing *outgoing, int error)
{
    if (refers(outgoing) && outgoing->records_sent == outgoing->records_bytes &&
        (error == EINVAL || error == ENODEV || error == EFAULT || error == EOPNOTSUPP)) {
        error_keep_system(error,
                          "%s cannot send from GPU memory any more (it was shut down, or the route "
                          "to %s has changed)",
                          comm->link.device.name, comm->link.peer);
        comm_fail(comm, TCPX_SYSTEM_ERROR);
    } else {
        error_keep_system(error, "the connection to %s broke", comm->link.peer);
        outgoing->lost = true;
        comm_lose(comm);
        if (!sender_may_learn_why(error))
            comm_fail_lost(comm);
    }
}

enum lane_wait sender_send(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    uint64_t moved = 0;
    int calls = 0;

    if (outgoing->lost)
        return LANE_IDLE;
    devmem_send_poll(comm, socket);
    while (moved < COMM_TURN_BYTES && calls++ < COMM_TURN_CALLS && comm->result == TCPX_SUCCESS) {
        uint64_t wanted;
        ssize_t sent;
        int error;

        if (is_idle(outgoing) && !load(comm, socket)) {
            ask_idle(comm, socket);
            outgoing->loaded_at = 0;
            return may_be_staged_soon(comm, socket) ? LANE_SOON : LANE_IDLE;
        }
        if (outgoing->loaded_at == 0 && comm->link.sockets > 1)
            outgoing->loaded_at = clock_now();
        if (must_wait_for_arrivals(comm, socket))
            return LANE_FOR_ARRIVALS;
        wanted = bytes_of_call(outgoing);
        sent = write_some(comm, socket, &error);
        if (comm->result != TCPX_SUCCESS)
            return LANE_IDLE;
        if (sent < 0 && error == EINTR)
            continue;
        if (sent < 0 &&
            (refers(outgoing) ? error == EAGAIN || error == EWOULDBLOCK : socket_is_full(error))) {
            copies_poll(comm); /* there is time, and how long they took is told */
            return LANE_FOR_ROOM;
        }
        if (sent < 0 && error == ENOBUFS && devmem_send_is_flying(comm, socket))
            return LANE_FOR_ARRIVALS;
        if (sent < 0) {
            broke(comm, outgoing, error);
            return LANE_IDLE;
        }
        moved += (uint64_t)sent;
        if ((uint64_t)sent < wanted)
            return LANE_FOR_ROOM;
        if (is_idle(outgoing))
            finish(comm, socket);
    }
    return LANE_MORE;
}

/* --- the end ------------------------------------------------------------------------------- */

/*
 * Best effort. A FIN that does not fit, or only in part, is an end of file to the receiver, which
 * then cannot check the number of bytes.
 */
static void say_fin(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    uint8_t bytes[WIRE_RECORD_BYTES];

    if (!is_idle(outgoing))
        return;
    wire_record_write(&(struct wire_record){.type = WIRE_FIN, .length = outgoing->total}, bytes);
    if (send(comm->link.forward[socket], bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

bool sender_is_between_records(const struct net_comm *comm)
{
    return is_idle(&comm->outgoing[0]);
}

/*
 * A close with unread input is a reset, and destroys what the peer has not got yet. A receiver that
 * keeps to the protocol sends nothing here; of another one nobody wants to know any more.
 */
static void discard_input(int fd)
{
    enum { MOST_READS = 4, MANY = 1 << 30 };

    for (int i = 0; i < MOST_READS; i++)
        if (recv(fd, NULL, MANY, MSG_TRUNC | MSG_DONTWAIT) <= 0)
            return;
}

/* shutdown, because a forked child may hold the descriptor too. */
void sender_close(struct net_comm *comm)
{
    bool in_order;

    devmem_send_close(comm);
    in_order = comm->result == TCPX_SUCCESS && queue_length(&comm->planned) == 0;
    for (unsigned i = 0; i < comm->used_requests; i++)
        in_order = in_order && comm->requests[i].state != REQUEST_MOVING;
    for (uint16_t i = 0; i < comm->link.sockets; i++)
        in_order = in_order && is_idle(&comm->outgoing[i]);
    for (uint16_t i = 0; i < comm->link.sockets; i++) {
        if (in_order && (i == 0 || comm->link.framing == WIRE_INLINE))
            say_fin(comm, i);
        discard_input(comm->link.forward[i]);
        shutdown(comm->link.forward[i], SHUT_WR);
    }
    shutdown(comm->link.reverse, SHUT_RDWR);
}
