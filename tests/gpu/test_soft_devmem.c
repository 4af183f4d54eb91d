/*
 * Software devmem, call by call: what recvmsg answers, where each byte lies, how tokens and pages
 * come back, what happens when there are none. Comms receive over it in test_net_gpu and
 * integration/devmem.
 */
#include "tests/gpu/gpu_test.h"
#include "tests/support/suite.h"

#include "gpu/kernels.h"
#include "net/devmem/control_messages.h"
#include "tests/support/soft_devmem.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum {
    PAGE = SOFT_DEVMEM_PAGE,
    MOST = SOFT_DEVMEM_CALL_FRAGMENTS,
    SEED = 4711, /* of the pattern */
    GUARD = 0xa5,
};

static struct gpu *gpu;

static int set_up(void)
{
    if (gpu_open(0, &gpu) == TCPX_SUCCESS)
        return 0;
    fprintf(stderr, "set-up: %s\n", tcpx_last_error());
    return -1;
}

static int tear_down(void)
{
    gpu_close(gpu);
    return 0;
}

static void fill(uint8_t *at, size_t bytes, uint64_t position)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = pattern_byte(SEED, position + i);
}

/* A socket over one end of a pair, and all that is known of it. */
struct line {
    int ends[2];
    struct soft_devmem_pool *pool;
    struct soft_devmem *socket;
    struct gpu_stream *stream; /* not the one that the shim copies on */
    uint64_t fed;
    uint64_t taken;
};

/* What the latest call told. */
static struct call {
    ssize_t got;
    int error;
    struct devmem_fragment fragments[MOST];
    bool linear[MOST];
    uint32_t count;
    uint32_t device_count;
    uint8_t host[1 << 20];
    uint8_t control[CMSG_SPACE(sizeof(struct devmem_fragment)) * MOST];
} call;

#define NIC(...) (&(struct soft_devmem_options){__VA_ARGS__})

/* One more socket of the pool that `line` has, with a stream of bytes of its own. */
static struct line join_line(const struct line *line)
{
    struct line other = {.pool = line->pool, .stream = line->stream};

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other.ends), 0);
    assert_success(soft_devmem_open(line->pool, other.ends[0], &other.socket));
    return other;
}

static void leave_line(struct line *line)
{
    soft_devmem_close(line->socket);
    close(line->ends[0]);
    close(line->ends[1]);
}

/* With a pool of 1 MiB where the options have none. */
static struct line open_line(const struct soft_devmem_options *options)
{
    struct soft_devmem_options nic = *options;
    struct line line = {0};

    nic.pool_bytes = nic.pool_bytes != 0 ? nic.pool_bytes : 1 << 20;
    assert_success(soft_devmem_pool_create(gpu, &nic, &line.pool));
    assert_success(gpu_stream_create(gpu, &line.stream));
    return join_line(&line);
}

static void close_pool(struct line *line)
{
    soft_devmem_pool_destroy(line->pool);
    gpu_stream_destroy(line->stream);
}

static void expect_free(const struct line *line, uint64_t pages)
{
    assert_int_equal(soft_devmem_pool_free_pages(line->pool), pages);
}

static void close_line(struct line *line)
{
    leave_line(line);
    expect_free(line, soft_devmem_pool_pages(line->pool));
    close_pool(line);
}

static void feed(struct line *line, size_t bytes)
{
    static uint8_t text[1 << 17];

    assert_true(bytes <= sizeof text);
    fill(text, bytes, line->fed);
    assert_int_equal(send(line->ends[1], text, bytes, MSG_DONTWAIT), bytes);
    line->fed += bytes;
}

static void read_control(const struct msghdr *message)
{
    struct msghdr copy = *message; /* CMSG_NXTHDR wants one that is not const */

    call.count = call.device_count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&copy); header != NULL;
         header = CMSG_NXTHDR(&copy, header)) {
        assert_int_equal(header->cmsg_level, SOL_SOCKET);
        assert_int_equal(header->cmsg_len, CMSG_LEN(sizeof *call.fragments));
        assert_true(header->cmsg_type == DEVMEM_SCM_LINEAR ||
                    header->cmsg_type == DEVMEM_SCM_DMABUF);
        call.linear[call.count] = header->cmsg_type == DEVMEM_SCM_LINEAR;
        call.device_count += !call.linear[call.count];
        memcpy(&call.fragments[call.count++], CMSG_DATA(header), sizeof *call.fragments);
    }
    assert_int_equal(call.count * CMSG_SPACE(sizeof *call.fragments), message->msg_controllen);
}

