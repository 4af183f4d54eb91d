/*
 * Links are made and messages moved while strangers do what they can on every port that is open:
 * garbage, scans, silence, hellos drop by drop and hellos with a wrong token. Every honest link is
 * there in bounded time, every byte is right, and afterwards nothing of the strangers is left.
 */
#include "tests/support/suite.h"
#include "tests/unit/net_traffic.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum {
    LINKS = 150,
    EAGER_LIMIT = 4096,
    SMALL = 1000,
    LARGE = 150000,
    MOST_PORTS = 16,
    SILENT = 400, /* of one stranger at once: more than a listener has places */
    DRIPS = 30,
    MOST_STRANGERS = 8,
};

#define LINK_LIMIT_MS limit_ms(10000) /* milliseconds are normal */
#define HANDSHAKE_MS  limit_ms(1000)

static struct net_link_options usual = {
    .sockets = 1,
    .match = WIRE_MATCH_TAG,
    .framing = WIRE_INLINE,
    .eager_limit = EAGER_LIMIT,
    .eager_credit = 32768,
    .largest_slice = 65536,
    .timeout_ms = 60000,
};

static struct text text;

/* What all threads of a siege know. */
struct siege {
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct sockaddr_storage door; /* the listener's address */
    uint16_t ports[MOST_PORTS];   /* of all sockets that the honest side has for long */
    int port_count;
    atomic_bool stop;
    atomic_int accepted; /* links whose message has arrived */
    atomic_int problems;
    char problem[300]; /* the first one */
};

/* No cmocka in a thread: the first problem is kept, and everybody stops. */
static void complain(struct siege *siege, const char *what, const char *detail)
{
    if (atomic_fetch_add(&siege->problems, 1) == 0)
        snprintf(siege->problem, sizeof siege->problem, "%s: %s", what, detail);
    atomic_store(&siege->stop, true);
}

static bool fine(struct siege *siege, const char *what, int result)
{
    if (result != TCPX_SUCCESS)
        complain(siege, what, tcpx_last_error());
    return result == TCPX_SUCCESS;
}

/* --- strangers ------------------------------------------------------------------------------ */

struct stranger {
    struct siege *siege;
    uint64_t random;
    unsigned long connections;
    pthread_t thread;
};

/* A connection, or -1 if there is none within a moment: a full queue must not hold a stranger. */
static int knock(struct stranger *stranger, const struct sockaddr_storage *address)
{
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd writable = {.fd = fd, .events = POLLOUT};

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)address, socket_address_length(address)) == 0 ||
        (errno == EINPROGRESS && poll(&writable, 1, 100) == 1)) {
        stranger->connections++;
        return fd;
    }
    close(fd);
    return -1;
}

