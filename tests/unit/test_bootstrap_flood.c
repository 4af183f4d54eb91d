/*
 * Strangers open two thousand connections a second and say little, while peers a round trip of
 * 50 ms away find the listener: all of them get in. What strangers say differs: a byte, most of a
 * greeting, a whole greeting without a proof.
 */
#include "tests/support/child.h"
#include "tests/unit/bootstrap_peers.h"

#include <stdlib.h>
#include <sys/syscall.h>

enum {
    PEERS = 20,
    ROUND_TRIP_MS = 50,
    STRANGERS_A_SECOND = 2000,
    STRANGERS_AHEAD = 100, /* more than the listener has places */
    PEERS_MS = 10000,
    FLOOD_MS = 30000, /* a flood ends by itself */
};

/* --- strangers ------------------------------------------------------------------------------ */

struct flood {
    uint16_t port;
    uint16_t bytes; /* of a greeting */
    bool secret;    /* as it says */
};

/* Keeps some hundred connections open, which are more than the listener has places. */
static void flood_run(const uint8_t *argument)
{
    enum { KEPT = 500, BURST = 10 };
    struct flood flood;
    struct sockaddr_in address;
    struct bootstrap_greeting greeting = {.role = BOOTSTRAP_CONNECTS, .nonce = {7}};
    uint8_t bytes[BOOTSTRAP_GREETING_BYTES];
    uint64_t start = clock_now();
    int fds[KEPT];

    memcpy(&flood, argument, sizeof flood);
    address = loopback_address(flood.port);
    greeting.secret = flood.secret;
    bootstrap_greeting_write(&greeting, bytes);
    memset(fds, -1, sizeof fds);
    for (unsigned i = 0; !deadline_passed(start + (uint64_t)FLOOD_MS * 1000000); i++) {
        int *fd = &fds[i % KEPT];
        uint64_t due = start + (uint64_t)i * 1000000000 / STRANGERS_A_SECOND;

        if (i % BURST == 0 && due > clock_now())
            usleep((useconds_t)((due - clock_now()) / 1000));
        if (*fd >= 0)
            close(*fd);
        *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (*fd < 0 || (connect(*fd, (struct sockaddr *)&address, sizeof address) != 0 &&
                        errno != EINPROGRESS))
            continue;
        if (send(*fd, bytes, flood.bytes, MSG_NOSIGNAL) > 0)
            atomic_fetch_add(&child_shared->flag, 1);
    }
}

/* --- a round trip ---------------------------------------------------------------------------- */

/* What peers send, each in a thread of its own, comes to the listener a round trip later. */
ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    if (syscall(SYS_gettid) != getpid())
        nap_ms(ROUND_TRIP_MS);
    return sendto(fd, buf, n, flags, NULL, 0);
}

/* --- the test -------------------------------------------------------------------------------- */

/* What strangers say, and whether peers have a secret. */
static const struct row {
    const char *name;
    uint16_t bytes; /* of a greeting */
    bool secret;
} rows[] = {
    {"test_strangers_of_a_byte", 1, false},
    {"test_strangers_of_most_of_a_greeting", BOOTSTRAP_GREETING_BYTES - 1, false},
    {"test_a_byte_before_a_proof", 1, true},
    {"test_most_of_a_greeting_before_a_proof", BOOTSTRAP_GREETING_BYTES - 1, true},
    {"test_a_greeting_without_a_proof", BOOTSTRAP_GREETING_BYTES, true},
};

TABLE_TEST(rows)
{
    const char *secret = row->secret ? secret_path : NULL;
    struct bootstrap_listener *listener;
    struct flood flood = {.bytes = row->bytes, .secret = row->secret};
    struct client peers[PEERS];
    uint64_t start;
    uint64_t deadline;
    struct control *control;
    int accepted = 0;
    int strangers;
    int failed = 0;
    pid_t pid;

    if (row->secret)
        need_sodium();
    listener = listen_at("127.0.0.1", 0, secret);
    flood.port = bootstrap_port(listener);
    atomic_store(&child_shared->flag, 0);
    pid = child_fork(flood_run, &flood, sizeof flood);
    for (deadline = IN_TIME; atomic_load(&child_shared->flag) <= STRANGERS_AHEAD; nap_ms(1))
        assert_false(deadline_passed(deadline));
    start = clock_now();
    for (int i = 0; i < PEERS; i++)
        start_client(&peers[i], "127.0.0.1", flood.port, secret, PEERS_MS);
    deadline = deadline_after_ms(PEERS_MS);
    for (; accepted < PEERS && bootstrap_accept(listener, deadline, &control) == TCPX_SUCCESS;
         accepted++)
        control_close(control, 100);
    for (int i = 0; i < PEERS; i++) {
        pthread_join(peers[i].thread, NULL);
        failed += peers[i].result != TCPX_SUCCESS;
        if (peers[i].result != TCPX_SUCCESS)
            print_message("# %s\n", peers[i].text);
        else
            control_close(peers[i].control, 100);
    }
    child_kill(pid);
    strangers = atomic_load(&child_shared->flag);
    print_message("# %d of %d peers in %llu ms, among %d strangers of %u bytes\n", accepted, PEERS,
                  (unsigned long long)((clock_now() - start) / 1000000), strangers, row->bytes);
    bootstrap_listener_close(listener);
    assert_int_equal(failed, 0);
    assert_int_equal(accepted, PEERS);
}

SUITE(.name = "a flood of strangers", .begin = child_begin, .set_up = make_secrets,
      .tear_down = tree_remove);