/* One call with an iovec of `bytes` and room for `messages`; the answer is in `call`. */
static ssize_t ask(struct line *line, size_t bytes, uint32_t messages, int flags)
{
    struct iovec iovec = {.iov_base = call.host, .iov_len = bytes};
    struct msghdr message = {
        .msg_iov = &iovec,
        .msg_iovlen = 1,
        .msg_control = call.control,
        .msg_controllen = control_messages_space(DEVMEM_LAYOUT_MAINLINE, messages),
        .msg_flags = 77,
    };

    memset(call.control, GUARD, sizeof call.control);
    memset(call.host, GUARD, sizeof call.host);
    errno = 0;
    call.got = soft_devmem_recvmsg(line->socket, &message, flags);
    call.error = errno;
    call.count = call.device_count = 0;
    if (call.got < 0) {
        assert_int_equal(message.msg_controllen,
                         control_messages_space(DEVMEM_LAYOUT_MAINLINE, messages));
        assert_int_equal(message.msg_flags, 77);
        return call.got;
    }
    assert_int_equal(message.msg_flags, 0);
    assert_true((size_t)call.got <= bytes);
    read_control(&message);
    assert_true(call.count <= messages);
    return call.got;
}

static void check_fragment(const struct line *line, const struct devmem_fragment *fragment)
{
    assert_true(fragment->offset + fragment->size <= soft_devmem_pool_memory(line->pool)->bytes);
    assert_int_equal(fragment->offset / PAGE, (fragment->offset + fragment->size - 1) / PAGE);
    assert_int_equal(fragment->dmabuf_id, soft_devmem_pool_id(line->pool));
    assert_int_equal(fragment->flags, 0);
    assert_true(fragment->token > 0);
}

/* That the bytes of the call are the next of the stream, and are where it said they are. */
static void check_bytes(struct line *line)
{
    static uint8_t found[1 << 20];
    static uint8_t expected[1 << 20];
    gpu_address pool = soft_devmem_pool_memory(line->pool)->address;
    size_t at = 0;
    size_t in_host = 0;

    /* from the last one on: what was copied last is the most likely to be late */
    for (uint32_t i = 0; i < call.count; i++)
        at += call.fragments[i].size;
    assert_int_equal(at, call.count > 0 ? call.got : 0);
    for (uint32_t i = call.count; i > 0; i--) {
        const struct devmem_fragment *fragment = &call.fragments[i - 1];

        at -= fragment->size;
        if (call.linear[i - 1])
            continue;
        check_fragment(line, fragment);
        assert_success(
            gpu_copy_to_host(line->stream, found + at, pool + fragment->offset, fragment->size));
    }
    assert_success(drain(gpu, line->stream));
    for (uint32_t i = 0; i < call.count; i++) {
        if (call.linear[i]) {
            memcpy(found + at, call.host + in_host, call.fragments[i].size);
            in_host += call.fragments[i].size;
        }
        at += call.fragments[i].size;
    }
    if (call.count == 0) {
        memcpy(found, call.host, (size_t)call.got);
        in_host = (size_t)call.got;
    }
    fill(expected, (size_t)call.got, line->taken);
    assert_memory_equal(found, expected, (size_t)call.got);
    if (in_host < sizeof call.host)
        assert_int_equal(call.host[in_host], GUARD);
    line->taken += (uint64_t)call.got;
}

/* A call that gets bytes. */
static void take(struct line *line, size_t bytes, uint32_t messages)
{
    if (ask(line, bytes, messages, DEVMEM_MSG_FLAG | MSG_DONTWAIT) <= 0)
        fail_msg("recvmsg gave %zd: %s", call.got, strerror(call.error));
    check_bytes(line);
}

