/*
 * The function connect(). The library's call waits and cannot be interrupted, so that a thread
 * makes it; Ctrl-C leaves that thread alone, which then closes what it gets.
 */
#include "python/src/connect.h"

#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/options.h"
#include "python/src/patience.h"
#include "python/src/session.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

struct attempt {
    pthread_mutex_t lock; /* guards the four behind it */
    pthread_cond_t ended;
    bool has_ended;
    bool is_abandoned; /* the caller has gone: the thread frees this */
    int result;

    struct tcpx_session *session;
    char *why;
    char *host;
    int port;
    int timeout_ms;
    struct options options;
};

static struct attempt *attempt_new(const char *host, int port, int timeout_ms)
{
    struct attempt *attempt = calloc(1, sizeof *attempt);

    if (attempt == NULL)
        return NULL;
    attempt->host = strdup(host);
    if (attempt->host == NULL) {
        free(attempt);
        return NULL;
    }
    pthread_mutex_init(&attempt->lock, NULL);
    pthread_cond_init(&attempt->ended, NULL);
    attempt->port = port;
    attempt->timeout_ms = timeout_ms;
    return attempt;
}

static void attempt_free(struct attempt *attempt)
{
    pthread_cond_destroy(&attempt->ended);
    pthread_mutex_destroy(&attempt->lock);
    options_give(&attempt->options);
    free(attempt->host);
    free(attempt->why);
    free(attempt);
}

/* --- the thread ------------------------------------------------------------------------------ */

static void *attempt_run(void *argument)
{
    struct attempt *attempt = argument;
    struct tcpx_session *session = NULL;
    bool is_abandoned;
    int result = tcpx_session_connect(attempt->host, attempt->port, &attempt->options.options,
                                      attempt->timeout_ms, &session);

    pthread_mutex_lock(&attempt->lock);
    attempt->result = result;
    attempt->session = session;
    if (result != TCPX_SUCCESS)
        attempt->why = strdup(tcpx_last_error());
    attempt->has_ended = true;
    is_abandoned = attempt->is_abandoned;
    pthread_cond_signal(&attempt->ended);
    pthread_mutex_unlock(&attempt->lock);
    if (is_abandoned) {
        tcpx_session_close(session);
        attempt_free(attempt);
    }
    return NULL;
}

/* Signals are for threads of Python. */
static int attempt_start(struct attempt *attempt)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t before;
    sigset_t all;
    int error;

    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(&thread, &detached, attempt_run, attempt);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return error;
}

/* --- the caller ------------------------------------------------------------------------------ */

static bool attempt_wait(struct attempt *attempt)
{
    struct timespec until;
    bool has_ended;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&attempt->lock);
    if (!attempt->has_ended)
        pthread_cond_timedwait(&attempt->ended, &attempt->lock, &until);
    has_ended = attempt->has_ended;
    pthread_mutex_unlock(&attempt->lock);
    Py_END_ALLOW_THREADS;
    return has_ended;
}

/* A signal handler has raised an exception. If it has ended just now, the caller clears up. */
static bool attempt_abandon(struct attempt *attempt)
{
    bool has_ended;

    pthread_mutex_lock(&attempt->lock);
    has_ended = attempt->has_ended;
    attempt->is_abandoned = true;
    pthread_mutex_unlock(&attempt->lock);
    return !has_ended;
}

/* Frees the attempt, or leaves it to its thread. */
static PyObject *attempt_finish(struct attempt *attempt)
{
    PyObject *session;

    while (!attempt_wait(attempt))
        if (PyErr_CheckSignals() != 0) {
            if (attempt_abandon(attempt))
                return NULL;
            break;
        }
    if (attempt->result == TCPX_SUCCESS)
        session = session_new(attempt->session, attempt->options.options.gpu);
    else
        session = errors_raise_text(attempt->result, attempt->why != NULL ? attempt->why : "");
    if (PyErr_Occurred() && session != NULL) {
        Py_DECREF(session); /* which closes it */
        session = NULL;
    }
    attempt_free(attempt);
    return session;
}

PyObject *connect_session(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"host", "port", OPTION_NAMES, "timeout", NULL};
    struct option_objects objects = OPTION_OBJECTS;
    PyObject *timeout = Py_None;
    struct attempt *attempt;
    int port = TCPX_SESSION_PORT;
    const char *host;
    int error;
    int ms;

    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "s|i$" OPTION_FORMAT "O:connect", names,
                                     &host, &port, OPTION_PLACES(&objects), &timeout) ||
        patience_ms(timeout, 60000, &ms) != 0 || module_refuse_at_exit() != 0)
        return NULL;
    attempt = attempt_new(host, port, ms);
    if (attempt == NULL)
        return PyErr_NoMemory();
    if (options_take(&objects, &attempt->options) != 0) {
        attempt_free(attempt);
        return NULL;
    }
    error = attempt_start(attempt);
    if (error == 0)
        return attempt_finish(attempt);
    attempt_free(attempt);
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}
