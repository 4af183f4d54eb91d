/*
 * After every error that a call returns for a transfer, its memory is the caller's again: it is
 * overwritten and deregistered, and nothing is written to it later. Both ends are processes; what
 * fails is the call, the peer or the lengths, and the data goes on coming. Calls that do not wait
 * stay prompt meanwhile.
 */
#include "tests/unit/aftermath.h"
#include "tests/unit/session_pair.h"

enum { BYTES = 1 << 20, LATER_MS = 60 };

static struct aftermath aftermath;

/* The memory of a call that has failed; false: it is the network's until the session is closed. */
static bool give_up_memory(struct tcpx_session *session, struct area *area)
{
    int result = tcpx_session_deregister(session, area->memory);

    area->memory = NULL;
    if (result == TCPX_INVALID_USAGE && strstr(tcpx_last_error(), "until the session") != NULL)
        return false;
    CHECK_SUCCESS(result);
    CHECK(aftermath_of(&aftermath, area->address, area->bytes, area->on_gpu ? tcpx_gpu_write : NULL,
                       area->on_gpu ? tcpx_gpu_read : NULL));
    return true;
}

/* The session is closed: everything is the caller's now. */
static void take_memory_back(struct area *area)
{
    CHECK(aftermath_of(&aftermath, area->address, area->bytes, area->on_gpu ? tcpx_gpu_write : NULL,
                       area->on_gpu ? tcpx_gpu_read : NULL));
}

#define LOOK_AGAIN() CHECK(aftermath_look(&aftermath, LATER_MS) == 0)

/* --- a stream that cannot be made to wait ---------------------------------------------------- */

/*
 * The copy into GPU memory is under way when the stream is refused, and goes on: the transfer has
 * not failed before the copy has ended.
 */
SIDES_CASE(no_stream, 2, IN_FULL)
{
    const struct tcpx_session_options options = usual_options();
    struct tcpx_session *session;

    /* Many copies one after the other, so that what overwrites the memory comes before the last. */
    CHECK(setenv("UCCL_TCPX_HOST_GPU_DELAY_US", "5000", 1) == 0);
    CHECK(setenv("UCCL_TCPX_SLICE_BYTES", "4K", 1) == 0);
    CHECK(setenv("UCCL_TCPX_STAGING_BYTES", "4M", 1) == 0);
    session = open_session(me, &options);
    for (unsigned turn = 0; turn < 4; turn++) {
        uint64_t bytes = turn % 2 == 0 ? 65536 : 256 << 10;
        struct tcpx_transfer *transfer;
        struct area area;

        area_open(&area, session, true, bytes, true, turn);
        transfer = begin_part(session, me->number == 0, &area, 0, bytes, turn, 0);
        if (me->number == 0) {
            FINISH(transfer);
            area_drop(&area, session);
            continue;
        }
        CHECK(test_on_stream(transfer, NULL) == TCPX_INVALID_ARGUMENT);
        CHECK(give_up_memory(session, &area));
        LOOK_AGAIN();
        area_free(&area);
    }
    /* The session goes on. */
    ping(me, session, 0, 100);
    tcpx_session_close(session);
}

/* --- every way to fail ------------------------------------------------------------------------ */

enum { TRANSFERS_AT_ONCE = 6 };

/* Whole messages, lists of pieces; both kinds of memory. */
static struct tcpx_transfer *begin_one(struct tcpx_session *session, bool sending,
                                       struct area *area, uint64_t bytes, unsigned number)
{
    return begin_part(session, sending, area, 0, bytes, number, number % 2 == 1 ? 2 : 0);
}

static void end_all(struct tcpx_session *session, struct area *areas,
                    struct tcpx_transfer **transfers, bool *lost)
{
    for (unsigned i = 0; i < TRANSFERS_AT_ONCE; i++) {
        int result = tcpx_transfer_wait(transfers[i], WAIT_MS);

        CHECK(result != TCPX_IN_PROGRESS);
        lost[i] = !give_up_memory(session, &areas[i]);
    }
}

/* The peer is killed, or closes, while its data comes and this side's goes. */
SIDES_CASE(peer_gone, 2, IN_FULL)
{
    for (unsigned turn = 0; turn < 6; turn++) {
        struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session;
        struct tcpx_transfer *transfers[TRANSFERS_AT_ONCE];
        struct area areas[TRANSFERS_AT_ONCE];
        bool lost[TRANSFERS_AT_ONCE] = {false};

        options.channels = turn % 2 == 0 ? 1 : 2;
        session = open_session(me, &options);
        for (unsigned i = 0; i < TRANSFERS_AT_ONCE; i++) {
            area_open(&areas[i], session, i / 2 % 2 == 1, 4 << 20, true, i);
            transfers[i] = begin_one(session, (i / 4 + me->number) % 2 == 0, &areas[i], 4 << 20, i);
        }
        meet(me);
        nap_us(300 + 700 * turn);
        if (me->number == 1) {
            tcpx_session_close(session);
        } else {
            end_all(session, areas, transfers, lost);
            LOOK_AGAIN();
            tcpx_session_close(session);
        }
        for (unsigned i = 0; i < TRANSFERS_AT_ONCE; i++)
            take_memory_back(&areas[i]);
        LOOK_AGAIN();
        for (unsigned i = 0; i < TRANSFERS_AT_ONCE; i++)
            area_free(&areas[i]);
        meet(me);
    }
}

