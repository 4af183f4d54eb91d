/*
 * Links are made and messages moved while strangers do what they can on every port that is open:
 * garbage, scans, silence, hellos drop by drop and hellos with a wrong token. Every honest link is
 * there in bounded time, every byte is right, and afterwards nothing of the strangers is left.
 */
#include "tests/support/traffic.h"
#include "tests/unit/links.h"

#include <pthread.h>

enum {
    LINKS = 150,
    SMALL = 1000,
    LARGE = 150000,
    MOST_PORTS = 16,
    SILENT = 400, /* of one stranger at once: more than a listener has places */
    MOST_STRANGERS = 8,
};

#define LINK_LIMIT_MS limit_ms(10000) /* milliseconds are normal */
#define HANDSHAKE_MS  limit_ms(1000)

static struct net_link_options usual = PAIR_DEFAULTS(.eager_credit = 32768);

static struct text text;

/* What a stranger does, again and again. */
struct manner {
    unsigned at_once; /* connections; the oldest makes room for the next */
    unsigned burst;   /* connections, or bytes, between two breaks */
    unsigned break_us;
    enum { NOTHING, GARBAGE, WRONG_HELLO, DRIPS } says;
    bool on_every_port;
    bool ends_in_order; /* now and then, which keeps a port */
    bool listens;       /* and expects the end without a word */
};

static const struct manner garbage = {1, 1, 300, GARBAGE, .listens = false};
static const struct manner guesses = {1, 1, 300, WRONG_HELLO, .listens = true};
static const struct manner scans = {1, 16, 1000, NOTHING, .ends_in_order = true};
static const struct manner port_scans = {1, 1, 200, WRONG_HELLO, .on_every_port = true};
static const struct manner silence = {SILENT, 8, 1000, NOTHING, .listens = false};
static const struct manner drips = {30, 30, 3000, DRIPS, .listens = false};

struct stranger {
    const struct manner *manner;
    uint64_t random;
    unsigned long connections;
};

/* What all threads know. */
static struct {
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct sockaddr_storage door; /* the listener's address */
    uint8_t token[WIRE_TOKEN_BYTES];
    uint16_t ports[MOST_PORTS]; /* of all sockets that the honest side has for long */
    int port_count;
    struct stranger strangers[MOST_STRANGERS];
    pthread_t threads[MOST_STRANGERS + 1];
    int thread_count;
    atomic_bool stop;
    atomic_bool answered; /* somebody without the token was */
} siege;

/* --- strangers ------------------------------------------------------------------------------ */

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
    if (fd >= 0)
        socket_reset(&fd);
}

