/*
 * Many transfers at once, of every kind, drawn from a number that both sides know: so each knows
 * what the other does, and every byte that should arrive, without a word between them.
 */
#ifndef TCPX_TESTS_SESSION_MIX_H
#define TCPX_TESTS_SESSION_MIX_H

#include "tests/unit/session_access.h"
#include "tests/unit/session_lists.h"

#include <poll.h>

/* --- plans ---------------------------------------------------------------------------------- */

enum begins { AT_ONCE, RECEIVES_FIRST, SENDS_FIRST };
enum ends { FORWARD, BACKWARD, SHUFFLED, BY_TESTS, BY_NO_TIME, BY_EVENTS };

struct mix {
    uint64_t seed;
    uint32_t count;
    uint64_t longest;
    unsigned tags; /* how many; 0: each its own */
    uint64_t first_tag;
    unsigned pieces_percent;
    bool one_way; /* from side 0 to side 1 */
    bool host_only;
    unsigned accesses_percent; /* are reads and writes, by either side */
    enum begins begins;
    enum ends ends[2]; /* of each side */
};

struct job {
    int sender;     /* its memory is read; */
    int initiator;  /* of a read or write; -1: it is a send and a receive */
    bool on_gpu[2]; /* at each side */
    bool as_pieces;
    uint64_t bytes;
    uint64_t tag;
    struct list lists[2];
    uint64_t place[2]; /* of the list in the area of that side, direction and memory */
    struct tcpx_transfer *transfer;
};

/* Both directions of both memories: [receives][on GPU]. */
typedef struct area mix_areas[2][2];
typedef struct covers mix_covers[2][2];

/* Tags of any size, so that some meet wherever they are sorted into less than 2^62 places. */
static inline uint64_t tag_from(uint64_t number)
{
    uint64_t state = (number + 1) * 0xd1342543de82ef95u;

    return random_next(&state) % TCPX_TAG_END;
}

static inline void draw_access(uint64_t *random, struct job *job)
{
    uint32_t most = one_in(random, 8) ? 2000 : 20;
    uint32_t count = job->as_pieces ? 1 + (uint32_t)random_below(random, most) : 1;
    enum list_kind kinds[2];

    job->initiator = (int)random_below(random, 2);
    for (int i = 0; i < 2; i++)
        kinds[i] = one_in(random, 2)                       ? IN_ORDER
                   : i == job->sender && one_in(random, 2) ? OVERLAPPING
                                                           : DISJOINT;
    list_draw_two(random, job->bytes, count, kinds, job->lists);
}

static inline void draw_job(uint64_t *random, const struct mix *mix, uint32_t number,
                            struct job *job)
{
    *job = (struct job){.sender = mix->one_way ? 0 : (int)random_below(random, 2), .initiator = -1};
    for (int i = 0; i < 2; i++)
        job->on_gpu[i] = random_below(random, 2) == 0 && !mix->host_only;
    job->bytes = one_in(random, 10)  ? 0
                 : one_in(random, 4) ? random_below(random, mix->longest + 1)
                                     : random_below(random, mix->longest / 16 + 1);
    job->tag =
        tag_from(mix->first_tag + (mix->tags == 0 ? number : random_below(random, mix->tags)));
    job->as_pieces = random_below(random, 100) < mix->pieces_percent;
    if (mix->accesses_percent > 0 && random_below(random, 100) < mix->accesses_percent) {
        draw_access(random, job);
        return;
    }
    for (int i = 0; i < 2; i++) {
        uint32_t most = one_in(random, 8) ? 2000 : 20;
        uint32_t count = job->as_pieces ? 1 + (uint32_t)random_below(random, most) : 1;
        enum list_kind kind = i == job->sender && one_in(random, 2) ? OVERLAPPING : DISJOINT;

        job->lists[i] = list_draw(random, job->bytes, count, kind);
    }
}

/* Where everything lies, with some bytes between that nobody may touch. */
static inline void place_jobs(struct job *jobs, uint32_t count, uint64_t used[2][2][2])
{
    for (uint32_t i = 0; i < count; i++)
        for (int side = 0; side < 2; side++) {
            uint64_t *end = &used[side][side != jobs[i].sender][jobs[i].on_gpu[side]];

            jobs[i].place[side] = *end + 1 + jobs[i].bytes % 61;
            *end = jobs[i].place[side] + jobs[i].lists[side].span + 17;
            for (uint32_t k = 0; k < jobs[i].lists[side].count; k++)
                jobs[i].lists[side].pieces[k].offset += jobs[i].place[side];
        }
}

