/*
 * What the calls for windows and remotes refuse, and in which words; sessions that have neither;
 * names; and what the statistics count.
 *
 * TCPX_TEST_TURNS=percent of all rounds.
 */
#include "tests/unit/session_notes.h"

enum { BYTES = 10000 };

/* --- windows ---------------------------------------------------------------------------------- */

/* Each process has windows, with or without a session. */
SIDES_CASE(windows, 1, IN_FULL)
{
    uint8_t keys[2][TCPX_KEY_BYTES];
    uint8_t memory[16];
    struct tcpx_window *windows[2];
    struct tcpx_window *none = NULL;
    void *gpu_memory;
    int gpus;

    CHECK_SUCCESS(tcpx_gpu_count(&gpus));
    CHECK_SUCCESS(tcpx_gpu_alloc(0, BYTES, &gpu_memory));
    CHECK_REFUSED(tcpx_window_open(-1, memory, 16, 0, NULL), "window is NULL");
    CHECK_REFUSED(tcpx_window_open(-1, NULL, 16, 0, &none), "are not a range of memory");
    CHECK_REFUSED(tcpx_window_open(-1, memory, 0, 0, &none), "0 bytes");
    CHECK_REFUSED(tcpx_window_open(-1, memory, UINT64_MAX, 0, &none), "are not a range of memory");
    CHECK_REFUSED(tcpx_window_open(-1, memory, 16, 4, &none), "access is 4, expected 0 to 3");
    CHECK_REFUSED(tcpx_window_open(-1, memory, 16, -1, &none), "access is -1");
    CHECK_REFUSED(tcpx_window_open(-2, memory, 16, 0, &none), "GPU -2");
    CHECK(tcpx_window_open(gpus, gpu_memory, 16, 0, &none) != TCPX_SUCCESS);
    CHECK(*tcpx_last_error() != '\0');
    CHECK_REFUSED(tcpx_window_open(0, memory, 16, 0, &none), "are host memory (GPU -1)");
    CHECK_REFUSED(tcpx_window_open(-1, gpu_memory, 16, 0, &none), "are memory of GPU 0");
    CHECK(none == NULL);

    CHECK_SUCCESS(tcpx_window_open(-1, memory, 16, 0, &windows[0]));
    CHECK_SUCCESS(tcpx_window_open(-1, memory, 16, READ_WRITE, &windows[1]));
    CHECK_REFUSED(tcpx_window_key(NULL, keys[0]), "NULL");
    CHECK_REFUSED(tcpx_window_key(windows[0], NULL), "NULL");
    for (int i = 0; i < 2; i++)
        CHECK_SUCCESS(tcpx_window_key(windows[i], keys[i]));
    CHECK(memcmp(keys[0], keys[1], sizeof keys[0]) != 0);
    CHECK_SUCCESS(tcpx_window_key(windows[1], keys[0])); /* the same again */
    CHECK(memcmp(keys[0], keys[1], sizeof keys[0]) == 0);
    CHECK_REFUSED(tcpx_window_close(windows[0], -2), "-2");
    for (int i = 0; i < 2; i++)
        CHECK_SUCCESS(tcpx_window_close(windows[i], 0));
    CHECK_SUCCESS(tcpx_window_close(NULL, 0));
    CHECK_SUCCESS(tcpx_gpu_free(gpu_memory));
}

/* --- remotes ---------------------------------------------------------------------------------- */

