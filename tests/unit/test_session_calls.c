/*
 * What calls of a session refuse, and in which words; and what its statistics count.
 *
 * TCPX_TEST_TURNS=percent of all rounds, of which less than half make transfers smaller, too.
 */
#include "tests/unit/session_pair.h"

/* Begins a transfer of this length in a memory that it fits into, and tells how it ended. */
static int try_transfer(struct tcpx_session *session, bool sending, const struct area *area,
                        uint64_t bytes, uint64_t tag, bool as_pieces)
{
    return tcpx_transfer_wait(begin_part(session, sending, area, 0, bytes, tag, as_pieces ? 2 : 0),
                              WAIT_MS);
}

/*
 * Lengths that differ are an error in words: on both sides where the two have to agree first, else
 * at least of the receive. Nothing is written, and the session goes on, also with this tag.
 */
SESSION_CASE(lengths_that_differ, 0, IN_BRIEF)
{
    static const struct {
        uint64_t sent;
        uint64_t received;
    } ways[] = {{0, 1},         {1, 0},       {24, 23},           {100, 300000},
                {300000, 100},  {4096, 4097}, {300001, 300000},   {4 << 20, 100},
                {100, 4 << 20}, {0, 4 << 20}, {4 << 20, 5 << 20}, {(5 << 20) + 1, 4 << 20}};
    bool sends = me->number == 0;
    unsigned failures = 0;
    struct area area;

    area_make(&area, session, false, 6 << 20);
    for (unsigned i = 0; i < 2 * COUNT_OF(ways); i++) {
        uint64_t sent = ways[i / 2].sent;
        uint64_t received = ways[i / 2].received;
        bool as_pieces = i % 2 == 1;
        int result;

        area_begin(&area, sends, i);
        result = try_transfer(session, sends, &area, sends ? sent : received, 5, as_pieces);
        CHECK(result != TCPX_IN_PROGRESS);
        if (!goes_whole(session) || !sends) {
            char number[32];

            CHECK(result == TCPX_INVALID_USAGE || result == TCPX_REMOTE_ERROR);
            snprintf(number, sizeof number, "%llu", (unsigned long long)received);
            CHECK(strstr(tcpx_last_error(), number) != NULL);
            CHECK(strstr(tcpx_last_error(), "tag 5") != NULL || is_builtin(session));
        }
        failures += result != TCPX_SUCCESS;
        /* what is longer than its place does not arrive in part */
        if (!sends && sent > received)
            CHECK_AREA(&area, 0, area.bytes);
        /* the same tag, with the same length, more than once; large ones after large ones */
        for (unsigned k = 0; k < 3; k++) {
            uint64_t fits = k == 0 ? 30000 : sent + received > 1 << 20 ? (3 + k) << 20 : 500;

            area_begin(&area, sends, 100 + i + k);
            CHECK_SUCCESS(try_transfer(session, sends, &area, fits, 5, as_pieces));
            CHECK_MOVED(&area, sends, 0, fits, 100 + i + k, 0);
        }
    }
    CHECK(statistics_of(session).failures == failures);
    area_drop(&area, session);
}

/* Moves that cannot be meant: beyond the memory, also by numbers that overflow, and others. */
static void check_wrong_moves(struct tcpx_session *session, struct tcpx_memory *memory)
{
    static const struct tcpx_piece over_the_end[] = {{0, 10}, {999, 2}};
    static const struct tcpx_piece behind_the_end[] = {{0, 10}, {1001, 0}};
    const struct {
        bool sends;
        struct tcpx_move move;
        const char *words;
    } wrong[] = {
        {true, {.memory = memory, .offset = 991, .bytes = 10}, "991"},
        {false, {.memory = memory, .offset = UINT64_MAX - 5, .bytes = 10}, "not inside"},
        {true, {.memory = memory, .bytes = UINT64_MAX}, "not inside"},
        {false, {.memory = memory, .bytes = 1001}, "1001"},
        {true, {.memory = memory, .pieces = over_the_end, .piece_count = 2}, "piece 1"},
        {false, {.memory = memory, .pieces = behind_the_end, .piece_count = 2}, "piece 1"},
        {true, {.memory = NULL, .bytes = 10}, "memory is NULL"},
        {true, {.memory = memory, .bytes = 10, .tag = TCPX_TAG_END}, "tag"},
        {false, {.memory = memory, .bytes = 10, .tag = TCPX_TAG_END}, "tag"},
        {true, {.memory = memory, .bytes = 10, .after = (enum tcpx_after)3}, "after"},
    };

    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        struct tcpx_transfer *transfer;

        STAGE("move %u", i);
        CHECK_REFUSED(try_begin(session, wrong[i].sends, wrong[i].move, &transfer), wrong[i].words);
    }
    STAGE("%s", "");
}

