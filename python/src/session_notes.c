/* Notes of a session: to the peer's program, and from it. */
#include "base/clock.h"
#include "python/src/errors.h"
#include "python/src/patience.h"
#include "python/src/session.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

enum { ROOM_PAUSE_NS = 1000000, SHARED_PAUSE_MS = 5 };

/* --- sending --------------------------------------------------------------------------------- */

/* Until the peer's program has taken some of those that wait for it. */
static int send_note(struct session *session, const Py_buffer *note, uint64_t deadline)
{
    int result = TCPX_IN_PROGRESS;

    while (result == TCPX_IN_PROGRESS) {
        if (session_enter(session) != 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS;
        result = tcpx_note_send(session->handle, note->buf, (size_t)note->len);
        if (result == TCPX_IN_PROGRESS && !deadline_passed(deadline))
            nanosleep(&(struct timespec){.tv_nsec = ROOM_PAUSE_NS}, NULL);
        Py_END_ALLOW_THREADS;
        session_leave(session);
        if (result != TCPX_SUCCESS && (result != TCPX_IN_PROGRESS || deadline_passed(deadline))) {
            errors_raise(result);
            return -1;
        }
        if (PyErr_CheckSignals() != 0)
            return -1;
    }
    return 0;
}

PyObject *session_note(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"data", "timeout", NULL};
    PyObject *timeout = Py_None;
    Py_buffer note;
    int result;
    int ms;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*|$O:note", names, &note, &timeout))
        return NULL;
    result = patience_ms(timeout, 60000, &ms);
    if (result == 0)
        result = send_note((struct session *)self, &note, deadline_after_ms((uint64_t)ms));
    PyBuffer_Release(&note);
    if (result != 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- taking ---------------------------------------------------------------------------------- */

/* One note to the end of the list. 1: there was one; 0: none; -1 with an exception. */
static int take_note(struct session *session, char *room, PyObject *list)
{
    PyObject *note;
    size_t bytes = 0;
    int there = 0;
    int result;

    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_note_take(session->handle, room, TCPX_NOTE_BYTES, &bytes, &there);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS && PyList_Size(list) > 0)
        return 0; /* those that had come; the next call says it */
    if (result != TCPX_SUCCESS) {
        errors_raise(result);
        return -1;
    }
    if (!there)
        return 0;
    note = PyBytes_FromStringAndSize(room, (Py_ssize_t)bytes);
    result = note != NULL ? PyList_Append(list, note) : -1;
    Py_XDECREF(note);
    return result == 0 ? 1 : -1;
}

static int take_notes(struct session *session, PyObject *list)
{
    char *room = PyMem_Malloc(TCPX_NOTE_BYTES);
    int taken = 1;

    if (room == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (session_enter(session) != 0) {
        PyMem_Free(room);
        return -1;
    }
    while (taken > 0)
        taken = take_note(session, room, list);
    session_leave(session);
    PyMem_Free(room);
    return taken;
}

/*
 * Until something may have come. An event loop that waits for the same session reads the eventfd;
 * then this thread must not, and looks now and then.
 */
static int await_event(struct session *session, uint64_t deadline)
{
    bool is_shared = session->events != NULL;
    unsigned long long count;
    int result;
    int fd = -1;

    if (session_enter(session) != 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_session_event_fd(session->handle, &fd);
    if (result == TCPX_SUCCESS) {
        uint64_t until = deadline_after_ms(is_shared ? SHARED_PAUSE_MS : SLICE_MS);
        struct pollfd event = {.fd = is_shared ? -1 : fd, .events = POLLIN};

        if (poll(&event, 1, deadline_poll_ms(deadline_earlier(deadline, until))) > 0 &&
            read(fd, &count, sizeof count) < 0)
            count = 0;
    }
    Py_END_ALLOW_THREADS;
    session_leave(session);
    if (result != TCPX_SUCCESS)
        errors_raise(result);
    return result == TCPX_SUCCESS ? PyErr_CheckSignals() : -1;
}

PyObject *session_notes(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    struct session *session = (struct session *)self;
    PyObject *timeout = NULL;
    PyObject *list;
    uint64_t deadline;
    int result;
    int ms = 0;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:notes", names, &timeout) ||
        (timeout != NULL && patience_ms(timeout, -1, &ms) != 0))
        return NULL;
    deadline = ms < 0 ? DEADLINE_NEVER : deadline_after_ms((uint64_t)ms);
    list = PyList_New(0);
    if (list == NULL)
        return NULL;
    result = take_notes(session, list);
    while (result == 0 && PyList_Size(list) == 0 && !deadline_passed(deadline)) {
        result = await_event(session, deadline);
        if (result == 0)
            result = take_notes(session, list);
    }
    if (result == 0)
        return list;
    Py_DECREF(list);
    return NULL;
}
