/*
 * Transfers in the order of the caller's own work on the GPU: after a stream or an event, and
 * before later work on a stream. Also what is too large to be compared from the host.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 * For machines that are good for it TCPX_TEST_LARGE=1: 5 GiB at once; TCPX_TEST_SOAK=bytes.
 */
#include "tests/unit/session_caller.h"

/*
 * A send reads what the stream or event before it has written; a receive writes after what was to
 * read before it. The GPU is slow enough that one that does not wait is seen: the other side is
 * long there, and waits for nothing.
 */
static void after_once(struct side *me, struct tcpx_session *session, struct caller *caller,
                       enum tcpx_after after, bool as_pieces, uint64_t bytes, unsigned turn)
{
    bool sends = me->number == 1;
    bool waits = me->number == (int)(turn % 2);
    struct tcpx_move move;
    struct tcpx_transfer *transfer;
    struct area moved; /* sent from, or received into */
    struct area other;

    area_make(&moved, session, true, bytes);
    area_allocate(&other, true, bytes, 0);
    area_fill(&moved, sends && !waits ? 2 + turn : 1 + turn);
    area_fill(&other, 2 + turn);
    move = move_of(&moved, 0, bytes, 1, as_pieces);
    if (waits) {
        meet(me);
        caller_be_busy(caller);
        if (sends)
            caller_copy(caller, moved.address, other.address, bytes);
        else
            caller_copy(caller, other.address, moved.address, bytes);
        move.after = after;
        move.after_what = gpu_stream_native(caller->stream);
        if (after == TCPX_AFTER_EVENT) {
            CHECK_SUCCESS(gpu_event_record(caller->event, caller->stream));
            move.after_what = gpu_event_native(caller->event);
        }
    }
    transfer = begin(session, sends, move);
    if (!waits)
        meet(me);
    FINISH(transfer);
    pattern_copy(moved.expected, bytes, 2 + turn, 0);
    if (!sends && waits)
        pattern_copy(other.expected, bytes, 1 + turn, 0);
    CHECK_AREA(&moved, 0, bytes);
    caller_drain(caller);
    CHECK_AREA(&other, 0, bytes);
    area_drop(&moved, session);
    area_free(&other);
}

SESSION_CASE(after, 0, IN_BRIEF, .gpu_delay_us = 5000)
{
    struct caller caller;

    caller_start(&caller, 64 << 20);
    for (unsigned turn = 0; turn < (turns_of(100) > 50 ? 16u : 8u); turn++)
        after_once(me, session, &caller, turn / 2 % 2 == 0 ? TCPX_AFTER_STREAM : TCPX_AFTER_EVENT,
                   turn / 4 % 2 == 1, turn < 8 ? 9000 : 150000, turn);
    CHECK(statistics_of(session).after_stalls > 0 || is_builtin(session));
    caller_end(&caller);
}

/* What a stream was told to wait for is there for its later work. */
SESSION_CASE(on_stream, 0, IN_BRIEF, .gpu_delay_us = 2000)
{
    struct caller caller;

    caller_start(&caller, 1 << 20);
    for (unsigned turn = 0; turn < 4; turn++) {
        uint64_t bytes = turn < 2 ? 5000 : 60000;
        struct tcpx_transfer *transfer;
        struct area area;
        struct area copy;

        area_open(&area, session, true, bytes, me->number == 0, turn);
        area_allocate(&copy, true, bytes, 0);
        area_poison(&copy);
        transfer = begin_part(session, me->number == 0, &area, 0, bytes, turn, turn % 2);
        CHECK_SUCCESS(test_on_stream(transfer, gpu_stream_native(caller.stream)));
        if (me->number == 1) {
            caller_copy(&caller, copy.address, area.address, bytes);
            caller_drain(&caller);
            pattern_copy(copy.expected, bytes, turn, 0);
            CHECK_AREA(&copy, 0, bytes);
        }
        area_drop(&area, session);
        area_free(&copy);
    }
    caller_end(&caller);
}

/* A stream is nothing for a session without a GPU. */
SESSION_CASE(after_without_gpu, 0, IN_FULL, .without_gpu = true)
{
    struct tcpx_transfer *transfer;
    struct area area;

    area_make(&area, session, false, 10);
    for (unsigned pieces = 0; pieces < 2; pieces++) {
        struct tcpx_move move = move_of(&area, 0, 10, 0, pieces);

        move.after = TCPX_AFTER_STREAM;
        CHECK_ERROR(try_begin(session, pieces == 0, move, &transfer), TCPX_INVALID_USAGE,
                    "the session has no GPU");
    }
    ping(me, session, 0, 1);
    ping(me, session, 1, 3); /* neither side closes before the other has got so far */
    area_drop(&area, session);
}

