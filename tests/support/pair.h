/*
 * Two ends of a comm over loopback in one process, for all tests of src/net: options with defaults,
 * requests that must succeed or fail, and a peer by hand, which is one end of the link without a
 * comm and writes what the test wants. The tests fail where anything else happens or too late.
 */
#ifndef TCPX_TESTS_SUPPORT_PAIR_H
#define TCPX_TESTS_SUPPORT_PAIR_H

#include "tests/unit/checks.h"
#include "tests/unit/net_pair.h"

/* A later field of the same name is what counts. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif

/* PAIR_DEFAULTS(.sockets = 3) initializes options; PAIR_OPTIONS(.sockets = 3) is some. */
#define PAIR_DEFAULTS(...)                                                                         \
    {                                                                                              \
        .sockets = 1, .match = WIRE_MATCH_TAG, .framing = WIRE_INLINE, .eager_limit = 4096,        \
        .eager_credit = 65536, .largest_slice = 64 << 10, .timeout_ms = 60000,                     \
        .handshake_ms = 5000, __VA_ARGS__                                                          \
    }
#define PAIR_OPTIONS(...) (&(const struct net_link_options)PAIR_DEFAULTS(__VA_ARGS__))

/* --- two comms ------------------------------------------------------------------------------- */

struct pair {
    struct net_comm *sender; /* NULL: it is closed */
    struct net_comm *receiver;
};

struct pair pair_open(const struct net_link_options *options);
/* The same where something is done to the links first. */
struct pair pair_of(const struct net_link *sender, const struct net_link *receiver);
/* The sending end alone; the receiving end, of the next link that arrives. */
struct net_comm *connect_comm(const struct net_link_options *options,
                              const uint8_t handle[NET_HANDLE_BYTES]);
struct net_comm *accept_comm(struct net_listener *listener);

/* One end; both. */
void comm_end(struct net_comm **comm);
void pair_close(struct pair *pair);

/* A whole message from one end to the other; `room` has `bytes` bytes. */
void pair_move(const struct pair *pair, const void *data, void *room, uint64_t bytes, uint64_t tag);

/* --- requests -------------------------------------------------------------------------------- */

/* The comm is not busy. */
struct net_request *must_send(struct net_comm *comm, const void *data, uint64_t bytes,
                              uint64_t tag);
struct net_request *must_receive(struct net_comm *comm, void *data, uint64_t room, uint64_t tag);

/* Tests it once, and forgets it when it is done. NULL is done. */
bool request_is_done(struct net_request **request);
/* It is not done. */
void must_go_on(struct net_request *request);

/* Tests it until it ends; its result, and the bytes if it is done. `bytes` may be NULL. */
int end_of(struct net_request *request, uint64_t *bytes);
int end_within(struct net_request *request, uint64_t *bytes, uint64_t milliseconds);
/* It is done; returns the bytes. */
uint64_t must_end(struct net_request *request);
/* Both are done, tested by turns; returns the bytes of the receive. Either may be NULL. */
uint64_t must_end_both(struct net_request *send, struct net_request *receive);
/* It fails with this result and a text that has these words. */
void must_fail(struct net_request *request, int result, const char *words);

/* --- a peer by hand -------------------------------------------------------------------------- */

/* A comm, and the other end of its link. */
struct by_hand {
    struct net_comm *comm;
    struct net_link link;
};

struct by_hand by_hand_open(enum net_side comm_side, const struct net_link_options *options);
void by_hand_close(struct by_hand *hand);

/* The comm may have ended the connection: then its text says why. */
void hand_put(int fd, const void *bytes, size_t count);
/* The first `count` bytes of a record; all of it. */
void hand_say_part(int fd, const struct wire_record *record, size_t count);
void hand_say(int fd, const struct wire_record *record);
void hand_say_abort(int fd, int result, const char *reason);

/* --- sockets, time, threads ------------------------------------------------------------------ */

/* Closes it with a reset. */
void socket_reset(int *fd);
void socket_set_buffer(int fd, int option, int bytes);

/* CPU time of this process. */
double cpu_seconds(void);

/* Whether the configuration asks for I/O threads. */
bool threads_are_wanted(void);

/* Bytes that differ at every boundary of slices. */
void fill_bytes(uint8_t *bytes, size_t count);

#endif
