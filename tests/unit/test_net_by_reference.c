/*
 * Closing a comm whose sockets still hold bytes by reference, without a NIC: sends by reference go
 * out as zero-copy sends of host memory, which the kernel also reads where they lie. The memory is
 * overwritten as soon as the comm is closed. Sends that were done arrive; a message by reference
 * arrives right, or its receive fails.
 */
#include "net/devmem/devmem_uapi.h"
#include "tests/support/comm_inside.h"
#include "tests/support/pair.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum {
    HOST_BYTES = 150000, /* more than the receiver's socket takes by itself */
    WHOLE = 100000,      /* the sender's sockets take all of it behind that */
    PARTLY = 16 << 20,   /* and of this a part */
    SEND_ROOM = 200000,  /* which the kernel doubles */
    RECEIVE_ROOM = 65536,
    HOST_TAG = 1,
    TAG = 2,
    SOURCE_ID = 7,
    SENT = 0x11,
    OVERWRITTEN = 0xee,
    SOON_MS = 300,   /* less than close waits for */
    LATE_MS = 2800,  /* more than that */
    FAST_MS = 700,   /* a close that waits for nobody, on a busy machine */
    CLOSE_MS = 4000, /* what a close may take on a busy machine */
    STEP_MS = 20000,
    STUCK_MS = 100,
};

static uint8_t *source; /* PARTLY bytes */

/* The library calls this, too: what refers to device memory refers to `source` instead. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct cmsghdr *control = CMSG_FIRSTHDR(message);
    struct msghdr by_address = *message;
    struct iovec place;

    if (control == NULL || control->cmsg_type != DEVMEM_SCM_DMABUF)
        return syscall(SYS_sendmsg, fd, message, flags);
    place = message->msg_iov[0];
    place.iov_base = source + (uintptr_t)place.iov_base;
    by_address.msg_iov = &place;
    by_address.msg_control = NULL;
    by_address.msg_controllen = 0;
    return syscall(SYS_sendmsg, fd, &by_address, flags);
}

static bool all_are(const uint8_t *bytes, size_t count, uint8_t value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* --- two ends ------------------------------------------------------------------------------ */

struct ends {
    struct pair pair;
    struct net_request *host_receive;
    struct net_request *receive;
    struct net_request *send;
    uint8_t host_room[HOST_BYTES];
    uint8_t *room;
    uint64_t bytes;
    unsigned late_ms;
    int host_result;
    int result;
    char text[256]; /* why, if the receive failed */
};

static void *new_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(pages != MAP_FAILED);
    return pages;
}

static struct ends *ends_open(uint8_t sockets, enum wire_framing framing, uint64_t bytes)
{
    struct ends *ends = calloc(1, sizeof *ends);

    assert_non_null(ends);
    ends->bytes = bytes;
    ends->room = new_pages(bytes);
    ends->pair = pair_open(PAIR_OPTIONS(.sockets = sockets, .framing = framing,
                                        .largest_slice = 256 << 10, .timeout_ms = 20000));
    for (unsigned i = 0; i < sockets; i++) {
        socket_set_buffer(inside_link(ends->pair.sender)->forward[i], SO_SNDBUF, SEND_ROOM);
        socket_set_buffer(inside_link(ends->pair.receiver)->forward[i], SO_RCVBUF, RECEIVE_ROOM);
    }
    assert_success(inside_allow_references(ends->pair.sender));
    memset(source, SENT, bytes);
    return ends;
}

static void ends_close(struct ends *ends)
{
    pair_close(&ends->pair);
    munmap(ends->room, ends->bytes);
    free(ends);
}

/*
 * A message in host memory, and one by reference behind it. Receives are posted when both are
 * there, so that no byte has gone out in another way.
 */
static void begin(struct ends *ends)
{
    static uint8_t message[HOST_BYTES];
    struct net_request *host_send;

    memset(message, SENT, sizeof message);
    host_send = must_send(ends->pair.sender, message, sizeof message, HOST_TAG);
    ends->send = must_send(ends->pair.sender, source, ends->bytes, TAG);
    assert_true(inside_refer(ends->pair.sender, ends->send, SOURCE_ID));
    ends->host_receive =
        must_receive(ends->pair.receiver, ends->host_room, sizeof ends->host_room, HOST_TAG);
    ends->receive = must_receive(ends->pair.receiver, ends->room, ends->bytes, TAG);
    assert_success(end_within(host_send, NULL, STEP_MS));
    memset(message, OVERWRITTEN, sizeof message);
}

static uint64_t in_sockets(const struct ends *ends)
{
    return inside_taken_by_sockets(ends->pair.sender, ends->send);
}