/* More than 2^32 bytes at once. */
SESSION_CASE(five_gib, 0, IF_LARGE)
{
    const uint64_t bytes = ((uint64_t)5 << 30) + 12345;
    struct tcpx_memory *memory;
    struct caller caller;
    void *address;

    caller_start(&caller, 4096);
    CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes, &address));
    CHECK_SUCCESS(tcpx_session_register(session, address, bytes, &memory));
    for (unsigned as_pieces = 0; as_pieces < 2; as_pieces++) {
        /* the second time in three pieces, whose middle one crosses 4 GiB */
        const struct tcpx_piece pieces[] = {
            {.offset = 0, .bytes = 1000003},
            {.offset = 1000003, .bytes = bytes - 2000006},
            {.offset = bytes - 1000003, .bytes = 1000003},
        };
        struct tcpx_move move = {.memory = memory, .bytes = bytes, .tag = 1};

        if (as_pieces) {
            move.pieces = pieces;
            move.piece_count = 3;
        }
        if (me->number == 0)
            caller_fill(&caller, address, bytes, as_pieces);
        else
            caller_wipe(&caller, address, bytes);
        meet(me);
        CHECK_SUCCESS(tcpx_transfer_wait(begin(session, me->number == 0, move), 2 * WAIT_MS));
        CHECK(caller_count_wrong(&caller, address, bytes, as_pieces, 0) == 0);
        meet(me);
    }
    CHECK_SUCCESS(tcpx_session_deregister(session, memory));
    CHECK_SUCCESS(tcpx_gpu_free(address));
    caller_end(&caller);
}

/* Rounds of some transfers both ways, of GPU memory, all of them compared where they are. */
SESSION_CASE(soak, 0, IF_SOAK)
{
    enum { SLOTS = 8, MOST = 96 << 20 };
    uint64_t total = number_of("TCPX_TEST_SOAK", 0);
    struct tcpx_memory *memories[2];
    struct caller caller;
    uint64_t random = 77;
    uint8_t *sides[2]; /* sent from, received into */
    uint64_t moved = 0;

    alarm(3600);
    caller_start(&caller, 4096);
    for (int i = 0; i < 2; i++) {
        void *address;

        CHECK_SUCCESS(tcpx_gpu_alloc(0, (uint64_t)SLOTS * MOST, &address));
        sides[i] = address;
        CHECK_SUCCESS(
            tcpx_session_register(session, address, (uint64_t)SLOTS * MOST, &memories[i]));
    }
    while (moved < total) {
        struct tcpx_transfer *transfers[2 * SLOTS];
        uint64_t lengths[2 * SLOTS];
        uint64_t seed = random_next(&random) % 100000;

        for (int i = 0; i < 2 * SLOTS; i++) {
            lengths[i] = one_in(&random, 4) ? MOST - random_below(&random, 5000)
                                            : random_below(&random, MOST / 4);
            moved += lengths[i];
        }
        caller_fill(&caller, sides[0], (uint64_t)SLOTS * MOST, seed + (unsigned)me->number);
        caller_wipe(&caller, sides[1], (uint64_t)SLOTS * MOST);
        for (unsigned i = 0; i < 2 * SLOTS; i++) { /* the first half goes from side 0 to side 1 */
            bool sends = (i < SLOTS) == (me->number == 0);
            const struct area area = {.memory = memories[!sends]};

            transfers[i] = begin_part(session, sends, &area, (uint64_t)(i % SLOTS) * MOST,
                                      lengths[i], i, i % 3 == 2 ? 2 : 0);
        }
        for (unsigned i = 0; i < 2 * SLOTS; i++)
            FINISH(transfers[(i * 5 + (unsigned)me->number) % (2 * SLOTS)]);
        for (unsigned i = 0; i < SLOTS; i++) {
            uint64_t length = lengths[i + (me->number == 0 ? SLOTS : 0)];
            uint64_t place = (uint64_t)i * MOST;

            CHECK(caller_count_wrong(&caller, sides[1] + place, length,
                                     seed + (unsigned)!me->number, place) == 0);
        }
    }
    for (int i = 0; i < 2; i++) {
        CHECK_SUCCESS(tcpx_session_deregister(session, memories[i]));
        CHECK_SUCCESS(tcpx_gpu_free(sides[i]));
    }
    caller_end(&caller);
}

SIDES_SUITE("session gpu", sides_begin);