static inline void fill_areas(const struct mix *mix, int side, mix_areas all, struct job *jobs)
{
    for (int gpu = 0; gpu < 2; gpu++) {
        memset(all[0][gpu].expected, 0, all[0][gpu].bytes);
        area_poison(&all[1][gpu]);
    }
    for (uint32_t i = 0; i < mix->count; i++) {
        struct area *area = &all[side != jobs[i].sender][jobs[i].on_gpu[side]];

        if (jobs[i].sender == side)
            pattern_copy(area->expected + jobs[i].place[side], jobs[i].lists[side].span,
                         mix->seed + i, jobs[i].place[side]);
    }
    for (int gpu = 0; gpu < 2; gpu++)
        area_write(&all[0][gpu], 0, all[0][gpu].bytes);
}

/* What should have come, into what is expected. */
static inline void expect_jobs(const struct mix *mix, int side, mix_areas all, struct job *jobs)
{
    for (uint32_t i = 0; i < mix->count; i++) {
        struct job *job = &jobs[i];
        struct area *area = &all[1][job->on_gpu[side]];

        if (job->sender != side)
            list_move(&job->lists[!side], mix->seed + i, &job->lists[side], area->expected);
    }
}

/* A read or a write of this side; the other side has nothing to do for it. */
static inline void begin_access_job(struct tcpx_session *session, int side, mix_covers covers[2],
                                    struct job *job)
{
    bool is_read = job->sender != side;
    const struct covers *here = &covers[0][is_read][job->on_gpu[side]];
    const struct covers *there = &covers[1][!is_read][job->on_gpu[!side]];
    uint32_t count = job->lists[side].count;
    struct tcpx_part *parts = calloc(count, sizeof *parts);
    const struct tcpx_access access = {.parts = parts, .part_count = count};

    CHECK(parts != NULL);
    for (uint32_t i = 0; i < count; i++)
        parts[i] = part_between(here, job->lists[side].pieces[i].offset, there,
                                job->lists[!side].pieces[i].offset,
                                job->lists[side].pieces[i].bytes, i / 5);
    job->transfer = begin_access(session, is_read, &access);
    free(parts);
}

static inline void begin_job(struct tcpx_session *session, int side, mix_areas all,
                             mix_covers covers[2], struct job *job)
{
    const struct area *area = &all[side != job->sender][job->on_gpu[side]];
    const struct list *list = &job->lists[side];
    struct tcpx_move move = {.memory = area->memory,
                             .offset = list->pieces[0].offset,
                             .bytes = job->bytes,
                             .tag = job->tag,
                             .pieces = job->as_pieces ? list->pieces : NULL,
                             .piece_count = job->as_pieces ? list->count : 0};

    if (job->initiator < 0)
        job->transfer = begin(session, job->sender == side, move);
    else if (job->initiator == side)
        begin_access_job(session, side, covers, job);
}

/* --- waiting -------------------------------------------------------------------------------- */

/* One round over all that are left. Returns how many have ended. */
static inline uint32_t ask_all(struct job *jobs, uint32_t count, bool by_wait)
{
    uint32_t ended = 0;

    for (uint32_t i = 0; i < count; i++) {
        int done = 0;

        if (jobs[i].transfer == NULL)
            continue;
        if (by_wait) {
            int result = tcpx_transfer_wait(jobs[i].transfer, 0);

            CHECK(result == TCPX_SUCCESS || result == TCPX_IN_PROGRESS);
            done = result == TCPX_SUCCESS;
        } else {
            CHECK_SUCCESS(tcpx_transfer_test(jobs[i].transfer, &done));
        }
        if (done) {
            jobs[i].transfer = NULL;
            ended++;
        }
    }
    return ended;
}

static inline uint32_t count_open(const struct job *jobs, uint32_t count)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < count; i++)
        open += jobs[i].transfer != NULL;
    return open;
}

static inline void ask_until_ended(struct job *jobs, uint32_t count, bool by_wait)
{
    uint64_t since = now_ms();
    uint32_t left = count_open(jobs, count);

    while (left > 0) {
        uint32_t ended = ask_all(jobs, count, by_wait);

        left -= ended;
        if (ended > 0)
            since = now_ms();
        CHECK(now_ms() - since < WAIT_MS);
        if (ended == 0)
            sched_yield();
    }
}

/* An end is told by the descriptor, or was there before the latest look at all of them. */
static inline void poll_until_ended(int fd, struct job *jobs, uint32_t count)
{
    uint32_t left = count_open(jobs, count);

    left -= ask_all(jobs, count, false);
    while (left > 0) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        uint64_t ends;
        int ready;

        do
            ready = poll(&wanted, 1, WAIT_MS);
        while (ready < 0 && errno == EINTR);
        CHECK(ready == 1);
        CHECK(read(fd, &ends, sizeof ends) == (ssize_t)sizeof ends || errno == EAGAIN);
        left -= ask_all(jobs, count, false);
    }
}

