/*
 * Links are made although the kernel takes and gives hello, READY and ABORT in parts: a byte at a
 * time, with EAGAIN and EINTR in between, at either end. And a refusal arrives with its whole text.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/unit/links.h"

static const struct net_link_options usual = {
    .sockets = 5,
    USUAL_LINK,
    .timeout_ms = 60000,
    .handshake_ms = 5000,
};

static const struct {
    const char *what;
    enum net_call call;
    size_t most;       /* bytes of one call; 0: any */
    int half;          /* the error of about every second call */
    unsigned at_first; /* calls that fail */
    int error;         /* with this */
} faults[] = {
    {"writes of a byte", CALL_SEND, 1, 0, 0, 0},
    {"writes of 31 bytes", CALL_SEND, 31, 0, 0, 0},
    {"one EAGAIN of a write", CALL_SEND, 0, 0, 1, EAGAIN},
    {"20 EAGAIN of a write", CALL_SEND, 0, 0, 20, EAGAIN},
    {"writes of a byte with EAGAIN between them", CALL_SEND, 1, EAGAIN, 0, 0},
    {"writes of 5 bytes with EINTR between them", CALL_SEND, 5, EINTR, 0, 0},
    {"writes with ENOBUFS between them", CALL_SEND, 40, ENOBUFS, 0, 0},
    {"reads of a byte", CALL_RECV, 1, 0, 0, 0},
    {"reads of a byte with EAGAIN between them", CALL_RECV, 1, EAGAIN, 0, 0},
    {"reads of 7 bytes with EINTR between them", CALL_RECV, 7, EINTR, 0, 0},
    {"poll that sees nothing at first", CALL_POLL, 0, 0, 10, EAGAIN},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void cause(int fault)
{
    calls_reset();
    calls_shorten(faults[fault].call, faults[fault].most);
    if (faults[fault].half != 0)
        calls_fail_half(faults[fault].call, faults[fault].half);
    else
        calls_fail(faults[fault].call, 0, faults[fault].at_first, faults[fault].error);
}

TEST(test_links_in_parts)
{
    static const uint8_t sockets[] = {1, 5, 64};

    for (int i = 0; i < FAULTS * 3; i++) {
        struct net_link_options options = usual;
        struct net_link sender;
        struct net_link receiver;

        options.sockets = sockets[i % 3];
        print_message("# %s, %u sockets\n", faults[i / 3].what, options.sockets);
        cause(i / 3);
        make_link_pair(&options, &sender, &receiver);
        calls_reset();
        assert_int_equal(sender.largest_slice, usual.largest_slice);
        close_joined(&sender, &receiver);
    }
}

TEST(test_a_refusal_in_parts)
{
    for (int i = 0; i < FAULTS; i++) {
        struct net_device device = loopback(AF_INET);
        struct net_link_options other = usual;
        uint64_t deadline = deadline_after_ms(LIMIT_MS);
        uint8_t handle[NET_HANDLE_BYTES];
        struct net_listener *listener;
        struct net_link link;
        bool done = false;
        int result = TCPX_SUCCESS;

        print_message("# %s\n", faults[i].what);
        other.match = WIRE_MATCH_FIFO;
        assert_success(net_listen(&device, &usual, handle, &listener));
        cause(i);
        while (result == TCPX_SUCCESS && !deadline_passed(deadline)) {
            result = net_connect(NULL, &other, handle, &link, &done);
            if (result == TCPX_SUCCESS)
                assert_success(net_accept(listener, &link, &done));
            assert_false(done);
        }
        calls_reset();
        if (result != TCPX_REMOTE_ERROR)
            fail_msg("%s", tcpx_last_error());
        if (strstr(tcpx_last_error(), "matches messages to receives in another way") == NULL)
            fail_msg("%s", tcpx_last_error());
        net_listener_close(listener);
    }
}

static int begin_suite(void)
{
    calls_reset();
    return 0;
}

SUITE(.name = "links in parts", .begin = begin_suite);
