/*
 * The worker of a session as a thread of its own. It spins while there is progress, polls while
 * transfers are in flight, and sleeps until a message of the peer arrives or a call wakes it.
 */
#include "session/session.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* With the lock: whether it has to poll. */
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

static void *worker_thread_run(void *argument)
{
    enum { SPIN_NS = 20000, YIELD_NS = 1000000, PAUSE_NS = 50000 };
    struct tcpx_session *session = argument;
    uint64_t since = clock_now();
    uint64_t yields_since = 0;
    struct gpu_scope scope;
    /* Plugins work with the GPU that is current in the thread that calls them. */
    bool entered = session->gpu != NULL && gpu_enter(session->gpu, &scope) == TCPX_SUCCESS;

    pthread_mutex_lock(&session->lock);
    while (!session->closing) {
        bool all_seen;
        bool moved = worker_step(session, &all_seen);
        bool busy = worker_is_busy(session);
        bool listens = session->failure == TCPX_SUCCESS;
        uint64_t still = clock_now() - since;

        session_unlock(session);
        if (moved)
            since = clock_now();
        else if (!busy)
            worker_sleep(session, listens);
        else if (still > YIELD_NS)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        else if (still > SPIN_NS)
            sched_yield();
        if (!busy)
            since = clock_now();
        while (session_yields(session, &yields_since))
            sched_yield();
        pthread_mutex_lock(&session->lock);
    }
    session_unlock(session);
    if (entered)
        gpu_leave(session->gpu, &scope);
    return NULL;
}

int worker_thread_start(struct tcpx_session *session)
{
    int error;

    session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (session->wake_fd < 0)
        return error_system(errno, "an eventfd");
    error = thread_start(&session->thread, worker_thread_run, session);
    if (error == 0)
        return TCPX_SUCCESS;
    close(session->wake_fd);
    return error_system(error, "the thread of a session");
}

void worker_thread_stop(struct tcpx_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->closing = true;
    worker_wake(session);
    session_unlock(session);
    pthread_join(session->thread, NULL);
    close(session->wake_fd);
}