/* With a reset, so that the stranger's ports do not run out: an end in order keeps one a while. */
static void slam(int fd)
{
    const struct linger at_once = {.l_onoff = 1};

    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

/* Strangers do not care whether they are heard. */
static void say(int fd, const void *bytes, size_t count)
{
    if (fd >= 0 && send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

static bool goes_on(const struct stranger *stranger)
{
    return !atomic_load(&stranger->siege->stop);
}

/* As a peer would write it, but for one bit of the token. */
static void wrong_hello(struct stranger *stranger, uint8_t bytes[WIRE_HELLO_BYTES])
{
    struct wire_hello hello = {.role = random_below(&stranger->random, 2) == 0 ? WIRE_FORWARD
                                                                               : WIRE_REVERSE,
                               .sockets = 1,
                               .match = WIRE_MATCH_TAG,
                               .framing = WIRE_INLINE,
                               .comm = random_below(&stranger->random, 4)};
    uint64_t bit = random_below(&stranger->random, 8 * (uint64_t)WIRE_TOKEN_BYTES);
    struct net_handle handle;

    if (net_handle_read(stranger->siege->handle, &handle) != TCPX_SUCCESS)
        return;
    memcpy(hello.token, handle.token, sizeof hello.token);
    hello.token[bit / 8] ^= (uint8_t)(1u << bit % 8);
    wire_hello_write(&hello, bytes);
}

static void *talk_garbage(void *argument)
{
    struct stranger *stranger = argument;

    while (goes_on(stranger)) {
        uint8_t bytes[300];
        int fd = knock(stranger, &stranger->siege->door);

        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)random_next(&stranger->random);
        if (random_below(&stranger->random, 2) == 0)
            wrong_hello(stranger, bytes);
        bytes[random_below(&stranger->random, 24)] ^= 0x55;
        say(fd, bytes, 1 + random_below(&stranger->random, sizeof bytes));
        nap_us(300);
        slam(fd);
    }
    return NULL;
}

/* Now and then a scan ends in order, which keeps a port. */
static void *scan(void *argument)
{
    struct stranger *stranger = argument;

    while (goes_on(stranger)) {
        int fd = knock(stranger, &stranger->siege->door);

        if (fd >= 0 && stranger->connections % 8 == 0)
            close(fd);
        else
            slam(fd);
        if (stranger->connections % 16 == 0)
            nap_us(1000);
    }
    return NULL;
}

static void *scan_every_port(void *argument)
{
    struct stranger *stranger = argument;
    struct siege *siege = stranger->siege;

    while (goes_on(stranger))
        for (int i = 0; i < siege->port_count; i++) {
            union socket_address address = {.storage = siege->door};
            uint8_t bytes[WIRE_HELLO_BYTES] = {0};
            int fd;

            address.ipv4.sin_port = htons(siege->ports[i]);
            fd = knock(stranger, &address.storage);
            wrong_hello(stranger, bytes);
            say(fd, bytes, sizeof bytes);
            slam(fd);
            nap_us(200);
        }
    return NULL;
}

/* Many connections that are opened again and again; -1: not open. */
static void close_all(int *fds, int count)
{
    for (int i = 0; i < count; i++)
        slam(fds[i]);
}

static void *stay_silent(void *argument)
{
    struct stranger *stranger = argument;
    int fds[SILENT];

    memset(fds, -1, sizeof fds);
    for (int i = 0; goes_on(stranger); i = (i + 1) % SILENT) {
        slam(fds[i]);
        fds[i] = knock(stranger, &stranger->siege->door);
        if (i % 8 == 0)
            nap_us(1000);
    }
    close_all(fds, SILENT);
    return NULL;
}

static void *drip(void *argument)
{
    struct stranger *stranger = argument;
    uint8_t bytes[WIRE_HELLO_BYTES] = {0};
    int fds[DRIPS];

    memset(fds, -1, sizeof fds);
    for (int at = 0; goes_on(stranger); at = (at + 1) % WIRE_HELLO_BYTES) {
        for (int i = 0; i < DRIPS; i++) {
            if (at == 0) {
                slam(fds[i]);
                fds[i] = knock(stranger, &stranger->siege->door);
                wrong_hello(stranger, bytes);
            }
            say(fds[i], &bytes[at], 1);
        }
        nap_us(3000);
    }
    close_all(fds, DRIPS);
    return NULL;
}

/* Waits for the end, and expects it without a word. */
static void *guess_tokens(void *argument)
{
    struct stranger *stranger = argument;

    while (goes_on(stranger)) {
        uint8_t bytes[WIRE_HELLO_BYTES] = {0};
        int fd = knock(stranger, &stranger->siege->door);
        struct pollfd readable = {.fd = fd, .events = POLLIN};

        if (fd < 0)
            continue;
        wrong_hello(stranger, bytes);
        say(fd, bytes, 30);
        say(fd, bytes + 30, sizeof bytes - 30);
        if (poll(&readable, 1, 200) == 1 && recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
            complain(stranger->siege, "strangers", "one without the token was answered");
        slam(fd);
        nap_us(300);
    }
    return NULL;
}

/* --- the honest ----------------------------------------------------------------------------- */

/* Tests a request until it is done, of *bytes; false: it failed, is late, or the siege is over. */
static bool finish(struct siege *siege, const char *what, struct net_request *request,
                   uint64_t *bytes)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    bool done = false;

    while (!done && !atomic_load(&siege->stop)) {
        if (!fine(siege, what, net_test(request, &done, bytes)))
            return false;
        if (deadline_passed(deadline))
            complain(siege, what, "it is not done");
        sched_yield();
    }
    return done;
}

static uint64_t bytes_of(int number)
{
    return number % 2 == 0 ? SMALL : LARGE;
}

/* The accepting process: takes link after link, and from each the message of that number. */
static bool receive_one(struct siege *siege, struct net_comm *comm, int number)
{
    static uint8_t data[LARGE];
    struct net_request *request = NULL;
    uint64_t bytes = 0;

    if (!fine(siege, "irecv", net_irecv(comm, data, sizeof data, 1, &request)) ||
        !finish(siege, "a receive", request, &bytes))
        return false;
    if (bytes != bytes_of(number) || memcmp(data, text_of(&text, (uint64_t)number), bytes) != 0)
        complain(siege, "a message", "it has other bytes");
    return true;
}

static void *accept_links(void *argument)
{
    struct siege *siege = argument;

    while (!atomic_load(&siege->stop)) {
        struct net_comm *comm;
        struct net_link link;
        bool accepted = false;

        if (!fine(siege, "accept", net_accept(siege->listener, &link, &accepted)))
            return NULL;
        if (!accepted) {
            sched_yield();
            continue;
        }
        if (!fine(siege, "a comm", net_comm_create(&link, NET_RECEIVER, &comm)))
            return NULL;
        if (receive_one(siege, comm, atomic_load(&siege->accepted)))
            atomic_fetch_add(&siege->accepted, 1);
        net_comm_close(comm);
    }
    return NULL;
}

/* Moves the connecting side on until it has its link; *took: how long that was. */
static bool connect_one(struct siege *siege, int number, struct net_comm **comm, uint64_t *took)
{
    uint64_t start = clock_now();
    uint64_t deadline = deadline_after_ms(LINK_LIMIT_MS);
    struct net_link_options options = usual;
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_link link;
    bool connected = false;

    options.sockets = (uint8_t)(1 + number % 4);
    memcpy(handle, siege->handle, sizeof handle);
    while (!connected) {
        if (!fine(siege, "connect", net_connect(NULL, &options, handle, &link, &connected)))
            return false;
        if (deadline_passed(deadline))
            complain(siege, "connect", "an honest link was kept out");
        if (!connected && atomic_load(&siege->stop)) {
            net_connect_cancel(handle);
            return false;
        }
    }
    *took = clock_now() - start;
    return fine(siege, "a comm", net_comm_create(&link, NET_SENDER, comm));
}

/* The connecting process: the message of one link, until it has arrived. */
static void send_one(struct siege *siege, struct net_comm *comm, int number)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct net_request *request = NULL;

    if (!fine(siege, "isend",
              net_isend(comm, text_of(&text, (uint64_t)number), bytes_of(number), 1, &request)) ||
        !finish(siege, "a send", request, NULL))
        return;
    while (atomic_load(&siege->accepted) <= number && !atomic_load(&siege->stop)) {
        if (deadline_passed(deadline))
            complain(siege, "a message", "it does not arrive");
        sched_yield();
    }
}

/* Link after link; the longest time that one took. */
static uint64_t make_links(struct siege *siege)
{
    uint64_t longest = 0;

    for (int i = 0; i < LINKS && !atomic_load(&siege->stop); i++) {
        struct net_comm *comm;
        uint64_t took;

        if (!connect_one(siege, i, &comm, &took))
            break;
        send_one(siege, comm, i);
        net_comm_close(comm);
        longest = took > longest ? took : longest;
        nap_us(5000); /* so that the strangers have their time */
    }
    return longest;
}

/* A comm that has been there before the strangers, and does not notice them. */
struct old_comm {
    struct siege *siege;
    struct net_comm *sender;
    struct net_comm *receiver;
    int messages;
};

static bool move_one(struct old_comm *old, uint8_t *data, uint64_t bytes, const uint8_t *message)
{
    struct siege *siege = old->siege;
    struct net_request *send = NULL;
    struct net_request *receive = NULL;
    bool received = false;
    bool sent = false;

    if (!fine(siege, "irecv", net_irecv(old->receiver, data, bytes, 1, &receive)) ||
        !fine(siege, "isend", net_isend(old->sender, message, bytes, 1, &send)))
        return false;
    /* Both ends are moved on by this thread. */
    for (uint64_t deadline = deadline_after_ms(LIMIT_MS); !sent || !received; sched_yield()) {
        if (!sent && !fine(siege, "the old comm sends", net_test(send, &sent, NULL)))
            return false;
        if (!received && !fine(siege, "the old comm receives", net_test(receive, &received, NULL)))
            return false;
        if (deadline_passed(deadline)) {
            complain(siege, "the old comm", "a message does not arrive");
            return false;
        }
    }
    return true;
}

static void *move_all_the_time(void *argument)
{
    struct old_comm *old = argument;
    uint64_t random = 5;
    static uint8_t data[LARGE];

    while (!atomic_load(&old->siege->stop)) {
        uint64_t bytes = random_below(&random, LARGE);
        const uint8_t *message = text_of(&text, (uint64_t)old->messages);

        if (!move_one(old, data, bytes, message))
            return NULL;
        if (memcmp(data, message, bytes) != 0)
            complain(old->siege, "the old comm", "a message has other bytes");
        old->messages++;
    }
    return NULL;
}

/* --- the siege ------------------------------------------------------------------------------ */

static void listen_for(struct siege *siege)
{
    struct net_device device = loopback(AF_INET);
    struct net_handle handle;

    assert_success(net_listen(&device, &usual, siege->handle, &siege->listener));
    assert_success(net_handle_read(siege->handle, &handle));
    siege->door = handle.address;
    siege->ports[siege->port_count++] =
        ntohs(((union socket_address){.storage = handle.address}).ipv4.sin_port);
}

static void note_port(struct siege *siege, int fd)
{
    union socket_address address = {0};
    socklen_t length = sizeof address;

    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    assert_true(siege->port_count < MOST_PORTS);
    siege->ports[siege->port_count++] = ntohs(address.ipv4.sin_port);
}

static void note_ports(struct siege *siege, const struct net_link *link)
{
    for (int i = 0; i < link->sockets; i++)
        note_port(siege, link->forward[i]);
    note_port(siege, link->reverse);
}

/* Its listener is closed, but its port is still that of the receiver's sockets. */
static void make_old_comm(struct siege *siege, struct old_comm *old)
{
    struct net_link_options options = usual;
    struct net_link sender;
    struct net_link receiver;

    options.sockets = 2;
    make_link_pair(&options, &sender, &receiver);
    note_ports(siege, &sender);
    note_ports(siege, &receiver);
    *old = (struct old_comm){.siege = siege};
    assert_success(net_comm_create(&sender, NET_SENDER, &old->sender));
    assert_success(net_comm_create(&receiver, NET_RECEIVER, &old->receiver));
}

/* Strangers that have gone are noticed, and all of their descriptors go. */
static void wait_for_descriptors(struct net_listener *listener, int expected)
{
    uint64_t deadline = deadline_after_ms(10 * HANDSHAKE_MS);

    while (open_descriptors() != expected) {
        struct net_link link;
        bool accepted;

        assert_success(net_accept(listener, &link, &accepted));
        assert_false(accepted);
        assert_false(deadline_passed(deadline));
    }
}

/* All threads have ended when this returns, also after a problem. */
static uint64_t besiege(struct siege *siege, struct old_comm *old, void *(*const *ways)(void *),
                        int count)
{
    struct stranger strangers[MOST_STRANGERS] = {{0}};
    pthread_t accepting;
    pthread_t moving;
    uint64_t longest;

    assert_true(count <= MOST_STRANGERS);
    assert_int_equal(pthread_create(&accepting, NULL, accept_links, siege), 0);
    assert_int_equal(pthread_create(&moving, NULL, move_all_the_time, old), 0);
    for (int i = 0; i < count; i++) {
        strangers[i].siege = siege;
        strangers[i].random = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&strangers[i].thread, NULL, ways[i], &strangers[i]), 0);
    }
    longest = make_links(siege);
    atomic_store(&siege->stop, true);
    for (int i = 0; i < count; i++)
        pthread_join(strangers[i].thread, NULL);
    pthread_join(accepting, NULL);
    pthread_join(moving, NULL);
    for (int i = 0; i < count; i++)
        assert_true(strangers[i].connections > 0);
    return longest;
}

