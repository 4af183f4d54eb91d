/*
 * A live process whose program is late is no lost peer. Both ends of many comms are filled up to
 * what credit and requests allow, over small socket buffers; then no call is made for three times
 * the timeout; then everything must arrive. A peer that is stopped is lost in bounded time.
 */
#include "tests/support/child.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

#include <errno.h>

enum {
    TIMEOUT_MS = 1000,
    CREDIT = 4 << 20,
    MOST_MESSAGES = 1024,
    SMALL_BUFFER = 64 << 10, /* smaller than a packet of loopback would be slow */
    UNSOLICITED = 40000,     /* bytes of a message that needs no receive yet, in order */
    EAGER = 3000,
};

/* Which programs are silent, and when. */
enum stage {
    NEVER_CALLED,    /* the receiver has made no call since the comm was made */
    CALLED_BEFORE,   /* it received a message and then fell silent */
    WAITED_BEFORE,   /* its last call was a wait */
    RECEIVES_POSTED, /* the sender is silent while as many receives as can be are announced */
    STAGES
};

struct silent {
    enum stage stage;
    struct net_link_options options;
    struct pair pair;
    struct net_request *receives[MOST_MESSAGES]; /* RECEIVES_POSTED */
    uint8_t *rooms;
    int messages;
    uint64_t bytes;
};

static struct text text;

/* A window that is closed is what ends a connection: it takes little to close it. */
static void shrink_buffers(const struct net_link *link)
{
    for (unsigned i = 0; i <= link->sockets; i++) {
        int fd = i < link->sockets ? link->forward[i] : link->reverse;

        socket_set_buffer(fd, SO_RCVBUF, SMALL_BUFFER);
        socket_set_buffer(fd, SO_SNDBUF, SMALL_BUFFER);
    }
}

static void make_silent(struct silent *silent)
{
    struct net_link sender;
    struct net_link receiver;

    make_link_pair(&silent->options, &sender, &receiver);
    shrink_buffers(&sender);
    shrink_buffers(&receiver);
    silent->pair = pair_of(&sender, &receiver);
}

static void move_one(struct silent *silent)
{
    uint8_t room[100] = {0};
    struct net_request *receive = must_receive(silent->pair.receiver, room, sizeof room, 0);
    bool done = false;

    must_end(must_send(silent->pair.sender, text_of(&text, 7), sizeof room, 0));
    if (silent->stage == WAITED_BEFORE) {
        assert_success(net_wait(receive, deadline_after_ms(LIMIT_MS), &done, NULL));
        assert_true(done);
    } else {
        must_end(receive);
    }
    assert_memory_equal(room, text_of(&text, 7), sizeof room);
}

/* As many as the credit, and how far messages may be ahead, allow without a receive. */
static void fill_with_sends(struct silent *silent)
{
    silent->bytes =
        silent->options.match == WIRE_MATCH_FIFO && silent->options.framing == WIRE_INLINE
            ? UNSOLICITED
            : EAGER;
    silent->messages = (int)(CREDIT / (silent->bytes + WIRE_EAGER_CHARGE)) - 1;
    if (silent->messages >= WIRE_MOST_AHEAD)
        silent->messages = WIRE_MOST_AHEAD - 1;
    for (int i = 0; i < silent->messages; i++)
        must_end(must_send(silent->pair.sender, text_of(&text, (uint64_t)i), silent->bytes, 0));
}

static void fill_with_receives(struct silent *silent)
{
    silent->bytes = EAGER;
    silent->messages = MOST_MESSAGES;
    silent->rooms = calloc(MOST_MESSAGES, EAGER);
    assert_non_null(silent->rooms);
    for (int i = 0; i < MOST_MESSAGES; i++)
        until(silent->receives[i] != NULL,
              assert_success(net_irecv(silent->pair.receiver, silent->rooms + (size_t)i * EAGER,
                                       EAGER, 0, &silent->receives[i])));
}

static void receive_all(struct silent *silent)
{
    static uint8_t room[UNSOLICITED];

    for (int i = 0; i < silent->messages; i++) {
        memset(room, 0, silent->bytes);
        must_end(must_receive(silent->pair.receiver, room, silent->bytes, 0));
        assert_memory_equal(room, text_of(&text, (uint64_t)i), silent->bytes);
    }
}

