#include "tests/support/pair.h"
#include "tests/support/basics.h"

#include "net/io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

/* --- two comms ------------------------------------------------------------------------------- */

struct pair pair_of(const struct net_link *sender, const struct net_link *receiver)
{
    struct pair pair;

    assert_success(net_comm_create(sender, NET_SENDER, &pair.sender));
    assert_success(net_comm_create(receiver, NET_RECEIVER, &pair.receiver));
    return pair;
}

struct pair pair_open(const struct net_link_options *options)
{
    struct net_link sender;
    struct net_link receiver;

    make_link_pair(options, &sender, &receiver);
    return pair_of(&sender, &receiver);
}

struct net_comm *connect_comm(const struct net_link_options *options,
                              const uint8_t handle[NET_HANDLE_BYTES])
{
    uint8_t copy[NET_HANDLE_BYTES];
    struct net_comm *comm;
    struct net_link link;
    bool connected = false;

    memcpy(copy, handle, sizeof copy);
    until(connected, assert_success(net_connect(NULL, options, copy, &link, &connected)));
    assert_success(net_comm_create(&link, NET_SENDER, &comm));
    return comm;
}

struct net_comm *accept_comm(struct net_listener *listener)
{
    struct net_comm *comm;
    struct net_link link;
    bool accepted = false;

    until(accepted, assert_success(net_accept(listener, &link, &accepted)));
    assert_success(net_comm_create(&link, NET_RECEIVER, &comm));
    return comm;
}

void comm_end(struct net_comm **comm)
{
    net_comm_close(*comm);
    *comm = NULL;
}

void pair_close(struct pair *pair)
{
    comm_end(&pair->sender);
    comm_end(&pair->receiver);
}

void pair_move(const struct pair *pair, const void *data, void *room, uint64_t bytes, uint64_t tag)
{
    struct net_request *receive;

    memset(room, 0, bytes);
    receive = must_receive(pair->receiver, room, bytes, tag);
    assert_int_equal(must_end_both(must_send(pair->sender, data, bytes, tag), receive), bytes);
    assert_memory_equal(room, data, bytes);
}

/* --- requests -------------------------------------------------------------------------------- */

struct net_request *must_send(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag)
{
    struct net_request *request = NULL;

    assert_success(net_isend(comm, data, bytes, tag, &request));
    assert_non_null(request);
    return request;
}

struct net_request *must_receive(struct net_comm *comm, void *data, uint64_t room, uint64_t tag)
{
    struct net_request *request = NULL;

    assert_success(net_irecv(comm, data, room, tag, &request));
    assert_non_null(request);
    return request;
}

bool request_is_done(struct net_request **request)
{
    bool done = *request == NULL;

    if (!done)
        assert_success(net_test(*request, &done, NULL));
    if (done)
        *request = NULL;
    return done;
}

void must_go_on(struct net_request *request)
{
    bool done = true;

    assert_success(net_test(request, &done, NULL));
    assert_false(done);
}

int end_within(struct net_request *request, uint64_t *bytes, uint64_t milliseconds)
{
    int result = TCPX_SUCCESS;
    bool done = false;

    until_within(milliseconds, done || result != TCPX_SUCCESS,
                 result = net_test(request, &done, bytes));
    return result;
}

int end_of(struct net_request *request, uint64_t *bytes)
{
    return end_within(request, bytes, LIMIT_MS);
}

uint64_t must_end(struct net_request *request)
{
    uint64_t bytes = UINT64_MAX;

    assert_success(end_of(request, &bytes));
    return bytes;
}

uint64_t must_end_both(struct net_request *send, struct net_request *receive)
{
    bool received = receive == NULL;
    uint64_t bytes = 0;

    until(send == NULL && received, {
        (void)request_is_done(&send);
        if (!received)
            assert_success(net_test(receive, &received, &bytes));
    });
    return bytes;
}

void must_fail(struct net_request *request, int result, const char *words)
{
    assert_int_equal(end_of(request, NULL), result);
    expect_text(words);
}

/* --- a peer by hand -------------------------------------------------------------------------- */

struct by_hand by_hand_open(enum net_side comm_side, const struct net_link_options *options)
{
    struct net_link links[2]; /* by their sides */
    struct by_hand hand;

    make_link_pair(options, &links[NET_SENDER], &links[NET_RECEIVER]);
    assert_success(net_comm_create(&links[comm_side], comm_side, &hand.comm));
    hand.link = links[comm_side == NET_SENDER ? NET_RECEIVER : NET_SENDER];
    return hand;
}

void by_hand_close(struct by_hand *hand)
{
    comm_end(&hand->comm);
    net_link_close(&hand->link);
}

void hand_put(int fd, const void *bytes, size_t count)
{
    ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);

    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return;
    assert_int_equal(sent, (ssize_t)count);
}

void hand_say_part(int fd, const struct wire_record *record, size_t count)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(record, bytes);
    hand_put(fd, bytes, count);
}

void hand_say(int fd, const struct wire_record *record)
{
    hand_say_part(fd, record, WIRE_RECORD_BYTES);
}

void hand_say_abort(int fd, int result, const char *reason)
{
    uint8_t bytes[WIRE_ABORT_BYTES];

    hand_put(fd, bytes, wire_abort_write(result, reason, bytes));
}

/* --- sockets, time, threads ------------------------------------------------------------------ */

void socket_reset(int *fd)
{
    const struct linger at_once = {.l_onoff = 1};

    setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(*fd);
    *fd = -1;
}

void socket_set_buffer(int fd, int option, int bytes)
{
    assert_int_equal(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof bytes), 0);
}

double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

bool threads_are_wanted(void)
{
    struct io_plan plan;

    assert_success(io_plan(&plan));
    return plan.threads > 0;
}

void fill_bytes(uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 253);
}