static void assert_refused_with(struct line *line, size_t bytes, uint32_t messages, int flags,
                                int error)
{
    assert_int_equal(ask(line, bytes, messages, flags), -1);
    assert_int_equal(call.error, error);
}

static void assert_message_refused(struct line *line, struct msghdr *message, int error)
{
    assert_int_equal(soft_devmem_recvmsg(line->socket, message, DEVMEM_MSG_FLAG), -1);
    assert_int_equal(errno, error);
}

static void assert_refused(struct line *line, size_t bytes, uint32_t messages, int error)
{
    assert_refused_with(line, bytes, messages, DEVMEM_MSG_FLAG | MSG_DONTWAIT, error);
}

/* Returns a range of tokens, and says how many were outstanding. */
static int give(struct line *line, uint32_t first, uint32_t count)
{
    return soft_devmem_dontneed(line->socket, &(struct devmem_token_range){first, count}, 1);
}

/* Returns all tokens of the latest call. */
static void give_call(struct line *line)
{
    for (uint32_t i = 0; i < call.count; i++)
        if (!call.linear[i])
            assert_int_equal(give(line, call.fragments[i].token, 1), 1);
}

static void take_and_give_rest(struct line *line, size_t bytes)
{
    while (line->taken < line->fed) {
        take(line, bytes, MOST);
        give_call(line);
    }
}

static struct soft_devmem_statistics statistics_of(const struct line *line)
{
    struct soft_devmem_statistics statistics;

    soft_devmem_get_statistics(line->socket, &statistics);
    assert_int_equal(statistics.tokens_out, statistics.tokens_back + statistics.tokens_held);
    return statistics;
}

TEST(test_pieces_of_every_kind)
{
    const struct soft_devmem_options nics[] = {
        {.seed = 1, .pool_bytes = 1 << 20},
        {.seed = 2, .pool_bytes = 1 << 20, .full_percent = 100},
        {.seed = 3, .pool_bytes = 1 << 20, .largest_fragment = 1448, .fragments_per_page = 2},
        {.seed = 4, .pool_bytes = 1 << 20, .largest_fragment = 100, .fragments_per_page = 3},
        {.seed = 5, .pool_bytes = 1 << 20, .linear_percent = 30, .unaligned_percent = 50},
        {.seed = 6, .pool_bytes = 1 << 20, .linear_percent = 10, .plain_percent = 10},
        {.seed = 7, .pool_bytes = 1 << 20, .linear_percent = 100, .largest_fragment = 9},
        {.seed = 8, .pool_bytes = 1 << 20, .smallest_fragment = 600, .largest_fragment = 700},
    };

    for (size_t i = 0; i < sizeof nics / sizeof *nics; i++) {
        struct line line = open_line(&nics[i]);
        uint64_t random = i + 1;
        struct soft_devmem_statistics statistics;

        for (int round = 0; round < (SANITIZED ? 15 : 40); round++) {
            feed(&line, 1 + random_below(&random, 30000));
            while (line.taken < line.fed) {
                take(&line, 1 + random_below(&random, 40000),
                     1 + (uint32_t)random_below(&random, 60));
                give_call(&line);
            }
        }
        statistics = statistics_of(&line);
        assert_int_equal(statistics.device_bytes + statistics.linear_bytes + statistics.plain_bytes,
                         line.fed);
        assert_int_equal(statistics.device_bytes > 0, nics[i].linear_percent < 100);
        assert_int_equal(statistics.linear_bytes > 0, nics[i].linear_percent > 0);
        assert_int_equal(statistics.plain_bytes > 0, nics[i].plain_percent > 0);
        assert_int_equal(statistics.starved, 0);
        assert_int_equal(statistics.tokens_held, 0);
        expect_free(&line, 256);
        close_line(&line);
    }
}

