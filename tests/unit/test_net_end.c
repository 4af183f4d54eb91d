/*
 * How a comm ends when its sockets do not end together: a FIN that was cut short is still an end,
 * messages whose sends are done arrive although another connection of their comm was lost, and a
 * peer that floods a socket holds nobody.
 */
#include "tests/support/comm_inside.h"
#include "tests/unit/net_traffic.h"

enum { SOCKETS = 3, PART = 20000, WHOLE = SOCKETS * PART };

static const struct net_link_options options = {
    .sockets = SOCKETS,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_INLINE,
    .eager_limit = 4096,
    .eager_credit = 32768,
    .largest_slice = 64 << 10,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

static uint8_t data[WHOLE];
static uint8_t room[WHOLE];

static void nap_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static int fill_data(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 13 + i / 251);
    return 0;
}

/* One end is a comm, the other end writes what the test wants. */
static struct net_comm *against_raw(enum net_side side, struct net_link *raw)
{
    struct net_link sender;
    struct net_link receiver;
    struct net_comm *comm;

    make_link_pair(&options, &sender, &receiver);
    *raw = side == NET_SENDER ? receiver : sender;
    assert_success(net_comm_create(side == NET_SENDER ? &sender : &receiver, side, &comm));
    return comm;
}

static void put(int fd, const void *bytes, size_t count)
{
    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
}

static void put_record(int fd, const struct wire_record *record, size_t count)
{
    uint8_t bytes[WIRE_RECORD_BYTES];

    wire_record_write(record, bytes);
    put(fd, bytes, count);
}

/* Part `socket` of message 0, on its socket; and how many bytes that were. */
static uint64_t put_part(const struct net_link *raw, uint16_t socket)
{
    uint64_t total = WIRE_RECORD_BYTES + PART;

    if (socket == 0) {
        put_record(raw->forward[0],
                   &(struct wire_record){.type = WIRE_OPEN, .length = WHOLE, .tag = 5},
                   WIRE_RECORD_BYTES);
        total += WIRE_RECORD_BYTES;
    }
    put_record(raw->forward[socket],
               &(struct wire_record){.type = WIRE_SLICE,
                                     .socket = socket,
                                     .offset = (uint64_t)socket * PART,
                                     .length = PART},
               WIRE_RECORD_BYTES);
    put(raw->forward[socket], data + (size_t)socket * PART, PART);
    return total;
}

static int end_of(struct net_request *request)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    bool done = false;
    int result = TCPX_SUCCESS;

    while (!done && result == TCPX_SUCCESS) {
        result = net_test(request, &done, NULL);
        assert_false(deadline_passed(deadline));
    }
    return result;
}

/* Its ends are seen one after the other, the cut ones first. */
static void end_with_part_of_fin(size_t fin_bytes)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    struct net_request *receive;

    memset(room, 0, sizeof room);
    assert_success(net_irecv(comm, room, sizeof room, 5, &receive));
    for (uint16_t i = SOCKETS; i-- > 0;) {
        uint64_t total = put_part(&raw, i);

        put_record(raw.forward[i], &(struct wire_record){.type = WIRE_FIN, .length = total},
                   fin_bytes);
        shutdown(raw.forward[i], SHUT_WR);
        for (int turn = 0; turn < 3 && i > 0; turn++) {
            bool done = false;

            assert_success(net_test(receive, &done, NULL));
            assert_false(done);
            nap_ms(1);
        }
    }
    assert_int_equal(end_of(receive), TCPX_SUCCESS);
    assert_memory_equal(room, data, sizeof data);
    net_comm_close(comm);
    net_link_close(&raw);
}

static void test_a_fin_in_parts(void **state)
{
    (void)state;
    for (size_t fin_bytes = 0; fin_bytes <= WIRE_RECORD_BYTES; fin_bytes++)
        end_with_part_of_fin(fin_bytes);
}