static void survive(void *(*const *ways)(void *), int count)
{
    struct siege siege = {.port_count = 0};
    int before = open_descriptors();
    struct old_comm old;
    struct net_link sender;
    struct net_link receiver;
    uint64_t longest;

    listen_for(&siege);
    make_old_comm(&siege, &old);
    longest = besiege(&siege, &old, ways, count);
    if (atomic_load(&siege.problems) != 0)
        fail_msg("after %d links: %s", atomic_load(&siege.accepted), siege.problem);
    assert_int_equal(atomic_load(&siege.accepted), LINKS);
    assert_true(old.messages > 0);
    print_message("# the longest of %d links took %d us\n", LINKS, (int)(longest / 1000));
    net_comm_close(old.sender);
    net_comm_close(old.receiver);
    wait_for_descriptors(siege.listener, before + 1);
    make_link(siege.listener, &usual, siege.handle, &sender, &receiver);
    net_link_close(&sender);
    net_link_close(&receiver);
    net_listener_close(siege.listener);
    assert_int_equal(open_descriptors(), before);
}

/* The sieges in which every link comes through; what strangers there are. */
static const struct siege_row {
    const char *test;
    int count;
    void *(*ways[MOST_STRANGERS])(void *);
} rows[] = {
    {"test_nobody_but_friends", 0, {NULL}},
    {"test_garbage_and_wrong_tokens", 3, {talk_garbage, guess_tokens, drip}},
    {"test_scans", 2, {scan, scan_every_port}},
    {"test_silence", 2, {stay_silent, drip}},
    {"test_all_at_once", 6, {talk_garbage, scan, scan_every_port, stay_silent, drip, guess_tokens}},
};

