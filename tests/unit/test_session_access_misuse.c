/*
 * What reads, writes and notes refuse, on this side and on the peer's, and in which words. Nothing
 * has begun then, or nothing of it is touched.
 */
#include "tests/unit/session_notes.h"

enum { BYTES = 10000 };

/* --- accesses --------------------------------------------------------------------------------- */

/* What both calls refuse. */
static void check_access_arguments(struct tcpx_session *session, const struct shared *here)
{
    static const uint8_t note[TCPX_NOTE_BYTES + 1];
    struct tcpx_part part = part_of_both(here, 0, here, 0, 10);
    struct tcpx_part *many = calloc((1 << 20) + 1, sizeof *many);
    struct tcpx_transfer *transfer = NULL;

    CHECK(many != NULL);
    for (int reads = 0; reads < 2; reads++) {
        const char *call = reads ? "tcpx_read" : "tcpx_write";
        struct tcpx_access access = {.parts = &part, .part_count = 1};

        CHECK_REFUSED(try_access(NULL, reads, &access, &transfer), call);
        CHECK(strstr(tcpx_last_error(), "session is NULL") != NULL);
        CHECK_REFUSED(try_access(session, reads, NULL, &transfer), "an argument is NULL");
        CHECK_REFUSED(try_access(session, reads, &access, NULL), "an argument is NULL");
        access.parts = NULL;
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "an argument is NULL");
        access = (struct tcpx_access){.parts = &part, .part_count = 1, .note_bytes = 1};
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "an argument is NULL");
        access.note = note;
        access.note_bytes = sizeof note;
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "a note of 32769 bytes");
        access = (struct tcpx_access){.parts = many, .part_count = (1 << 20) + 1};
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "1048577 parts");
        access = (struct tcpx_access){.parts = &part, .part_count = 1};
        access.after = (enum tcpx_after)3;
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "after is 3");
        access.after = TCPX_AFTER_NOTHING;
        access.timeout_ms = -2;
        CHECK_REFUSED(try_access(session, reads, &access, &transfer), "-2");
    }
    CHECK(transfer == NULL);
    free(many);
}

/* Parts that cannot be; the second one of two, so that the first one has been taken already. */
static void check_parts(struct tcpx_session *session, const struct shared *here,
                        const struct shared *of_other, const struct shared *on_gpu,
                        const struct shared *read_only)
{
    struct tcpx_window *const mine = here->window;
    struct tcpx_remote *const theirs = here->remote;
    const struct {
        struct tcpx_part part;
        enum tcpx_result result;
        const char *words;
    } wrong[] = {
        {{NULL, 0, theirs, 0, 1}, TCPX_INVALID_ARGUMENT, "part 1: its window is NULL"},
        {{mine, 0, NULL, 0, 1}, TCPX_INVALID_ARGUMENT, "part 1: its remote is NULL"},
        {{mine, 0, NULL, 0, 0}, TCPX_INVALID_ARGUMENT, "part 1: its remote is NULL"},
        {{mine, BYTES, theirs, 0, 1}, TCPX_INVALID_ARGUMENT, "1 bytes at 10000 are not in this"},
        {{mine, BYTES + 1, theirs, 0, 0},
         TCPX_INVALID_ARGUMENT,
         "0 bytes at 10001 are not in this"},
        {{mine, UINT64_MAX, theirs, 0, 2}, TCPX_INVALID_ARGUMENT, "this side's window of 10000"},
        {{mine, 1, theirs, 0, UINT64_MAX}, TCPX_INVALID_ARGUMENT, "this side's window of 10000"},
        {{mine, 0, theirs, BYTES - 1, 2}, TCPX_INVALID_ARGUMENT, "2 bytes at 9999 are not in the "},
        {{mine, 0, theirs, UINT64_MAX, 2}, TCPX_INVALID_ARGUMENT, "the peer's window of 10000"},
        {{mine, 0, theirs, BYTES + 1, 0},
         TCPX_INVALID_ARGUMENT,
         "0 bytes at 10001 are not in the "},
        {{mine, 0, of_other->remote, 0, 1}, TCPX_INVALID_ARGUMENT, "belongs to another session"},
        {{on_gpu->window, 0, theirs, 0, 1}, TCPX_INVALID_USAGE, "GPU memory and in host memory"},
    };
    struct tcpx_transfer *transfer = NULL;
    struct tcpx_part parts[2] = {part_of_both(here, 0, here, 0, 10)};
    const struct tcpx_access access = {.parts = parts, .part_count = 2};

    for (unsigned i = 0; i < 2 * COUNT_OF(wrong); i++) {
        STAGE("part %u", i / 2);
        parts[1] = wrong[i / 2].part;
        CHECK_ERROR(try_access(session, i % 2 == 1, &access, &transfer), wrong[i / 2].result,
                    wrong[i / 2].words);
    }
    STAGE("%s", "");
    parts[1] = part_of_both(here, 0, read_only, 0, 1);
    CHECK_ERROR(try_access(session, false, &access, &transfer), TCPX_INVALID_USAGE,
                "part 1: the peer's window cannot be written");
    CHECK(transfer == NULL);
}

