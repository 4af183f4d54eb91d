/*
 * How connections of every version come about and end: polled, never waited for, in whatever order
 * the two sides are asked, past strangers, and with an error in bounded time where the other
 * process dies or descriptors run out.
 */
#include "tests/plugin/plugin_test.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>

/* --- listen ---------------------------------------------------------------------------------- */

/* All 128 bytes of a handle travel, so all are written: what was there before never stays. */
VERSIONS_CASE(handles_are_written_whole, ALL_VERSIONS)
{
    static const uint8_t patterns[] = {0x00, 0xff, 0x55, 0xaa, 0x33, 0xcc};
    int kept[HANDLE_BYTES] = {0};

    for (size_t i = 0; i < sizeof patterns; i++) {
        uint8_t handle[HANDLE_BYTES + 16];
        void *listening = NULL;

        memset(handle, patterns[i], sizeof handle);
        assert_works(plugin_listen(plugin, 0, handle, &listening));
        assert_works(plugin->table->close_listen(listening));
        for (int k = 0; k < HANDLE_BYTES; k++)
            kept[k] += handle[k] == patterns[i];
        for (size_t k = HANDLE_BYTES; k < sizeof handle; k++)
            assert_int_equal(handle[k], patterns[i]);
    }
    /* a byte that is random or constant does not equal all patterns by chance */
    for (int k = 0; k < HANDLE_BYTES; k++)
        if (kept[k] == sizeof patterns)
            fail_msg("byte %d of the handle is not written", k);
}

/* Listening takes a moment, also for many at once, and ends without a trace. */
VERSIONS_CASE(many_listeners, ALL_VERSIONS)
{
    enum { MANY = 64 };
    struct pair pairs[MANY];
    int before = open_descriptors();
    uint64_t start = now_ms();

    for (int i = 0; i < MANY; i++) {
        pair_listen(&pairs[i], plugin, plugin);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(pairs[i].handle, pairs[k].handle, HANDLE_BYTES);
    }
    assert_true(now_ms() - start < limit_ms(2000));
    for (int i = 0; i < MANY; i++)
        pair_close_listen(&pairs[i]);
    assert_true(settles(open_descriptors, before));
}

VERSIONS_CASE(devices_that_do_not_exist, ALL_VERSIONS)
{
    uint8_t handle[HANDLE_BYTES] = {0};
    void *listening = NULL;
    void *comm = NULL;
    int count = 0;

    assert_works(plugin->table->devices(&count));
    assert_int_equal(plugin_listen(plugin, -1, handle, &listening), NCCL_INVALID_ARGUMENT);
    assert_int_equal(plugin_listen(plugin, count, handle, &listening), NCCL_INVALID_ARGUMENT);
    assert_works(plugin_listen(plugin, 0, handle, &listening));
    assert_int_equal(plugin_connect(plugin, count, handle, &comm, NULL), NCCL_INVALID_ARGUMENT);
    assert_null(comm);
    assert_works(plugin->table->close_listen(listening));
}

/* Bytes that no listener has made are refused, in words. */
VERSIONS_CASE(a_handle_of_nobody, ALL_VERSIONS)
{
    uint8_t handle[HANDLE_BYTES];
    void *comm = (void *)1;

    for (int pattern = 0; pattern < 256; pattern += 85) {
        memset(handle, pattern, sizeof handle);
        plugin_log_clear();
        assert_int_not_equal(plugin_connect(plugin, 0, handle, &comm, NULL), NCCL_SUCCESS);
        assert_null(comm);
        assert_true(plugin_log_warnings() > 0);
    }
}

/* The rest of a meeting: both ends come to be, and work. */
static void end_meeting(struct pair *pair)
{
    pair_meet(pair);
    assert_pair_moves(pair);
    pair_close(pair);
}

/* --- polling --------------------------------------------------------------------------------- */

static uint64_t processor_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* NCCL polls for long: a "not yet" is cheap, and clears what the comm's place held before. */
VERSIONS_CASE(polling, ALL_VERSIONS)
{
    enum { POLLS = 1000 };
    const uint64_t most_us = SANITIZED ? 500000 : 50000;
    struct pair pair;
    uint64_t before;

    pair_listen(&pair, plugin, plugin);
    before = processor_us();
    for (int i = 0; i < POLLS; i++) {
        pair.receiver = (void *)(uintptr_t)(i + 1);
        assert_works(plugin_accept(plugin, pair.listening, &pair.receiver, NULL));
        assert_null(pair.receiver);
    }
    assert_in_range(processor_us() - before, 0, most_us);
    before = processor_us();
    for (int i = 0; i < POLLS && pair.sender == NULL; i++) {
        pair.sender = (void *)(uintptr_t)(i + 1);
        assert_works(plugin_connect(plugin, 0, pair.handle, &pair.sender, &pair.devices[0]));
        assert_true(pair.sender != (void *)(uintptr_t)(i + 1));
    }
    assert_in_range(processor_us() - before, 0, most_us);
    assert_null(pair.devices[0]);
    end_meeting(&pair);
}

