/*
 * Many transfers at once, of every kind, drawn from a number that both sides know: so each knows
 * what the other does, and every byte that should arrive, without a word between them.
 */
#ifndef TCPX_TESTS_SESSION_MIX_H
#define TCPX_TESTS_SESSION_MIX_H

#include "tests/unit/session_pair.h"

#include <poll.h>

/* --- lists of pieces ------------------------------------------------------------------------ */

struct list {
    struct tcpx_piece *pieces;
    uint32_t count;
    uint64_t span; /* what they lie in */
};

enum list_kind { DISJOINT, OVERLAPPING };

/*
 * `count` pieces of `bytes` altogether, some of them empty, in any order; as many as there are
 * bytes: of one byte each.
 */
static inline struct list list_draw(uint64_t *random, uint64_t bytes, uint32_t count,
                                    enum list_kind kind)
{
    struct list list = {.pieces = calloc(count + 1, sizeof *list.pieces), .count = count};
    uint32_t *order = calloc(count + 1, sizeof *order);
    uint64_t left = bytes;

    CHECK(list.pieces != NULL && order != NULL);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t fair = left / (count - i);
        uint64_t length = i + 1 == count   ? left
                          : count == bytes ? 1
                                           : random_below(random, 2 * fair + 2);

        list.pieces[i].bytes = length < left ? length : left;
        left -= list.pieces[i].bytes;
    }
    shuffle(random, order, count);
    list.span = kind == OVERLAPPING ? bytes : 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tcpx_piece *piece = &list.pieces[order[i]];

        if (kind == OVERLAPPING) {
            piece->offset = random_below(random, bytes - piece->bytes + 1);
        } else {
            piece->offset = list.span + (one_in(random, 3) ? random_below(random, 9) : 0);
            list.span = piece->offset + piece->bytes;
        }
    }
    free(order);
    return list;
}

static inline void list_free(struct list *list)
{
    free(list->pieces);
    *list = (struct list){0};
}

/* What a transfer does: `from` is read in the order of its pieces, where its memory is `seed`'s. */
static inline void list_move(const struct list *from, uint64_t seed, const struct list *to,
                             uint8_t *memory)
{
    uint64_t bytes = 0;
    uint64_t at = 0;
    uint8_t *message;

    for (uint32_t i = 0; i < from->count; i++)
        bytes += from->pieces[i].bytes;
    message = malloc(bytes + 1);
    CHECK(message != NULL);
    for (uint32_t i = 0; i < from->count; at += from->pieces[i++].bytes)
        pattern_copy(message + at, from->pieces[i].bytes, seed, from->pieces[i].offset);
    at = 0;
    for (uint32_t i = 0; i < to->count; at += to->pieces[i++].bytes)
        memcpy(memory + to->pieces[i].offset, message + at, to->pieces[i].bytes);
    free(message);
}

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
    enum begins begins;
    enum ends ends[2]; /* of each side */
};

struct job {
    int sender;
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

/* Tags of any size, so that some meet wherever they are sorted into less than 2^62 places. */
static inline uint64_t tag_from(uint64_t number)
{
    uint64_t state = (number + 1) * 0xd1342543de82ef95u;

    return random_next(&state) % TCPX_TAG_END;
}

static inline void draw_job(uint64_t *random, const struct mix *mix, uint32_t number,
                            struct job *job)
{
    *job = (struct job){.sender = mix->one_way ? 0 : (int)random_below(random, 2)};
    for (int i = 0; i < 2; i++)
        job->on_gpu[i] = random_below(random, 2) == 0 && !mix->host_only;
    job->bytes = one_in(random, 10)  ? 0
                 : one_in(random, 4) ? random_below(random, mix->longest + 1)
                                     : random_below(random, mix->longest / 16 + 1);
    job->tag =
        tag_from(mix->first_tag + (mix->tags == 0 ? number : random_below(random, mix->tags)));
    job->as_pieces = random_below(random, 100) < mix->pieces_percent;
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

static inline void begin_job(struct tcpx_session *session, int side, mix_areas all, struct job *job)
{
    const struct area *area = &all[side != job->sender][job->on_gpu[side]];
    const struct list *list = &job->lists[side];
    struct tcpx_move move = {.memory = area->memory,
                             .offset = list->pieces[0].offset,
                             .bytes = job->bytes,
                             .tag = job->tag,
                             .pieces = job->as_pieces ? list->pieces : NULL,
                             .piece_count = job->as_pieces ? list->count : 0};

    job->transfer = begin(session, job->sender == side, move);
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

static inline void ask_until_ended(struct job *jobs, uint32_t count, bool by_wait)
{
    uint64_t since = now_ms();
    uint32_t left = count;

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
    uint32_t left = count;

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

        FINISH(jobs[which].transfer);
        jobs[which].transfer = NULL;
    }
    free(order);
}

/* --- the whole ------------------------------------------------------------------------------ */

static inline void begin_jobs(struct side *me, struct tcpx_session *session, const struct mix *mix,
                              mix_areas all, struct job *jobs)
{
    if (mix->begins == AT_ONCE) {
        for (uint32_t i = 0; i < mix->count; i++)
            begin_job(session, me->number, all, &jobs[i]);
        return;
    }
    for (int turn = 0; turn < 2; turn++) {
        bool sends = (mix->begins == SENDS_FIRST) == (turn == 0);

        for (uint32_t i = 0; i < mix->count; i++)
            if ((jobs[i].sender == me->number) == sends)
                begin_job(session, me->number, all, &jobs[i]);
        meet(me);
    }
}

/* Every byte is right, and nothing else was touched. */
static inline void run_mix(struct side *me, struct tcpx_session *session, const struct mix *mix)
{
    uint64_t random = mix->seed * 2654435761u + 99;
    struct job *jobs = calloc(mix->count, sizeof *jobs);
    uint64_t used[2][2][2] = {0};
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
    begin_jobs(me, session, mix, all, jobs);
    finish_jobs(session, jobs, mix->count, mix->ends[me->number], &random);
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
