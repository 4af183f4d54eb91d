/* Two ends of a link or comm over loopback, made in one thread: what the tests of src/net share. */
#ifndef TCPX_TESTS_NET_PAIR_H
#define TCPX_TESTS_NET_PAIR_H

#include "base/clock.h"
#include "net/transport.h"
#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/support/basics.h"
#include "tests/support/suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_MS limit_ms(60000)

#define assert_success(call)                                                                       \
    do {                                                                                           \
        int result_ = (call);                                                                      \
        if (result_ != TCPX_SUCCESS)                                                               \
            fail_msg("%s: %s: %s", #call, tcpx_result_name(result_), tcpx_last_error());           \
    } while (0)

/* Does `action` until the condition holds, which must be in time. */
#define until(condition, action) until_within(LIMIT_MS, condition, action)
#define until_within(milliseconds, condition, action)                                              \
    for (uint64_t deadline_ = deadline_after_ms(milliseconds); !(condition);) {                    \
        action;                                                                                    \
        if (deadline_passed(deadline_))                                                            \
            fail_msg("%s:%d: never: %s", __FILE__, __LINE__, #condition);                          \
    }

static inline unsigned io_threads(void)
{
    return threads_called("tcpx-io-");
}

static inline struct net_device loopback(int family)
{
    struct net_device device = {.name = "lo", .is_loopback = true};
    union socket_address any = {0};

    if (family == AF_INET) {
        any.ipv4.sin_family = AF_INET;
        any.ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
        any.ipv6.sin6_family = AF_INET6;
        any.ipv6.sin6_addr = in6addr_loopback;
    }
    device.address = any.storage;
    return device;
}

static inline struct net_listener *listen_locally(const struct net_link_options *options,
                                                  uint8_t handle[NET_HANDLE_BYTES])
{
    struct net_device device = loopback(AF_INET);
    struct net_listener *listener;

    assert_success(net_listen(&device, options, handle, &listener));
    return listener;
}

/* Drives both ends by turns until both have their link. */
static inline void make_link(struct net_listener *listener, const struct net_link_options *options,
                             uint8_t handle[NET_HANDLE_BYTES], struct net_link *sender,
                             struct net_link *receiver)
{
    bool connected = false;
    bool accepted = false;

    until(connected && accepted, {
        if (!connected)
            assert_success(net_connect(NULL, options, handle, sender, &connected));
        if (!accepted)
            assert_success(net_accept(listener, receiver, &accepted));
    });
}

static inline void make_link_pair(const struct net_link_options *options, struct net_link *sender,
                                  struct net_link *receiver)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener = listen_locally(options, handle);

    make_link(listener, options, handle, sender, receiver);
    net_listener_close(listener);
}

#endif