/* Strangers do not care whether they are heard. */
static void say(int fd, const void *bytes, size_t count)
{
    if (fd >= 0 && send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return;
}

/* As a peer would write it, but for one bit of the token. */
static void wrong_hello(struct stranger *stranger, uint8_t bytes[WIRE_HELLO_BYTES])
{
    struct wire_hello hello = hello_with(siege.token, random_below(&stranger->random, 4));
    uint64_t bit = random_below(&stranger->random, 8 * (uint64_t)WIRE_TOKEN_BYTES);

    if (random_below(&stranger->random, 2) == 0)
        hello.role = WIRE_REVERSE;
    hello.token[bit / 8] ^= (uint8_t)(1u << bit % 8);
    wire_hello_write(&hello, bytes);
}

static void say_something(struct stranger *stranger, int fd)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    uint8_t bytes[300];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_next(&stranger->random);
    if (stranger->manner->says == GARBAGE) {
        if (random_below(&stranger->random, 2) == 0)
            wrong_hello(stranger, bytes);
        bytes[random_below(&stranger->random, 24)] ^= 0x55;
        say(fd, bytes, 1 + random_below(&stranger->random, sizeof bytes));
    } else if (stranger->manner->says == WRONG_HELLO) {
        wrong_hello(stranger, bytes);
        say(fd, bytes, 30);
        say(fd, bytes + 30, WIRE_HELLO_BYTES - 30);
    }
    if (stranger->manner->listens && fd >= 0 && poll(&readable, 1, 200) == 1 &&
        recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        atomic_store(&siege.answered, true);
}

static void *be_strange(void *argument)
{
    struct stranger *stranger = argument;
    const struct manner *manner = stranger->manner;
    uint8_t hello[WIRE_HELLO_BYTES] = {0};
    int fds[SILENT];

    memset(fds, -1, sizeof fds);
    for (unsigned turn = 0; !atomic_load(&siege.stop); turn++) {
        unsigned dripped = manner->says == DRIPS ? turn / manner->at_once % WIRE_HELLO_BYTES : 0;
        int *fd = &fds[turn % manner->at_once];

        if (dripped == 0) {
            union socket_address address = {.storage = siege.door};

            if (manner->on_every_port)
                address.ipv4.sin_port = htons(siege.ports[turn % (unsigned)siege.port_count]);
            if (manner->ends_in_order && turn % 8 == 0 && *fd >= 0)
                close(*fd);
            else
                slam(*fd);
            *fd = knock(stranger, &address.storage);
            wrong_hello(stranger, hello);
            say_something(stranger, *fd);
        }
        if (manner->says == DRIPS)
            say(*fd, &hello[dripped], 1);
        if (turn % manner->burst == 0)
            nap_us(manner->break_us);
    }
    for (unsigned i = 0; i < SILENT; i++)
        slam(fds[i]);
    return NULL;
}

/* --- the siege ------------------------------------------------------------------------------ */

static void note_port(int fd)
{
    union socket_address address = {0};
    socklen_t length = sizeof address;

    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    assert_true(siege.port_count < MOST_PORTS);
    siege.ports[siege.port_count++] = ntohs(address.ipv4.sin_port);
}

static void note_ports(const struct net_link *link)
{
    for (int i = 0; i < link->sockets; i++)
        note_port(link->forward[i]);
    note_port(link->reverse);
}

static void open_door(void)
{
    struct net_handle handle;

    siege.listener = listen_locally(&usual, siege.handle);
    assert_success(net_handle_read(siege.handle, &handle));
    siege.door = handle.address;
    memcpy(siege.token, handle.token, sizeof siege.token);
    siege.ports[siege.port_count++] =
        ntohs(((union socket_address){.storage = handle.address}).ipv4.sin_port);
}

/* Its listener is closed, but its port is still that of the receiver's sockets. */
static struct pair make_old_pair(void)
{
    struct net_link_options options = usual;
    struct net_link sender;
    struct net_link receiver;

    options.sockets = 2;
    make_link_pair(&options, &sender, &receiver);
    note_ports(&sender);
    note_ports(&receiver);
    return pair_of(&sender, &receiver);
}

/* Nobody but strangers. */
static void accept_nothing(void)
{
    struct net_link link;
    bool accepted;

    assert_success(net_accept(siege.listener, &link, &accepted));
    assert_false(accepted);
}

/* A link, and the message of this number over it; returns how long the link took. */
static uint64_t make_one(int number)
{
    static uint8_t room[LARGE];
    struct net_link_options options = usual;
    uint64_t start = clock_now();
    uint64_t took;
    struct net_link sender;
    struct net_link receiver;
    struct pair pair;

    options.sockets = (uint8_t)(1 + number % 4);
    make_link(siege.listener, &options, siege.handle, &sender, &receiver);
    took = clock_now() - start;
    assert_true(took < LINK_LIMIT_MS * 1000000ull);
    pair = pair_of(&sender, &receiver);
    pair_move(&pair, text_of(&text, (uint64_t)number), room, number % 2 == 0 ? SMALL : LARGE, 1);
    pair_close(&pair);
    return took;
}

static void begin_thread(void *(*run)(void *), void *argument)
{
    assert_int_equal(pthread_create(&siege.threads[siege.thread_count], NULL, run, argument), 0);
    siege.thread_count++;
}

/* All threads have ended when this returns; also after a failure. */
static int stop_siege(void **state)
{
    (void)state;
    atomic_store(&siege.stop, true);
    while (siege.thread_count > 0)
        pthread_join(siege.threads[--siege.thread_count], NULL);
    return 0;
}

/* The sieges in which every link comes through; what strangers there are. */
static const struct siege_row {
    const char *test;
    int count;
    const struct manner *manners[MOST_STRANGERS];
} rows[] = {
    {"test_nobody_but_friends", 0, {NULL}},
    {"test_garbage_and_wrong_tokens", 3, {&garbage, &guesses, &drips}},
    {"test_scans", 2, {&scans, &port_scans}},
    {"test_silence", 2, {&silence, &drips}},
    {"test_all_at_once", 6, {&garbage, &scans, &port_scans, &silence, &drips, &guesses}},
};

/* A pair that was there before moves messages all the time. */
static void test_siege(void **state)
{
    static const uint64_t edges[] = {0, LARGE};
    static const struct traffic_sizes sizes = {.edges = edges, .edge_count = 2, .below = {LARGE}};
    static struct traffic_stream stream;
    static struct traffic traffic;
    const struct siege_row *row = *state;
    int before = open_descriptors();
    uint64_t random = 5;
    uint64_t longest = 0;
    struct pair old;

    memset(&siege, 0, sizeof siege);
    stream =
        traffic_stream_create(&text, WIRE_MATCH_TAG, &sizes, &random, 100000, COMM_REQUESTS, 0);
    open_door();
    old = make_old_pair();
    traffic_create(&traffic, &stream, &stream, LARGE);
    traffic.sender = old.sender;
    traffic.receiver = old.receiver;
    traffic.stop = &siege.stop;
    begin_thread(traffic_run, &traffic);
    for (int i = 0; i < row->count; i++) {
        siege.strangers[i] = (struct stranger){row->manners[i], .random = (uint64_t)i + 1};
        begin_thread(be_strange, &siege.strangers[i]);
    }
    for (int i = 0; i < LINKS; i++) {
        uint64_t took = make_one(i);

        longest = took > longest ? took : longest;
        for (uint64_t pause = deadline_after_ms(5); !deadline_passed(pause);) /* for strangers */
            accept_nothing();
    }
    stop_siege(NULL);
    if (traffic.problem[0] != '\0')
        fail_msg("the old pair: %s", traffic.problem);
    assert_true(traffic.received > 0);
    assert_false(atomic_load(&siege.answered));
    for (int i = 0; i < row->count; i++)
        assert_true(siege.strangers[i].connections > 0);
    print_message("# the longest of %d links took %d us\n", LINKS, (int)(longest / 1000));
    pair_close(&old);
    traffic_destroy(&traffic);
    traffic_stream_destroy(&stream);
    /* strangers that have gone are noticed, and all of their descriptors go */
    until_within(10 * HANDSHAKE_MS, open_descriptors() == before + 1, accept_nothing());
    make_one(0);
    net_listener_close(siege.listener);
    assert_int_equal(open_descriptors(), before);
}

/* One comm first, so that what a process keeps for all of its comms is there already. */
static int set_up(void)
{
    struct pair pair;

    usual.handshake_ms = HANDSHAKE_MS;
    pair = make_old_pair();
    pair_close(&pair);
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
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        suite_add(0, (struct CMUnitTest){.name = rows[i].test,
                                         .test_func = test_siege,
                                         .teardown_func = stop_siege,
                                         .initial_state = (void *)(uintptr_t)&rows[i]});
    return 0;
}

SUITE(.name = "strangers", .begin = begin_suite, .set_up = set_up, .tear_down = tear_down);