/* Until the sockets take no more. */
static void fill_sockets(struct ends *ends)
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    uint64_t last = clock_now();
    uint64_t before = 0;

    while (
        (in_sockets(ends) < ends->bytes || !inside_has_said_all(ends->pair.sender, ends->send)) &&
        (before == 0 || clock_now() < last + (uint64_t)STUCK_MS * 1000000)) {
        must_go_on(ends->send);
        assert_false(deadline_passed(deadline));
        if (in_sockets(ends) != before)
            last = clock_now();
        before = in_sockets(ends);
    }
    assert_true(in_sockets(ends) > 0);
}

/* --- the case ------------------------------------------------------------------------------ */

static int end_receive(struct net_request *request)
{
    bool done = false;
    int result = net_wait(request, deadline_after_ms(STEP_MS), &done, NULL);

    return result == TCPX_SUCCESS && !done ? TCPX_IN_PROGRESS : result;
}

static void *receive_late(void *context)
{
    struct ends *ends = context;

    nap_ms(ends->late_ms);
    ends->host_result = end_receive(ends->host_receive);
    ends->result = end_receive(ends->receive);
    snprintf(ends->text, sizeof ends->text, "%s", tcpx_last_error());
    return NULL;
}

/* Returns how long the close took. */
static uint64_t close_in_flight(struct ends *ends, unsigned late_ms)
{
    pthread_t thread;
    uint64_t begun;
    uint64_t ended;

    begin(ends);
    fill_sockets(ends);
    ends->late_ms = late_ms;
    assert_int_equal(pthread_create(&thread, NULL, receive_late, ends), 0);
    begun = clock_now();
    comm_end(&ends->pair.sender);
    ended = clock_now();
    memset(source, OVERWRITTEN, ends->bytes);
    pthread_join(thread, NULL);
    return (ended - begun) / 1000000;
}

static const struct {
    uint8_t sockets;
    enum wire_framing framing;
} ways[] = {{1, WIRE_INLINE}, {3, WIRE_INLINE}, {3, WIRE_SEPARATE}};
enum { WAYS = sizeof ways / sizeof *ways };

/* What becomes of a message by reference that its sender is closed behind. */
static const struct {
    const char *test;
    uint64_t bytes;
    unsigned late_ms; /* when the peer takes it */
    unsigned most_ms; /* that the close takes */
    int result;
    unsigned ways;
} closes[] = {
    /* the peer takes it soon: all of it arrives */
    {"test_whole", WHOLE, SOON_MS, CLOSE_MS, TCPX_SUCCESS, WAYS},
    /* a part that went out can do no harm, and close does not wait for it */
    {"test_part", PARTLY, FAST_MS, FAST_MS, TCPX_REMOTE_ERROR, WAYS},
    /* nothing is taken for long: close does not wait for ever, and no wrong byte is delivered */
    {"test_late", WHOLE, LATE_MS, CLOSE_MS, TCPX_REMOTE_ERROR, 1},
};

TABLE_TEST(closes)
{
    for (unsigned i = 0; i < row->ways; i++) {
        struct ends *ends = ends_open(ways[i].sockets, ways[i].framing, row->bytes);

        assert_true(close_in_flight(ends, row->late_ms) < row->most_ms);
        if (ends->host_result != TCPX_SUCCESS && row->late_ms < LATE_MS)
            fail_msg("way %u: a send that was done did not arrive", i);
        if (ends->host_result == TCPX_SUCCESS)
            assert_true(all_are(ends->host_room, sizeof ends->host_room, SENT));
        if (ends->result != row->result)
            fail_msg("way %u: %s: %s", i, tcpx_result_name(ends->result), ends->text);
        if (ends->result == TCPX_SUCCESS)
            assert_true(all_are(ends->room, ends->bytes, SENT));
        ends_close(ends);
    }
}

/*
 * The peer's sockets are reset. The kernel then tells all that was under way to be over, which does
 * not mean that it has arrived.
 */
TEST(test_reset)
{
    for (unsigned i = 0; i < WAYS; i++) {
        struct ends *ends = ends_open(ways[i].sockets, ways[i].framing, WHOLE);
        int result;

        begin(ends);
        fill_sockets(ends);
        comm_end(&ends->pair.receiver); /* with bytes that it has not read */
        result = end_within(ends->send, NULL, STEP_MS);
        if (result == TCPX_SUCCESS)
            fail_msg("way %u: a send is done that was reset", i);
        assert_int_equal(result, TCPX_REMOTE_ERROR);
        ends_close(ends);
    }
}

static int set_up(void)
{
    source = new_pages(PARTLY);
    return 0;
}

static int tear_down(void)
{
    return munmap(source, PARTLY);
}

static int begin_suite(void)
{
    setenv("UCCL_TCPX_THREADS", "0", 1); /* the receiver reads only when it is called */
    return 0;
}

SUITE(.name = "close with sends by reference", .begin = begin_suite, .set_up = set_up,
      .tear_down = tear_down);
