/* What begins transfers of a session: send, receive, read and write. */
#include "base/clock.h"
#include "base/config.h"
#include "python/src/errors.h"
#include "python/src/parts.h"
#include "python/src/patience.h"
#include "python/src/remote.h"
#include "python/src/stream.h"
#include "python/src/window.h"

/* Those that the program has lost are let go of when they have ended, so that they do not add up.
 */
static void sweep(struct session *session)
{
    if (session->record_count < session->sweep_at)
        return;
    records_ask(session);
    session->sweep_at = 2 * session->record_count + 64;
}

/* --- send and receive ------------------------------------------------------------------------ */

/* Without the GIL. */
static int begin_move(struct session *session, struct record *record, struct tcpx_move *move,
                      bool sends)
{
    int result = TCPX_SUCCESS;

    if (record->bytes > 0)
        result = tcpx_session_register(session->handle, record->memory.address, record->bytes,
                                       &record->registered);
    move->memory = record->registered;
    move->bytes = record->bytes;
    if (result == TCPX_SUCCESS)
        result = (sends ? tcpx_send : tcpx_receive)(session->handle, move, &record->transfer);
    return result;
}

/* Of a call that has failed: what it said stays said. */
static void unregister(struct session *session, struct record *record)
{
    if (record->registered != NULL &&
        tcpx_session_deregister(session->handle, record->registered) == TCPX_SUCCESS)
        record->registered = NULL;
}

/* Takes the reference to the record. */
static PyObject *start_move(struct session *session, struct record *record, struct tcpx_move *move,
                            bool sends)
{
    int result;

    if (session_enter(session) != 0) {
        record_drop(record);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    result = begin_move(session, record, move, sends);
    Py_END_ALLOW_THREADS;
    if (result == TCPX_SUCCESS) {
        record_list(session, record);
        session_leave(session);
        return transfer_new(session, record);
    }
    errors_raise(result);
    Py_BEGIN_ALLOW_THREADS;
    unregister(session, record);
    Py_END_ALLOW_THREADS;
    session_leave(session);
    record_drop(record);
    return NULL;
}

static int check_gpu(const struct session *session, int gpu)
{
    if (gpu < 0 || gpu == session->gpu)
        return 0;
    if (session->gpu < 0)
        errors_usage("memory of GPU %d, and the session is for host memory only: connect and "
                     "listen take gpu=%d",
                     gpu, gpu);
    else
        errors_usage("memory of GPU %d, and the session is for GPU %d", gpu, session->gpu);
    return -1;
}

static PyObject *session_move(PyObject *self, PyObject *arguments, PyObject *keywords, bool sends)
{
    static char *names[] = {"object", "tag", "after", NULL};
    struct session *session = (struct session *)self;
    struct tcpx_move move = {0};
    PyObject *after_object = Py_None;
    PyObject *tag = NULL;
    PyObject *object;
    struct record *record;
    struct after after;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, sends ? "O|O$O:send" : "O|O$O:receive",
                                     names, &object, &tag, &after_object))
        return NULL;
    if (tag != NULL)
        move.tag = PyLong_AsUnsignedLongLong(tag);
    if (PyErr_Occurred() || stream_after(after_object, session->gpu, &after) != 0)
        return NULL;
    move.after = after.after;
    move.after_what = after.what;
    sweep(session);
    record = record_new();
    if (record == NULL)
        return NULL;
    if ((sends ? memory_take : memory_take_writable)(object, &record->memory) != 0 ||
        check_gpu(session, record->memory.gpu) != 0) {
        record_drop(record);
        return NULL;
    }
    record->bytes = record->memory.bytes;
    return start_move(session, record, &move, sends);
}

PyObject *session_send(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    return session_move(self, arguments, keywords, true);
}

PyObject *session_receive(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    return session_move(self, arguments, keywords, false);
}

/* --- read and write: the parts --------------------------------------------------------------- */

/* Parts of this side: of a window, or of the memory of an object. A new reference. */
static struct parts *parts_here(PyObject *here)
{
    PyObject *window;
    PyObject *parts;