/* Closed in the middle of the second message, whose first bytes came on another socket. */
static void test_what_is_done_arrives_beside_a_lost_connection(void **state)
{
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct net_link raw;
        struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
        const struct linger at_once = {.l_onoff = 1};
        struct net_request *first;
        struct net_request *second;
        uint8_t other[100];

        memset(room, 0, sizeof room);
        assert_success(net_irecv(comm, room, sizeof room, 5, &first));
        assert_success(net_irecv(comm, other, sizeof other, 6, &second));
        put_part(&raw, 2);
        nap_ms(2);
        put_part(&raw, 1);
        put_record(
            raw.forward[1],
            &(struct wire_record){.type = WIRE_SLICE, .sequence = 1, .socket = 1, .length = 100},
            WIRE_RECORD_BYTES);
        put(raw.forward[1], data, 50);
        /* a reset destroys what was not read */
        for (uint64_t deadline = deadline_after_ms(LIMIT_MS);;) {
            bool done;

            assert_success(net_test(first, &done, NULL));
            if (inside_received(comm, 1) == 2 * WIRE_RECORD_BYTES + PART + 50)
                break;
            assert_false(deadline_passed(deadline));
        }
        if (reset)
            setsockopt(raw.forward[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(raw.forward[1]);
        raw.forward[1] = -1;
        for (int turn = 0; turn < 5; turn++) {
            bool done = false;

            assert_success(net_test(first, &done, NULL));
            assert_false(done);
            nap_ms(1);
        }
        put_part(&raw, 0);
        shutdown(raw.forward[0], SHUT_WR);
        shutdown(raw.forward[2], SHUT_WR);
        assert_int_equal(end_of(first), TCPX_SUCCESS);
        assert_memory_equal(room, data, sizeof data);
        assert_int_equal(end_of(second), TCPX_REMOTE_ERROR);
        net_comm_close(comm);
        net_link_close(&raw);
    }
}

/* The peer lives on, but does not send the rest: an error, and not much later. */
static void test_a_lost_connection_is_an_error(void **state)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_RECEIVER, &raw);
    struct net_request *receive;

    (void)state;
    assert_success(net_irecv(comm, room, sizeof room, 5, &receive));
    put_part(&raw, 0);
    put_record(raw.forward[1],
               &(struct wire_record){.type = WIRE_SLICE, .socket = 1, .length = 100},
               WIRE_RECORD_BYTES - 1);
    shutdown(raw.forward[1], SHUT_WR);
    assert_int_equal(end_of(receive), TCPX_REMOTE_ERROR);
    assert_non_null(strstr(tcpx_last_error(), "lost in the middle"));
    net_comm_close(comm);
    net_link_close(&raw);
}

enum { MESSAGES = 4 };

/* Until the send is done; the receiver has to read, or its sockets stay full. */
static void must_end_beside(struct net_request *send, struct net_request *receives[MESSAGES])
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    bool sent = false;

    while (!sent) {
        assert_success(net_test(send, &sent, NULL));
        for (int i = 0; i < MESSAGES && !sent; i++) {
            bool received = false;

            if (receives[i] != NULL)
                assert_success(net_test(receives[i], &received, NULL));
            if (received)
                receives[i] = NULL;
        }
        assert_false(deadline_passed(deadline));
    }
}

/* Sockets that are full when their sender closes do not take its FIN, or only a part of it. */
static void test_closing_with_full_sockets(void **state)
{
    enum { ROUNDS = 150, BYTES = 100000 };
    static uint8_t rooms[MESSAGES][BYTES];
    static uint8_t bytes[BYTES];
    const int small = 8192;

    (void)state;
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 250);
    for (int round = 0; round < ROUNDS; round++) {
        struct net_request *receives[MESSAGES];
        struct net_request *sends[MESSAGES];
        struct net_comm *sender;
        struct net_comm *receiver;

        make_comm_pair(&options, &sender, &receiver);
        for (int i = 0; i < SOCKETS; i++)
            setsockopt(inside_link(sender)->forward[i], SOL_SOCKET, SO_SNDBUF, &small,
                       sizeof small);
        memset(rooms, 0, sizeof rooms);
        for (uint64_t i = 0; i < MESSAGES; i++)
            assert_success(net_irecv(receiver, rooms[i], BYTES, i, &receives[i]));
        for (uint64_t i = 0; i < MESSAGES; i++)
            assert_success(net_isend(sender, bytes, BYTES - (uint64_t)round, i, &sends[i]));
        for (int i = 0; i < MESSAGES; i++)
            must_end_beside(sends[i], receives);
        net_comm_close(sender);
        for (int i = 0; i < MESSAGES; i++) {
            if (receives[i] != NULL)
                assert_int_equal(end_of(receives[i]), TCPX_SUCCESS);
            assert_memory_equal(rooms[i], bytes, BYTES - (uint64_t)round);
        }
        net_comm_close(receiver);
    }
}

/* --- floods -------------------------------------------------------------------------------- */

static void test_credit_that_frees_nothing(void **state)
{
    struct net_link raw;
    struct net_comm *comm = against_raw(NET_SENDER, &raw);
    struct net_request *send;

    (void)state;
    assert_success(net_isend(comm, data, sizeof data, 5, &send));
    put_record(raw.reverse, &(struct wire_record){.type = WIRE_CREDIT}, WIRE_RECORD_BYTES);
    assert_int_equal(end_of(send), TCPX_REMOTE_ERROR);
    assert_non_null(strstr(tcpx_last_error(), "CREDIT that frees nothing"));
    net_comm_close(comm);
    net_link_close(&raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_fin_in_parts),
        cmocka_unit_test(test_what_is_done_arrives_beside_a_lost_connection),
        cmocka_unit_test(test_a_lost_connection_is_an_error),
        cmocka_unit_test(test_closing_with_full_sockets),
        cmocka_unit_test(test_credit_that_frees_nothing),
    };

    return cmocka_run_group_tests_name("ends of comms", tests, fill_data, NULL);
}