TEST(test_sizes_and_places)
{
    struct line line = open_line(NIC(.seed = 9, .smallest_fragment = 100, .largest_fragment = 1448,
                                     .full_percent = 50, .fragments_per_page = 2));
    uint32_t full = 0;
    uint32_t second = 0;
    uint32_t neighbours = 0;

    feed(&line, 100000);
    take(&line, 100000, MOST);
    for (uint32_t i = 0; i + 1 < call.count; i++) {
        assert_true(call.fragments[i].size >= 100 && call.fragments[i].size <= 1448);
        assert_int_equal(call.fragments[i].offset % (PAGE / 2), 0);
        full += call.fragments[i].size == 1448;
        second += call.fragments[i].offset % PAGE != 0;
        neighbours += call.fragments[i].offset / PAGE + 1 == call.fragments[i + 1].offset / PAGE;
    }
    assert_true(full > call.count / 4);
    assert_true(second > call.count / 4);
    assert_true(neighbours < call.count / 4);
    close_line(&line);
}

/* A page that two fragments share is free when both are back, in whatever order. */
TEST(test_a_shared_page)
{
    struct line line = open_line(
        NIC(.seed = 10, .pool_bytes = PAGE, .full_percent = 100, .fragments_per_page = 2));

    for (uint32_t first = 0; first < 2; first++) {
        feed(&line, PAGE + 1);
        take(&line, 2 * PAGE, MOST);
        assert_int_equal(call.got, PAGE);
        assert_int_equal(call.count, 2);
        expect_free(&line, 0);
        assert_int_equal(give(&line, call.fragments[first].token, 1), 1);
        expect_free(&line, 0);
        assert_int_equal(give(&line, call.fragments[1 - first].token, 1), 1);
        expect_free(&line, 1);
        take(&line, PAGE, MOST);
        assert_int_equal(call.got, 1);
        give_call(&line);
    }
    close_line(&line);
}

/* What an iovec is too short for follows from the same page, under a token of its own. */
TEST(test_an_iovec_in_the_middle_of_a_page)
{
    struct line line = open_line(NIC(.seed = 11, .full_percent = 100));
    struct devmem_fragment first;

    feed(&line, 2 * PAGE);
    take(&line, 1000, MOST);
    assert_int_equal(call.got, 1000);
    first = call.fragments[0];
    take(&line, PAGE, MOST);
    assert_int_equal(call.got, PAGE);
    assert_int_equal(call.count, 2);
    assert_int_equal(call.fragments[0].offset, first.offset + 1000);
    assert_int_equal(call.fragments[0].size, PAGE - 1000);
    assert_int_not_equal(call.fragments[0].token, first.token);
    assert_int_not_equal(call.fragments[1].offset / PAGE, first.offset / PAGE);
    expect_free(&line, 254);
    assert_int_equal(give(&line, first.token, 1), 1);
    expect_free(&line, 254);
    give_call(&line);
    expect_free(&line, 256);
    take(&line, PAGE, MOST); /* the page is free again, and so the rest comes in another */
    assert_int_equal(call.got, PAGE - 1000);
    assert_int_equal(call.fragments[0].offset % PAGE, 0);
    give_call(&line);
    assert_int_equal(line.taken, line.fed);

    /* byte by byte */
    feed(&line, 20);
    for (int i = 0; i < 20; i++) {
        take(&line, 1, 1);
        assert_int_equal(call.got, 1);
        assert_int_equal(call.fragments[0].token, i + 1);
        assert_int_equal(call.fragments[0].offset % PAGE, i);
    }
    expect_free(&line, 255);
    assert_int_equal(give(&line, 1, 20), 20);
    expect_free(&line, 256);
    close_line(&line);
}

TEST(test_control_buffers)
{
    struct line line = open_line(NIC(.seed = 12, .full_percent = 100));
    struct iovec iovec = {.iov_base = call.host, .iov_len = sizeof call.host};
    struct msghdr message = {.msg_iov = &iovec, .msg_iovlen = 1};

    assert_refused(&line, PAGE, 0, EAGAIN);
    feed(&line, 5 * PAGE);
    assert_refused(&line, PAGE, 0, DEVMEM_ETOOSMALL);
    assert_message_refused(&line, &message, DEVMEM_ETOOSMALL);
    message.msg_control = call.control;
    message.msg_controllen = CMSG_SPACE(sizeof(struct devmem_fragment)) - 1;
    assert_message_refused(&line, &message, DEVMEM_ETOOSMALL);

    take(&line, 5 * PAGE, 1);
    assert_int_equal(call.got, PAGE);
    take(&line, 5 * PAGE, 3);
    assert_int_equal(call.got, 3 * PAGE);
    assert_int_equal(call.control[control_messages_space(DEVMEM_LAYOUT_MAINLINE, 3)], GUARD);
    take(&line, 5 * PAGE, 3);
    assert_int_equal(call.got, PAGE);
    assert_refused(&line, PAGE, 3, EAGAIN);
    close_line(&line);
}

