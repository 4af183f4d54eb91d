/*
 * The sending side of a comm. A send waits until it is paired with a posted receive, or is small
 * enough to go ahead of that on credit; it is opened on forward socket 0, in an order that both
 * sides compute alike; and its bytes go out in slices, each taken by whichever socket is idle.
 * docs/protocol.md has the rules.
 */
#include "net/comm_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

/* Records for socket 0: one or two for each send, and the slices of the other sockets. */
enum { MOST_PLANNED = 2 * COMM_REQUESTS + 4 * WIRE_MOST_SOCKETS };

int sender_create(struct net_comm *comm)
{
    uint64_t most = comm->link.eager_credit / WIRE_EAGER_CHARGE + 1;
    int result;

    if (most > 1 << 20)
        return error_set(TCPX_REMOTE_ERROR, "%s grants %llu bytes of eager credit: too many",
                         comm->link.peer, (unsigned long long)comm->link.eager_credit);
    comm->eager_unposted_room = (unsigned)most;
    comm->eager_unposted = calloc(comm->eager_unposted_room, sizeof *comm->eager_unposted);
    if (comm->eager_unposted == NULL)
        return error_system(ENOMEM, "a comm");
    result = queue_init(&comm->planned, MOST_PLANNED, sizeof(struct planned));
    if (result != TCPX_SUCCESS)
        free(comm->eager_unposted);
    return result;
}

void sender_destroy(struct net_comm *comm)
{
    queue_destroy(&comm->planned);
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

static void open_eagerly(struct net_comm *comm, struct net_request *request)
{
    comm->eager_charged += request->bytes + WIRE_EAGER_CHARGE;
    request->state = REQUEST_MOVING;
    request->handed_out = request->bytes;
    plan(comm, request,
         &(struct wire_record){.type = WIRE_EAGER, .length = request->bytes, .tag = request->tag});
}

static void open_posted(struct net_comm *comm, struct net_request *request, const struct post *post)
{
    request->sequence = post->sequence;
    if (request->bytes > post->room) {
        plan(comm, NULL,
             &(struct wire_record){
                 .type = WIRE_TOOLONG, .sequence = post->sequence, .length = request->bytes});
        request_fail(request,
                     error_set(TCPX_INVALID_USAGE,
                               "a message of %llu bytes with tag %llu, but its receive at %s has "
                               "room for %llu",
                               (unsigned long long)request->bytes, (unsigned long long)request->tag,
                               comm->link.peer, (unsigned long long)post->room));
        return;
    }
    /* Its receive is there, so that nobody has to keep it: the credit does not matter. */
    if (request->bytes <= comm->link.eager_limit) {
        open_eagerly(comm, request);
        return;
    }
    request->state = REQUEST_MOVING;
    plan(comm, request,
         &(struct wire_record){.type = WIRE_OPEN,
                               .sequence = post->sequence,
                               .length = request->bytes,
                               .tag = request->tag});
}

/* The first waiting send of this tag; NULL if there is none. */
static struct net_request *first_waiting(struct net_comm *comm, uint64_t tag)
{
    struct net_request *first = NULL;

    for (int i = 0; i < COMM_REQUESTS; i++) {
        struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_WAITING && request->tag == tag &&
            (first == NULL || request->order < first->order))
            first = request;
    }
    return first;
}

static bool take_post(struct net_comm *comm, uint64_t tag, struct post *post)
{
    for (unsigned i = 0; i < comm->post_count; i++)
        if (comm->posts[i].tag == tag) {
            *post = comm->posts[i];
            comm->post_count--;
            memmove(&comm->posts[i], &comm->posts[i + 1],
                    (comm->post_count - i) * sizeof *comm->posts);
            return true;
        }
    return false;
}

/* Ahead of its receive, on credit. */
static bool may_go_eagerly(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t charge = request->bytes + WIRE_EAGER_CHARGE;
    uint64_t used = comm->eager_charged - comm->eager_freed;

    return request->bytes <= comm->link.eager_limit && used <= comm->link.eager_credit &&
           charge <= comm->link.eager_credit - used &&
           comm->eager_unposted_count < comm->eager_unposted_room;
}

/* Opens the send if it may be opened now: no earlier one of its tag may be waiting. */
static bool try_to_open(struct net_comm *comm, struct net_request *request)
{
    struct post post;

    if (first_waiting(comm, request->tag) != request)
        return false;
    if (take_post(comm, request->tag, &post)) {
        open_posted(comm, request, &post);
        return true;
    }
    if (!may_go_eagerly(comm, request))
        return false;
    comm->eager_unposted[comm->eager_unposted_count++] = request->tag;
    open_eagerly(comm, request);
    return true;
}

