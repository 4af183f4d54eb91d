/* The calls of tcpx.h that begin a transfer, ask about it, and wait for it. */
#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "session/access.h"

#include <sched.h>
#include <time.h>

/* --- beginning ----------------------------------------------------------------------------- */

static int check_move(const struct tcpx_session *session, const struct tcpx_move *move,
                      struct tcpx_transfer **out)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL || move == NULL || out == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "a transfer: an argument is NULL");
    if (move->tag >= TCPX_TAG_END)
        return error_set(TCPX_INVALID_ARGUMENT, "tag %llu: expected a tag below %llu",
                         (unsigned long long)move->tag, (unsigned long long)TCPX_TAG_END);
    if (move->memory != NULL && move->memory->session != session)
        return error_set(TCPX_INVALID_ARGUMENT, "the memory belongs to another session");
    if (move->after != TCPX_AFTER_NOTHING && move->after != TCPX_AFTER_STREAM &&
        move->after != TCPX_AFTER_EVENT)
        return error_set(TCPX_INVALID_ARGUMENT, "after is %d: expected 0, 1 or 2",
                         (int)move->after);
    return TCPX_SUCCESS;
}

/* A send of GPU memory can leave the waiting to the transport, if that takes it now. */
static bool transport_can_wait(const struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    return move->after != TCPX_AFTER_NOTHING && transfer->sending && transfer->memory != NULL &&
           transfer->memory->on_gpu && transfer->session->directions[SENDING].whole.first == NULL;
}

/* With the session's lock. */
static int calls_begin_whole(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    struct tcpx_session *session = transfer->session;
    int result = TCPX_SUCCESS;

    if (move->after != TCPX_AFTER_NOTHING)
        result = transfer_order_after(transfer, move->after, move->after_what);
    if (result != TCPX_SUCCESS)
        return result;
    if (transport_can_wait(transfer, move)) {
        transfer->after_kind =
            move->after == TCPX_AFTER_STREAM ? NET_AFTER_STREAM : NET_AFTER_EVENT;
        transfer->after_what = move->after_what;
    }
    transfer_add(transfer);
    whole_begin(transfer);
    /* A task is woken by the end of the request, if there is one. */
    if (session->event_fd >= 0 && (session->worker != WORKER_TASK || transfer->request == NULL))
        worker_wake(session);
    return TCPX_SUCCESS;
}

/*
 * What is to be allocated and pinned for its chunks. The driver may let that wait for kernels, and
 * an I/O thread must not wait.
 */
static int calls_prepare(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    const struct tcpx_memory *memory = transfer->memory;
    int result;

    if (memory == NULL || (transfer->piece_count == 1 && !memory->staged))
        return TCPX_SUCCESS;
    result = slots_prepare(session, transfer->sending);
    return result == TCPX_SUCCESS && memory->on_gpu ? gather_prepare_engine(session) : result;
}

/* With the session's lock. */
static int calls_begin_chunks(struct tcpx_transfer *transfer, const struct tcpx_move *move)
{
    struct tcpx_session *session = transfer->session;
    int result = worker_start(session);

    if (result == TCPX_SUCCESS && session->failure != TCPX_SUCCESS)
        result = error_set(session->failure, "%s", session->why);
    if (result == TCPX_SUCCESS && session->worker == WORKER_TASK)
        result = calls_prepare(transfer);
    if (result == TCPX_SUCCESS && move->after != TCPX_AFTER_NOTHING)
        result = transfer_order_after(transfer, move->after, move->after_what);
    if (result != TCPX_SUCCESS)
        return result;
    worker_watch_channels(session);
    transfer_add(transfer);
    result = matching_begin(transfer);
    if (result != TCPX_SUCCESS) /* of the session; the transfer ends with it */
        session_fail(session, result);
    worker_wake(session);
    return TCPX_SUCCESS;
}

static int calls_begin(struct tcpx_session *session, const struct tcpx_move *move, bool sending,
                       struct tcpx_transfer **out)
{
    struct tcpx_transfer *transfer;
    int result = check_move(session, move, out);

    if (result == TCPX_SUCCESS)
        result = transfer_create(session, move, sending, &transfer);
    if (result != TCPX_SUCCESS)
        return result;
    session_lock(session);
    result =
        transfer->is_whole ? calls_begin_whole(transfer, move) : calls_begin_chunks(transfer, move);
    session_unlock(session);
    if (result == TCPX_SUCCESS)
        *out = transfer;
    else
        transfer_free(transfer);
    return result;
}

int tcpx_send(struct tcpx_session *session, const struct tcpx_move *move,
              struct tcpx_transfer **transfer)
{
    return calls_begin(session, move, true, transfer);
}

int tcpx_receive(struct tcpx_session *session, const struct tcpx_move *move,
                 struct tcpx_transfer **transfer)
{
    return calls_begin(session, move, false, transfer);
}

/* --- ending -------------------------------------------------------------------------------- */

/* The result is reported to the caller, and the transfer is gone. */
static int calls_report(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    int result = transfer->result;
    bool moved;

    if (result != TCPX_SUCCESS)
        error_keep("%s", transfer->why);
    session_lock(session);
    transfer_announce(transfer);
    transfer_drop(transfer);
    whole_start_more(session, &moved); /* there is a place more */
    session_unlock(session);
    transfer_free(transfer);
    return result;
}