TEST(test_calls_that_make_no_sense)
{
    struct line line = open_line(NIC(.seed = 13));
    struct msghdr message = {.msg_iovlen = 1};

    assert_refused_with(&line, PAGE, 1, MSG_DONTWAIT, EAGAIN);
    feed(&line, 10);
    assert_refused_with(&line, PAGE, 1, MSG_DONTWAIT, EFAULT); /* without the flag */
    assert_refused_with(&line, PAGE, 1, DEVMEM_MSG_FLAG | MSG_PEEK, EINVAL);
    assert_message_refused(&line, &message, EFAULT);
    assert_int_equal(ask(&line, 0, 1, DEVMEM_MSG_FLAG), 0); /* no bytes are wanted */
    take(&line, PAGE, MOST);
    close_line(&line);
}

TEST(test_an_iovec_for_linear_bytes)
{
    struct line line = open_line(NIC(.seed = 14, .linear_percent = 50, .largest_fragment = 50));
    uint8_t parts[3][20];
    uint8_t expected[60];
    struct iovec iovec[] = {{NULL, 0}, {parts[0], 20}, {parts[1], 20}, {NULL, 0}, {parts[2], 20}};
    struct msghdr message = {.msg_iov = iovec, .msg_iovlen = 5, .msg_control = call.control};
    struct iovec none = {.iov_base = NULL, .iov_len = 1 << 20};
    uint64_t device = 0;
    size_t in_host = 0;
    ssize_t got;

    /* device bytes need no memory in the iovec; linear ones are an error, again and again */
    feed(&line, 10000);
    message.msg_iov = &none;
    message.msg_iovlen = 1;
    for (;;) {
        message.msg_controllen = sizeof call.control;
        got = soft_devmem_recvmsg(line.socket, &message, DEVMEM_MSG_FLAG);
        if (got < 0)
            break;
        device += (uint64_t)got;
    }
    assert_int_equal(errno, EFAULT);
    assert_message_refused(&line, &message, EFAULT);
    assert_int_equal(statistics_of(&line).device_bytes, device);
    line.taken = device;

    /* packed from the start on, over several parts */
    message.msg_iov = iovec;
    message.msg_iovlen = 5;
    for (int i = 0; i < 100; i++) {
        uint64_t position = line.taken;

        in_host = 0;
        message.msg_controllen = sizeof call.control;
        got = soft_devmem_recvmsg(line.socket, &message, DEVMEM_MSG_FLAG);
        assert_true(got > 0 && got <= 60);
        read_control(&message);
        for (uint32_t k = 0; k < call.count; k++) {
            if (call.linear[k]) {
                fill(expected + in_host, call.fragments[k].size, position);
                in_host += call.fragments[k].size;
            }
            position += call.fragments[k].size;
        }
        assert_memory_equal(parts, expected, in_host);
        line.taken += (uint64_t)got;
    }
    assert_true(statistics_of(&line).linear_bytes > 1000);
    close_line(&line);
}

static void exhaust(uint64_t seed)
{
    enum { PAGES = 16 };
    struct line line =
        open_line(NIC(.seed = seed, .pool_bytes = PAGES * PAGE, .largest_fragment = 1000,
                      .full_percent = 100, .linear_percent = 40));
    struct soft_devmem_statistics statistics;

    feed(&line, 100000);
    while (soft_devmem_pool_free_pages(line.pool) > 0)
        take(&line, 5000, MOST);
    for (int i = 0; i < 100; i++)
        assert_refused(&line, PAGE, MOST, EAGAIN);
    statistics = statistics_of(&line);
    assert_int_equal(statistics.starved, 100);
    assert_int_equal(statistics.tokens_held, PAGES);

    /* also where the call might wait, so that this thread can return tokens */
    assert_refused_with(&line, PAGE, MOST, DEVMEM_MSG_FLAG, EAGAIN);

    /* each page that comes back is worth one that goes out */
    for (int i = 0; i < 5; i++) {
        assert_int_equal(give(&line, 7, 1), 1);
        expect_free(&line, 1);
        do {
            take(&line, 5000, MOST);
        } while (call.device_count == 0);
        assert_int_equal(call.device_count, 1);
        assert_int_equal(call.fragments[call.count - 1].token, 7);
        assert_refused(&line, PAGE, MOST, EAGAIN);
    }
    assert_int_equal(give(&line, 1, PAGES), PAGES);
    take_and_give_rest(&line, 5000);
    assert_int_equal(statistics_of(&line).tokens_held, 0);
    close_line(&line);
}

