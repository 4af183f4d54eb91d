/* The counters of a session as a dict, by the names that tcpx.h gives them. */
#include "python/src/errors.h"
#include "python/src/session.h"

#include <stddef.h>

#define COUNTER(name)                                                                              \
    {                                                                                              \
#name, offsetof(struct tcpx_session_statistics, name)                                      \
    }

static const struct {
    const char *name;
    size_t offset;
} counters[] = {
    COUNTER(sends),           COUNTER(receives),       COUNTER(failures),
    COUNTER(sent_bytes),      COUNTER(received_bytes), COUNTER(sent_chunks),
    COUNTER(received_chunks), COUNTER(fragments),      COUNTER(unpack_launches),
    COUNTER(matching_ns),     COUNTER(gathering_ns),   COUNTER(sending_ns),
    COUNTER(receiving_ns),    COUNTER(unpacking_ns),   COUNTER(window_stalls),
    COUNTER(staging_stalls),  COUNTER(busy_stalls),    COUNTER(after_stalls),
    COUNTER(copy_out_ns),     COUNTER(write_ns),       COUNTER(write_wait_ns),
    COUNTER(read_ns),         COUNTER(read_wait_ns),   COUNTER(copy_in_ns),
    COUNTER(reads),           COUNTER(writes),         COUNTER(read_bytes),
    COUNTER(written_bytes),   COUNTER(cancelled),      COUNTER(served_reads),
    COUNTER(served_writes),   COUNTER(served_bytes),   COUNTER(served_refusals),
    COUNTER(notes_sent),      COUNTER(notes_taken),
};

enum { COUNTERS = sizeof counters / sizeof *counters };

/* A counter that the library gets has to get a name here. */
_Static_assert(sizeof(struct tcpx_session_statistics) ==
                   sizeof(size_t) + COUNTERS * sizeof(uint64_t),
               "all counters of tcpx.h");

static int add_counter(PyObject *all, const struct tcpx_session_statistics *statistics, size_t i)
{
    uint64_t value;
    PyObject *number;
    int result;

    memcpy(&value, (const char *)statistics + counters[i].offset, sizeof value);
    number = PyLong_FromUnsignedLongLong(value);
    result = number != NULL ? PyDict_SetItemString(all, counters[i].name, number) : -1;
    Py_XDECREF(number);
    return result;
}

PyObject *session_statistics(PyObject *self, PyObject *unused)
{
    struct tcpx_session_statistics statistics = {.size = sizeof statistics};
    struct session *session = (struct session *)self;
    PyObject *all;
    int result;

    (void)unused;
    if (session_enter(session) != 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_session_get_statistics(session->handle, &statistics);
    Py_END_ALLOW_THREADS;
    session_leave(session);
    if (result != TCPX_SUCCESS)
        return errors_raise(result);
    all = PyDict_New();
    for (size_t i = 0; i < COUNTERS && all != NULL; i++)
        if (add_counter(all, &statistics, i) != 0) {
            Py_DECREF(all);
            return NULL;
        }
    return all;
}
