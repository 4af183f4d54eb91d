/*
 * The life of a request of the public calls: done, waited for, unpacked, consumed, ended; and a
 * message that is too long for its receive. tests/unit/calls.h says how these tests run.
 */
#include "tests/unit/calls.h"

/* --- requests that have ended -------------------------------------------------------------- */

static void check_ended_host(struct way *way)
{
    void *receive = post_receive(way, HOST, 0, PIECE);
    void *send = post_send(way, HOST, 0, PIECE);
    int done = 77;

    finish_two(send, receive, NULL);
    CHECK_MISUSE(tcpx_test(send, &done, NULL), "ended");
    CHECK_MISUSE(tcpx_test(receive, &done, NULL), "ended");
    CHECK_MISUSE(tcpx_wait_request(receive, 0, NULL, NULL), "ended");
    for (int i = 0; i < 3; i++) {
        CHECK_SUCCESS(tcpx_irecv_consumed(way->receiver, 1, receive));
        CHECK_SUCCESS(tcpx_irecv_consumed(way->sender, 1, send));
    }
}

static void check_ended_gpu(struct way *way)
{
    void *receive = post_receive(way, GPU, 0, PIECE);
    struct tcpx_unpack *unpack = engine_of(way);
    struct tcpx_fragments fragments;
    uint64_t ticket;
    int done = 77;
    int size = -1;

    CHECK_MISUSE(tcpx_irecv_consumed(way->receiver, 1, receive), "consumed");
    CHECK_MISUSE(tcpx_unpack_submit(unpack, &receive, 1, &ticket), "not done");
    finish_two(post_send(way, GPU, 0, PIECE - 1), receive, &size);
    CHECK(size == PIECE - 1);
    for (int i = 0; i < 5; i++) {
        size = -1;
        CHECK(is_done(receive, i % 2 == 0 ? &size : NULL) && (i % 2 == 1 || size == PIECE - 1));
        CHECK_SUCCESS(tcpx_wait_request(receive, 0, &size, &fragments));
        CHECK(size == PIECE - 1 && fragments.count > 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK_SUCCESS(tcpx_irecv_consumed(way->receiver, 1, receive));
    CHECK_MISUSE(tcpx_test(receive, &done, NULL), "ended");
    CHECK_MISUSE(tcpx_wait_request(receive, 0, NULL, NULL), "ended");
    CHECK_MISUSE(tcpx_unpack_submit(unpack, &receive, 1, &ticket), "consumed");
}

/*
 * What has ended is known as such; a receive into GPU memory is there until it is consumed, which
 * is once, and when it is done.
 */
WAY_CASE(ended, ALWAYS)
{
    for (int i = 0; i < 2 * DEPTH; i++) {
        check_ended_host(way);
        if (facts.unpacks)
            check_ended_gpu(way);
    }
    check_way(way);
}

/* A receive into host memory is not moved by being consumed too early. */
WAY_CASE(pending_host, ALWAYS)
{
    void *receive = post_receive(way, HOST, 0, PIECE);

    if (tcpx_irecv_consumed(way->receiver, 1, receive) != TCPX_SUCCESS)
        CHECK(check_said("consumed"));
    finish_two(post_send(way, HOST, 0, PIECE), receive, NULL);
    check_holds(&way->to[HOST], 0, pattern[HOST], PIECE);
    check_way(way);
}

/* Consuming a receive that needs none has no effect on others, also if it is a little late. */
WAY_CASE(late_consumed, ALWAYS)
{
    void *early = move_piece(way, HOST);

    for (int i = 0; i < 200; i++) {
        void *receive = post_receive(way, facts.kinds - 1, 0, PIECE);

        consume(way, &early, 1);
        finish_two(post_send(way, facts.kinds - 1, 0, PIECE), receive, NULL);
        consume(way, &early, 1);
        CHECK(!facts.unpacks || is_done(receive, NULL));
        consume(way, &receive, 1);
    }
}

/* --- waiting ------------------------------------------------------------------------------- */

static void check_wait(struct way *way, int kind)
{
    const struct tcpx_fragments nothing = {.count = 4711};
    struct tcpx_fragments fragments = nothing;
    void *receive = post_receive(way, kind, 0, PIECE);
    uint64_t since = now_ms();
    void *send;
    int size = 77;

    CHECK_ERROR(tcpx_wait_request(receive, 0, &size, &fragments), TCPX_IN_PROGRESS, "in time");
    CHECK(now_ms() - since < SOON_MS);
    since = now_ms();
    CHECK(tcpx_wait_request(receive, 30, &size, &fragments) == TCPX_IN_PROGRESS);
    CHECK(now_ms() - since >= 29 && now_ms() - since < SOON_MS);
    CHECK(size == 77 && fragments.count == nothing.count);
    CHECK_REFUSED(tcpx_wait_request(receive, -2, &size, &fragments), "-2");
    send = post_send(way, kind, 0, PIECE);
    while (tcpx_wait_request(send, 1, NULL, NULL) == TCPX_IN_PROGRESS)
        if (tcpx_wait_request(receive, 0, &size, &fragments) != TCPX_IN_PROGRESS)
            break;
    if (size == 77)
        CHECK_SUCCESS(tcpx_wait_request(receive, SOON_MS, &size, &fragments));
    check_size(kind, size, PIECE);
    CHECK((fragments.count > 0) == (facts.unpacks && kind == GPU));
    settle(way, &receive, 1);
}

/* A wait ends in time, the request goes on, and a later wait finds it done. */
WAY_CASE(wait, ALWAYS)
{
    for (int kind = 0; kind < facts.kinds; kind++) {
        void *receive;
        void *send;

        check_wait(way, kind);
        receive = post_receive(way, kind, 0, 0);
        send = post_send(way, kind, 0, 0);
        CHECK_SUCCESS(tcpx_wait_request(send, SOON_MS, NULL, NULL));
        CHECK_SUCCESS(tcpx_wait_request(receive, SOON_MS, NULL, NULL));
        settle(way, &receive, 1);
    }
}

/* Unless a time is given, it is that of the variable. */
CASE(default_wait, SLOW)
{
    struct way way;
    void *receive;
    uint64_t since;

    setenv("UCCL_TCPX_TIMEOUT_MS", "1000", 1); /* there is no shorter one */
    start();
    way = make_way();
    receive = post_receive(&way, facts.kinds - 1, 0, PIECE);
    since = now_ms();
    CHECK_ERROR(tcpx_wait_request(receive, TCPX_DEFAULT_TIMEOUT, NULL, NULL), TCPX_IN_PROGRESS,
                "in time");
    CHECK(now_ms() - since >= 999 && now_ms() - since < SOON_MS);
    finish_two(post_send(&way, facts.kinds - 1, 0, PIECE), receive, NULL);
    consume(&way, &receive, 1);
    check_way(&way);
    end_way(&way);
}

/* --- fragments ----------------------------------------------------------------------------- */

/* They cover the message once, and their bytes are where they say. */
static void check_fragments(const struct tcpx_fragments *fragments, const uint8_t *expected,
                            size_t bytes)
{
    static uint8_t covered[SPAN];
    uint8_t found[SPAN / 16];
    size_t sum = 0;

    CHECK(fragments->count <= 2048 && (fragments->count > 0) == (bytes > 0));
    CHECK(bytes == 0 || (fragments->list != NULL && fragments->bounce != NULL));
    memset(covered, 0, bytes);
    for (uint32_t i = 0; i < fragments->count; i++) {
        const struct tcpx_fragment *fragment = &fragments->list[i];
        size_t at = fragment->destination_offset;

        CHECK(at <= bytes && fragment->length <= bytes - at && fragment->length <= sizeof found);
        for (size_t j = 0; j < fragment->length; j++)
            CHECK(covered[at + j]++ == 0);
        sum += fragment->length;
        CHECK_SUCCESS(tcpx_gpu_read(
            found, (const uint8_t *)fragments->bounce + fragment->source_offset, fragment->length));
        CHECK(memcmp(found, expected + at, fragment->length) == 0);
    }
    CHECK(sum == bytes);
}

/* A message with these bytes, which are in the source from 77 on, into room for more. */
static void check_fragmented(struct way *way, int source, const void *expected, size_t bytes)
{
    struct tcpx_fragments fragments;
    void *receive = post_receive(way, GPU, 0, bytes + 5000);
    int size = 0;

    finish_two(post_send(way, source, 77, bytes), receive, NULL);
    CHECK_SUCCESS(tcpx_wait_request(receive, TCPX_DEFAULT_TIMEOUT, &size, &fragments));
    CHECK(size == (int)bytes);
    check_fragments(&fragments, expected, bytes);
    settle(way, &receive, 1);
    check_holds(&way->to[GPU], 0, expected, bytes);
}

/* The fragments of a receive lie in the bounce buffer as they are described. */
WAY_CASE(fragments, UNPACKING)
{
    static const char hello[] = "Hello from TCPX client!";
    static const size_t sizes[] = {0, 1, 23, 4095, 4096, 4097, 70000, 200001, 0};

    CHECK(sizeof hello - 1 == 23);
    write_area(&way->from[GPU], 77, hello, 23);
    check_fragmented(way, GPU, hello, 23);
    write_area(&way->from[GPU], 77, pattern[GPU] + 77, 23);
    for (int source = 0; source < facts.kinds; source++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            check_fragmented(way, source, pattern[source] + 77, sizes[i]);
}

/* The receive's result, while both ends are moved on. */
static int result_of_too_long(void *send, void *receive)
{
    uint64_t since = now_ms();
    int result = TCPX_IN_PROGRESS;

    while (result == TCPX_IN_PROGRESS && now_ms() - since < SOON_MS) {
        if (send != NULL && tcpx_wait_request(send, 0, NULL, NULL) != TCPX_IN_PROGRESS)
            send = NULL;
        result = tcpx_wait_request(receive, 1, NULL, NULL);
    }
    return result;
}

/* A message that is longer than its receive is a failure, and nothing is written beside it. */
CASE(too_long, ALWAYS)
{
    static uint8_t found[SPAN];
    struct way way;

    start();
    for (int kind = 0; kind < facts.kinds; kind++) {
        void *receive;
        int result;

        way = make_way();
        poison(&way, SPAN);
        receive = post_receive(&way, kind, PAGE, 5000);
        result = result_of_too_long(post_send(&way, kind, 0, 5001), receive);
        CHECK(result != TCPX_SUCCESS && result != TCPX_IN_PROGRESS);
        CHECK(*tcpx_last_error() != '\0');
        read_area(&way.to[kind], 0, found, SPAN);
        for (size_t i = 0; i < SPAN; i++)
            CHECK((i >= PAGE && i < PAGE + 5000) || found[i] == POISON);
        close_receiver(&way);
    }
    check_new_way();
}

/* --- unpacking ----------------------------------------------------------------------------- */

/* 0 to 16 receives are unpacked at once, and those of host memory are left as they are. */
WAY_CASE(unpack, UNPACKING)
{
    struct tcpx_unpack *unpack = engine_of(way);
    void *receives[DEPTH];
    int targets[DEPTH];
    uint64_t last = 0;
    uint64_t ticket;
    int done;

    for (int count = 0; count <= DEPTH; count += count < 2 ? 1 : 7)
        for (int mixed = 0; mixed < 3; mixed++) { /* GPU only, some of the host, host only */
            for (int i = 0; i < count; i++)
                targets[i] = mixed == 0 || (mixed == 1 && i % 3 != 0) ? GPU : HOST;
            move_pieces(way, targets, receives, count);
            CHECK_SUCCESS(tcpx_unpack_submit(unpack, receives, (size_t)count, &ticket));
            CHECK(ticket > last);
            last = ticket;
            for (done = 0; done == 0;)
                CHECK_SUCCESS(tcpx_unpack_poll(unpack, ticket, &done));
            CHECK(done == 1);
            CHECK_SUCCESS(tcpx_unpack_wait(unpack, ticket, 0));
            consume(way, receives, count);
            check_pieces(way, targets, count);
        }
}

/* What a GPU takes for each piece of work from now on; to be called before the first call. */
static void be_slow(const char *microseconds)
{
    setenv("UCCL_TCPX_HOST_GPU_DELAY_US", microseconds, 1);
    setenv("FAKECUDA_DELAY_US", microseconds, 1);
}

static const int three_on_gpu[] = {GPU, GPU, GPU};

static void submit_pieces(struct way *way, void **receives, uint64_t *ticket)
{
    move_pieces(way, three_on_gpu, receives, 3);
    CHECK_SUCCESS(tcpx_unpack_submit(engine_of(way), receives, 3, ticket));
}

static void consume_pieces(struct way *way, void *const *receives, int count)
{
    consume(way, receives, count);
    check_pieces(way, three_on_gpu, count);
}

/* Work that takes its time is waited for, and also by the end of its engine. */
CASE(unpack_pending, UNPACKING)
{
    enum { DELAY_MS = 10 };
    struct way way;
    void *receives[3];
    uint64_t since;
    uint64_t ticket;
    bool in_progress;
    int done = 77;

    be_slow("10000");
    start();
    way = make_way();
    submit_pieces(&way, receives, &ticket);
    since = now_ms();
    CHECK_SUCCESS(tcpx_unpack_poll(way.unpack, ticket, &done));
    in_progress = tcpx_unpack_wait(way.unpack, ticket, 0) == TCPX_IN_PROGRESS;
    CHECK((done == 0 && in_progress) || now_ms() - since >= DELAY_MS / 2);
    CHECK_SUCCESS(tcpx_unpack_wait(way.unpack, ticket, SOON_MS));
    CHECK_SUCCESS(tcpx_unpack_poll(way.unpack, ticket, &done));
    CHECK(done == 1);
    consume_pieces(&way, receives, 3);
    submit_pieces(&way, receives, &ticket);
    tcpx_unpack_destroy(way.unpack);
    consume_pieces(&way, receives, 3);
    close_receiver(&way);
}

/* When too much is under way, that is no failure: later there is room again. */
CASE(unpack_full, UNPACKING)
{
    const char *impl = getenv("UCCL_TCPX_UNPACK_IMPL");
    bool waits_in_submit = impl != NULL && strcmp(impl, "host") == 0;
    struct way way;
    void *receives[1];
    uint64_t ticket = 0;
    int submits = 0;
    int result = TCPX_SUCCESS;

    be_slow("1000");
    start();
    way = make_way();
    move_pieces(&way, three_on_gpu, receives, 1);
    while (result == TCPX_SUCCESS && submits < 1000) {
        result = tcpx_unpack_submit(engine_of(&way), receives, 1, &ticket);
        submits += result == TCPX_SUCCESS;
    }
    CHECK(result == TCPX_IN_PROGRESS || waits_in_submit);
    CHECK_SUCCESS(tcpx_unpack_wait(way.unpack, ticket, SOON_MS));
    CHECK_SUCCESS(tcpx_unpack_submit(way.unpack, receives, 1, &ticket));
    tcpx_unpack_destroy(way.unpack);
    consume_pieces(&way, receives, 1);
}

CALLS_SUITE("calls_requests");