static int calls_test(struct tcpx_transfer *transfer, bool on_stream, void *stream, int *done)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (transfer == NULL || done == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "a test: an argument is NULL");
    *done = 0;
    if (transfer->is_whole)
        whole_test(transfer, on_stream, stream);
    if (!transfer->ended)
        return TCPX_SUCCESS;
    result = calls_report(transfer);
    *done = result == TCPX_SUCCESS;
    return result;
}

int tcpx_transfer_test(struct tcpx_transfer *transfer, int *done)
{
    return calls_test(transfer, false, NULL, done);
}

int tcpx_transfer_test_on_stream(struct tcpx_transfer *transfer, void *stream, int *done)
{
    return calls_test(transfer, true, stream, done);
}

/* Many accesses keep the CPUs busy by themselves. */
static bool wait_can_poll(struct tcpx_transfer *transfer)
{
    enum { FEW = 4 };
    struct tcpx_session *session = transfer->session;
    bool can;

    session_lock(session);
    can = transfer->is_access && session->accesses->count[OURS] <= FEW;
    session_unlock(session);
    return can;
}

/*
 * A thread that sleeps is woken later than a small access takes: so it polls first, less if the
 * wait before had to sleep. Whether it has ended.
 */
static bool wait_awake(struct tcpx_transfer *transfer, uint64_t deadline)
{
    enum { AWAKE_NS = 200000, SHORTLY_AWAKE_NS = 20000 };
    atomic_bool *are_long = &transfer->session->waits_are_long;
    uint64_t span =
        atomic_load_explicit(are_long, memory_order_relaxed) ? SHORTLY_AWAKE_NS : AWAKE_NS;
    uint64_t until = deadline_earlier(clock_now() + span, deadline);
    bool ended = atomic_load(&transfer->ended);

    while (!ended && clock_now() < until) {
        sched_yield();
        ended = atomic_load(&transfer->ended);
    }
    atomic_store_explicit(are_long, !ended, memory_order_relaxed);
    return ended;
}

/* The worker ends it. */
static void wait_for_worker(struct tcpx_transfer *transfer, uint64_t deadline)
{
    struct tcpx_session *session = transfer->session;

    if (wait_can_poll(transfer) && wait_awake(transfer, deadline))
        return;
    session_lock(session);
    while (!transfer->ended && !deadline_passed(deadline))
        condition_wait(&session->changed, &session->lock, deadline);
    session_unlock(session);
}

/* It has left a message alone that a thread waited for, which may have ended just now. */
static void leave_to_worker(struct tcpx_session *session)
{
    session_lock(session);
    if (session->event_fd >= 0)
        worker_wake(session);
    session_unlock(session);
}

int tcpx_transfer_wait(struct tcpx_transfer *transfer, int timeout_ms)
{
    uint64_t deadline;
    int result = fork_check();

    if (result == TCPX_SUCCESS && transfer == NULL)
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_transfer_wait: transfer is NULL");
    if (result == TCPX_SUCCESS)
        result = config_deadline(timeout_ms, &deadline);
    if (result != TCPX_SUCCESS)
        return result;
    if (transfer->is_whole)
        whole_wait(transfer, deadline);
    else
        wait_for_worker(transfer, deadline);
    if (!transfer->ended)
        leave_to_worker(transfer->session);
    if (!transfer->ended && transfer->is_access)
        return error_set(TCPX_IN_PROGRESS, "the %s of %llu bytes was not done in time",
                         transfer->sending ? "write" : "read", (unsigned long long)transfer->total);
    if (!transfer->ended)
        return error_set(TCPX_IN_PROGRESS,
                         "the %s of %llu bytes with tag %llu was not done in time",
                         transfer->sending ? "send" : "receive",
                         (unsigned long long)transfer->total, (unsigned long long)transfer->tag);
    return calls_report(transfer);
}

/* --- cancelling ---------------------------------------------------------------------------- */

static int calls_cancel_once(struct tcpx_transfer *transfer, bool *is_quiet)
{
    return transfer->is_access ? accesses_cancel_call(transfer, is_quiet)
                               : whole_cancel(transfer, is_quiet);
}

int tcpx_transfer_cancel(struct tcpx_transfer *transfer)
{
    enum { PATIENCE_MS = 1000, PAUSE_NS = 50000 };
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    bool is_quiet = false;
    int result = fork_check();

    if (result == TCPX_SUCCESS && transfer == NULL)
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_transfer_cancel: transfer is NULL");
    if (result == TCPX_SUCCESS && !transfer->is_whole && !transfer->is_access)
        result = error_set(TCPX_INVALID_USAGE, "a transfer in chunks cannot be cancelled");
    if (result == TCPX_SUCCESS)
        result = calls_cancel_once(transfer, &is_quiet);
    while (result == TCPX_SUCCESS && !is_quiet && !deadline_passed(deadline)) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        result = calls_cancel_once(transfer, &is_quiet);
    }
    if (result != TCPX_SUCCESS || is_quiet)
        return result;
    return error_set(
        TCPX_IN_PROGRESS,
        "a copy of the GPU, or a thread that has not run since, still uses the memory of "
        "the transfer: call again");
}