SESSION_CASE(remotes, 0, IN_FULL, .windows = true)
{
    uint8_t key[TCPX_KEY_BYTES];
    uint8_t damaged[TCPX_KEY_BYTES + 1];
    struct tcpx_remote *remotes[3] = {NULL};
    struct shared here;

    shared_open(&here, session, false, BYTES, READ_WRITE);
    CHECK_SUCCESS(tcpx_window_key(here.window, key));
    CHECK_REFUSED(tcpx_remote_open(NULL, key, sizeof key, remotes), "session is NULL");
    CHECK_REFUSED(tcpx_remote_open(session, NULL, sizeof key, remotes), "an argument is NULL");
    CHECK_REFUSED(tcpx_remote_open(session, key, sizeof key, NULL), "an argument is NULL");
    CHECK_REFUSED(tcpx_remote_open(session, key, 0, remotes), "has 64 bytes, this one has 0");
    CHECK_REFUSED(tcpx_remote_open(session, key, 63, remotes), "has 64 bytes, this one has 63");
    CHECK_REFUSED(tcpx_remote_open(session, damaged, 65, remotes), "has 64 bytes, this one has 65");
    memcpy(damaged, key, sizeof key);
    damaged[0] ^= 1;
    CHECK_REFUSED(tcpx_remote_open(session, damaged, 64, remotes), "are not the key of a window");
    memcpy(damaged, key, sizeof key);
    damaged[4] = 9;
    CHECK_REFUSED(tcpx_remote_open(session, damaged, 64, remotes),
                  "has version 9, this library knows version 1");
    memcpy(damaged, key, sizeof key);
    damaged[6] = 8;
    CHECK_REFUSED(tcpx_remote_open(session, damaged, 64, remotes), "is damaged");
    memcpy(damaged, key, sizeof key);
    damaged[63] = 1;
    CHECK_REFUSED(tcpx_remote_open(session, damaged, 64, remotes), "is damaged");
    CHECK(remotes[0] == NULL);
    for (int i = 0; i < 3; i++) /* the same key, as often as wanted */
        CHECK_SUCCESS(tcpx_remote_open(session, key, sizeof key, &remotes[i]));
    CHECK_SUCCESS(tcpx_remote_close(remotes[1]));
    CHECK_SUCCESS(tcpx_remote_close(NULL)); /* the others are closed with the session */
    meet_and_see(me, session);
    shared_close(&here);
}

/*
 * Each remote that is used has a number until it is closed, and of these there are 65536: one
 * access uses all of them, another one as soon as there is one again.
 */
SESSION_CASE(most_remotes, 0, IN_FULL, .windows = true)
{
    const bool all = turns_of(100) > 50;
    const unsigned most = all ? 65536 : 2000;
    struct tcpx_remote **remotes = calloc(most + 1, sizeof(struct tcpx_remote *));
    struct tcpx_part *parts = calloc(most + 1, sizeof *parts);
    struct tcpx_access access = {.parts = parts, .part_count = most + 1};
    struct tcpx_transfer *transfer;
    uint8_t key[TCPX_KEY_BYTES];
    struct shared here;

    CHECK(remotes != NULL && parts != NULL);
    shared_open(&here, session, false, most + 1, READ_WRITE);
    CHECK_SUCCESS(tcpx_window_key(here.window, key));
    swap_bytes(session, 3, key, key, sizeof key);
    for (unsigned i = 0; i <= most && me->number == 0; i++) {
        CHECK_SUCCESS(tcpx_remote_open(session, key, sizeof key, &remotes[i]));
        parts[i] = (struct tcpx_part){here.window, i, remotes[i], most - i, 1};
    }
    if (me->number == 0) {
        area_fill(&here.area, 1);
        if (all)
            CHECK_ERROR(tcpx_write(session, &access, &transfer), TCPX_INVALID_USAGE,
                        "more than 65536 windows of one peer in use");
        access.part_count = most;
        FINISH(begin_access(session, false, &access));
        CHECK_SUCCESS(tcpx_remote_close(remotes[0]));
        FINISH(begin_one(session, false, parts[most]));
        for (unsigned i = 1; i <= most; i++)
            CHECK_SUCCESS(tcpx_remote_close(remotes[i]));
    }
    meet_and_see(me, session);
    for (unsigned i = 0; i <= most && me->number == 1; i++)
        pattern_copy(here.area.expected + most - i, 1, 1, i);
    CHECK_AREA(&here.area, 0, here.area.bytes);
    shared_close(&here);
    free(remotes);
    free(parts);
}

/* The peer does not know the key, or not any more: the first access says so, and only that fails.
 */
