/*
 * Sends, receives, reads and writes that are given up at any moment, by a cancel or the close of a
 * window, on either side, with a peer that runs, is stopped or is killed. Once the call has
 * succeeded the memory is the program's again: it is filled with other bytes, which nothing changes
 * and which never arrive at the peer. Whatever is done on the session afterwards is right.
 *
 * TCPX_TEST_TURNS=percent of all turns; TCPX_TEST_SEED: of what they are.
 */
#include "tests/unit/session_pair.h"

enum { MOST_BYTES = 3 << 20, RELEASED = 0xdd, AT_ONCE_MS = 500 };

enum kind { SEND, RECEIVE, READ, WRITE, KINDS };

/* Both sides know it. All bytes of the source are the same. */
struct turn {
    unsigned number;
    enum kind kind;
    bool on_gpu[2]; /* the memory of either side */
    uint64_t bytes;
    unsigned pause_us; /* until it is given up */
    int actor;         /* the side that begins it; the other one takes no part in it, or posts */
    bool by_window;    /* its window is closed, */
    bool by_other;     /* or that of the other side, by that */
    uint8_t byte;
};

struct play {
    struct side *me;
    struct tcpx_session *session;
    struct area areas[2]; /* host, GPU */
    struct tcpx_window *window;
    uint64_t random; /* the same numbers on both sides */
};

static struct turn choose(struct play *play, unsigned number)
{
    static const uint64_t most[] = {100, 9000, 300000, MOST_BYTES};
    uint64_t *random = &play->random;
    struct turn turn = {.number = number, .byte = (uint8_t)(1 + number % 100)};

    turn.kind = (enum kind)random_below(random, KINDS);
    turn.on_gpu[0] = one_in(random, 3);
    turn.on_gpu[1] = one_in(random, 3);
    turn.bytes = 1 + random_below(random, most[random_below(random, COUNT_OF(most))]);
    turn.bytes += 2 - (turn.bytes + 2) % 3; /* thirds */
    turn.pause_us = (unsigned)random_below(random, one_in(random, 2) ? 100 : 2000);
    turn.actor = (int)random_below(random, 2);
    turn.by_window = turn.kind >= READ && one_in(random, 2);
    turn.by_other = turn.by_window && one_in(random, 2);
    return turn;
}

/* --- memory -------------------------------------------------------------------------------- */

static bool is_source(const struct turn *turn, int side)
{
    return (turn->kind == SEND || turn->kind == WRITE) == (side == turn->actor);
}

static struct area *area_of(struct play *play, const struct turn *turn)
{
    return &play->areas[turn->on_gpu[play->me->number]];
}

static void fill(struct area *area, uint64_t bytes, uint8_t byte)
{
    memset(area->expected, byte, bytes);
    area_write(area, 0, bytes);
}

/* All of it is what it was before, or what the source had; all of the source's if it is whole. */
static void check_moved_some(struct area *area, const struct turn *turn, bool is_whole)
{
    const uint8_t *seen = area->address;

    if (area->on_gpu) {
        CHECK_SUCCESS(tcpx_gpu_read(area->scratch, area->address, turn->bytes));
        seen = area->scratch;
    }
    for (uint64_t i = 0; i < turn->bytes; i++) {
        char text[100];

        if (seen[i] == turn->byte || (!is_whole && seen[i] == POISON))
            continue;
        snprintf(text, sizeof text, "byte %llu of %llu is 0x%02x", (unsigned long long)i,
                 (unsigned long long)turn->bytes, seen[i]);
        fail_here(HERE, text);
    }
}

/* --- a turn -------------------------------------------------------------------------------- */

/* Keys of both sides are in the meeting's note. */
static void open_window(struct play *play, const struct turn *turn)
{
    struct area *area = area_of(play, turn);

    CHECK_SUCCESS(tcpx_window_open(area->on_gpu ? 0 : -1, area->address, area->bytes,
                                   TCPX_WINDOW_READ | TCPX_WINDOW_WRITE, &play->window));
    CHECK_SUCCESS(tcpx_window_key(play->window, meeting->note + play->me->number * TCPX_KEY_BYTES));
}

static struct tcpx_remote *open_remote(struct play *play)
{
    const char *key = meeting->note + (1 - play->me->number) * TCPX_KEY_BYTES;
    struct tcpx_remote *remote;

