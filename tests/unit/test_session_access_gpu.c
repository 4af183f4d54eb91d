/*
 * Reads and writes in the order of the caller's own work on the GPU: after a stream or an event.
 * Also what is too large to be compared from the host.
 *
 * TCPX_TEST_TURNS=percent of all rounds. For machines that are good for it TCPX_TEST_LARGE=1: 5 GiB
 * at once.
 */
#include "tests/unit/session_access.h"
#include "tests/unit/session_caller.h"

/*
 * A write sends what the stream or event before it has written; a read writes after what was to
 * read before it. The GPU is slow enough that one that does not wait is seen.
 */
static void after_once(struct side *me, struct tcpx_session *session, struct caller *caller,
                       bool is_read, enum tcpx_after after, unsigned parts, uint64_t bytes)
{
    const bool begins = me->number == 0;
    struct tcpx_part list[2];
    struct tcpx_access access = {.parts = list, .part_count = parts, .after = after};
    struct shared here;
    struct area other; /* of this side's program */

    shared_open(&here, session, true, bytes, READ_WRITE);
    area_allocate(&other, true, bytes, 0);
    area_fill(&here.area, begins ? 1 : 3);
    area_fill(&other, 2);
    list[0] = part_of_both(&here, 0, &here, 0, parts == 1 ? bytes : bytes / 3);
    list[1] = part_of_both(&here, bytes / 3, &here, bytes / 3, bytes - bytes / 3);
    meet_and_see(me, session);
    if (begins) {
        caller_be_busy(caller);
        if (is_read)
            caller_copy(caller, other.address, here.area.address, bytes);
        else
            caller_copy(caller, here.area.address, other.address, bytes);
        access.after_what = gpu_stream_native(caller->stream);
        if (after == TCPX_AFTER_EVENT) {
            CHECK_SUCCESS(gpu_event_record(caller->event, caller->stream));
            access.after_what = gpu_event_native(caller->event);
        }
        FINISH(begin_access(session, is_read, &access));
    }
    meet_and_see(me, session);
    pattern_copy(here.area.expected, bytes, is_read ? 3 : 2, 0);
    CHECK_AREA(&here.area, 0, bytes);
    caller_drain(caller);
    if (begins && is_read)
        pattern_copy(other.expected, bytes, 1, 0);
    CHECK_AREA(&other, 0, bytes);
    shared_close(&here);
    area_free(&other);
}

SESSION_CASE(after, 0, IN_BRIEF, .windows = true, .gpu_delay_us = 5000)
{
    struct caller caller;

    caller_start(&caller, 64 << 20);
    for (unsigned turn = 0; turn < 16; turn++)
        if (turns_of(100) > 50 || turn % 3 == 0)
            after_once(me, session, &caller, (turn & 1) != 0,
                       (turn & 2) != 0 ? TCPX_AFTER_STREAM : TCPX_AFTER_EVENT, 1 + (turn >> 2 & 1),
                       turn < 8 ? 9000 : 150000);
    CHECK(statistics_of(session).after_stalls > 0 || me->number == 1);
    caller_end(&caller);
}

/* More than the 64 that may wait for the GPU at once: those behind them begin later, and all end.
 */
SESSION_CASE(many_that_wait, 0, IN_BRIEF, .windows = true, .gpu_delay_us = 2000)
{
    enum { COUNT = 150, EACH = 1000 };
    struct tcpx_transfer *transfers[COUNT];
    struct caller caller;
    struct shared here;

    caller_start(&caller, 1 << 20);
    shared_open(&here, session, true, COUNT * EACH, READ_WRITE);
    area_fill(&here.area, (unsigned)me->number);
    meet_and_see(me, session);
    if (me->number == 0) {
        caller_be_busy(&caller);
        for (unsigned i = 0; i < COUNT; i++) {
            uint64_t at = (uint64_t)i * EACH;
            const struct tcpx_part part = part_of_both(&here, at, &here, at, EACH);
            const struct tcpx_access access = {
                .parts = &part,
                .part_count = 1,
                .after = i % 10 != 9 ? TCPX_AFTER_STREAM : TCPX_AFTER_NOTHING,
                .after_what = i % 10 != 9 ? gpu_stream_native(caller.stream) : NULL};

            transfers[i] = begin_access(session, false, &access);
        }
        for (unsigned i = COUNT; i > 0; i--)
            FINISH(transfers[i - 1]);
    }
    meet_and_see(me, session);
    pattern_copy(here.area.expected, here.area.bytes, 0, 0);
    CHECK_AREA(&here.area, 0, here.area.bytes);
    shared_close(&here);
    caller_end(&caller);
}

/* More than 2^32 bytes at once, in one part and in three, whose middle one crosses 4 GiB. */
SESSION_CASE(five_gib, 0, IF_LARGE, .windows = true)
{
    const uint64_t bytes = ((uint64_t)5 << 30) + 12345;
    const uint64_t end = 1000003; /* of the list, at both ends */
    struct tcpx_remote *remote;
    struct tcpx_window *window;
    struct caller caller;
    void *address;

    caller_start(&caller, 4096);
    CHECK_SUCCESS(tcpx_gpu_alloc(0, bytes, &address));
    CHECK_SUCCESS(tcpx_window_open(0, address, bytes, READ_WRITE, &window));
    remote = swap_windows(session, 1, window);
    for (unsigned kinds = 0; kinds < 4; kinds++) {
        const bool is_read = (kinds & 1) != 0;
        const struct tcpx_part parts[] = {{window, bytes - end, remote, bytes - end, end},
                                          {window, end, remote, end, bytes - 2 * end},
                                          {window, 0, remote, 0, end}};
        const struct tcpx_part whole = {window, 0, remote, 0, bytes};
        const struct tcpx_access access = {.parts = kinds < 2 ? &whole : parts,
                                           .part_count = kinds < 2 ? 1 : 3,
                                           .timeout_ms = (int)(4 * WAIT_MS)};

        STAGE("kinds %u", kinds);
        if ((me->number == 0) != is_read)
            caller_fill(&caller, address, bytes, kinds);
        else
            caller_wipe(&caller, address, bytes);
        meet_and_see(me, session);
        if (me->number == 0)
            CHECK_SUCCESS(tcpx_transfer_wait(begin_access(session, is_read, &access), 4 * WAIT_MS));
        meet_and_see(me, session);
        CHECK(caller_count_wrong(&caller, address, bytes, kinds, 0) == 0);
        meet_and_see(me, session);
    }
    CHECK_SUCCESS(tcpx_remote_close(remote));
    CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
    CHECK_SUCCESS(tcpx_gpu_free(address));
    caller_end(&caller);
}

SIDES_SUITE("session access gpu", sides_begin);