/* The bytes of all parts are a number of 64 bits; nothing is touched of what the window names. */
static void check_sum(struct tcpx_session *session, const struct shared *here)
{
    const uint64_t half = (uint64_t)1 << 63;
    uint8_t key[TCPX_KEY_BYTES];
    struct tcpx_transfer *transfer = NULL;
    struct tcpx_remote *remote;
    struct tcpx_window *huge;

    CHECK_SUCCESS(tcpx_window_open(-1, (void *)(uintptr_t)4096, half, 0, &huge));
    CHECK_SUCCESS(tcpx_window_key(here->window, key));
    memset(key + 16, 0xff, 8); /* docs/protocol.md: its length */
    CHECK_SUCCESS(tcpx_remote_open(session, key, sizeof key, &remote));
    {
        const struct tcpx_part part = {huge, 0, remote, 0, half};
        const struct tcpx_part parts[] = {part, part, {huge, 0, remote, 0, 1}};
        const struct tcpx_access access = {.parts = parts, .part_count = 3};

        CHECK_REFUSED(try_access(session, false, &access, &transfer), "too large");
    }
    CHECK_SUCCESS(tcpx_remote_close(remote));
    CHECK_SUCCESS(tcpx_window_close(huge, WAIT_MS));
}

SESSION_CASE(misuse, 0, IN_FULL, .windows = true)
{
    const struct tcpx_session_options options = with_windows();
    struct tcpx_session *other = open_session(me, &options);
    struct shared here;
    struct shared of_other;
    struct shared on_gpu;
    struct shared read_only;

    shared_open(&here, session, false, BYTES, READ_WRITE);
    shared_open(&of_other, other, false, BYTES, READ_WRITE);
    shared_open(&on_gpu, session, true, BYTES, READ_WRITE);
    shared_open(&read_only, session, false, BYTES, TCPX_WINDOW_READ);
    check_access_arguments(session, &here);
    check_parts(session, &here, &of_other, &on_gpu, &read_only);
    check_sum(session, &here);
    CHECK_REFUSED(tcpx_transfer_cancel(NULL), "NULL");

    /* nothing has begun, and nothing is kept by what was refused */
    CHECK(statistics_of(session).failures == 0 && statistics_of(session).served_refusals == 0);
    FINISH(begin_one(session, true, part_of_both(&here, 0, &read_only, 0, 10)));
    meet_and_see(me, session);
    memset(here.area.expected, POISON, BYTES);
    CHECK_AREA(&here.area, 0, BYTES);
    shared_close(&here);
    shared_close(&of_other);
    shared_close(&on_gpu);
    shared_close(&read_only);
    tcpx_session_close(other);
}

/* What only the owner of a window knows is refused there, and nothing of it is touched. */
SESSION_CASE(refused_there, 0, IN_BRIEF, .windows = true)
{
    uint8_t key[TCPX_KEY_BYTES];
    struct tcpx_remote *longer;
    struct shared here;
    struct shared on_gpu;

    shared_open(&here, session, false, BYTES, READ_WRITE);
    shared_open(&on_gpu, session, true, BYTES, READ_WRITE);
    CHECK_SUCCESS(tcpx_window_key(here.window, key));
    memset(key + 16, 0xff, 8); /* docs/protocol.md: its length */
    swap_bytes(session, 3, key, key, sizeof key);
    CHECK_SUCCESS(tcpx_remote_open(session, key, sizeof key, &longer));
    for (int reads = 0; reads < 2; reads++) {
        /* the first part would be right */
        struct tcpx_part parts[] = {part_of_both(&here, 0, &here, 0, 100),
                                    {here.window, 100, longer, BYTES - 1, 2}};
        const struct tcpx_access access = {.parts = parts, .part_count = 2};

        CHECK_ERROR(tcpx_transfer_wait(begin_access(session, reads, &access), WAIT_MS),
                    TCPX_INVALID_USAGE, "2 bytes at 9999 are not in a window of 10000 bytes");
        parts[1].remote_offset = UINT64_MAX - 1; /* of one byte, the largest that its key says */
        parts[1].bytes = 1;
        CHECK_ERROR(tcpx_transfer_wait(begin_access(session, reads, &access), WAIT_MS),
                    TCPX_INVALID_USAGE, "are not in a window of 10000 bytes");
        parts[1] = part_of_both(&here, 100, &on_gpu, 0, 100);
        CHECK_ERROR(tcpx_transfer_wait(begin_access(session, reads, &access), WAIT_MS),
                    TCPX_INVALID_USAGE, "windows in GPU memory and in host memory in one access");
    }
    meet_and_see(me, session);
    CHECK_AREA(&here.area, 0, BYTES);
    CHECK_AREA(&on_gpu.area, 0, BYTES);
    CHECK(statistics_of(session).failures == 6 && statistics_of(session).served_refusals == 6);
    CHECK_SUCCESS(tcpx_remote_close(longer));
    shared_close(&here);
    shared_close(&on_gpu);
}