/* Calls that cannot be meant are refused in words, and nothing has happened. */
SESSION_CASE(misuse, SMALL_CHUNK, IN_FULL)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session *other = open_session(me, &options);
    struct tcpx_session_statistics statistics = {.size = 0};
    struct tcpx_transfer *transfer;
    struct tcpx_memory *memory;
    struct tcpx_move move;
    struct area area;
    int number;

    area_make(&area, session, true, 1000);
    move = move_of(&area, 0, 10, 0, 0);
    CHECK_REFUSED(tcpx_send(NULL, &move, &transfer), "NULL");
    CHECK_REFUSED(tcpx_send(session, NULL, &transfer), "NULL");
    CHECK_REFUSED(tcpx_receive(session, &move, NULL), "NULL");
    CHECK_REFUSED(tcpx_transfer_test(NULL, &number), "NULL");
    CHECK_REFUSED(tcpx_transfer_test_on_stream(NULL, NULL, &number), "NULL");
    CHECK_REFUSED(tcpx_transfer_wait(NULL, 0), "NULL");
    CHECK_REFUSED(tcpx_session_event_fd(session, NULL), "NULL");
    CHECK_REFUSED(tcpx_session_event_fd(NULL, &number), "NULL");
    CHECK_REFUSED(tcpx_session_port(NULL, &number), "NULL");
    CHECK_REFUSED(tcpx_session_get_statistics(session, NULL), "size");
    CHECK_REFUSED(tcpx_session_get_statistics(session, &statistics), "size");
    CHECK_REFUSED(tcpx_session_register(NULL, area.address, 10, &memory), "memory");
    CHECK_REFUSED(tcpx_session_register(session, NULL, 10, &memory), "memory");
    CHECK_REFUSED(tcpx_session_register(session, area.address, 0, &memory), "0 bytes");
    CHECK_REFUSED(tcpx_session_register(session, area.address, 10, NULL), "memory");
    CHECK(*tcpx_session_path(NULL) == '\0');
    tcpx_session_close(NULL);
    tcpx_session_stop_listening(NULL);
    check_wrong_moves(session, area.memory);

    /* of another session */
    CHECK_REFUSED(tcpx_send(other, &move, &transfer), "another session");
    CHECK_REFUSED(tcpx_session_deregister(other, area.memory), "not a memory of this session");
    CHECK_REFUSED(tcpx_session_deregister(NULL, area.memory), "NULL");

    /* in use, until its end was reported */
    if (me->number == 1)
        meet(me);
    transfer = begin_part(session, me->number == 1, &area, 0, 1000, TCPX_TAG_END - 1, 0);
    if (me->number == 0) {
        CHECK_ERROR(tcpx_session_deregister(session, area.memory), TCPX_INVALID_USAGE, "used");
        CHECK_REFUSED(tcpx_transfer_wait(transfer, -2), "-2");
        CHECK_REFUSED(tcpx_transfer_test(transfer, NULL), "NULL");
        meet(me);
    }
    FINISH(transfer);
    area_drop(&area, session);
    ping(me, session, 0, 6);
    ping(me, other, 1, 7);
    CHECK(statistics_of(session).failures == 0);

    /* an older program has a shorter struct */
    memset(&statistics, 0xab, sizeof statistics);
    statistics.size = offsetof(struct tcpx_session_statistics, failures);
    CHECK_SUCCESS(tcpx_session_get_statistics(session, &statistics));
    CHECK(statistics.sends + statistics.receives == 2 && statistics.failures == 0xabababababababab);
    tcpx_session_close(other);
}