/* A receive that is too short fails; the bytes that it did not take never come. */
SIDES_CASE(too_short, 2, IN_FULL)
{
    for (int channels = 1; channels <= 2; channels++) {
        struct tcpx_session_options options = small_chunks();
        struct tcpx_session *session;

        options.channels = channels;
        session = open_session(me, &options);
        for (unsigned turn = 0; turn < 8; turn++) {
            uint64_t bytes = turn / 4 == 0 ? 20000 : BYTES;
            struct area area;
            int result;

            area_open(&area, session, turn % 2 == 1, BYTES, true, turn);
            result = tcpx_transfer_wait(begin_one(session, me->number == 0, &area,
                                                  me->number == 0 ? bytes : bytes / 2, turn),
                                        WAIT_MS);
            CHECK(me->number == 0 || result == TCPX_INVALID_USAGE);
            CHECK(give_up_memory(session, &area));
            LOOK_AGAIN();
            area_free(&area);
        }
        ping(me, session, 1, 100);
        tcpx_session_close(session);
    }
}

/* --- calls meanwhile ---------------------------------------------------------------------------
 */

enum { PROMPT_MS = 500 };

static void check_prompt(uint64_t *since, const char *what)
{
    STAGE("%s took %llu ms", what, (unsigned long long)(now_ms() - *since));
    CHECK(now_ms() - *since <= PROMPT_MS);
    *since = now_ms();
}

/* What may be called while the session fails. */
static void make_calls(struct tcpx_session *session, struct tcpx_transfer *transfer, int *result)
{
    uint8_t bytes[100];
    struct tcpx_memory *memory;
    struct tcpx_transfer *other;
    const struct tcpx_move move = {.bytes = 0, .tag = 77};
    uint64_t since = now_ms();
    int done = 0;

    (void)statistics_of(session);
    check_prompt(&since, "statistics");
    CHECK_SUCCESS(tcpx_session_register(session, bytes, sizeof bytes, &memory));
    CHECK_SUCCESS(tcpx_session_deregister(session, memory));
    check_prompt(&since, "a registration");
    if (tcpx_send(session, &move, &other) == TCPX_SUCCESS)
        (void)!tcpx_transfer_test(other, &done);
    check_prompt(&since, "a send");
    *result = tcpx_transfer_test(transfer, &done);
    check_prompt(&since, "a test");
    CHECK(done == 0);
}

/*
 * Calls that do not wait stay prompt while the session fails: the GPU takes a second for each copy,
 * the peer is killed meanwhile, and what is still on the GPU is waited for by the session's own
 * thread without its lock.
 */
SIDES_CASE(failing, 2, IN_FULL)
{
    enum { MOVED = 300000 };
    struct tcpx_session_options options = small_chunks();
    struct tcpx_piece list[3] = {
        {.bytes = 1000}, {.offset = 5000, .bytes = 100000}, {.offset = 200000, .bytes = 90000}};
    struct tcpx_move move = {.tag = 1, .pieces = list, .piece_count = 3};
    struct tcpx_transfer *transfer;
    struct tcpx_session *session;
    struct area area;
    uint64_t since;
    int result = TCPX_SUCCESS;

    options.channels = 2;
    if (me->number == 0)
        slow_down_gpus(1200000);
    session = open_session(me, &options);
    area_allocate(&area, me->number == 0, MOVED, 0);
    if (me->number == 1)
        memset(area.address, 5, MOVED);
    area_register(&area, session);
    move.memory = area.memory;
    transfer = begin(session, me->number == 1, move);
    if (me->number == 1) {
        while (atomic_load(&meeting->number) == 0)
            nap_us(1000);
        kill(getpid(), SIGKILL);
    }
    /* The first copy is on the GPU. */
    since = now_ms();
    while (statistics_of(session).receiving_ns == 0 && now_ms() - since < WAIT_MS)
        nap_us(1000);
    nap_us(20000);
    atomic_store(&meeting->number, 1);
    since = now_ms();
    while (result == TCPX_SUCCESS) {
        make_calls(session, transfer, &result);
        CHECK(now_ms() - since < WAIT_MS);
        nap_us(1000);
    }
    CHECK(result == TCPX_REMOTE_ERROR);
    /* It has been waited for, and not only been given up. */
    CHECK(now_ms() - since > PROMPT_MS);
    tcpx_session_close(session);
    area_free(&area);
}

SIDES_SUITE("after an error", sides_begin);