TEST(test_exhaustion)
{
    for (uint64_t seed = 0; seed < 8; seed++)
        exhaust(seed);
}

TEST(test_end_of_file)
{
    struct line line = open_line(NIC(.seed = 16, .pool_bytes = 2 * PAGE, .full_percent = 100));

    feed(&line, 3 * PAGE);
    assert_int_equal(shutdown(line.ends[1], SHUT_WR), 0);
    take(&line, 3 * PAGE, MOST);
    assert_int_equal(call.got, 2 * PAGE);
    assert_refused(&line, PAGE, MOST, EAGAIN); /* starved, and not at the end */
    assert_int_equal(give(&line, 1, 1), 1);
    take(&line, 3 * PAGE, MOST);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask(&line, PAGE, MOST, DEVMEM_MSG_FLAG), 0); /* without a free page */
        assert_int_equal(call.count, 0);
        assert_int_equal(ask(&line, PAGE, 0, DEVMEM_MSG_FLAG), 0);
    }
    assert_int_equal(statistics_of(&line).starved, 1);
    close_line(&line);
}

TEST(test_a_stream_that_breaks)
{
    struct line line = open_line(NIC(.seed = 17, .full_percent = 100, .break_after = 2 * PAGE));

    feed(&line, 4 * PAGE);
    take(&line, PAGE, MOST);
    take(&line, PAGE, MOST);
    assert_refused(&line, PAGE, MOST, ENODEV);
    assert_refused(&line, PAGE, MOST, ENODEV);
    close_line(&line);
}

/* The kernel ends a read early behind bytes that carry a descriptor. */
TEST(test_fewer_bytes_than_there_are)
{
    struct line line = open_line(NIC(.seed = 22, .full_percent = 100, .largest_fragment = 300));
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)),
                            .cmsg_level = SOL_SOCKET,
                            .cmsg_type = SCM_RIGHTS}};
    uint8_t text[1000];
    struct iovec iovec = {.iov_base = text, .iov_len = sizeof text};
    struct msghdr message = {.msg_iov = &iovec,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.bytes};

    feed(&line, 1000);
    fill(text, sizeof text, line.fed);
    memcpy(CMSG_DATA(&control.header), &line.ends[0], sizeof(int));
    assert_int_equal(sendmsg(line.ends[1], &message, 0), sizeof text);
    line.fed += sizeof text;
    feed(&line, 3000);
    take(&line, 4400, MOST);
    assert_true(call.got <= 2000);
    expect_free(&line, 256 - call.count);
    give_call(&line);
    take_and_give_rest(&line, 4400);
    expect_free(&line, 256);
    close_line(&line);
}

/* Bytes that did not get where they belong are never told of. */
TEST(test_a_gpu_that_fails)
{
    struct line line = open_line(NIC(.seed = 23));

    gpu_memory_free(gpu, (struct gpu_memory *)soft_devmem_pool_memory(line.pool));
    feed(&line, 100);
    assert_refused(&line, PAGE, MOST, EIO);
    assert_true(tcpx_last_error()[0] != '\0');
    assert_refused(&line, PAGE, MOST, EIO);
    assert_int_equal(statistics_of(&line).tokens_out, 0);
    leave_line(&line);
    close_pool(&line);
}