/* In the order of their sends, until none can be opened any more. */
static void open_waiting(struct net_comm *comm)
{
    bool opened = true;

    while (opened && comm->result == TCPX_SUCCESS) {
        opened = false;
        for (int i = 0; i < COMM_REQUESTS && !opened; i++)
            if (comm->requests[i].state == REQUEST_WAITING)
                opened = try_to_open(comm, &comm->requests[i]);
    }
}

void sender_start(struct net_comm *comm, struct net_request *request)
{
    try_to_open(comm, request);
}

/* --- what the receiver says ---------------------------------------------------------------- */

static bool pair_with_eager(struct net_comm *comm, uint64_t tag)
{
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

static int hear_post(struct net_comm *comm, const struct wire_record *record)
{
    const struct post post = {
        .sequence = record->sequence, .tag = record->tag, .room = record->length};
    struct net_request *request;
    int result = hear_freed(comm, record->offset);

    if (result != TCPX_SUCCESS)
        return result;
    if (post.sequence != comm->next_sequence ||
        (comm->link.match == WIRE_MATCH_FIFO && post.tag != 0))
        return error_set(TCPX_REMOTE_ERROR,
                         "%s broke the protocol: POST of receive %u with tag %llu, expected %u",
                         comm->link.peer, post.sequence, (unsigned long long)post.tag,
                         comm->next_sequence);
    comm->next_sequence++;
    if (pair_with_eager(comm, post.tag))
        return TCPX_SUCCESS;
    request = first_waiting(comm, post.tag);
    if (request != NULL) {
        open_posted(comm, request, &post);
        return TCPX_SUCCESS;
    }
    if (comm->post_count == COMM_REQUESTS)
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: more than %d receives posted",
                         comm->link.peer, COMM_REQUESTS);
    comm->posts[comm->post_count++] = post;
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
        return hear_freed(comm, record.offset);
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

/* *heard: whether anything new was said. A read that did not fill its room has emptied the socket.
 */
static int hear(struct net_comm *comm, bool *heard)
{
    *heard = false;
    for (;;) {
        int result;
        size_t room = sizeof comm->heard - comm->heard_bytes;
        ssize_t got = recv(comm->link.reverse, comm->heard + comm->heard_bytes, room, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return TCPX_SUCCESS;
        if (got < 0) {
            error_keep_system(errno, "the connection from %s broke", comm->link.peer);
            return TCPX_REMOTE_ERROR;
        }
        if (got == 0)
            return error_set(TCPX_REMOTE_ERROR, "the receiver at %s has closed the comm",
                             comm->link.peer);
        *heard = true;
        comm->heard_bytes += (size_t)got;
        result = hear_records(comm);
        if (result != TCPX_SUCCESS || (size_t)got < room)
            return result;
    }
}

/* --- bytes --------------------------------------------------------------------------------- */

/* The oldest opened send that has bytes which no socket has taken. */
static struct net_request *next_to_slice(struct net_comm *comm)
{
    struct net_request *oldest = NULL;

    for (int i = 0; i < COMM_REQUESTS; i++) {
        struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_MOVING && request->handed_out < request->bytes &&
            (oldest == NULL || request->order < oldest->order))
            oldest = request;
    }
    return oldest;
}

static void load_planned(struct outgoing *outgoing, const struct planned *planned)
{
    bool eager = planned->request != NULL && planned->record.type == WIRE_EAGER;

    wire_record_write(&planned->record, outgoing->record);
    outgoing->record_left = WIRE_RECORD_BYTES;
    outgoing->request = planned->request;
    outgoing->says = planned->request != NULL;
    outgoing->payload = eager ? planned->request->data : NULL;
    outgoing->payload_left = eager ? planned->request->bytes : 0;
    outgoing->counts = outgoing->payload_left;
}

static bool load_slice(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    struct net_request *request = next_to_slice(comm);
    struct wire_record record = {.type = WIRE_SLICE, .socket = socket};

    if (request == NULL)
        return false;
    record.sequence = request->sequence;
    record.offset = request->handed_out;
    record.length = request->bytes - request->handed_out;
    if (record.length > comm->link.largest_slice)
        record.length = comm->link.largest_slice;
    outgoing->record_left = 0;
    if (comm->link.framing == WIRE_INLINE) {
        wire_record_write(&record, outgoing->record);
        outgoing->record_left = WIRE_RECORD_BYTES;
    } else if (queue_length(&comm->planned) + COMM_REQUESTS >= MOST_PLANNED ||
               !plan(comm, request, &record)) {
        return false; /* socket 0 is behind with the records of earlier slices */
    }
    outgoing->request = request;
    outgoing->says = false;
    outgoing->payload = request->data + request->handed_out;
    outgoing->payload_left = record.length;
    outgoing->counts = record.length;
    request->handed_out += record.length;
    return true;
}

/* Gives an idle socket its next work. */
static bool load(struct net_comm *comm, uint16_t socket)
{
    struct planned planned;

    if (socket == 0 && queue_pop(&comm->planned, &planned)) {
        load_planned(&comm->outgoing[0], &planned);
        return true;
    }
    if (socket == 0 && comm->link.framing == WIRE_SEPARATE)
        return false;
    return load_slice(comm, socket);
}

static void finish(struct outgoing *outgoing)
{
    struct net_request *request = outgoing->request;

    outgoing->request = NULL;
    if (request == NULL)
        return;
    request->moved += outgoing->counts;
    request->unsaid -= outgoing->says;
    if (request->moved == request->bytes && request->unsaid == 0)
        request_done(request);
}

static bool is_idle(const struct outgoing *outgoing)
{
    return outgoing->record_left == 0 && outgoing->payload_left == 0;
}

static ssize_t write_some(int fd, struct outgoing *outgoing)
{
    struct iovec parts[2] = {
        {.iov_base = outgoing->record + WIRE_RECORD_BYTES - outgoing->record_left,
         .iov_len = outgoing->record_left},
        {.iov_base = (void *)(uintptr_t)outgoing->payload, .iov_len = outgoing->payload_left},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    size_t of_record;

    if (sent <= 0)
        return sent;
    of_record = (size_t)sent < outgoing->record_left ? (size_t)sent : outgoing->record_left;
    outgoing->record_left -= of_record;
    outgoing->payload_left -= (size_t)sent - of_record;
    if (outgoing->payload != NULL)
        outgoing->payload += (size_t)sent - of_record;
    outgoing->total += (size_t)sent;
    return sent;
}

/*
 * A socket that has nothing to send does not tell that its connection has died in between, as when
 * the host behind it is gone. Asking costs a system call, so it is done now and then only.
 */
static void ask_idle(struct net_comm *comm, uint16_t socket)
{
    enum { TURNS = 64 };
    socklen_t length = sizeof(int);
    int error = 0;

    if (++comm->outgoing[socket].idle_turns % TURNS != 0 ||
        getsockopt(comm->link.forward[socket], SOL_SOCKET, SO_ERROR, &error, &length) != 0 ||
        error == 0)
        return;
    error_keep_system(error, "the connection to %s broke", comm->link.peer);
    comm_fail(comm, TCPX_REMOTE_ERROR);
}

static void send_on(struct net_comm *comm, uint16_t socket)
{
    struct outgoing *outgoing = &comm->outgoing[socket];
    uint64_t moved = 0;

    while (moved < COMM_TURN_BYTES && comm->result == TCPX_SUCCESS) {
        uint64_t wanted;
        ssize_t sent;

        if (is_idle(outgoing) && !load(comm, socket)) {
            ask_idle(comm, socket);
            return;
        }
        wanted = outgoing->record_left + outgoing->payload_left;
        sent = write_some(comm->link.forward[socket], outgoing);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (sent < 0) {
            error_keep_system(errno, "the connection to %s broke", comm->link.peer);
            comm_fail(comm, TCPX_REMOTE_ERROR);
            return;
        }
        moved += (uint64_t)sent;
        if ((uint64_t)sent < wanted)
            return; /* the socket is full */
        finish(outgoing);
    }
}

static void send_on_all(struct net_comm *comm)
{
    for (uint16_t i = 0; i < comm->link.sockets; i++)
        send_on(comm, i);
}

/* What can be sent already goes first: a small message does not wait for news. */
void sender_progress(struct net_comm *comm)
{
    bool heard = false;
    int result;

    send_on_all(comm);
    if (comm->result != TCPX_SUCCESS)
        return;
    result = hear(comm, &heard);
    if (result != TCPX_SUCCESS) {
        comm_fail(comm, result);
    } else if (heard) {
        open_waiting(comm);
        send_on_all(comm);
    }
}

/* --- the end ------------------------------------------------------------------------------- */

/* As far as the socket takes it at once: the end of file says the same, only less surely. */
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

/* shutdown, because a forked child may hold the descriptor too. */
void sender_close(struct net_comm *comm)
{
    bool in_order = comm->result == TCPX_SUCCESS && queue_length(&comm->planned) == 0;

    for (int i = 0; i < COMM_REQUESTS; i++)
        in_order = in_order && comm->requests[i].state != REQUEST_MOVING;
    for (uint16_t i = 0; i < comm->link.sockets; i++)
        in_order = in_order && is_idle(&comm->outgoing[i]);
    for (uint16_t i = 0; i < comm->link.sockets; i++) {
        if (in_order && (i == 0 || comm->link.framing == WIRE_INLINE))
            say_fin(comm, i);
        shutdown(comm->link.forward[i], SHUT_WR);
    }
    shutdown(comm->link.reverse, SHUT_RDWR);
}