    CHECK_SUCCESS(tcpx_remote_open(play->session, key, TCPX_KEY_BYTES, &remote));
    return remote;
}

/* Odd turns have a list of three parts, with a note of the turn's number. */
static struct tcpx_transfer *begin_access(struct play *play, const struct turn *turn,
                                          struct tcpx_remote *remote)
{
    const uint64_t third = turn->bytes / 3;
    struct tcpx_part parts[3] = {{play->window, 0, remote, 0, turn->bytes}};
    const struct tcpx_access access = {.parts = parts,
                                       .part_count = turn->number % 2 != 0 ? 3 : 1,
                                       .note = &turn->number,
                                       .note_bytes = sizeof turn->number};
    struct tcpx_transfer *transfer = NULL;

    for (uint64_t i = 0; i < access.part_count && access.part_count > 1; i++)
        parts[i] = (struct tcpx_part){play->window, i * third, remote, (2 - i) * third, third};
    CHECK_SUCCESS((turn->kind == READ ? tcpx_read : tcpx_write)(play->session, &access, &transfer));
    return transfer;
}

static struct tcpx_transfer *begin_turn(struct play *play, const struct turn *turn,
                                        struct tcpx_remote *remote)
{
    bool sends = is_source(turn, play->me->number);

    return turn->kind >= READ ? begin_access(play, turn, remote)
                              : begin_part(play->session, sends, area_of(play, turn), 0,
                                           turn->bytes, 100 + turn->number, 0);
}

/* A copy of the GPU, or a thread that the machine does not run, may take longer. */
static void give_up(struct play *play, const struct turn *turn, struct tcpx_transfer *transfer)
{
    uint64_t start = now_ms();
    int result;

    do
        result = turn->by_window ? tcpx_window_close(play->window, (int)limit_ms(AT_ONCE_MS))
                                 : tcpx_transfer_cancel(transfer);
    while (result == TCPX_IN_PROGRESS && now_ms() - start < SOON_MS);
    CHECK(result == TCPX_SUCCESS);
    CHECK(now_ms() - start <= limit_ms(AT_ONCE_MS));
    if (turn->by_window)
        play->window = NULL;
    fill(area_of(play, turn), turn->bytes, RELEASED);
}

/* Notes of accesses that were done, in their order. */
static void take_note(struct play *play, const struct turn *turn)
{
    uint64_t since = now_ms();
    unsigned number = 0;
    size_t bytes;
    int there = 0;

    while (there == 0) {
        CHECK_SUCCESS(tcpx_note_take(play->session, &number, sizeof number, &bytes, &there));
        CHECK(now_ms() - since < WAIT_MS);
    }
    CHECK(bytes == sizeof number && number == turn->number);
}

/* The result, which the other side wants to know. */
static void end_turn(struct play *play, const struct turn *turn, struct tcpx_transfer *transfer)
{
    struct area *area = area_of(play, turn);
    int result = tcpx_transfer_wait(transfer, (int)WAIT_MS);

    CHECK(result == TCPX_SUCCESS || result == TCPX_CANCELLED ||
          (turn->by_other && result == TCPX_INVALID_USAGE));
    CHECK(result == TCPX_SUCCESS || *tcpx_last_error() != '\0');
    if (turn->by_other && !is_source(turn, play->me->number))
        check_moved_some(area, turn, result == TCPX_SUCCESS);
    atomic_store(&meeting->number, (uint64_t)result);
}

static void act(struct play *play, const struct turn *turn)
{
    struct tcpx_remote *remote = turn->kind >= READ ? open_remote(play) : NULL;
    struct tcpx_transfer *transfer = begin_turn(play, turn, remote);

    nap_us(turn->pause_us);
    if (!turn->by_other)
        give_up(play, turn, transfer);
    end_turn(play, turn, transfer);
    CHECK_SUCCESS(tcpx_remote_close(remote));
}

/* The other side: of an access only its window. */
static void take_part(struct play *play, const struct turn *turn)
{
    struct tcpx_transfer *transfer;

    if (turn->by_other) {
        nap_us(turn->pause_us);
        give_up(play, turn, NULL);
    }
    if (turn->kind >= READ)
        return;
    transfer = begin_turn(play, turn, NULL);
    meet(play->me); /* the actor's has ended; where there is nothing to come, this does not */
    nap_us(turn->pause_us);
    give_up(play, turn, transfer);
    (void)!tcpx_transfer_wait(transfer, (int)WAIT_MS);
}