/* The connecting side first, so that its peer finds it waiting, and the other way round. */
VERSIONS_CASE(either_side_first, ALL_VERSIONS)
{
    for (int accept_first = 0; accept_first < 2; accept_first++) {
        struct pair pair;

        pair_listen(&pair, plugin, plugin);
        for (int i = 0; i < 20; i++) {
            if (accept_first)
                pair_accept(&pair);
            else
                pair_connect(&pair);
            nap_ms(1);
        }
        end_meeting(&pair);
    }
}

/*
 * The place for a device's handle may be missing, empty or there; a plain plugin leaves it alone.
 */
VERSIONS_CASE(places_for_device_handles, ALL_VERSIONS)
{
    for (int kind = 0; kind < 3; kind++) {
        struct nccl_device_handle structs[2] = {{.type = 0}, {.type = 0}};
        uint64_t deadline = now_ms() + LIMIT_MS;
        struct pair pair;

        pair_listen(&pair, plugin, plugin);
        for (int i = 0; i < 2 && kind == 2; i++)
            pair.devices[i] = &structs[i];
        while (kind == 0 && (pair.sender == NULL || pair.receiver == NULL) && in_time(deadline)) {
            if (pair.sender == NULL)
                assert_works(plugin_connect(plugin, 0, pair.handle, &pair.sender, NULL));
            if (pair.receiver == NULL)
                assert_works(plugin_accept(plugin, pair.listening, &pair.receiver, NULL));
        }
        end_meeting(&pair);
        assert_int_equal(structs[0].type, NCCL_DEVICE_HOST);
        if (!mode_is("unpack"))
            assert_int_equal(structs[1].type, NCCL_DEVICE_HOST);
    }
}

/* Several connections are under way at once, each with its own handle, and end at the right one. */
VERSIONS_CASE(several_at_once, ALL_VERSIONS)
{
    enum { SEVERAL = 8 };
    struct pair pairs[SEVERAL];
    uint64_t deadline = now_ms() + LIMIT_MS;
    int left = 2 * SEVERAL;
    uint8_t buffer[1000];

    for (int i = 0; i < SEVERAL; i++)
        pair_listen(&pairs[i], plugin, plugin);
    while (left > 0 && in_time(deadline))
        for (int i = 0; i < SEVERAL; i++) {
            struct pair *pair = &pairs[i];
            struct pair *last = &pairs[SEVERAL - 1 - i];

            left -= pair->sender == NULL;
            pair_connect(pair);
            left += pair->sender == NULL;
            if (last->receiver != NULL)
                continue;
            pair_accept(last);
            if (last->receiver == NULL)
                continue;
            left--;
            pair_close_listen(last); /* as NCCL does it, while others are still under way */
        }
    for (int i = 0; i < SEVERAL; i++)
        move_message(&pairs[i], (uint64_t)i, sizeof buffer, buffer, sizeof buffer);
    for (int i = 0; i < SEVERAL; i++)
        pair_close(&pairs[i]);
}

/* Connecting and closing again and again leaves nothing behind. */
VERSIONS_CASE(again_and_again, ALL_VERSIONS)
{
    int descriptors = open_descriptors();
    struct pair pair;

    for (int turn = 0, turns = turns_of(50); turn < turns; turn++) {
        pair_open(&pair, plugin);
        if (turn % 10 == 0)
            assert_pair_moves(&pair);
        pair_close(&pair);
    }
    assert_true(settles(open_descriptors, descriptors));
}

/* What an abort leaves open ends with the communicator: listeners, comms, half a connection. */
VERSIONS_CASE(what_is_left_open, WITH_CONTEXT)
{
    int descriptors = open_descriptors();
    struct plugin other = another_context(plugin);
    struct pair pairs[2];

    pair_open(&pairs[0], &other);
    pair_listen(&pairs[1], &other, &other);
    pair_connect(&pairs[1]);
    pair_connect(&pairs[1]);
    assert_works(plugin_finalize(&other));
    assert_true(settles(open_descriptors, descriptors));
}

/* --- strangers ------------------------------------------------------------------------------- */

