/*
 * What tests of one-sided access need besides session_pair.h: windows on areas, the keys that the
 * two sides give each other, and parts between them. Of tcpx only tcpx.h is used here.
 */
#ifndef TCPX_TESTS_SESSION_ACCESS_H
#define TCPX_TESTS_SESSION_ACCESS_H

#include "tests/unit/session_pair.h"

enum { READ_WRITE = TCPX_WINDOW_READ | TCPX_WINDOW_WRITE };

static inline struct tcpx_session_options with_windows(void)
{
    struct tcpx_session_options options = usual_options();

    options.windows = 1;
    return options;
}

/* Each side gets what the other has, by a send and a receive of this tag; neither goes on before.
 */
static inline void swap_bytes(struct tcpx_session *session, uint64_t tag, const void *mine,
                              void *theirs, uint64_t bytes)
{
    uint8_t *buffer = calloc(2, bytes + 1);
    struct tcpx_transfer *receive;
    struct area area = {0};

    CHECK(buffer != NULL);
    memcpy(buffer, mine, bytes);
    CHECK_SUCCESS(tcpx_session_register(session, buffer, 2 * (bytes + 1), &area.memory));
    receive = begin_part(session, false, &area, bytes, bytes, tag, 0);
    FINISH(begin_part(session, true, &area, 0, bytes, tag, 0));
    FINISH(receive);
    memcpy(theirs, buffer + bytes, bytes);
    CHECK_SUCCESS(tcpx_session_deregister(session, area.memory));
    free(buffer);
}

static inline void swap_nothing(struct tcpx_session *session, uint64_t tag)
{
    uint8_t theirs;

    swap_bytes(session, tag, "", &theirs, 1);
}

/*
 * All sides are here, and what they read and write of each other has happened. A program that makes
 * no call knows that from the other process. A sanitizer only knows locks, so there is a call then.
 */
static inline void meet_and_see(struct side *me, struct tcpx_session *session)
{
    if (SANITIZED)
        statistics_of(session);
    meet(me);
    if (SANITIZED)
        statistics_of(session);
}

/* --- one window of each side ---------------------------------------------------------------- */

static inline struct tcpx_window *window_on(const struct area *area, uint64_t offset,
                                            uint64_t bytes, int access)
{
    struct tcpx_window *window = NULL;

    CHECK_SUCCESS(
        tcpx_window_open(area->on_gpu ? 0 : -1, area->address + offset, bytes, access, &window));
    return window;
}

/* The peer's window for one of this side's. */
static inline struct tcpx_remote *swap_windows(struct tcpx_session *session, uint64_t tag,
                                               const struct tcpx_window *mine)
{
    uint8_t keys[2][TCPX_KEY_BYTES];
    struct tcpx_remote *remote = NULL;

    CHECK_SUCCESS(tcpx_window_key(mine, keys[0]));
    swap_bytes(session, tag, keys[0], keys[1], TCPX_KEY_BYTES);
    CHECK_SUCCESS(tcpx_remote_open(session, keys[1], TCPX_KEY_BYTES, &remote));
    return remote;
}

/* An area, a window that is all of it, and the other side's. */
struct shared {
    struct area area;
    struct tcpx_window *window;
    struct tcpx_remote *remote;
};

static inline void shared_open(struct shared *shared, struct tcpx_session *session, bool on_gpu,
                               uint64_t bytes, int access)
{
    area_allocate(&shared->area, on_gpu, bytes, (unsigned)(bytes * 7 + 13));
    area_poison(&shared->area);
    shared->window = window_on(&shared->area, 0, bytes, access);
    shared->remote = swap_windows(session, 1, shared->window);
}

static inline void shared_close(struct shared *shared)
{
    CHECK_SUCCESS(tcpx_remote_close(shared->remote));
    CHECK_SUCCESS(tcpx_window_close(shared->window, WAIT_MS));
    area_free(&shared->area);
}

/* `here` is this side's memory, `there` the peer's. */
static inline struct tcpx_part part_of_both(const struct shared *here, uint64_t offset,
                                            const struct shared *there, uint64_t remote_offset,
                                            uint64_t bytes)
{
    return (struct tcpx_part){here->window, offset, there->remote, remote_offset, bytes};
}

/* --- accesses ------------------------------------------------------------------------------- */

