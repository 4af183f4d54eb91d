/*
 * Reads and writes of windows, for the side that begins them. The program of the other side has
 * nothing to do but to open its windows and to tell their keys.
 */
#include "base/clock.h"
#include "tools/perf_side.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static bool access_reads(const struct perf_side *side)
{
    return side->plan.operation == PERF_READS;
}

/* --- windows ------------------------------------------------------------------------------- */

static int access_open_window(const struct perf_side *side, const struct buffer *buffer, int peers,
                              struct tcpx_window **window)
{
    return tcpx_window_open(side->end->gpu, buffer->data, buffer->bytes, peers, window);
}

static int access_open_windows(struct perf_side *side)
{
    struct perf_access *access = &side->access;
    int result = TCPX_SUCCESS;

    if (perf_has_out(&side->plan, side->is_server))
        result = access_open_window(side, &side->out, access_reads(side) ? TCPX_WINDOW_READ : 0,
                                    &access->out);
    if (result == TCPX_SUCCESS && perf_has_in(&side->plan, side->is_server))
        result = access_open_window(side, &side->in, access_reads(side) ? 0 : TCPX_WINDOW_WRITE,
                                    &access->in);
    return result;
}

static int access_say_key(struct perf_side *side)
{
    uint8_t key[TCPX_KEY_BYTES];
    int result = tcpx_window_key(access_reads(side) ? side->access.out : side->access.in, key);

    return result == TCPX_SUCCESS ? meeting_say(&side->meeting, PERF_KEY, key, sizeof key) : result;
}

static int access_hear_key(struct perf_side *side)
{
    uint8_t key[TCPX_KEY_BYTES];
    size_t length = sizeof key;
    int result = perf_hear(side, PERF_KEY, "the key of a window", key, &length);

    if (result == TCPX_SUCCESS)
        result = perf_key_check(length);
    return result == TCPX_SUCCESS
               ? tcpx_remote_open(side->session, key, sizeof key, &side->access.remote)
               : result;
}

int perf_access_open(struct perf_side *side)
{
    bool one_way = side->plan.way == PERF_ONE_WAY;
    int result = access_open_windows(side);

    if (result == TCPX_SUCCESS && (side->is_server || !one_way))
        result = access_say_key(side);
    if (result == TCPX_SUCCESS && (!side->is_server || !one_way))
        result = access_hear_key(side);
    return result == TCPX_SUCCESS && side->plan.way == PERF_PING_PONG
               ? tcpx_session_event_fd(side->session, &side->access.event_fd)
               : result;
}

void perf_access_close(struct perf_access *access)
{
    /* Nobody uses them without a session. */
    (void)!tcpx_window_close(access->out, 0);
    (void)!tcpx_window_close(access->in, 0);
    free(access->parts);
    free(access->transfers);
}

/* --- parts --------------------------------------------------------------------------------- */

/* From the last to the first, so that no two of them can be taken for one. */
static void access_divide_one(struct perf_side *side, size_t number, uint64_t offset,
                              uint64_t bytes)
{
    struct perf_access *access = &side->access;
    struct tcpx_part *parts = access->parts + number * access->part_count;
    uint64_t each = bytes / access->part_count;

    for (size_t i = 0; i < access->part_count; i++)
        parts[access->part_count - 1 - i] =
            (struct tcpx_part){.window = access_reads(side) ? access->in : access->out,
                               .offset = offset + i * each,
                               .remote = access->remote,
                               .remote_offset = offset + i * each,
                               .bytes = each};
    parts[0].bytes += bytes % access->part_count;
}

/* Who begins no accesses has nothing to divide. */
int perf_access_divide(struct perf_side *side, uint64_t bytes)
{
    struct perf_access *access = &side->access;
    uint64_t each;

    if (access->remote == NULL)
        return TCPX_SUCCESS;
    access->count = side->plan.accesses < bytes ? side->plan.accesses : (size_t)bytes;
    each = bytes / access->count;
    access->part_count = side->plan.pieces == 0     ? 1
                         : side->plan.pieces < each ? side->plan.pieces
                                                    : (size_t)each;
    free(access->parts);
    free(access->transfers);
    access->parts = calloc(access->count * access->part_count, sizeof *access->parts);
    access->transfers = calloc(access->count, sizeof(struct tcpx_transfer *));
    if (access->parts == NULL || access->transfers == NULL)
        return error_system(ENOMEM, "%zu accesses of %zu parts", access->count, access->part_count);
    for (size_t i = 0; i < access->count; i++)
        access_divide_one(side, i, i * each,
                          i + 1 < access->count ? each : bytes - (access->count - 1) * each);
    return TCPX_SUCCESS;
}

/* --- an iteration -------------------------------------------------------------------------- */

