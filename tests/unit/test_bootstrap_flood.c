/*
 * Strangers open two thousand connections a second and say little, while peers a round trip of
 * 50 ms away find the listener: all of them get in. What strangers say differs: a byte, most of a
 * greeting, a whole greeting without a proof.
 */
#include "tests/support/child.h"
#include "tests/unit/bootstrap_peers.h"

#include <stdlib.h>

enum {
    PEERS = 20,
    DELAY_MS = 25, /* each way */
    STRANGERS_A_SECOND = 2000,
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

/* Carries one connection to the listener, and every byte DELAY_MS later. */
struct far {
    int listening;
    uint16_t port; /* where peers connect to */
    uint16_t target;
    atomic_bool ends;
    pthread_t thread;
};

struct pipe_end {
    int from;
    int to;
};

static void *carry(void *argument)
{
    struct pipe_end *end = argument;
    uint8_t bytes[4096];
    ssize_t got;

    while ((got = recv(end->from, bytes, sizeof bytes, 0)) > 0) {
        nap_ms(DELAY_MS);
        if (send(end->to, bytes, (size_t)got, MSG_NOSIGNAL) != got)
            break;
    }
    nap_ms(DELAY_MS);
    shutdown(end->to, SHUT_RDWR);
    shutdown(end->from, SHUT_RDWR);
    return NULL;
}

static void *carry_both(void *argument)
{
    struct pipe_end *end = argument;
    struct pipe_end back = {.from = end->to, .to = end->from};
    pthread_t thread;

    if (pthread_create(&thread, NULL, carry, &back) == 0) {
        carry(end);
        pthread_join(thread, NULL);
    }
    close(end->from);
    close(end->to);
    free(end);
    return NULL;
}

static void *far_run(void *argument)
{
    struct far *far = argument;

    while (!atomic_load(&far->ends)) {
        struct sockaddr_in address = loopback_address(far->target);
        struct pollfd ready = {.fd = far->listening, .events = POLLIN};
        struct pipe_end *end;
        pthread_t thread;

        if (poll(&ready, 1, 20) <= 0)
            continue;
        end = malloc(sizeof *end);
        if (end == NULL)
            break;
        end->from = accept4(far->listening, NULL, NULL, SOCK_CLOEXEC);
        end->to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        nap_ms(2);
        if (end->from < 0 || end->to < 0 ||
            connect(end->to, (struct sockaddr *)&address, sizeof address) != 0 ||
            pthread_create(&thread, NULL, carry_both, end) != 0) {
            close(end->from);
            close(end->to);
            free(end);
            continue;
        }
        pthread_detach(thread);
    }
    return NULL;
}

static void far_start(struct far *far, uint16_t target)
{
    *far = (struct far){.target = target};
    far->listening = listen_raw(&far->port);
    assert_int_equal(pthread_create(&far->thread, NULL, far_run, far), 0);
}

static void far_end(struct far *far)
{
    atomic_store(&far->ends, true);
    pthread_join(far->thread, NULL);
    close(far->listening);
    nap_ms(100);
}

/* --- the test -------------------------------------------------------------------------------- */

static int accept_peers(struct bootstrap_listener *listener)
{
    uint64_t deadline = deadline_after_ms(PEERS_MS);
    int accepted = 0;

    while (accepted < PEERS && !deadline_passed(deadline)) {
        struct control *control;

        if (bootstrap_accept(listener, deadline, &control) != TCPX_SUCCESS)
            break;
        control_close(control, 100);
        accepted++;
    }
    return accepted;
}

static void assert_all_get_in(uint16_t stranger_bytes, const char *secret)
{
    struct bootstrap_listener *listener = listen_at("127.0.0.1", 0, secret);
    struct flood flood = {.bytes = stranger_bytes, .secret = secret != NULL};
    struct client peers[PEERS];
    struct far far;
    uint64_t start;
    int accepted;
    int strangers;
    int failed = 0;
    pid_t pid;

    flood.port = bootstrap_port(listener);
    far_start(&far, flood.port);
    atomic_store(&child_shared->flag, 0);
    pid = child_fork(flood_run, &flood, sizeof flood);
    nap_ms(100); /* all places are taken */
    start = clock_now();
    for (int i = 0; i < PEERS; i++)
        start_client(&peers[i], "127.0.0.1", far.port, secret, PEERS_MS);
    accepted = accept_peers(listener);
    for (int i = 0; i < PEERS; i++) {
        pthread_join(peers[i].thread, NULL);
        failed += peers[i].result != TCPX_SUCCESS;
        if (peers[i].result != TCPX_SUCCESS)
            print_message("# %s\n", peers[i].text);
        else
            control_close(peers[i].control, 100);
    }
    kill(pid, SIGKILL);
    child_wait(pid);
    strangers = atomic_load(&child_shared->flag);
    print_message("# %d of %d peers in %llu ms, among %d strangers of %u bytes\n", accepted, PEERS,
                  (unsigned long long)((clock_now() - start) / 1000000), strangers, stranger_bytes);
    far_end(&far);
    bootstrap_listener_close(listener);
    assert_int_equal(failed, 0);
    assert_int_equal(accepted, PEERS);
    assert_true(strangers > 100);
}

TEST(test_those_who_know_the_secret)
{
    static const uint16_t bytes[] = {1, BOOTSTRAP_GREETING_BYTES - 1, BOOTSTRAP_GREETING_BYTES};

    need_sodium();
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        assert_all_get_in(bytes[i], secret_path);
}

TEST(test_those_who_greet)
{
    static const uint16_t bytes[] = {1, BOOTSTRAP_GREETING_BYTES - 1};

    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        assert_all_get_in(bytes[i], NULL);
}

SUITE(.name = "a flood of strangers", .begin = child_begin, .set_up = make_secrets,
      .tear_down = remove_secrets);