static void send_all(struct silent *silent)
{
    for (int i = 0; i < silent->messages; i++) {
        must_end(must_send(silent->pair.sender, text_of(&text, (uint64_t)i), EAGER, 0));
        must_end(silent->receives[i]);
        assert_memory_equal(silent->rooms + (size_t)i * EAGER, text_of(&text, (uint64_t)i), EAGER);
    }
}

static void begin(struct silent *silent)
{
    make_silent(silent);
    if (silent->stage == CALLED_BEFORE || silent->stage == WAITED_BEFORE)
        move_one(silent);
    if (silent->stage == RECEIVES_POSTED)
        fill_with_receives(silent);
    else
        fill_with_sends(silent);
}

static void end(struct silent *silent)
{
    if (silent->stage == RECEIVES_POSTED)
        send_all(silent);
    else
        receive_all(silent);
    pair_close(&silent->pair);
    free(silent->rooms);
}

/* All at the same time, since most of it is waiting. */
TEST(test_late_programs)
{
    static const uint8_t sockets[] = {1, 5};
    static struct silent all[STAGES * 2 * 2 * 2];
    /* a receiver that gets no CPU for that long is as good as lost */
    const unsigned timeout_ms = limit_ms(SANITIZED ? 2 * TIMEOUT_MS : TIMEOUT_MS);
    int count = 0;

    if (!threads_are_wanted())
        skip_because("without I/O threads a silent program loses its peer, as documented");
    for (int stage = 0; stage < STAGES; stage++)
        for (int match = WIRE_MATCH_FIFO; match <= WIRE_MATCH_TAG; match++)
            for (int framing = WIRE_INLINE; framing <= WIRE_SEPARATE; framing++)
                for (size_t i = 0; i < sizeof sockets; i++) {
                    if (framing == WIRE_SEPARATE && sockets[i] == 1)
                        continue;
                    all[count] = (struct silent){
                        .stage = (enum stage)stage,
                        .options =
                            PAIR_DEFAULTS(.sockets = sockets[i], .match = (enum wire_match)match,
                                          .framing = (enum wire_framing)framing,
                                          .eager_credit = CREDIT, .requests = 2 * MOST_MESSAGES,
                                          .timeout_ms = timeout_ms)};
                    begin(&all[count++]);
                }
    nap_ms(3 * timeout_ms);
    for (int i = 0; i < count; i++)
        end(&all[i]);
}

/* --- a peer that is stopped ---------------------------------------------------------------- */

enum { MORE_THAN_A_WINDOW = 64 << 20 };

static const struct net_link_options stopped_options =
    PAIR_DEFAULTS(.sockets = 2, .largest_slice = 256 << 10, .timeout_ms = TIMEOUT_MS);

/* The handle is in the memory that both processes see. */
static void post_and_stop(const uint8_t *argument)
{
    static uint8_t room[MORE_THAN_A_WINDOW];
    struct net_listener *listener = listen_locally(&stopped_options, child_shared->bytes);
    struct net_request *request;

    (void)argument;
    atomic_store(&child_shared->flag, 1);
    request = must_receive(accept_comm(listener), room, sizeof room, 1);
    /* the receive is announced by then */
    for (int i = 0; i < 100; i++)
        must_go_on(request);
    raise(SIGSTOP);
}

TEST(test_a_stopped_receiver_is_lost)
{
    static uint8_t data[MORE_THAN_A_WINDOW];
    struct net_request *send;
    struct net_comm *comm;
    bool done = false;
    pid_t child = child_fork(post_and_stop, NULL, 0);

    until(atomic_load(&child_shared->flag) != 0, nap_ms(1));
    comm = connect_comm(&stopped_options, child_shared->bytes);
    nap_ms(100);
    send = must_send(comm, data, sizeof data, 1);
    assert_int_equal(net_wait(send, deadline_after_ms(LIMIT_MS), &done, NULL), TCPX_REMOTE_ERROR);
    expect_text(strerror(ETIMEDOUT));
    net_comm_close(comm);
    child_kill(child);
}

static int begin_suite(void)
{
    child_begin();
    text = text_create(UNSOLICITED);
    return 0;
}

static int free_text(void)
{
    text_destroy(&text);
    return 0;
}

SUITE(.name = "silence", .begin = begin_suite, .tear_down = free_text);