TEST(test_a_call_that_waits)
{
    struct line line = open_line(NIC(.seed = 18));
    struct timeval soon = {.tv_usec = 20000};
    uint64_t start = clock_now();

    assert_int_equal(setsockopt(line.ends[0], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon), 0);
    assert_refused_with(&line, PAGE, MOST, DEVMEM_MSG_FLAG, EAGAIN);
    assert_true(clock_now() - start >= 15000000);
    assert_int_equal(statistics_of(&line).starved, 0);
    close_line(&line);
}

TEST(test_wrong_tokens)
{
    struct line line = open_line(NIC(.seed = 19, .full_percent = 100));
    const struct devmem_token_range strange[] = {{0, 1}, {UINT32_MAX, 2}, {1u << 31, 5}, {2, 1},
                                                 {2, 1}, {5, 100},        {7, 0}};

    assert_int_equal(give(&line, 1, 1), 0);
    feed(&line, 5 * PAGE);
    take(&line, 5 * PAGE, MOST);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(call.fragments[i].token, i + 1);

    /* 2 and 5 are outstanding, once each */
    assert_int_equal(soft_devmem_dontneed(line.socket, strange, 7), 2);
    assert_int_equal(statistics_of(&line).tokens_unknown, 1 + 1 + 2 + 5 + 1 + 99);
    assert_int_equal(statistics_of(&line).tokens_held, 3);
    expect_free(&line, 253);
    assert_int_equal(soft_devmem_dontneed(line.socket, strange, 0), 0);
    assert_int_equal(soft_devmem_dontneed(line.socket, NULL, 1), -1);
    assert_int_equal(errno, EFAULT);

    /* the lowest numbers are used again first */
    feed(&line, 3 * PAGE);
    take(&line, 3 * PAGE, MOST);
    assert_int_equal(call.fragments[0].token, 2);
    assert_int_equal(call.fragments[1].token, 5);
    assert_int_equal(call.fragments[2].token, 6);
    close_line(&line);
}

TEST(test_how_many_tokens_go_back_at_once)
{
    enum { TOKENS = 1500 };
    struct line line = open_line(
        NIC(.seed = 20, .pool_bytes = 8 << 20, .full_percent = 100, .largest_fragment = 20));
    struct devmem_token_range ranges[DEVMEM_DONTNEED_MAX_RANGES + 1];

    feed(&line, TOKENS * 20);
    while (line.taken < line.fed)
        take(&line, 1 << 20, MOST);
    assert_int_equal(statistics_of(&line).tokens_held, TOKENS);
    for (uint32_t i = 0; i < DEVMEM_DONTNEED_MAX_RANGES + 1; i++)
        ranges[i] = (struct devmem_token_range){1 + i, 1};
    assert_int_equal(soft_devmem_dontneed(line.socket, ranges, DEVMEM_DONTNEED_MAX_RANGES + 1), -1);
    assert_int_equal(errno, EINVAL);
    assert_int_equal(statistics_of(&line).tokens_held, TOKENS);
    assert_int_equal(soft_devmem_dontneed(line.socket, ranges, DEVMEM_DONTNEED_MAX_RANGES), 128);

    /* those that are not outstanding count as looked at */
    ranges[0] = (struct devmem_token_range){1, 64};
    ranges[1] = (struct devmem_token_range){129, UINT32_MAX};
    assert_int_equal(soft_devmem_dontneed(line.socket, ranges, 2), 1024 - 64);
    assert_int_equal(statistics_of(&line).tokens_held, TOKENS - 128 - 960);
    assert_int_equal(give(&line, 129 + 960, TOKENS), TOKENS - 128 - 960);
    assert_int_equal(statistics_of(&line).tokens_held, 0);
    close_line(&line);
}

/* Two sockets of one pool: numbers of their own, and one does not keep the other's pages. */
TEST(test_closing_with_tokens)
{
    struct line line = open_line(NIC(.seed = 21, .pool_bytes = 8 * PAGE, .full_percent = 100));
    struct line other = join_line(&line);

    feed(&line, 6 * PAGE);
    take(&line, 5 * PAGE + 100, MOST); /* and a rest that waits in its page */
    feed(&other, 4 * PAGE);
    take(&other, 4 * PAGE, MOST);
    assert_int_equal(call.got, 2 * PAGE);
    assert_int_equal(call.fragments[0].token, 1);
    assert_refused(&other, 2 * PAGE, MOST, EAGAIN);
    assert_int_equal(give(&other, 6, 1), 0); /* a token of the first */
    leave_line(&line);
    expect_free(&line, 6);
    take(&other, 4 * PAGE, MOST);
    assert_int_equal(call.got, 2 * PAGE);
    close_line(&other);
}