static bool listens(int fd)
{
    int listening = 0;
    socklen_t size = sizeof listening;

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening != 0;
}

/* The port of a socket of this process that listens and is not in `known`; 0: there is none. */
static uint16_t listening_port(const bool *known)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in address = {.sin_port = 0};
        socklen_t length = sizeof address;

        if (!known[fd] && listens(fd) && getsockname(fd, (struct sockaddr *)&address, &length) == 0)
            return ntohs(address.sin_port);
    }
    return 0;
}

static int stranger(uint16_t port, const void *says, size_t bytes)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    if (bytes > 0)
        assert_int_equal(send(fd, says, bytes, MSG_NOSIGNAL), bytes);
    return fd;
}

/* Whoever else knocks, before and meanwhile: garbage, half a word, silence, a scan. */
VERSIONS_CASE(strangers, ALL_VERSIONS)
{
    bool known[1024];
    int strangers[5];
    struct pair pair;
    uint64_t start;
    uint16_t port;

    for (int fd = 3; fd < 1024; fd++)
        known[fd] = listens(fd);
    pair_listen(&pair, plugin, plugin);
    port = listening_port(known);
    assert_int_not_equal(port, 0);
    strangers[0] = stranger(port, text_of(3), 4096);
    strangers[1] = stranger(port, text_of(4), 3);
    strangers[2] = stranger(port, NULL, 0);
    strangers[3] = stranger(port, pair.handle, sizeof pair.handle);
    strangers[4] = stranger(port, "GET / HTTP/1.0\r\n\r\n", 18);
    close(stranger(port, NULL, 0));
    close(stranger(port, text_of(5), 100));
    for (int i = 0; i < 100; i++) {
        pair_accept(&pair);
        assert_null(pair.receiver);
    }
    start = now_ms();
    pair_meet(&pair);
    assert_true(now_ms() - start < SOON_MS);
    assert_pair_moves(&pair);
    pair_close(&pair);
    for (int i = 0; i < 5; i++)
        close(strangers[i]);
}

/* --- another process ------------------------------------------------------------------------- */

/* What a child is told. */
struct order {
    int version;
    int count;
    uint8_t handle[HANDLE_BYTES];
};

_Static_assert(sizeof(struct order) <= CHILD_BYTES, "fits");

/* In a child: what it is to do; its end of a connection. */
static struct pair begin_order(const uint8_t *argument, struct order *order)
{
    struct pair pair;

    memcpy(order, argument, sizeof *order);
    if (load_all() != 0)
        _exit(10);
    pair = (struct pair){.from = &plugins[order->version], .to = &plugins[order->version]};
    memcpy(pair.handle, order->handle, sizeof pair.handle);
    return pair;
}

static pid_t give_order(child_run *run, const struct plugin *plugin, int count,
                        const uint8_t *handle)
{
    struct order order = {.version = plugin->version, .count = count};

    if (handle != NULL)
        memcpy(order.handle, handle, sizeof order.handle);
    atomic_store(&child_shared->flag, 0);
    return child_fork(run, &order, sizeof order);
}

static void connect_fully(struct pair *pair)
{
    uint64_t deadline = now_ms() + LIMIT_MS;

    while (pair->sender == NULL && in_time(deadline))
        pair_connect(pair);
}

static void accept_fully(struct pair *pair)
{
    uint64_t deadline = now_ms() + LIMIT_MS;

    while (pair->receiver == NULL && in_time(deadline))
        pair_accept(pair);
}

/* Both processes see the flag. */
static void await_flag(int value)
{
    uint64_t deadline = now_ms() + LIMIT_MS;

    while (atomic_load(&child_shared->flag) != value && in_time(deadline))
        sched_yield();
}

/* Sends or receives until that fails, within the deadline; the error. */
static int move_until_error(const struct pair *pair, bool sends, uint64_t deadline)
{
    static uint8_t buffer[1 << 20];
    const struct plugin *plugin = sends ? pair->from : pair->to;
    int result = NCCL_SUCCESS;

    while (result == NCCL_SUCCESS && in_time(deadline)) {
        void *request = NULL;

        result = sends ? plugin_isend(plugin, pair->sender, text_of(0), 1 << 20, 0, NULL, &request)
                       : plugin_irecv(plugin, pair->receiver, buffer, 1 << 20, 0, NULL, &request);
        if (result == NCCL_SUCCESS && request != NULL)
            result = result_of(plugin, request, deadline);
    }
    return result;
}

