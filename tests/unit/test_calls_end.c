/*
 * The public calls when something ends: a comm with requests in flight, the peer, its process, and
 * a process that was forked. tests/unit/calls.h says how these tests run.
 */
#include "tests/unit/aftermath.h"
#include "tests/unit/calls.h"

/* --- comms --------------------------------------------------------------------------------- */

static void close_in_flight(int kind, int how)
{
    struct way way = make_way();
    void *receives[DEPTH];
    void *send = NULL;

    for (int i = 0; i < DEPTH; i++) {
        receives[i] = post_receive(&way, kind, (size_t)i * PIECE, PIECE);
        if (i < 8)
            send = post_send(&way, kind, (size_t)i * PIECE, PIECE);
    }
    if (how == 1) /* some are done, and none is consumed */
        finish_two(send, receives[7], NULL);
    if (how == 2)
        close_receiver(&way);
    end_way(&way);
}

/* A comm can be closed with anything in flight, and others do not notice. */
WAY_CASE(close_in_flight, ALWAYS)
{
    for (int kind = 0; kind < facts.kinds; kind++)
        for (int how = 0; how < 3; how++) {
            close_in_flight(kind, how);
            check_way(way);
        }
}

/* The result of the request, which is not success; SOON_MS at most. */
static int failure_of(void *request)
{
    uint64_t since = now_ms();
    int result = tcpx_wait_request(request, SOON_MS, NULL, NULL);

    CHECK(now_ms() - since < 2 * SOON_MS);
    return result;
}

static bool is_broken(int result)
{
    return (result == TCPX_SYSTEM_ERROR || result == TCPX_REMOTE_ERROR) &&
           *tcpx_last_error() != '\0';
}

/* The receives into this memory have failed: it is the caller's, and nothing more comes. */
static void check_aftermath(struct way *way, int kind)
{
    enum { LATER_MS = 30 };
    struct aftermath aftermath = {0};
    const struct area *area = &way->to[kind];

    CHECK(aftermath_of(&aftermath, area->address, area->bytes, kind == GPU ? tcpx_gpu_write : NULL,
                       kind == GPU ? tcpx_gpu_read : NULL));
    CHECK_SUCCESS(tcpx_dereg_mr(way->receiver, way->to_handle[kind]));
    CHECK(aftermath_look(&aftermath, LATER_MS) == 0);
}

/* When the sender has gone, every receive fails soon, with the reason. */
CASE(sender_closes, ALWAYS)
{
    start();
    for (int kind = 0; kind < facts.kinds; kind++) {
        struct way way = make_way();
        void *data = way.to[kind].address;
        void *receives[3];
        int size = PIECE;
        int done;

        for (int i = 0; i < 3; i++)
            receives[i] = post_receive(&way, kind, (size_t)i * PIECE, PIECE);
        close_sender(&way);
        CHECK(is_broken(failure_of(receives[0])));
        CHECK(is_broken(failure_of(receives[1])));
        CHECK(is_broken(tcpx_test(receives[2], &done, NULL)));
        CHECK_MISUSE(tcpx_test(receives[1], &done, NULL), "ended");
        CHECK(is_broken(
            tcpx_irecv(way.receiver, 1, &data, &size, NULL, &way.to_handle[kind], &receives[0])));
        check_aftermath(&way, kind);
        end_way(&way);
    }
}

/* Sends until the peer's end is noticed; without a deadline a plugin may never do. */
static int send_to_nobody(struct way *way, int kind)
{
    uint64_t since = now_ms();
    int result = TCPX_SUCCESS;

    while (now_ms() - since < SOON_MS) {
        void *request = NULL;

        result = tcpx_isend(way->sender, way->from[kind].address, PIECE, 0, way->from_handle[kind],
                            &request);
        if (result == TCPX_SUCCESS && request != NULL)
            result = tcpx_wait_request(request, facts.quirky ? 200 : (int)SOON_MS, NULL, NULL);
        if (result != TCPX_SUCCESS)
            return result;
        nap_ms(1);
    }
    return result;
}