static void access_show(const struct perf_side *side, size_t number)
{
    const struct perf_access *access = &side->access;
    const struct tcpx_part *parts = access->parts + number * access->part_count;

    if (side->end->chunks)
        fprintf(stderr, "[PERF][%s] %s access_idx=%zu parts=%zu offset=%llu\n",
                side->is_server ? "SERVER" : "CLIENT", access_reads(side) ? "read" : "write",
                number, access->part_count,
                (unsigned long long)parts[access->part_count - 1].offset);
}

static int access_begin(struct perf_side *side)
{
    struct perf_access *access = &side->access;
    uint8_t note[8];
    int result = TCPX_SUCCESS;

    perf_number_encode(side->iteration, note);
    for (size_t i = 0; i < access->count && result == TCPX_SUCCESS; i++) {
        const struct tcpx_access one = {.parts = access->parts + i * access->part_count,
                                        .part_count = access->part_count,
                                        .note = side->plan.way == PERF_PING_PONG ? note : NULL,
                                        .note_bytes =
                                            side->plan.way == PERF_PING_PONG ? sizeof note : 0,
                                        .timeout_ms = side->end->meeting.timeout_ms};

        access_show(side, i);
        result = (access_reads(side) ? tcpx_read : tcpx_write)(side->session, &one,
                                                               &access->transfers[i]);
    }
    return result;
}

int perf_access_finish(struct perf_side *side)
{
    struct perf_access *access = &side->access;
    int timeout_ms = side->end->meeting.timeout_ms;
    int result = TCPX_SUCCESS;
    size_t i;

    for (i = 0; i < access->count && result == TCPX_SUCCESS; i++)
        result = tcpx_transfer_wait(access->transfers[i], timeout_ms);
    if (result == TCPX_IN_PROGRESS || result == TCPX_CANCELLED)
        result = error_set(TCPX_IN_PROGRESS,
                           "timeout: the %s with access_idx=%zu did not end within %d s",
                           access_reads(side) ? "read" : "write", i - 1, timeout_ms / 1000);
    return result;
}

/* --- notes --------------------------------------------------------------------------------- */

static int access_await_event(const struct perf_side *side, uint64_t deadline)
{
    struct pollfd event = {.fd = side->access.event_fd, .events = POLLIN};
    uint64_t count;

    if (deadline_passed(deadline))
        return error_set(TCPX_IN_PROGRESS,
                         "timeout: the notes of iteration %llu did not come within %d s",
                         (unsigned long long)side->iteration, side->end->meeting.timeout_ms / 1000);
    if (poll(&event, 1, deadline_poll_ms(deadline)) < 0 && errno != EINTR)
        return error_system(errno, "poll() for a note");
    if (read(event.fd, &count, sizeof count) < 0 && errno != EAGAIN)
        return error_system(errno, "the session's eventfd cannot be read");
    return TCPX_SUCCESS;
}

static int access_check_note(const struct perf_side *side, const uint8_t note[8], size_t bytes)
{
    if (bytes == 8 && perf_number_decode(note) == side->iteration)
        return TCPX_SUCCESS;
    return error_set(TCPX_REMOTE_ERROR, "a note of %zu bytes that is not of iteration %llu", bytes,
                     (unsigned long long)side->iteration);
}

/* As long as tcpx_transfer_wait() polls before it sleeps. */
static int access_await_notes(struct perf_side *side)
{
    enum { AWAKE_NS = 200000 };
    uint64_t awake_until = clock_now() + AWAKE_NS;
    uint64_t deadline = deadline_after_ms((uint64_t)side->end->meeting.timeout_ms);
    int result = TCPX_SUCCESS;

    for (size_t taken = 0; taken < side->access.count && result == TCPX_SUCCESS;) {
        uint8_t note[8];
        size_t bytes;
        int there;

        result = tcpx_note_take(side->session, note, sizeof note, &bytes, &there);
        if (result == TCPX_SUCCESS && there) {
            result = access_check_note(side, note, bytes);
            taken++;
            awake_until = clock_now() + AWAKE_NS;
        } else if (result == TCPX_SUCCESS && clock_now() < awake_until) {
            sched_yield();
        } else if (result == TCPX_SUCCESS) {
            result = access_await_event(side, deadline);
        }
    }
    return result;
}

/* Only in ping-pong accesses go on afterwards, since notes say enough. */
int perf_access_move(struct perf_side *side)
{
    int result = TCPX_SUCCESS;

    if (side->access.remote == NULL)
        return TCPX_SUCCESS;
    if (side->plan.way == PERF_PING_PONG && side->is_server)
        result = access_await_notes(side);
    if (result == TCPX_SUCCESS)
        result = access_begin(side);
    if (result == TCPX_SUCCESS && side->plan.way == PERF_PING_PONG && !side->is_server)
        result = access_await_notes(side);
    if (result == TCPX_SUCCESS && side->plan.way != PERF_PING_PONG)
        result = perf_access_finish(side);
    return result;
}