/* Options and addresses that cannot be. */
SIDES_CASE(wrong_options, 1, IN_FULL)
{
    const struct tcpx_session_options usual = usual_options();
    static const struct {
        ptrdiff_t further_size;
        int channels;
        uint64_t chunk_bytes;
        int gpu;
        const char *words;
    } wrong[] = {
        {8 - (ptrdiff_t)sizeof usual, 0, 0, 0, "options"},
        {8, 0, 0, 0, "newer"},
        {0, 65, 0, 0, "65"},
        {0, -1, 0, 0, "-1"},
        {0, 0, (1u << 30) + 1, 0, "chunk"},
        {0, 0, 0, -2, "GPU"},
    };
    struct tcpx_session_options options = usual;
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    char path[64];
    int port;

    CHECK(usual.size == sizeof usual && usual.gpu == 0 && usual.channels == 0 &&
          usual.chunk_bytes == 0 && usual.plugin_path == NULL && usual.secret_file == NULL);
    CHECK_REFUSED(tcpx_session_listen(NULL, 0, NULL, &listener), "options");
    CHECK_REFUSED(tcpx_session_listen(NULL, 0, &usual, NULL), "NULL");
    CHECK_REFUSED(tcpx_session_listen(NULL, 65536, &usual, &listener), "65536");
    CHECK_REFUSED(tcpx_session_listen(NULL, -1, &usual, &listener), "-1");
    CHECK_REFUSED(tcpx_session_connect(NULL, 5, &usual, 10, &session), "NULL");
    CHECK_REFUSED(tcpx_session_connect("127.0.0.1", 0, &usual, 10, &session), "port 0");
    CHECK_REFUSED(tcpx_session_connect("127.0.0.1", 5, &usual, -7, &session), "-7");
    CHECK_REFUSED(tcpx_session_connect("127.0.0.1", 5, &usual, 10, NULL), "NULL");
    for (unsigned i = 0; i < COUNT_OF(wrong); i++) {
        STAGE("options %u", i);
        options = usual;
        options.size += (size_t)wrong[i].further_size;
        options.channels = wrong[i].channels;
        options.chunk_bytes = wrong[i].chunk_bytes;
        options.gpu = wrong[i].gpu;
        CHECK_REFUSED(tcpx_session_listen(NULL, 0, &options, &listener), wrong[i].words);
    }
    STAGE("%s", "");
    /* an older program knows less of them */
    options = usual;
    options.size = offsetof(struct tcpx_session_options, secret_file);
    options.secret_file = "/nowhere/secret";
    CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, &options, &listener));
    tcpx_session_stop_listening(listener);
    options.size = usual.size;
    CHECK(tcpx_session_listen(NULL, 0, &options, &listener) != TCPX_SUCCESS);
    options = usual;
    options.plugin_path = "/nowhere/libnccl-net.so";
    CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, 10, &session), TCPX_SYSTEM_ERROR,
                "/nowhere/libnccl-net.so");

    /* nobody comes, nobody is there; the time is kept */
    for (int wanted = 0; wanted <= 80; wanted += 80) {
        uint64_t since = now_ms();

        CHECK_SUCCESS(tcpx_session_listen("127.0.0.1", 0, &usual, &listener));
        CHECK_SUCCESS(tcpx_session_port(listener, &port));
        CHECK_ERROR(tcpx_session_accept(listener, wanted, &session), TCPX_IN_PROGRESS, "");
        tcpx_session_stop_listening(listener);
        snprintf(path, sizeof path, "%d", port);
        CHECK_ERROR(tcpx_session_connect("127.0.0.1", port, &usual, wanted, &session),
                    TCPX_IN_PROGRESS, "127.0.0.1");
        CHECK(strstr(tcpx_last_error(), path) != NULL);
        CHECK(now_ms() - since >= (uint64_t)wanted * 2 && now_ms() - since < SOON_MS);
    }
}

