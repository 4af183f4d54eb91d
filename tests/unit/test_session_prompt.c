/*
 * Calls of a session that do not wait stay prompt while the session fails: the GPU takes a second
 * for each copy, the peer is killed meanwhile, and what is still on the GPU is waited for by the
 * session's own thread without its lock.
 */
#include "tests/unit/session_pair.h"

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

SIDES_CASE(failing, 2, IN_FULL)
{
    enum { BYTES = 300000 };
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
    area_allocate(&area, me->number == 0, BYTES, 0);
    if (me->number == 1)
        memset(area.address, 5, BYTES);
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

SIDES_SUITE("prompt calls", sides_begin);