/* The error that an end without a peer gets, soon; it is closed. */
static void assert_fails(struct pair *pair, bool sends)
{
    assert_is_loss(move_until_error(pair, sends, now_ms() + SOON_MS));
    pair_close(pair);
}

static void connect_and_stay(const uint8_t *argument)
{
    struct order order;
    struct pair pair = begin_order(argument, &order);

    for (int i = 0; pair.sender == NULL; i++) {
        pair_connect(&pair);
        if (i == 20) /* it has knocked, but nobody has opened */
            atomic_store(&child_shared->flag, 1);
    }
    atomic_store(&child_shared->flag, 2);
    for (;;)
        pause();
}

static void connect_and_send(const uint8_t *argument)
{
    struct order order;
    struct pair pair = begin_order(argument, &order);

    connect_fully(&pair);
    atomic_store(&child_shared->flag, 2);
    move_until_error(&pair, true, UINT64_MAX);
    _exit(12);
}

/* A peer that dies before it is accepted is nobody; the next one is welcome. */
VERSIONS_CASE(a_peer_that_dies_before_accept, ALL_VERSIONS)
{
    struct pair pair;
    pid_t child;

    pair_listen(&pair, plugin, plugin);
    child = give_order(connect_and_stay, plugin, 0, pair.handle);
    await_flag(1);
    child_kill(child);
    for (int i = 0; i < 200; i++)
        pair_accept(&pair);
    if (pair.receiver != NULL) {
        assert_fails(&pair, false);
        pair_close_listen(&pair);
    } else {
        end_meeting(&pair);
    }
}

static void die_at(const struct plugin *plugin, child_run *run, long after_ms)
{
    struct pair pair;
    pid_t child;

    pair_listen(&pair, plugin, plugin);
    child = give_order(run, plugin, 0, pair.handle);
    accept_fully(&pair);
    pair_close_listen(&pair);
    await_flag(2);
    nap_ms(after_ms);
    kill(child, SIGKILL);
    assert_fails(&pair, false);
    child_wait(child);
}

/* Silent or in the middle of a message: its death is an error here, and soon. */
VERSIONS_CASE(a_sender_that_dies, ALL_VERSIONS)
{
    die_at(plugin, connect_and_stay, 0);
    die_at(plugin, connect_and_send, 3);
}

/* Listens, says where, and waits in accept or with a comm that it does not read from. */
static void listen_and_stay(const uint8_t *argument)
{
    struct order order;
    struct pair pair = begin_order(argument, &order);

    pair_listen(&pair, pair.from, pair.to);
    memcpy(child_shared->bytes, pair.handle, sizeof pair.handle);
    atomic_store(&child_shared->flag, 1);
    if (order.count > 0)
        accept_fully(&pair);
    for (;;)
        pause();
}

/* The listening side dies before it has accepted, after that, and in the middle of a message. */
VERSIONS_CASE(a_receiver_that_dies, ALL_VERSIONS)
{
    for (int stage = 0; stage < 3; stage++) {
        struct pair pair = {.from = plugin};
        int result = NCCL_SUCCESS;
        uint64_t deadline;
        pid_t child;

        child = give_order(listen_and_stay, plugin, stage, NULL);
        await_flag(1);
        memcpy(pair.handle, child_shared->bytes, sizeof pair.handle);
        for (int i = 0; pair.sender == NULL && (stage > 0 || i < 20); i++)
            pair_connect(&pair);
        if (stage == 2) {
            void *request = NULL;

            assert_works(plugin_isend(plugin, pair.sender, text_of(0), 4 << 20, 0, NULL, &request));
            assert_non_null(request);
        }
        kill(child, SIGKILL);
        deadline = now_ms() + SOON_MS;
        while (pair.sender == NULL && result == NCCL_SUCCESS && in_time(deadline))
            result = plugin_connect(plugin, 0, pair.handle, &pair.sender, NULL);
        if (result != NCCL_SUCCESS) {
            assert_int_equal(stage, 0);
            assert_is_loss(result);
            assert_null(pair.sender);
        } else {
            assert_fails(&pair, true);
        }
        child_wait(child);
    }
}

/* --- many ------------------------------------------------------------------------------------ */

enum { MOST_COMMS = 256, MANY_BYTES = 20000 };

static void connect_many(const uint8_t *argument)
{
    static struct pair pairs[MOST_COMMS];
    static void *requests[MOST_COMMS];
    struct order order;
    struct pair pair = begin_order(argument, &order);

    for (int i = 0; i < order.count; i++) {
        pairs[i] = pair;
        await_flag(2 * i + 1);
        memcpy(pairs[i].handle, child_shared->bytes, HANDLE_BYTES);
        atomic_store(&child_shared->flag, 2 * i + 2);
        connect_fully(&pairs[i]);
        requests[i] = start_send(&pairs[i], text_of((uint64_t)i), MANY_BYTES);
    }
    for (int i = 0; i < order.count; i++) {
        finish_both(&pairs[i], requests[i], NULL);
        pair_close(&pairs[i]);
    }
}