/* In a child of fork() every call is refused, and the parent does not notice. */
SESSION_CASE(fork, SMALL_CHUNK, IN_FULL)
{
    const struct tcpx_session_options options = small_chunks();
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};
    struct tcpx_session_listener *listener;
    struct tcpx_transfer *transfer;
    struct tcpx_transfer *mine;
    struct tcpx_session *another;
    struct tcpx_memory *memory;
    struct tcpx_move move;
    struct area area;
    int status;
    int number;
    pid_t child;

    area_make(&area, session, false, 1000);
    move = move_of(&area, 0, 1000, 9, 0);
    transfer = begin(session, me->number == 0, move);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const enum tcpx_result no = TCPX_INVALID_USAGE;

        CHECK_ERROR(tcpx_send(session, &move, &mine), no, "fork");
        CHECK_ERROR(tcpx_receive(session, &move, &mine), no, "fork");
        CHECK_ERROR(tcpx_transfer_test(transfer, &number), no, "fork");
        CHECK_ERROR(tcpx_transfer_test_on_stream(transfer, NULL, &number), no, "fork");
        CHECK_ERROR(tcpx_transfer_wait(transfer, 0), no, "fork");
        CHECK_ERROR(tcpx_session_register(session, area.address, 10, &memory), no, "fork");
        CHECK_ERROR(tcpx_session_deregister(session, area.memory), no, "fork");
        CHECK_ERROR(tcpx_session_event_fd(session, &number), no, "fork");
        CHECK_ERROR(tcpx_session_get_statistics(session, &statistics), no, "fork");
        CHECK_ERROR(tcpx_session_listen(NULL, 0, &options, &listener), no, "fork");
        CHECK_ERROR(tcpx_session_connect("127.0.0.1", 5, &options, 10, &another), no, "fork");
        tcpx_session_close(session);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    meet(me);
    FINISH(transfer);
    ping(me, session, 1, 3);
    area_drop(&area, session);
}

SESSION_CASE(statistics, SMALL_CHUNK, IN_BRIEF)
{
    static const uint64_t sizes[] = {0, 1, 65536, 65537, 300000, 131072};
    uint64_t chunk = chunk_of(session, SMALL_CHUNK);
    struct tcpx_session_statistics statistics = statistics_of(session);
    bool in_chunks = !goes_whole(session);
    uint64_t chunks = 0;
    uint64_t bytes = 0;
    uint64_t count = 0;
    uint64_t direct_chunks = 0;
    struct area areas[2];

    CHECK(statistics.size == sizeof statistics && statistics.sends == 0 &&
          statistics.received_chunks == 0 && statistics.matching_ns == 0);
    area_make(&areas[0], session, false, 300000);
    area_make(&areas[1], session, true, 300000);
    for (unsigned i = 0; i < COUNT_OF(sizes); i++)
        for (unsigned kinds = 0; kinds < 4; kinds++) {
            uint64_t of_it = in_chunks ? (sizes[i] + chunk - 1) / chunk : 0;

            CHECK_SUCCESS(try_transfer(session, me->number == 0, &areas[kinds >> 1], sizes[i], 1,
                                       (kinds & 1) != 0));
            count++;
            bytes += sizes[i];
            chunks += of_it;
            direct_chunks += kinds == 2 ? of_it : 0; /* GPU memory, not as pieces */
        }
    statistics = statistics_of(session);
    CHECK(statistics.failures == 0);
    if (me->number == 0) {
        CHECK(statistics.sends == count && statistics.receives == 0);
        CHECK(statistics.sent_bytes == bytes && statistics.received_bytes == 0);
        CHECK(statistics.sent_chunks == chunks && statistics.received_chunks == 0);
        CHECK((statistics.sending_ns > 0) == in_chunks && statistics.receiving_ns == 0);
    } else {
        CHECK(statistics.receives == count && statistics.sends == 0);
        CHECK(statistics.received_bytes == bytes && statistics.sent_bytes == 0);
        CHECK(statistics.received_chunks == chunks && statistics.sent_chunks == 0);
        CHECK((statistics.receiving_ns > 0) == in_chunks && statistics.sending_ns == 0);
        if (strstr(tcpx_session_path(session), "unpacked here") != NULL) {
            CHECK(statistics.fragments >= direct_chunks);
            CHECK(statistics.unpack_launches > 0 &&
                  statistics.unpack_launches <= statistics.received_chunks);
        } else {
            CHECK(statistics.fragments == 0 && statistics.unpack_launches == 0);
        }
    }
    CHECK((statistics.matching_ns > 0) == in_chunks);
    area_drop(&areas[0], session);
    area_drop(&areas[1], session);
}

SIDES_SUITE("session calls", sides_begin);