static void test_siege(void **state)
{
    const struct siege_row *row = *state;

    survive(row->ways, row->count);
}

/* Without anybody to accept meanwhile, so that all of them wait before the honest one. */
TEST(test_more_silence_than_places)
{
    struct siege siege = {.port_count = 0};
    struct stranger stranger = {.siege = &siege};
    int before = open_descriptors();
    struct net_link sender;
    struct net_link receiver;
    int fds[SILENT];
    uint64_t start;

    listen_for(&siege);
    for (int i = 0; i < SILENT; i++) {
        fds[i] = knock(&stranger, &siege.door);
        assert_true(fds[i] >= 0);
    }
    start = clock_now();
    make_link(siege.listener, &usual, siege.handle, &sender, &receiver);
    /* they are passed by, not waited for */
    assert_true(clock_now() - start < HANDSHAKE_MS * 1000000ull);
    net_link_close(&sender);
    net_link_close(&receiver);
    for (int i = 0; i < SILENT; i++)
        slam(fds[i]);
    wait_for_descriptors(siege.listener, before + 1);
    net_listener_close(siege.listener);
    assert_int_equal(open_descriptors(), before);
}

/* An honest hello that comes a moment after its connection, as on any network with a distance. */
TEST(test_a_hello_behind_a_flood)
{
    enum { FLOOD = 300 };
    struct siege siege = {.port_count = 0};
    struct stranger stranger = {.siege = &siege};
    struct net_handle handle;
    struct wire_hello hello = {.role = WIRE_FORWARD,
                               .sockets = 1,
                               .match = WIRE_MATCH_TAG,
                               .framing = WIRE_INLINE,
                               .comm = 77};
    uint8_t bytes[WIRE_HELLO_BYTES];
    struct net_link link;
    bool accepted;
    int fds[FLOOD];
    int honest[2];

    listen_for(&siege);
    assert_success(net_handle_read(siege.handle, &handle));
    memcpy(hello.token, handle.token, sizeof hello.token);
    for (int i = 0; i < 2; i++)
        honest[i] = knock(&stranger, &siege.door);
    assert_success(net_accept(siege.listener, &link, &accepted));
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = knock(&stranger, &siege.door);
        if (i % 50 == 49)
            assert_success(net_accept(siege.listener, &link, &accepted));
    }
    for (int i = 0; i < 2; i++) {
        hello.role = i == 0 ? WIRE_FORWARD : WIRE_REVERSE;
        wire_hello_write(&hello, bytes);
        say(honest[i], bytes, sizeof bytes);
    }
    accepted = false;
    for (uint64_t deadline = deadline_after_ms(HANDSHAKE_MS); !accepted;) {
        assert_success(net_accept(siege.listener, &link, &accepted));
        assert_false(deadline_passed(deadline));
    }
    net_link_close(&link);
    for (int i = 0; i < 2; i++)
        close(honest[i]);
    for (int i = 0; i < FLOOD; i++)
        slam(fds[i]);
    net_listener_close(siege.listener);
}

/* One comm first, so that what a process keeps for all of its comms is there already. */
static int set_up(void)
{
    struct siege siege = {.port_count = 0};
    struct old_comm old;

    usual.handshake_ms = HANDSHAKE_MS;
    make_old_comm(&siege, &old);
    net_comm_close(old.sender);
    net_comm_close(old.receiver);
    text = text_create(LARGE);
    return 0;
}

static int tear_down(void)
{
    text_destroy(&text);
    return 0;
}

static int begin_suite(void)
{
    SUITE_ROWS(rows, test_siege);
    return 0;
}

SUITE(.name = "strangers", .begin = begin_suite, .set_up = set_up, .tear_down = tear_down);
