/*
 * The worker spins while there is progress. When there is nothing to do, it sleeps until a message
 * of the peer arrives. When only whole messages are in flight and I/O threads move them, it also
 * sleeps, until one of them ends (net_notify()).
 */
#include "session/session.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Called with the lock, when nothing of the transfers is in flight any more. */
static void worker_end_transfers(struct tcpx_session *session)
{
    struct tcpx_transfer *transfer;

    for (transfer = session->transfers; transfer != NULL; transfer = transfer->older)
        if (transfer->acknowledged && !transfer->ended)
            transfer_end(transfer, TCPX_SUCCESS); /* the peer has all of it */
        else if (!transfer->is_whole && !transfer->ended)
            transfer_end(transfer,
                         error_set(session->failure,
                                   "%s; %llu of the %llu bytes %s with tag %llu were moved",
                                   session->why, (unsigned long long)transfer->moved,
                                   (unsigned long long)transfer->total,
                                   transfer->sending ? "to send" : "to receive",
                                   (unsigned long long)transfer->tag));
}

/* With the lock: transfers in chunks, or messages about them. */
static bool worker_has_chunks(const struct tcpx_session *session)
{
    for (int i = 0; i < 2; i++) {
        const struct direction *direction = &session->directions[i];

        if (direction->waiting.first != NULL || direction->moving.first != NULL)
            return true;
        for (unsigned k = 0; k < session->channels; k++)
            if (direction->lanes[k].freed != direction->lanes[k].begun)
                return true;
    }
    return control_has_unsent(session->control);
}

/* With the lock. */
static bool worker_is_busy(const struct tcpx_session *session)
{
    const struct direction *directions = session->directions;

    if (session->event_fd >= 0 && (session->active != NULL || directions[0].whole.first != NULL ||
                                   directions[1].whole.first != NULL))
        return true;
    if (session->failure != TCPX_SUCCESS)
        return !session->is_drained || session->why_is_unsent;
    return worker_has_chunks(session);
}

/*
 * The network has failed. If the peer has closed, that is the better reason, and its earlier
 * messages still count.
 */
static int worker_explain(struct tcpx_session *session, int result)
{
    char why[400];
    bool moved;

    snprintf(why, sizeof why, "%s", error_text());
    if (matching_step(session, &moved) != TCPX_SUCCESS)
        return error_set(TCPX_REMOTE_ERROR, "%s", error_text());
    return error_set(result, "%s: %s", control_peer(session->control), why);
}

/* With the lock: whether anything has moved, and whether there is more to do. */
static bool worker_step(struct tcpx_session *session, bool *busy)
{
    bool moved = false;
    int result = TCPX_SUCCESS;

    if (session->failure == TCPX_SUCCESS)
        result = matching_step(session, &moved);
    if (session->failure == TCPX_SUCCESS && result == TCPX_SUCCESS) {
        result = chunks_step(session, &moved);
        if (result != TCPX_SUCCESS)
            result = worker_explain(session, result);
    }
    if (session->failure == TCPX_SUCCESS && result != TCPX_SUCCESS)
        session_fail(session, result);
    if (session->failure != TCPX_SUCCESS)
        session->why_is_unsent =
            control_flush(session->control) == TCPX_SUCCESS && control_has_unsent(session->control);
    if (session->failure != TCPX_SUCCESS && !session->is_drained && chunks_drain_step(session)) {
        session->is_drained = true;
        worker_end_transfers(session);
    }
    if (session->event_fd >= 0)
        whole_step(session, &moved);
    *busy = worker_is_busy(session);
    return moved;
}

/* With the lock: nothing is to be done until a whole message ends, and I/O threads see to that. */
static bool worker_can_be_notified(const struct tcpx_session *session)
{
    return session->has_io_threads && session->failure == TCPX_SUCCESS && session->active != NULL &&
           session->directions[0].whole.first == NULL &&
           session->directions[1].whole.first == NULL && !worker_has_chunks(session);
}

/* Whole messages go over the first channel of each direction. */
static void worker_notify(struct tcpx_session *session, int eventfd)
{
    net_notify(session_channel(session, true, 0)->builtin, eventfd);
    net_notify(session_channel(session, false, 0)->builtin, eventfd);
}

/* Without the lock, until there is a message of the peer or a wake-up. */
static void worker_sleep(struct tcpx_session *session, bool listens)
{
    struct pollfd fds[2] = {{.fd = session->wake_fd, .events = POLLIN},
                            {.fd = control_fd(session->control), .events = POLLIN}};
    uint64_t count;

    /* poll() would report the end of a connection that has failed again and again. */
    if (poll(fds, listens ? 2 : 1, -1) > 0 && (fds[0].revents & POLLIN) != 0 &&
        read(session->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        log_warn("the session's eventfd cannot be read");
}

static void *worker_run(void *argument)
{
    enum { SPIN_NS = 20000, YIELD_NS = 1000000, PAUSE_NS = 50000, YIELDS = 1000 };
    struct tcpx_session *session = argument;
    uint64_t since = clock_now();
    struct gpu_scope scope;
    /* Plugins work with the GPU that is current in the thread that calls them. */
    bool entered = session->gpu != NULL && gpu_enter(session->gpu, &scope) == TCPX_SUCCESS;

    pthread_mutex_lock(&session->lock);
    while (!session->closing) {
        bool busy;
        bool moved = worker_step(session, &busy);
        bool listens = session->failure == TCPX_SUCCESS;
        uint64_t still = clock_now() - since;
        bool notified = !moved && busy && still > YIELD_NS && worker_can_be_notified(session);

        if (notified) {
            worker_notify(session, session->wake_fd);
            whole_step(session, &moved); /* what has ended before */
        }
        pthread_mutex_unlock(&session->lock);
        if (moved)
            since = clock_now();
        else if (!busy || notified)
            worker_sleep(session, listens);
        else if (still > YIELD_NS)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        else if (still > SPIN_NS)
            sched_yield();
        if (!busy)
            since = clock_now();
        for (int i = 0; i < YIELDS && atomic_load(&session->callers) > 0; i++)
            sched_yield();
        pthread_mutex_lock(&session->lock);
    }
    pthread_mutex_unlock(&session->lock);
    if (entered)
        gpu_leave(session->gpu, &scope);
    return NULL;
}

int worker_start(struct tcpx_session *session)
{
    int error;

    if (session->wake_fd >= 0)
        return TCPX_SUCCESS;
    session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->wake_fd < 0)
        return error_system(errno, "an eventfd");
    error = thread_start(&session->worker, worker_run, session);
    if (error != 0) {
        close(session->wake_fd);
        session->wake_fd = -1;
        return error_system(error, "the thread of a session");
    }
    return TCPX_SUCCESS;
}

void worker_wake(struct tcpx_session *session)
{
    const uint64_t one = 1;

    if (session->wake_fd >= 0 && write(session->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        log_warn("the session's eventfd cannot be written");
}

void worker_stop(struct tcpx_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->closing = true;
    worker_wake(session);
    pthread_mutex_unlock(&session->lock);
    if (session->wake_fd >= 0) {
        pthread_join(session->worker, NULL);
        if (session->has_io_threads)
            worker_notify(session, -1);
        close(session->wake_fd);
    }
}