/* When the receiver has gone, a send fails sooner or later, and no signal ends the process. */
CASE(receiver_closes, ALWAYS)
{
    struct way way;
    int result;

    signal(SIGPIPE, SIG_DFL);
    start();
    for (int kind = 0; kind < facts.kinds; kind++) {
        way = make_way();
        close_receiver(&way);
        for (int i = 0; i < 3; i++) {
            result = send_to_nobody(&way, kind);
            CHECK(is_broken(result) || (facts.quirky && result == TCPX_IN_PROGRESS));
        }
    }
    check_new_way();
}

/* Until all sends are done. Most need nothing of the receiver for that. */
static void finish_sends(void *const *sends, void *const *receives, bool *received)
{
    for (int i = 0; i < DEPTH; i++)
        while (tcpx_wait_request(sends[i], 20, NULL, NULL) != TCPX_SUCCESS) {
            CHECK(check_said("in time"));
            for (int k = 0; k < DEPTH; k++)
                received[k] = received[k] || is_done(receives[k], NULL);
        }
}

/* What was sent and is done arrives, although its sender is closed at once and nobody looks. */
WAY_CASE(close_after_done, ALWAYS)
{
    void *sends[DEPTH];
    void *receives[DEPTH];
    bool received[DEPTH] = {false};
    int targets[DEPTH];

    for (int i = 0; i < DEPTH; i++)
        targets[i] = i / 2 % facts.kinds;
    post_pieces(way, targets, sends, receives, DEPTH);
    finish_sends(sends, receives, received);
    close_sender(way);
    nap_ms(facts.quirky ? 700 : 50);
    for (int i = 0; i < DEPTH; i++)
        if (!received[i])
            CHECK_SUCCESS(tcpx_wait_request(receives[i], SOON_MS, NULL, NULL));
    settle(way, receives, DEPTH);
    check_pieces(way, targets, DEPTH);
}

/* A sender that is killed is noticed soon. */
PROCESSES_CASE(killed)
{
    void *receive = post_receive(way, facts.kinds - 1, 0, PIECE);

    CHECK_SUCCESS(tcpx_wait_request(receive, SOON_MS, NULL, NULL));
    settle(way, &receive, 1);
    atomic_store(&child_shared->flag, STAGE_RECEIVED);
    CHECK(is_broken(failure_of(post_receive(way, facts.kinds - 1, 0, PIECE))));
}

static void send_killed(struct way *way)
{
    void *send = post_send(way, facts.kinds - 1, 0, PIECE);

    CHECK_SUCCESS(tcpx_wait_request(send, SOON_MS, NULL, NULL));
    wait_for_receiver();
    raise(SIGKILL);
}

/* --- forks --------------------------------------------------------------------------------- */

/* What a process has when it forks. */
struct inheritance {
    struct way *way;
    void *listener;
    void *request;
    struct tcpx_unpack *unpack;
    uint64_t ticket;
    void *address; /* of GPU memory */
};

static struct inheritance inherited;

#define CHECK_FORKED(call) CHECK_MISUSE(call, "fork")

static void call_comms_when_forked(const uint8_t *argument)
{
    struct way *way = inherited.way;
    void *listener = inherited.listener;
    void *request = inherited.request;
    struct tcpx_net_properties properties;
    uint8_t handle[TCPX_HANDLE_BYTES] = {0};
    void *data = way->to[HOST].address;
    void *sent = way->from_handle[HOST];
    void *comm = NULL;
    int size = 10;
    int done;

    (void)argument;
    CHECK_FORKED(tcpx_load_plugin(NULL));
    CHECK_FORKED(tcpx_load_plugin("builtin"));
    CHECK_FORKED(tcpx_load_plugin(path_in_build("libnccl-net-tcpx.so")));
    CHECK(tcpx_get_device_count() == -1 && check_said("fork"));
    CHECK_FORKED(tcpx_get_properties(0, &properties));
    CHECK_FORKED(tcpx_listen(0, handle, &comm));
    CHECK_FORKED(tcpx_connect_v5(0, handle, &comm, NULL));
    CHECK_FORKED(tcpx_accept_v5(listener, &comm, NULL));
    CHECK_FORKED(tcpx_reg_mr(way->sender, data, PAGE, NCCL_PTR_HOST, &comm));
    CHECK_FORKED(tcpx_dereg_mr(way->sender, sent));
    CHECK_FORKED(tcpx_isend(way->sender, way->from[HOST].address, 10, 0, sent, &comm));
    CHECK_FORKED(tcpx_irecv(way->receiver, 1, &data, &size, NULL, &way->to_handle[HOST], &comm));
    CHECK_FORKED(tcpx_test(request, &done, NULL));
    CHECK_FORKED(tcpx_irecv_consumed(way->receiver, 1, request));
    CHECK_FORKED(tcpx_wait_request(request, 1000, NULL, NULL));
    CHECK_FORKED(tcpx_close_send(way->sender));
    CHECK_FORKED(tcpx_close_recv(way->receiver));
    CHECK_FORKED(tcpx_close_listen(listener));
}