/* A GPU's window is nothing for a session without a GPU, on this side and on that one. */
SIDES_CASE(window_of_a_gpu, 2, IN_FULL)
{
    struct tcpx_session_options options = with_windows();
    struct tcpx_transfer *transfer = NULL;
    struct tcpx_session *session;
    struct shared here;
    struct shared on_gpu;
    struct tcpx_part part;
    struct tcpx_access access = {.parts = &part, .part_count = 1};

    options.gpu = -1;
    session = open_session(me, &options);
    shared_open(&here, session, false, BYTES, READ_WRITE);
    shared_open(&on_gpu, session, true, BYTES, READ_WRITE);
    for (int reads = 0; reads < 2; reads++) {
        part = part_of_both(&on_gpu, 0, &here, 0, 10);
        CHECK_ERROR(try_access(session, reads, &access, &transfer), TCPX_INVALID_USAGE,
                    "a window of GPU 0 cannot be used in a session for host memory only");
        part = part_of_both(&here, 0, &on_gpu, 0, 10);
        CHECK_ERROR(tcpx_transfer_wait(begin_access(session, reads, &access), WAIT_MS),
                    TCPX_INVALID_USAGE,
                    "a window of GPU 0 cannot be used in a session for host memory only");
        part = part_of_both(&here, 0, &here, 0, 10);
        access.after = TCPX_AFTER_STREAM;
        CHECK_ERROR(try_access(session, reads, &access, &transfer), TCPX_INVALID_USAGE,
                    "the session has no GPU");
        access.after = TCPX_AFTER_NOTHING;
    }
    meet_and_see(me, session);
    CHECK_AREA(&on_gpu.area, 0, BYTES);
    shared_close(&here);
    shared_close(&on_gpu);
    tcpx_session_close(session);
}

/* Who does not allow it is not accessed; notes need no windows. */
SIDES_CASE(windows_not_allowed, 2, IN_BRIEF)
{
    for (int allowed = 0; allowed < 2; allowed++) {
        struct tcpx_session_options options = usual_options();
        struct tcpx_remote *remote = NULL;
        uint8_t keys[2][TCPX_KEY_BYTES];
        struct tcpx_window *window;
        struct tcpx_session *session;
        uint8_t memory[100] = {0};
        bool peer_allows = allowed && me->number == 1;
        int result;

        options.windows = allowed && me->number == 0;
        session = open_session(me, &options);
        CHECK_SUCCESS(tcpx_window_open(-1, memory, sizeof memory, READ_WRITE, &window));
        CHECK_SUCCESS(tcpx_window_key(window, keys[0]));
        swap_bytes(session, 1, keys[0], keys[1], TCPX_KEY_BYTES);
        result = tcpx_remote_open(session, keys[1], TCPX_KEY_BYTES, &remote);
        if (peer_allows) {
            CHECK_SUCCESS(result);
            FINISH(begin_one(session, false, (struct tcpx_part){window, 0, remote, 0, 100}));
        } else {
            const struct tcpx_access access = {.note = "a note", .note_bytes = 6};
            struct tcpx_transfer *transfer;

            CHECK_ERROR(result, TCPX_INVALID_USAGE, "options.windows is 0 there");
            for (int reads = 0; reads < 2; reads++)
                CHECK_ERROR(try_access(session, reads, &access, &transfer), TCPX_INVALID_USAGE,
                            "does not allow access to its windows");
        }
        send_note(session, "a note by itself");
        CHECK_NOTE(session, "a note by itself");
        meet_and_see(me, session);
        CHECK_SUCCESS(tcpx_remote_close(remote));
        CHECK_SUCCESS(tcpx_window_close(window, WAIT_MS));
        tcpx_session_close(session);
    }
}

SESSION_CASE(notes, 0, IN_FULL)
{
    char note[8] = "";
    size_t bytes;
    int there;

    CHECK_REFUSED(tcpx_note_send(NULL, note, 1), "session is NULL");
    CHECK_REFUSED(tcpx_note_send(session, NULL, 1), "a note of 1 bytes");
    CHECK_REFUSED(tcpx_note_take(NULL, note, 1, &bytes, &there), "session is NULL");
    CHECK_REFUSED(tcpx_note_take(session, NULL, 1, &bytes, &there), "an argument is NULL");
    CHECK_REFUSED(tcpx_note_take(session, note, 1, NULL, &there), "an argument is NULL");
    CHECK_REFUSED(tcpx_note_take(session, note, 1, &bytes, NULL), "an argument is NULL");
    CHECK(statistics_of(session).notes_sent == 0);
    meet_and_see(me, session);
}

SIDES_SUITE("session access misuse", sides_begin);