/* The close of the window is also what orders the reads here behind the writes of I/O threads. */
static void check_turn(struct play *play, const struct turn *turn)
{
    struct area *area = area_of(play, turn);
    bool is_actor = play->me->number == turn->actor;
    bool is_done = atomic_load(&meeting->number) == TCPX_SUCCESS;

    CHECK_SUCCESS(tcpx_window_close(play->window, (int)WAIT_MS));
    play->window = NULL;
    if (is_actor == !turn->by_other || turn->kind < READ)
        CHECK_AREA(area, 0, turn->bytes);
    else if (!is_actor && turn->kind == WRITE)
        check_moved_some(area, turn, is_done);
    if (!is_actor && turn->kind >= READ && is_done)
        take_note(play, turn);
}

static void play_turn(struct play *play, unsigned number)
{
    const struct turn turn = choose(play, number);
    struct area *area = area_of(play, &turn);

    STAGE("turn %u, kind %d, %llu bytes", number, (int)turn.kind, (unsigned long long)turn.bytes);
    fill(area, turn.bytes, is_source(&turn, play->me->number) ? turn.byte : POISON);
    if (turn.kind >= READ)
        open_window(play, &turn);
    meet(play->me);
    if (play->me->number == turn.actor) {
        act(play, &turn);
        if (turn.kind < READ)
            meet(play->me);
    } else {
        take_part(play, &turn);
    }
    meet(play->me);
    check_turn(play, &turn);
    meet(play->me);
}

static void play_begin(struct play *play, struct side *me, struct tcpx_session *session)
{
    *play = (struct play){.me = me,
                          .session = session,
                          .random = number_of("TCPX_TEST_SEED", 20260) * 2654435761u + 1};
    for (int on_gpu = 0; on_gpu < 2; on_gpu++)
        area_make(&play->areas[on_gpu], session, on_gpu == 1, MOST_BYTES);
}

static void play_end(struct play *play)
{
    for (int on_gpu = 0; on_gpu < 2; on_gpu++)
        area_drop(&play->areas[on_gpu], play->session);
}

static struct tcpx_session *open_with_windows(struct side *me)
{
    struct tcpx_session_options options = usual_options();

    options.windows = 1;
    options.channels = 1;
    return open_session(me, &options);
}

/* --- a peer that runs ------------------------------------------------------------------------ */

SIDES_CASE(at_any_moment, 2, IN_FULL)
{
    const unsigned turns = 20 + (unsigned)turns_of(400);
    struct play play;

    play_begin(&play, me, open_with_windows(me));
    for (unsigned i = 0; i < turns; i++) {
        play_turn(&play, i);
        if (i % 20 == 0)
            ping(me, play.session, (int)(i / 20 % 2), 100000 + i);
    }
    CHECK(turns < 100 || statistics_of(play.session).cancelled > 0);
    play_end(&play);
    tcpx_session_close(play.session);
}

/* --- a peer that is stopped ------------------------------------------------------------------ */

/* Of a process that is another one's child: T, once all of its threads stand still. */
static char state_of(pid_t pid)
{
    char path[40];
    char text[100] = "";
    const char *state;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fgets(text, sizeof text, file) != NULL);
    fclose(file);
    state = strrchr(text, ')');
    CHECK(state != NULL);
    return state[2];
}

static void stop_peer(pid_t pid)
{
    uint64_t since = now_ms();

    CHECK(kill(pid, SIGSTOP) == 0);
    while (state_of(pid) != 'T')
        CHECK(now_ms() - since < SOON_MS);
}

/* It goes on only when the memory has been given up, and filled with other bytes. */
static void act_while_stopped(struct play *play, const struct turn *turn, pid_t pid)
{
    struct tcpx_remote *remote = turn->kind >= READ ? open_remote(play) : NULL;
    struct tcpx_transfer *transfer;

    if (turn->number % 2 == 0)
        stop_peer(pid);
    transfer = begin_turn(play, turn, remote);
    nap_us(turn->pause_us);
    if (turn->number % 2 != 0)
        stop_peer(pid);
    give_up(play, turn, transfer);
    CHECK(kill(pid, SIGCONT) == 0);
    end_turn(play, turn, transfer);
    CHECK_SUCCESS(tcpx_remote_close(remote));
}