static void call_unpack_when_forked(const uint8_t *argument)
{
    struct tcpx_unpack *another = NULL;
    uint64_t ticket = inherited.ticket;
    int done;

    (void)argument;
    CHECK_FORKED(tcpx_unpack_create(0, &another));
    CHECK_FORKED(tcpx_unpack_submit(inherited.unpack, &inherited.request, 1, &ticket));
    CHECK_FORKED(tcpx_unpack_poll(inherited.unpack, ticket, &done));
    CHECK_FORKED(tcpx_unpack_wait(inherited.unpack, ticket, 1000));
    tcpx_unpack_destroy(inherited.unpack);
}

static void call_memory_when_forked(const uint8_t *argument)
{
    struct tcpx_gpu_properties properties;
    uint8_t bytes[16] = {0};
    void *another;
    int count;

    (void)argument;
    CHECK_FORKED(tcpx_gpu_count(&count));
    CHECK_FORKED(tcpx_gpu_get_properties(0, &properties));
    CHECK_FORKED(tcpx_gpu_alloc(0, PAGE, &another));
    CHECK_FORKED(tcpx_gpu_write(inherited.address, bytes, sizeof bytes));
    CHECK_FORKED(tcpx_gpu_read(bytes, inherited.address, sizeof bytes));
    CHECK_FORKED(tcpx_gpu_write(inherited.address, bytes, 0));
    CHECK_FORKED(tcpx_gpu_read(bytes, inherited.address, 0));
    CHECK_FORKED(tcpx_gpu_free(inherited.address));
}

/* A fork of this process calls what it may not; its CHECK has left its text. */
static void fork_and_call(child_run *run)
{
    int status;

    child_limit_ms = HANG_MS;
    status = child_wait(child_try_fork_here(run, NULL));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* In a forked child every call says that it is one, and the parent goes on. */
WAY_CASE(fork, ALWAYS)
{
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *receive;

    inherited.way = way;
    check_way(way);
    CHECK_SUCCESS(tcpx_listen(0, handle, &inherited.listener));
    inherited.request = receive = post_receive(way, facts.kinds - 1, 0, PIECE);
    fork_and_call(call_comms_when_forked);
    finish_two(post_send(way, facts.kinds - 1, 0, PIECE), receive, NULL);
    consume(way, &receive, 1);
    check_way(way);
    CHECK_SUCCESS(tcpx_close_listen(inherited.listener));
}

/* The same holds for unpacking, */
WAY_CASE(fork_unpack, ALWAYS)
{
    CHECK_SUCCESS(tcpx_unpack_create(0, &inherited.unpack));
    inherited.request = move_piece(way, facts.kinds - 1);
    CHECK_SUCCESS(tcpx_unpack_submit(inherited.unpack, &inherited.request, 1, &inherited.ticket));
    CHECK_SUCCESS(tcpx_unpack_wait(inherited.unpack, inherited.ticket, SOON_MS));
    fork_and_call(call_unpack_when_forked);
    consume(way, &inherited.request, 1);
    tcpx_unpack_destroy(inherited.unpack);
    check_way(way);
}

/* and for GPU memory. */
CASE(fork_memory, ALWAYS)
{
    uint8_t bytes[16];

    CHECK_SUCCESS(tcpx_gpu_alloc(0, PAGE, &inherited.address));
    fork_and_call(call_memory_when_forked);
    CHECK_SUCCESS(tcpx_gpu_read(bytes, inherited.address, sizeof bytes));
    CHECK_SUCCESS(tcpx_gpu_free(inherited.address));
}

CALLS_SUITE("calls_end");
