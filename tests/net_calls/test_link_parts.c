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
    struct call_plan plan;
} faults[] = {
    {"writes of a byte", CALL_SEND, {.most = 1}},
    {"writes of 31 bytes", CALL_SEND, {.most = 31}},
    {"one EAGAIN of a write", CALL_SEND, {.count = 1, .error = EAGAIN}},
    {"20 EAGAIN of a write", CALL_SEND, {.count = 20, .error = EAGAIN}},
    {"writes of a byte with EAGAIN between them",
     CALL_SEND,
     {.most = 1, .half = true, .error = EAGAIN}},
    {"writes of 5 bytes with EINTR between them",
     CALL_SEND,
     {.most = 5, .half = true, .error = EINTR}},
    {"writes with ENOBUFS between them", CALL_SEND, {.most = 40, .half = true, .error = ENOBUFS}},
    {"reads of a byte", CALL_RECV, {.most = 1}},
    {"reads of a byte with EAGAIN between them",
     CALL_RECV,
     {.most = 1, .half = true, .error = EAGAIN}},
    {"reads of 7 bytes with EINTR between them",
     CALL_RECV,
     {.most = 7, .half = true, .error = EINTR}},
    {"poll that sees nothing at first", CALL_POLL, {.count = 10, .error = EAGAIN}},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void cause(int fault)
{
    calls_reset();
    calls_plan(faults[fault].call, &faults[fault].plan);
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

SUITE(.name = "links in parts");