    if (PyObject_TypeCheck(here, (PyTypeObject *)parts_type)) {
        Py_INCREF(here);
        return (struct parts *)here;
    }
    if (PyObject_TypeCheck(here, (PyTypeObject *)window_type)) {
        Py_INCREF(here);
        window = here;
    } else {
        window = window_of(here);
    }
    if (window == NULL)
        return NULL;
    parts = parts_of_range(window, 0, ((struct window *)window)->bytes);
    Py_DECREF(window);
    return (struct parts *)parts;
}

/* A remote by itself is its first bytes. */
static struct parts *parts_there(PyObject *there, uint64_t bytes)
{
    if (PyObject_TypeCheck(there, (PyTypeObject *)remote_type))
        return (struct parts *)parts_of_range(there, 0, bytes);
    if (PyObject_TypeCheck(there, (PyTypeObject *)parts_type)) {
        Py_INCREF(there);
        return (struct parts *)there;
    }
    PyErr_Format(PyExc_TypeError, "%R: the other side is a Remote, or parts of one",
                 (PyObject *)Py_TYPE(there));
    return NULL;
}

static int check_owners(const struct parts *parts, PyObject *type, const char *expected)
{
    for (Py_ssize_t i = 0; i < PyList_Size(parts->owners); i++)
        if (!PyObject_TypeCheck(PyList_GetItem(parts->owners, i), (PyTypeObject *)type)) {
            PyErr_Format(PyExc_TypeError, "parts of a %s are expected", expected);
            return -1;
        }
    return 0;
}

static int check_here(const struct session *session, const struct parts *here, bool reads)
{
    if (check_owners(here, window_type, "Window, of this side,") != 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(here->owners); i++) {
        const struct window *window = (struct window *)PyList_GetItem(here->owners, i);

        if (reads && window->memory.is_read_only) {
            PyErr_SetString(PyExc_TypeError,
                            "the window is of read-only memory, and a read would write to it");
            return -1;
        }
        if (check_gpu(session, window->memory.gpu) != 0)
            return -1;
    }
    return 0;
}

static int check_there(const struct session *session, const struct parts *there)
{
    if (check_owners(there, remote_type, "Remote, of the peer,") != 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyList_Size(there->owners); i++)
        if (((struct remote *)PyList_GetItem(there->owners, i))->session != session) {
            errors_usage("the remote belongs to another session");
            return -1;
        }
    return 0;
}

static int check_sums(const struct parts *here, const struct parts *there)
{
    uint64_t bytes = parts_bytes(here);

    if (bytes == parts_bytes(there))
        return 0;
    errors_usage("%llu bytes here, and %llu there", (unsigned long long)bytes,
                 (unsigned long long)parts_bytes(there));
    return -1;
}

/* The two sides may be cut differently: as many parts as there are cuts. Empty ranges vanish. */
static size_t join(const struct parts *here, const struct parts *there, struct tcpx_part *parts)
{
    struct part_range ours = {0};
    struct part_range theirs = {0};
    size_t count = 0;
    size_t i = 0;
    size_t k = 0;

    for (;;) {
        uint64_t bytes;

        while (ours.bytes == 0 && i < here->count)
            ours = here->ranges[i++];
        while (theirs.bytes == 0 && k < there->count)
            theirs = there->ranges[k++];
        if (ours.bytes == 0 || theirs.bytes == 0)
            return count;
        bytes = ours.bytes < theirs.bytes ? ours.bytes : theirs.bytes;
        parts[count++] = (struct tcpx_part){
            .window = ((struct window *)PyList_GetItem(here->owners, ours.owner))->handle,
            .offset = ours.offset,
            .remote = ((struct remote *)PyList_GetItem(there->owners, theirs.owner))->handle,
            .remote_offset = theirs.offset,
            .bytes = bytes};
        ours.offset += bytes;
        ours.bytes -= bytes;
        theirs.offset += bytes;
        theirs.bytes -= bytes;
    }
}

/* --- read and write: beginning --------------------------------------------------------------- */

static void leave_windows(PyObject *windows, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        window_leave((struct window *)PyList_GetItem(windows, i));
}

static int enter_windows(PyObject *windows)
{
    Py_ssize_t count = PyList_Size(windows);

    for (Py_ssize_t i = 0; i < count; i++)
        if (window_enter((struct window *)PyList_GetItem(windows, i)) != 0) {
            leave_windows(windows, i);
            return -1;
        }
    return 0;
}