/* As many as a large communicator has, between two processes, each with its own bytes. */
VERSIONS_CASE(many_comms, SOME_VERSIONS)
{
    static uint8_t buffers[MOST_COMMS][MANY_BYTES];
    static struct pair pairs[MOST_COMMS];
    static void *requests[MOST_COMMS];
    int count = turns_of(100) < 100 ? 64 : MOST_COMMS;
    int before = open_descriptors();
    pid_t child = give_order(connect_many, plugin, count, NULL);

    for (int i = 0; i < count; i++) {
        pair_listen(&pairs[i], plugin, plugin);
        memcpy(child_shared->bytes, pairs[i].handle, HANDLE_BYTES);
        atomic_store(&child_shared->flag, 2 * i + 1);
        await_flag(2 * i + 2);
        accept_fully(&pairs[i]);
        pair_close_listen(&pairs[i]);
        requests[i] = start_receive(&pairs[i], buffers[i], MANY_BYTES);
    }
    for (int i = 0; i < count; i++) {
        finish_both(&pairs[i], NULL, requests[i]);
        assert_memory_equal(buffers[i], text_of((uint64_t)i), MANY_BYTES);
    }
    assert_int_equal(child_wait(child), 0);
    for (int i = 0; i < count; i++)
        pair_close(&pairs[i]);
    assert_true(settles(open_descriptors, before));
}

/* --- no more descriptors --------------------------------------------------------------------- */

/* Unless there is an error, with which the rest of the pair stays open. */
static bool both_ends(const struct plugin *plugin, struct pair *pair)
{
    uint64_t deadline = now_ms() + SOON_MS;
    int result;

    *pair = (struct pair){.from = plugin, .to = plugin};
    result = plugin_listen(plugin, 0, pair->handle, &pair->listening);
    while (result == NCCL_SUCCESS && (pair->sender == NULL || pair->receiver == NULL) &&
           in_time(deadline)) {
        if (pair->sender == NULL)
            result = plugin_connect(plugin, 0, pair->handle, &pair->sender, NULL);
        if (result == NCCL_SUCCESS && pair->receiver == NULL)
            result = plugin_accept(plugin, pair->listening, &pair->receiver, NULL);
    }
    if (pair->listening != NULL)
        pair_close_listen(pair);
    return result == NCCL_SUCCESS;
}

/* So that there are just so many free ones; 1024 is what there was before. */
static void leave_free(int spare)
{
    struct rlimit limit;
    int free_ones = 0;
    int fd;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (fd = 0; fd < 1024 && free_ones < spare; fd++)
        free_ones += fcntl(fd, F_GETFD) < 0;
    while (fd < 1024 && fcntl(fd, F_GETFD) >= 0)
        fd++;
    limit.rlim_cur = (rlim_t)fd;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* For every small number of free descriptors, connections until there are no more. */
static void run_out(const uint8_t *argument)
{
    enum { MOST = 20 };
    struct order order;
    const struct plugin *plugin;
    struct pair pairs[MOST + 1];

    setenv("UCCL_TCPX_TIMEOUT_MS", "2000", 1);
    plugin = begin_order(argument, &order).from;
    assert_true(both_ends(plugin, &pairs[MOST]));
    for (int spare = 0, most = turns_of(MOST); spare < most; spare++) {
        int made = 0;

        plugin_log_clear();
        leave_free(spare);
        while (made < MOST && both_ends(plugin, &pairs[made]))
            made++;
        assert_true(made < MOST); /* the limit was felt */
        assert_true(plugin_log_warnings() > 0);
        for (; made >= 0; made--)
            pair_close(&pairs[made]);
        leave_free(1024);
        assert_true(both_ends(plugin, &pairs[0]));
        pair_close(&pairs[0]);
    }
    pair_close(&pairs[MOST]);
}

/* A process that has no descriptors left gets an error, no hang; with some it goes on. */
VERSIONS_CASE(no_more_descriptors, VERSION(12))
{
    assert_int_equal(child_wait(give_order(run_out, plugin, 0, NULL)), 0);
}

static int begin_suite(void)
{
    stay_on_loopback();
    return child_begin();
}

PLUGIN_SUITE("plugin connections", begin_suite);