static inline void finish_jobs(struct tcpx_session *session, struct job *jobs, uint32_t count,
                               enum ends ends, uint64_t *random)
{
    uint32_t *order;
    int fd;

    if (ends == BY_EVENTS) {
        CHECK_SUCCESS(tcpx_session_event_fd(session, &fd));
        poll_until_ended(fd, jobs, count);
        return;
    }
    if (ends == BY_TESTS || ends == BY_NO_TIME) {
        ask_until_ended(jobs, count, ends == BY_NO_TIME);
        return;
    }
    order = calloc(count + 1, sizeof *order);
    CHECK(order != NULL);
    shuffle(random, order, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t which = ends == FORWARD ? i : ends == BACKWARD ? count - 1 - i : order[i];

        if (jobs[which].transfer != NULL)
            FINISH(jobs[which].transfer);
        jobs[which].transfer = NULL;
    }
    free(order);
}

/* --- the whole ------------------------------------------------------------------------------ */

static inline void begin_jobs(struct side *me, struct tcpx_session *session, const struct mix *mix,
                              mix_areas all, mix_covers covers[2], struct job *jobs)
{
    if (mix->begins == AT_ONCE) {
        for (uint32_t i = 0; i < mix->count; i++)
            begin_job(session, me->number, all, covers, &jobs[i]);
        return;
    }
    for (int turn = 0; turn < 2; turn++) {
        bool sends = (mix->begins == SENDS_FIRST) == (turn == 0);

        for (uint32_t i = 0; i < mix->count; i++)
            if ((jobs[i].sender == me->number) == sends)
                begin_job(session, me->number, all, covers, &jobs[i]);
        meet(me);
    }
}

/* Windows of all areas, and those of the peer, which knows how large each is. */
static inline void open_covers(struct tcpx_session *session, const struct mix *mix, mix_areas all,
                               uint64_t theirs[2][2], mix_covers covers[2])
{
    for (int i = 0; i < 2; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            uint64_t tag = tag_from(mix->first_tag + mix->count + 2 * (unsigned)i + (unsigned)gpu);

            covers_open(&covers[0][i][gpu], &all[i][gpu],
                        i == 0 ? TCPX_WINDOW_READ : TCPX_WINDOW_WRITE);
            covers_swap(&covers[0][i][gpu], &covers[1][i][gpu], theirs[i][gpu] + 100, session, tag);
        }
}

/* When both sides have come here, no access is under way any more. */
static inline void close_covers(struct tcpx_session *session, const struct mix *mix,
                                mix_covers covers[2])
{
    swap_nothing(session, tag_from(mix->first_tag + mix->count + 4));
    for (int i = 0; i < 2; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            covers_close(&covers[0][i][gpu]);
            covers_close(&covers[1][i][gpu]);
        }
}

/* Every byte is right, and nothing else was touched. */
static inline void run_mix(struct side *me, struct tcpx_session *session, const struct mix *mix)
{
    uint64_t random = mix->seed * 2654435761u + 99;
    struct job *jobs = calloc(mix->count, sizeof *jobs);
    uint64_t used[2][2][2] = {0};
    mix_covers covers[2]; /* of this side's areas, and of the peer's */
    mix_areas all;

    CHECK(jobs != NULL);
    for (uint32_t i = 0; i < mix->count; i++)
        draw_job(&random, mix, i, &jobs[i]);
    place_jobs(jobs, mix->count, used);
    for (int i = 0; i < 2; i++)
        for (int gpu = 0; gpu < 2; gpu++)
            area_make(&all[i][gpu], session, gpu == 1 && !mix->host_only,
                      used[me->number][i][gpu] + 100);
    fill_areas(mix, me->number, all, jobs);
    if (mix->accesses_percent > 0)
        open_covers(session, mix, all, used[!me->number], covers);
    begin_jobs(me, session, mix, all, covers, jobs);
    finish_jobs(session, jobs, mix->count, mix->ends[me->number], &random);
    if (mix->accesses_percent > 0)
        close_covers(session, mix, covers);
    expect_jobs(mix, me->number, all, jobs);
    for (int i = 0; i < 2; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            CHECK_AREA(&all[i][gpu], 0, all[i][gpu].bytes);
            area_drop(&all[i][gpu], session);
        }
    for (uint32_t i = 0; i < mix->count; i++) {
        list_free(&jobs[i].lists[0]);
        list_free(&jobs[i].lists[1]);
    }
    free(jobs);
}

#endif