/* The rest of a fragment never lands in a page that has become another's. */
TEST(test_a_rest_whose_page_is_gone)
{
    struct line line = open_line(NIC(.seed = 24, .pool_bytes = PAGE, .full_percent = 100));
    struct line other = join_line(&line);

    feed(&line, PAGE);
    take(&line, 1000, MOST);
    give_call(&line);
    feed(&other, PAGE);
    take(&other, PAGE, MOST);
    assert_refused(&line, PAGE, MOST, EAGAIN);
    expect_free(&line, 0);
    assert_int_equal(give(&other, 1, 1), 1);
    take(&line, PAGE, MOST);
    assert_int_equal(call.got, PAGE - 1000);
    leave_line(&other);
    close_line(&line);
}

/* The same chunks read the same way, with some calls that get nothing in between. */
static uint32_t read_chunks(uint64_t seed, bool with_failures, struct devmem_fragment *all)
{
    struct line line =
        open_line(NIC(.seed = seed, .fragments_per_page = 2, .full_percent = 30,
                      .unaligned_percent = 30, .linear_percent = 20, .plain_percent = 2));
    uint64_t random = 77;
    uint32_t count = 0;

    for (int i = 0; i < 40; i++) {
        if (with_failures)
            assert_refused(&line, PAGE, MOST, EAGAIN);
        feed(&line, 1 + random_below(&random, 9000));
        if (with_failures)
            assert_int_equal(ask(&line, PAGE, MOST, MSG_DONTWAIT), -1);
        while (line.taken < line.fed) {
            take(&line, 3000, 3);
            for (uint32_t k = 0; k < call.count; k++) {
                all[count] = call.fragments[k];
                all[count++].dmabuf_id = 0;
            }
            give_call(&line);
        }
    }
    close_line(&line);
    return count;
}

TEST(test_seeds)
{
    static struct devmem_fragment first[2000];
    static struct devmem_fragment second[2000];
    uint32_t count = read_chunks(5, false, first);

    assert_true(count > 100 && count < 2000);
    assert_int_equal(read_chunks(5, true, second), count);
    assert_memory_equal(first, second, count * sizeof *first);
    read_chunks(6, false, second);
    assert_memory_not_equal(first, second, 50 * sizeof *first);
}

TEST(test_options)
{
    static const struct {
        struct soft_devmem_options options;
        const char *words;
    } wrong[] = {
        {{.pool_bytes = 0}, "not whole pages"},
        {{.pool_bytes = PAGE + 1}, "not whole pages"},
        {{.pool_bytes = 3 * PAGE, .largest_fragment = PAGE + 1}, "4096 bytes of a page"},
        {{.pool_bytes = 3 * PAGE, .largest_fragment = 2049, .fragments_per_page = 2},
         "2048 bytes of a page"},
        {{.pool_bytes = 3 * PAGE, .fragments_per_page = PAGE + 1}, "4097 fragments"},
        {{.pool_bytes = PAGE, .smallest_fragment = PAGE + 1}, "4097 to 4096"},
    };
    struct soft_devmem_pool *pool;
    struct soft_devmem_pool *other;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_error(soft_devmem_pool_create(gpu, &wrong[i].options, &pool), TCPX_INVALID_ARGUMENT,
                     wrong[i].words);
    assert_success(soft_devmem_pool_create(gpu, NIC(.pool_bytes = PAGE), &pool));
    assert_success(soft_devmem_pool_create(gpu, NIC(.pool_bytes = PAGE), &other));
    assert_int_not_equal(soft_devmem_pool_id(pool), soft_devmem_pool_id(other));
    soft_devmem_pool_destroy(pool);
    soft_devmem_pool_destroy(other);
    soft_devmem_pool_destroy(NULL);
    soft_devmem_close(NULL);
}

SUITE(.name = "soft_devmem", .set_up = set_up, .tear_down = tear_down);