/* With session and windows entered. The parts are copied by the library. */
static int begin_access(struct session *session, struct record *record, struct tcpx_access *access,
                        const struct parts *here, const struct parts *there, bool reads)
{
    struct tcpx_part *parts = PyMem_Calloc(here->count + there->count + 1, sizeof *parts);
    int result;

    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    access->parts = parts;
    access->part_count = join(here, there, parts);
    Py_BEGIN_ALLOW_THREADS;
    result = config_deadline(access->timeout_ms == 0 ? TCPX_DEFAULT_TIMEOUT : access->timeout_ms,
                             &record->expires);
    if (result == TCPX_SUCCESS)
        result = (reads ? tcpx_read : tcpx_write)(session->handle, access, &record->transfer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(parts);
    if (result == TCPX_SUCCESS)
        return 0;
    errors_raise(result);
    return -1;
}

static PyObject *start_access(struct session *session, struct tcpx_access *access,
                              const struct parts *here, const struct parts *there, bool reads)
{
    struct record *record = record_new();
    int result;

    if (record == NULL)
        return NULL;
    record->is_access = true;
    record->bytes = parts_bytes(here);
    record->kept = PyList_GetSlice(here->owners, 0, PyList_Size(here->owners));
    if (record->kept == NULL || session_enter(session) != 0) {
        record_drop(record);
        return NULL;
    }
    result = enter_windows(record->kept);
    if (result == 0) {
        PyObject *windows = record->kept;

        result = begin_access(session, record, access, here, there, reads);
        leave_windows(windows, PyList_Size(windows));
    }
    if (result == 0)
        record_list(session, record);
    session_leave(session);
    if (result == 0)
        return transfer_new(session, record);
    record_drop(record);
    return NULL;
}

/* A note is a buffer, or None. */
static int take_note(PyObject *object, Py_buffer *note, struct tcpx_access *access)
{
    static const char nothing[1];

    if (object == Py_None)
        return 0;
    if (PyObject_GetBuffer(object, note, PyBUF_SIMPLE) != 0)
        return -1;
    access->note = note->len > 0 ? note->buf : nothing;
    access->note_bytes = (size_t)note->len;
    return 0;
}

static PyObject *access_objects(struct session *session, struct tcpx_access *access, PyObject *here,
                                PyObject *there, bool reads)
{
    struct parts *ours = parts_here(here);
    struct parts *theirs = ours != NULL ? parts_there(there, parts_bytes(ours)) : NULL;
    PyObject *transfer = NULL;

    if (theirs != NULL && check_here(session, ours, reads) == 0 &&
        check_there(session, theirs) == 0 && check_sums(ours, theirs) == 0)
        transfer = start_access(session, access, ours, theirs, reads);
    Py_XDECREF((PyObject *)ours);
    Py_XDECREF((PyObject *)theirs);
    return transfer;
}

static PyObject *session_access(PyObject *self, PyObject *arguments, PyObject *keywords, bool reads)
{
    static char *names[] = {"here", "there", "note", "after", "timeout", NULL};
    struct session *session = (struct session *)self;
    struct tcpx_access access = {0};
    PyObject *after_object = Py_None;
    PyObject *timeout = Py_None;
    PyObject *note_object = Py_None;
    PyObject *transfer;
    PyObject *here;
    PyObject *there;
    struct after after;
    Py_buffer note = {0};

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, reads ? "OO|$OOO:read" : "OO|$OOO:write",
                                     names, &here, &there, &note_object, &after_object, &timeout) ||
        stream_after(after_object, session->gpu, &after) != 0 ||
        patience_ms(timeout, 0, &access.timeout_ms) != 0)
        return NULL;
    if (timeout != Py_None && access.timeout_ms == 0)
        return errors_usage("an access that has no time: timeout is more than 0, or None");
    if (take_note(note_object, &note, &access) != 0)
        return NULL;
    access.after = after.after;
    access.after_what = after.what;
    sweep(session);
    transfer = access_objects(session, &access, here, there, reads);
    if (note.obj != NULL)
        PyBuffer_Release(&note);
    return transfer;
}

PyObject *session_read(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    return session_access(self, arguments, keywords, true);
}

PyObject *session_write(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    return session_access(self, arguments, keywords, false);
}
