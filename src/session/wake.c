/* Wakes the worker of a session: for calls, for ends of requests, for windows that are closed. */
#include "session/session.h"

#include "base/log.h"

#include <errno.h>
#include <unistd.h>

/* With the end of a request there comes neither a message of the peer nor a call. */
static void worker_notify_of(struct tcpx_session *session, struct io_task *task)
{
    for (unsigned i = 0; i < 2 * session->channels; i++)
        net_notify(session_channel(session, i % 2, i / 2)->builtin, task);
}

void worker_watch_channels(struct tcpx_session *session)
{
    if (session->worker != WORKER_TASK || session->channels_are_watched)
        return;
    session->channels_are_watched = true;
    worker_notify_of(session, &session->task.io);
}

void worker_unwatch_channels(struct tcpx_session *session)
{
    if (session->channels_are_watched)
        worker_notify_of(session, NULL);
    session->channels_are_watched = false;
}

void worker_wake(struct tcpx_session *session)
{
    const uint64_t one = 1;

    if (session->worker == WORKER_TASK)
        io_wake(&session->task.io);
    else if (session->worker == WORKER_THREAD && write(session->wake_fd, &one, sizeof one) < 0 &&
             errno != EAGAIN)
        log_warn("the session's eventfd cannot be written");
}