SESSION_CASE(wrong_keys, 0, IN_BRIEF, .windows = true)
{
    static const char words[] = "no such window, or a wrong key";
    struct tcpx_remote *wrong;
    struct tcpx_window *gone;
    uint8_t key[TCPX_KEY_BYTES];
    struct shared here;

    shared_open(&here, session, false, BYTES, READ_WRITE);
    gone = window_on(&here.area, 0, 100, READ_WRITE);
    for (unsigned i = 0; i < 3; i++) {
        CHECK_SUCCESS(tcpx_window_key(i == 2 ? gone : here.window, key));
        key[i == 0 ? 24 : 8] ^= i < 2; /* the secret, the number; the last one is right */
        swap_bytes(session, 3, key, key, sizeof key);
        if (i == 2)
            CHECK_SUCCESS(tcpx_window_close(gone, 0));
        meet_and_see(me, session);
        CHECK_SUCCESS(tcpx_remote_open(session, key, sizeof key, &wrong));
        for (int reads = 0; reads < 2; reads++) {
            const struct tcpx_part part = {here.window, 0, wrong, 0, 50};

            CHECK_ERROR(tcpx_transfer_wait(begin_one(session, reads, part), WAIT_MS),
                        TCPX_INVALID_USAGE, words);
            CHECK(strstr(tcpx_last_error(), reads ? "refused a read of 50 bytes"
                                                  : "refused a write of 50 bytes") != NULL);
        }
        CHECK_SUCCESS(tcpx_remote_close(wrong));
    }
    FINISH(begin_one(session, false, part_of_both(&here, 0, &here, 200, 100)));
    meet_and_see(me, session);
    CHECK_AREA(&here.area, 0, here.area.bytes);
    shared_close(&here);
}

/* --- other sessions -----------------------------------------------------------------------------
 */

/* Over a plugin everything is refused, in words that say what has it. */
SIDES_CASE(over_a_plugin, 2, IN_FULL)
{
    static const char words[] = "there is no access to windows; the built-in transport has it";
    struct tcpx_session_options options = with_windows();
    const struct tcpx_access access = {.part_count = 0};
    uint8_t key[TCPX_KEY_BYTES] = {0};
    struct tcpx_transfer *transfer;
    struct tcpx_remote *remote;
    struct tcpx_session *session;
    char note[8] = "";
    size_t bytes;
    int there;

    options.plugin_path = path_in_build("libnccl-net-tcpx.so");
    options.gpu = -1;
    options.name = me->number == 0 ? "zero" : "one";
    session = open_session(me, &options);
    CHECK_ERROR(tcpx_remote_open(session, key, sizeof key, &remote), TCPX_INVALID_USAGE, words);
    CHECK_ERROR(tcpx_read(session, &access, &transfer), TCPX_INVALID_USAGE, words);
    CHECK_ERROR(tcpx_write(session, &access, &transfer), TCPX_INVALID_USAGE, words);
    CHECK_ERROR(tcpx_note_send(session, note, 1), TCPX_INVALID_USAGE, "has no notes");
    CHECK_ERROR(tcpx_note_take(session, note, 1, &bytes, &there), TCPX_INVALID_USAGE,
                "has no notes");
    CHECK(strcmp(tcpx_session_peer(session), me->number == 0 ? "one" : "zero") == 0);
    meet_and_see(me, session);
    tcpx_session_close(session);
}

/* The peer's name, as its options have it. */
SIDES_CASE(names, 2, IN_FULL)
{
    static const char longest[] = "a name of 63 characters, which is the longest that is possible!";
    static const char *const names[] = {NULL, "", "prefill-0", longest};

    CHECK(sizeof longest == 64);
    for (unsigned i = 0; i < COUNT_OF(names); i++) {
        const char *theirs = names[(i + 1) % COUNT_OF(names)];
        struct tcpx_session_options options = usual_options();
        struct tcpx_session *session;

        options.name = me->number == 0 ? names[i] : theirs;
        session = open_session(me, &options);
        theirs = me->number == 0 ? theirs : names[i];
        CHECK(strcmp(tcpx_session_peer(session), theirs != NULL ? theirs : "") == 0);
        meet_and_see(me, session);
        tcpx_session_close(session);
    }
    CHECK(*tcpx_session_peer(NULL) == '\0');
}

SIDES_CASE(wrong_names, 1, IN_FULL)
{
    static const char *const wrong[] = {
        "a name of 64 characters, of which there is one more than can be!", "two\nlines", "\x7f",
        "\xc3\xa4"};
    struct tcpx_session_options options = usual_options();
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;

    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        STAGE("name %u", i);
        options.name = wrong[i];
        CHECK_REFUSED(tcpx_session_listen("127.0.0.1", 0, &options, &listener), "name");
        CHECK_REFUSED(tcpx_session_connect("127.0.0.1", 5, &options, 10, &session), "name");
    }
}

