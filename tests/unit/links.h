/*
 * What the tests of links share: usual options, that both ends of a link are each other's, and the
 * hello of a peer by hand.
 */
#ifndef TCPX_TESTS_LINKS_H
#define TCPX_TESTS_LINKS_H

#include "tests/support/suite.h"
#include "tests/unit/net_pair.h"

#include <errno.h>
#include <poll.h>

/* The rest of struct net_link_options is a test's own. */
#define USUAL_LINK                                                                                 \
    .match = WIRE_MATCH_TAG, .framing = WIRE_INLINE, .eager_limit = 8192, .eager_credit = 65536,   \
    .largest_slice = 524288

/* Of the first socket of a link with one, which knows the token of a listener. */
static inline struct wire_hello hello_with(const uint8_t token[WIRE_TOKEN_BYTES], uint64_t comm)
{
    struct wire_hello hello = {.role = WIRE_FORWARD,
                               .sockets = 1,
                               .match = WIRE_MATCH_TAG,
                               .framing = WIRE_INLINE,
                               .comm = comm};

    memcpy(hello.token, token, sizeof hello.token);
    return hello;
}

/* One byte over every socket of a link, in its direction; then both ends are closed. */
static inline void close_joined(struct net_link *sender, struct net_link *receiver)
{
    assert_int_equal(sender->sockets, receiver->sockets);
    assert_int_equal(sender->framing, receiver->framing);
    for (uint8_t i = 0; i <= sender->sockets; i++) {
        bool reverse = i == sender->sockets;
        int from = reverse ? receiver->reverse : sender->forward[i];
        int to = reverse ? sender->reverse : receiver->forward[i];
        struct pollfd readable = {.fd = to, .events = POLLIN};
        uint8_t byte = 0;

        assert_int_equal(send(from, &i, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(poll(&readable, 1, LIMIT_MS), 1);
        assert_int_equal(recv(to, &byte, 1, 0), 1);
        assert_int_equal(byte, i);
    }
    net_link_close(sender);
    net_link_close(receiver);
}

#endif