static inline int try_access(struct tcpx_session *session, bool is_read,
                             const struct tcpx_access *access, struct tcpx_transfer **transfer)
{
    return (is_read ? tcpx_read : tcpx_write)(session, access, transfer);
}

static inline struct tcpx_transfer *begin_access(struct tcpx_session *session, bool is_read,
                                                 const struct tcpx_access *access)
{
    struct tcpx_transfer *transfer = NULL;

    CHECK_SUCCESS(try_access(session, is_read, access, &transfer));
    return transfer;
}

/* Of one part. */
static inline struct tcpx_transfer *begin_one(struct tcpx_session *session, bool is_read,
                                              struct tcpx_part part)
{
    const struct tcpx_access access = {.parts = &part, .part_count = 1};

    return begin_access(session, is_read, &access);
}

/*
 * When so many accesses of the peer have ended here. A read is done there before this side knows
 * that its last bytes are away.
 */
static inline struct tcpx_session_statistics statistics_when_served(struct tcpx_session *session,
                                                                    uint64_t count)
{
    uint64_t since = now_ms();
    struct tcpx_session_statistics statistics = statistics_of(session);

    while (statistics.served_reads + statistics.served_writes + statistics.served_refusals <
           count) {
        CHECK(now_ms() - since < WAIT_MS);
        nap_us(100);
        statistics = statistics_of(session);
    }
    return statistics;
}

/* --- areas that are covered by several windows ------------------------------------------------ */

enum { COVERS = 3 };

/* Of this side's area the windows, of the peer's the remotes. */
struct covers {
    uint64_t bytes; /* of the area, at least 8 */
    struct tcpx_window *windows[COVERS];
    struct tcpx_remote *remotes[COVERS];
};

/* The first covers all of it, the others more than a half each. */
static inline struct tcpx_piece cover_range(uint64_t bytes, unsigned number)
{
    uint64_t from = number == 2 ? bytes / 8 * 3 : 0;
    uint64_t to = number == 1 ? bytes / 8 * 5 : bytes;

    return (struct tcpx_piece){.offset = from, .bytes = to - from};
}

static inline void covers_open(struct covers *covers, const struct area *area, int access)
{
    *covers = (struct covers){.bytes = area->bytes};
    for (unsigned i = 0; i < COVERS; i++) {
        struct tcpx_piece range = cover_range(area->bytes, i);

        covers->windows[i] = window_on(area, range.offset, range.bytes, access);
    }
}

static inline void covers_swap(const struct covers *mine, struct covers *theirs, uint64_t bytes,
                               struct tcpx_session *session, uint64_t tag)
{
    *theirs = (struct covers){.bytes = bytes};
    for (unsigned i = 0; i < COVERS; i++)
        theirs->remotes[i] = swap_windows(session, tag, mine->windows[i]);
}

static inline void covers_close(struct covers *covers)
{
    for (unsigned i = 0; i < COVERS; i++) {
        CHECK_SUCCESS(tcpx_remote_close(covers->remotes[i]));
        CHECK_SUCCESS(tcpx_window_close(covers->windows[i], WAIT_MS));
    }
}

/* Which of the windows; the first one where the range is not inside of it. */
static inline unsigned cover_for(const struct covers *covers, uint64_t offset, uint64_t bytes,
                                 unsigned wanted)
{
    struct tcpx_piece range = cover_range(covers->bytes, wanted % COVERS);
    bool is_inside = offset >= range.offset && offset + bytes <= range.offset + range.bytes;

    return is_inside ? wanted % COVERS : 0;
}

/* Offsets are those in the areas. */
static inline struct tcpx_part part_between(const struct covers *here, uint64_t offset,
                                            const struct covers *there, uint64_t remote_offset,
                                            uint64_t bytes, unsigned wanted)
{
    unsigned mine = cover_for(here, offset, bytes, wanted);
    unsigned theirs = cover_for(there, remote_offset, bytes, wanted / COVERS);

    return (struct tcpx_part){.window = here->windows[mine],
                              .offset = offset - cover_range(here->bytes, mine).offset,
                              .remote = there->remotes[theirs],
                              .remote_offset =
                                  remote_offset - cover_range(there->bytes, theirs).offset,
                              .bytes = bytes};
}

#endif
