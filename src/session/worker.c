/*
 * What moves a session on beside the calls on it: messages of the peer, transfers in chunks, and
 * all transfers once the caller has asked for an eventfd.
 *
 * Over the built-in transport the worker is a task of an I/O thread, which owns the control
 * connection's socket. It is woken by messages of the peer, by calls, and by the ends of the
 * channels' requests; it runs again by itself only while it polls the GPU. A plugin may block in
 * its calls, and there may be no I/O threads: then the worker is a thread (worker_thread.c).
 */
#include "session/access.h"

#include "base/log.h"

#include <sys/epoll.h>

/* --- a task -------------------------------------------------------------------------------- */

/* Whole messages that could not be started yet; those behind the first one wait for it. */
static enum io_again worker_again_for_whole(const struct tcpx_session *session)
{
    enum io_again again = IO_IDLE;

    for (int i = 0; i < 2 && session->event_fd >= 0; i++) {
        const struct tcpx_transfer *first = session->directions[i].whole.first;
        enum io_again wanted = first == NULL ? IO_IDLE : first->after != NULL ? IO_SOON : IO_LATER;

        again = wanted > again ? wanted : again;
    }
    return again;
}

static bool lane_waits_for_gpu(struct lane *lane)
{
    for (uint64_t i = lane->freed; i < lane->begun; i++)
        switch (lane_chunk(lane, i)->state) {
        case CHUNK_READY:
        case CHUNK_POSTED:
        case CHUNK_FREE:
            break;
        default:
            return true;
        }
    return false;
}

/* Something is copied by the GPU, or waits for a stream or event of the caller. */
static bool worker_waits_for_gpu(struct tcpx_session *session)
{
    if (accesses_wait_for_gpu(session))
        return true;
    for (int i = 0; i < 2 && session->gpu != NULL; i++) {
        struct direction *direction = &session->directions[i];

        if (direction->waiting.first != NULL)
            return true;
        for (unsigned k = 0; k < session->channels; k++)
            if (lane_waits_for_gpu(&direction->lanes[k]))
                return true;
    }
    return false;
}

/*
 * After a step that has moved nothing. The ends of requests wake the task, those of copies on the
 * GPU do not.
 */
static enum io_again worker_again(struct tcpx_session *session)
{
    enum io_again again = worker_again_for_whole(session);

    if (session->failure != TCPX_SUCCESS)
        return again == IO_IDLE && (!session->is_drained || session->why_is_unsent) ? IO_LATER
                                                                                    : again;
    if (!worker_has_chunks(session))
        return again;
    return again == IO_SOON || worker_waits_for_gpu(session) ? IO_SOON : IO_LATER;
}

/* Never waits for the lock, since the thread has other sockets. */
static enum io_again worker_run(struct io_task *task, uint32_t events)
{
    struct session_task *ours = (struct session_task *)task;
    struct tcpx_session *session = ours->session;
    enum io_again again;
    bool all_seen;

    (void)events;
    if (session_yields(session, &ours->yields_since))
        return IO_MORE;
    if (pthread_mutex_trylock(&session->lock) != 0)
        return IO_SOON;
    if (worker_step(session, &all_seen))
        again = IO_MORE;
    else
        again = all_seen ? worker_again(session) : IO_SOON;
    session_unlock(session);
    return again;
}

/* Whether the worker is a task now. */
static bool worker_start_task(struct tcpx_session *session)
{
    int result;

    if (!session->has_io_threads)
        return false;
    session->task.session = session;
    result = io_join(&session->io, 1, -1);
    if (result == TCPX_SUCCESS && session->io.crew != NULL)
        result =
            io_add(&session->io, &session->task.io, worker_run, control_fd(session->control), 0, 0);
    if (result == TCPX_SUCCESS && session->io.crew != NULL)
        return true;
    if (result != TCPX_SUCCESS)
        log_debug("%s: the session has a thread of its own", error_text());
    io_leave(&session->io);
    return false;
}

/* --- either -------------------------------------------------------------------------------- */

int worker_start(struct tcpx_session *session)
{
    int result = TCPX_SUCCESS;

    if (session->worker != WORKER_NONE)
        return TCPX_SUCCESS;
    if (worker_start_task(session)) {
        session->worker = WORKER_TASK;
    } else {
        result = worker_thread_start(session);
        if (result == TCPX_SUCCESS)
            session->worker = WORKER_THREAD;
    }
    return result;
}

void worker_listen(struct tcpx_session *session)
{
    if (session->worker != WORKER_TASK)
        return;
    io_change(&session->task.io, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    io_wake(&session->task.io);
}

void worker_stop(struct tcpx_session *session)
{
    if (session->worker == WORKER_THREAD) {
        worker_thread_stop(session);
    } else if (session->worker == WORKER_TASK) {
        pthread_mutex_lock(&session->lock);
        worker_unwatch_channels(session); /* an access of the peer may have begun just now */
        io_remove(&session->task.io);
        session_unlock(session);
        io_leave(&session->io);
    }
    session->worker = WORKER_NONE;
}