/* In a child of fork() every call is refused, and the parent does not notice. */
SESSION_CASE(fork, 0, IN_FULL, .windows = true)
{
    const enum tcpx_result no = TCPX_INVALID_USAGE;
    struct tcpx_transfer *transfer;
    struct tcpx_remote *remote;
    struct tcpx_window *window;
    struct shared here;
    struct tcpx_part part;
    const struct tcpx_access access = {.parts = &part, .part_count = 1};
    uint8_t key[TCPX_KEY_BYTES];
    size_t bytes;
    int status;
    int there;
    pid_t child;

    shared_open(&here, session, false, BYTES, READ_WRITE);
    CHECK_SUCCESS(tcpx_window_key(here.window, key));
    part = part_of_both(&here, 0, &here, 0, 10);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_ERROR(tcpx_window_open(-1, key, 10, 0, &window), no, "fork");
        CHECK_ERROR(tcpx_window_close(here.window, 0), no, "fork");
        CHECK_ERROR(tcpx_remote_open(session, key, sizeof key, &remote), no, "fork");
        CHECK_ERROR(tcpx_remote_close(here.remote), no, "fork");
        CHECK_ERROR(tcpx_read(session, &access, &transfer), no, "fork");
        CHECK_ERROR(tcpx_write(session, &access, &transfer), no, "fork");
        CHECK_ERROR(tcpx_note_send(session, key, 1), no, "fork");
        CHECK_ERROR(tcpx_note_take(session, key, 1, &bytes, &there), no, "fork");
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FINISH(begin_access(session, true, &access));
    meet_and_see(me, session);
    shared_close(&here);
}

/* --- statistics ---------------------------------------------------------------------------------
 */

/* Traffic of which everything is known: of this side, and of the peer. */
SESSION_CASE(statistics, 0, IN_BRIEF, .windows = true)
{
    enum { WRITES = 7, READS = 5, EACH = 1234, NOTES = 3 };
    struct tcpx_session_statistics statistics = statistics_of(session);
    struct shared here;
    struct tcpx_part part;

    CHECK(statistics.reads == 0 && statistics.writes == 0 && statistics.read_bytes == 0 &&
          statistics.written_bytes == 0 && statistics.cancelled == 0);
    CHECK(statistics.served_reads == 0 && statistics.served_writes == 0 &&
          statistics.served_bytes == 0 && statistics.served_refusals == 0 &&
          statistics.notes_sent == 0 && statistics.notes_taken == 0);
    shared_open(&here, session, true, BYTES, READ_WRITE);
    part = part_of_both(&here, 0, &here, 0, EACH);
    if (me->number == 0) {
        for (unsigned i = 0; i < WRITES; i++)
            FINISH(begin_numbered(session, false, part, i));
        for (unsigned i = 0; i < READS; i++)
            FINISH(begin_one(session, true, part));
        for (unsigned i = 0; i < NOTES; i++)
            send_number(session, WRITES + i);
        statistics = statistics_of(session);
        CHECK(statistics.writes == WRITES && statistics.written_bytes == WRITES * EACH);
        CHECK(statistics.reads == READS && statistics.read_bytes == READS * EACH);
        CHECK(statistics.notes_sent == WRITES + NOTES && statistics.notes_taken == 0);
        CHECK(statistics.served_reads == 0 && statistics.served_writes == 0);
    } else {
        for (unsigned i = 0; i < WRITES + NOTES; i++)
            CHECK(take_number(session) == i);
        statistics = statistics_when_served(session, WRITES + READS);
        CHECK(statistics.served_writes == WRITES && statistics.served_reads == READS);
        CHECK(statistics.served_bytes == (WRITES + READS) * EACH);
        CHECK(statistics.notes_taken == WRITES + NOTES && statistics.notes_sent == 0);
        CHECK(statistics.reads == 0 && statistics.writes == 0);
    }
    CHECK(statistics.sends == 1 && statistics.receives == 1); /* the keys */
    CHECK(statistics.failures == 0 && statistics.cancelled == 0);
    meet_and_see(me, session);
    shared_close(&here);
}

SIDES_SUITE("session access calls", sides_begin);
