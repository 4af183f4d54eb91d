/* How threads wait for each other. */
#include "python/src/patience.h"

#include "python/src/errors.h"

#include <limits.h>
#include <pthread.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `changes` */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned changes;
static unsigned forks; /* written by a forked child while it has one thread */

static void in_child(void)
{
    forks++;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}

int patience_load(void)
{
    static bool is_loaded;

    if (!is_loaded && pthread_atfork(NULL, NULL, in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    is_loaded = true;
    return 0;
}

unsigned patience_forks(void)
{
    return forks;
}

void patience_changed(void)
{
    pthread_mutex_lock(&lock);
    changes++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void patience_pause(void)
{
    struct timespec until;
    unsigned before;

    pthread_mutex_lock(&lock);
    before = changes;
    pthread_mutex_unlock(&lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += SLICE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&lock);
    if (changes == before) /* once: who pauses looks again */
        pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS;
}

int patience_pause_or_signal(void)
{
    patience_pause();
    return PyErr_CheckSignals();
}

int patience_ms(PyObject *seconds, int when_none, int *ms)
{
    double value;

    *ms = when_none;
    if (seconds == NULL || seconds == Py_None)
        return 0;
    value = PyFloat_AsDouble(seconds);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (!(value >= 0)) {
        errors_usage("a timeout of %R seconds: expected 0 or more, or None", seconds);
        return -1;
    }
    *ms = value * 1000 >= INT_MAX ? INT_MAX : (int)(value * 1000);
    *ms += *ms < INT_MAX && *ms < value * 1000;
    return 0;
}