static void play_stopped_turn(struct play *play, unsigned number)
{
    struct turn turn = choose(play, number);
    bool is_actor = play->me->number == 0;
    struct tcpx_transfer *transfer = NULL;

    turn.actor = 0;
    turn.by_other = false;
    STAGE("turn %u, kind %d, %llu bytes", number, (int)turn.kind, (unsigned long long)turn.bytes);
    fill(area_of(play, &turn), turn.bytes, is_source(&turn, play->me->number) ? turn.byte : POISON);
    if (turn.kind >= READ)
        open_window(play, &turn);
    else if (!is_actor)
        transfer = begin_turn(play, &turn, NULL);
    meet(play->me);
    if (is_actor)
        act_while_stopped(play, &turn, (pid_t)atomic_load(&meeting->gone));
    meet(play->me);
    if (transfer != NULL) {
        give_up(play, &turn, transfer);
        (void)!tcpx_transfer_wait(transfer, (int)WAIT_MS);
    }
    check_turn(play, &turn);
    meet(play->me);
}

SIDES_CASE(of_a_stopped_peer, 2, IN_FULL)
{
    struct play play;

    play_begin(&play, me, open_with_windows(me));
    if (me->number == 1)
        atomic_store(&meeting->gone, (uint64_t)getpid());
    for (unsigned i = 0; i < 10 + (unsigned)turns_of(100); i++)
        play_stopped_turn(&play, i);
    ping(me, play.session, 0, 100000);
    CHECK(me->number == 1 || statistics_of(play.session).cancelled > 0);
    play_end(&play);
    tcpx_session_close(play.session);
}

/* --- a peer that is killed ------------------------------------------------------------------- */

/* One kind in each variant; before it is given up, or after. */
static void play_killed(struct play *play, unsigned number, enum kind kind)
{
    struct turn turn = choose(play, number);
    struct area *area;

    turn.kind = kind;
    turn.actor = 0;
    turn.by_other = false;
    turn.by_window = kind >= READ && number % 2 == 0;
    STAGE("turn %u, kind %d, %llu bytes", number, (int)turn.kind, (unsigned long long)turn.bytes);
    area = area_of(play, &turn);
    fill(area, turn.bytes, is_source(&turn, play->me->number) ? turn.byte : POISON);
    if (kind >= READ)
        open_window(play, &turn);
    else if (play->me->number == 1)
        begin_turn(play, &turn, NULL);
    meet(play->me);
    if (play->me->number == 1)
        for (;;)
            pause();
    {
        struct tcpx_remote *remote = kind >= READ ? open_remote(play) : NULL;
        struct tcpx_transfer *transfer = begin_turn(play, &turn, remote);
        pid_t pid = (pid_t)atomic_load(&meeting->gone);

        nap_us(turn.pause_us);
        if (number % 3 != 0)
            CHECK(kill(pid, SIGKILL) == 0);
        give_up(play, &turn, transfer);
        if (number % 3 == 0)
            CHECK(kill(pid, SIGKILL) == 0);
        CHECK(tcpx_transfer_wait(transfer, (int)SOON_MS) != TCPX_IN_PROGRESS);
    }
    CHECK_AREA(area, 0, turn.bytes);
    CHECK_SUCCESS(tcpx_window_close(play->window, (int)limit_ms(AT_ONCE_MS)));
    tcpx_session_close(play->session);
    CHECK_AREA(area, 0, turn.bytes);
}

#define KILLED_CASE(of, kind, turn)                                                                \
    SIDES_CASE(of, 2, IN_FULL)                                                                     \
    {                                                                                              \
        struct play play;                                                                          \
                                                                                                   \
        play_begin(&play, me, open_with_windows(me));                                              \
        if (me->number == 1)                                                                       \
            atomic_store(&meeting->gone, (uint64_t)getpid());                                      \
        play_killed(&play, turn, kind);                                                            \
    }

KILLED_CASE(send_to_a_killed_peer, SEND, 1)
KILLED_CASE(send_before_a_kill, SEND, 3)
KILLED_CASE(receive_of_a_killed_peer, RECEIVE, 2)
KILLED_CASE(receive_before_a_kill, RECEIVE, 6)
KILLED_CASE(read_of_a_killed_peer, READ, 4)
KILLED_CASE(read_before_a_kill, READ, 9)
KILLED_CASE(write_to_a_killed_peer, WRITE, 5)
KILLED_CASE(write_before_a_kill, WRITE, 12)

SIDES_SUITE("transfers that are given up", sides_begin);
