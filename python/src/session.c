/* The type Session: its life. What moves data is in session_moves.c, notes are in session_notes.c.
 */
#include "python/src/session.h"

#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/patience.h"
#include "python/src/remote.h"

PyObject *session_type;
static struct session *all_sessions; /* that are open */

/* --- use ------------------------------------------------------------------------------------- */

bool session_try_enter(struct session *session)
{
    if (session->is_closing)
        return false;
    session->users++;
    return true;
}

int session_enter(struct session *session)
{
    if (session_try_enter(session))
        return 0;
    errors_usage("the session is closed");
    return -1;
}

void session_leave(struct session *session)
{
    session->users--;
    if (session->is_closing)
        patience_changed();
}

void session_wake(struct session *session)
{
    struct errors_aside aside;
    PyObject *result;

    if (session->events == NULL)
        return;
    errors_set_aside(&aside);
    Py_INCREF((PyObject *)session);
    result = PyObject_CallMethod(session->events, "wake", "O", (PyObject *)session);
    if (result == NULL)
        PyErr_WriteUnraisable((PyObject *)session);
    Py_XDECREF(result);
    Py_DECREF((PyObject *)session);
    errors_put_back(&aside);
}

/* --- closing --------------------------------------------------------------------------------- */

/* A child of fork() has the marks of threads that do not exist there. */
static bool session_is_of_parent(const struct session *session)
{
    return session->forks != patience_forks();
}

static void session_forget(struct session *session)
{
    *session->here = session->next;
    if (session->next != NULL)
        session->next->here = session->here;
}

/* After it nothing touches the memory of any transfer, and the objects behind it are let go of. */
static void session_shut(struct session *session)
{
    struct tcpx_session *handle = session->handle;

    session->is_closing = true;
    session_forget(session);
    while (session->users > 0 && !session_is_of_parent(session))
        patience_pause();
    Py_BEGIN_ALLOW_THREADS;
    tcpx_session_close(handle);
    Py_END_ALLOW_THREADS;
    session->handle = NULL;
    records_end_all(session);
    patience_changed();
}

static PyObject *session_close(PyObject *self, PyObject *unused)
{
    struct session *session = (struct session *)self;

    (void)unused;
    if (!session->is_closing) {
        session_shut(session);
        session_wake(session);
    }
    while (session->handle != NULL && !session_is_of_parent(session))
        if (patience_pause_or_signal() != 0) /* another thread closes it */
            return NULL;
    Py_RETURN_NONE;
}

/* Each close takes one off the list. */
void sessions_close_all(void)
{
    while (all_sessions != NULL) {
        PyObject *session = (PyObject *)all_sessions;

        Py_INCREF(session);
        Py_XDECREF(session_close(session, NULL));
        PyErr_Clear();
        Py_DECREF(session);
    }
}

static void session_dealloc(PyObject *self)
{
    struct session *session = (struct session *)self;
    struct errors_aside aside;

    PyObject_GC_UnTrack(self);
    errors_set_aside(&aside);
    if (session->handle != NULL)
        session_shut(session);
    records_drop_all(session);
    Py_XDECREF(session->peer);
    Py_XDECREF(session->path);
    Py_XDECREF(session->events);
    errors_put_back(&aside);
    object_free(self);
}

/*
 * There is no clear: what transfers keep alive is kept until the network is done with it. The
 * objects of a cycle that goes through a session are cleared themselves.
 */
static int session_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct session *session = (struct session *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(session->events);
    return records_visit(session, visit, arg);
}

/* --- making ---------------------------------------------------------------------------------- */

static int session_describe(struct session *session)
{
    session->peer = PyUnicode_FromString(tcpx_session_peer(session->handle));
    session->path = PyUnicode_FromString(tcpx_session_path(session->handle));
    return session->peer != NULL && session->path != NULL ? 0 : -1;
}

PyObject *session_new(struct tcpx_session *handle, int gpu)
{
    struct session *session = (struct session *)NEW_OBJECT(session_type);

    if (session == NULL) {
        Py_BEGIN_ALLOW_THREADS;
        tcpx_session_close(handle);
        Py_END_ALLOW_THREADS;
        return NULL;
    }
    session->handle = handle;
    session->gpu = gpu;
    session->forks = patience_forks();
    session->sweep_at = 64;
    session->next = all_sessions;
    session->here = &all_sessions;
    if (session->next != NULL)
        session->next->here = &session->next;
    all_sessions = session;
    if (session_describe(session) == 0)
        return (PyObject *)session;
    Py_DECREF((PyObject *)session);
    return NULL;
}

/* --- attributes ------------------------------------------------------------------------------ */

static PyObject *session_get_peer(PyObject *self, void *unused)
{
    PyObject *peer = ((struct session *)self)->peer;

    (void)unused;
    Py_INCREF(peer);
    return peer;
}

static PyObject *session_get_path(PyObject *self, void *unused)
{
    PyObject *path = ((struct session *)self)->path;

    (void)unused;
    Py_INCREF(path);
    return path;
}

static PyObject *session_get_gpu(PyObject *self, void *unused)
{
    int gpu = ((struct session *)self)->gpu;

    (void)unused;
    if (gpu < 0)
        Py_RETURN_NONE;
    return PyLong_FromLong(gpu);
}

static PyObject *session_get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct session *)self)->is_closing);
}

static PyObject *session_get_events(PyObject *self, void *unused)
{
    PyObject *events = ((struct session *)self)->events;

    (void)unused;
    if (events == NULL)
        Py_RETURN_NONE;
    Py_INCREF(events);
    return events;
}

static int session_set_events(PyObject *self, PyObject *value, void *unused)
{
    struct session *session = (struct session *)self;
    PyObject *before = session->events;

    (void)unused;
    Py_XINCREF(value);
    session->events = value;
    Py_XDECREF(before);
    return 0;
}

/* --- events ---------------------------------------------------------------------------------- */

static PyObject *session_fileno(PyObject *self, PyObject *unused)
{
    struct session *session = (struct session *)self;
    int result;
    int fd = -1;

    (void)unused;
    if (session_enter(session) != 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_session_event_fd(session->handle, &fd);
    Py_END_ALLOW_THREADS;
    session_leave(session);
    return result == TCPX_SUCCESS ? PyLong_FromLong(fd) : errors_raise(result);
}

/* For tcpx._asyncio: what waited for transfers that have ended by now. */
static PyObject *session_ended(PyObject *self, PyObject *unused)
{
    struct session *session = (struct session *)self;

    (void)unused;
    records_ask(session);
    return records_take_waiters(session);
}

static PyObject *session_enter_block(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    return self;
}

static PyObject *session_exit_block(PyObject *self, PyObject *unused)
{
    return session_close(self, unused);
}

static PyObject *session_enter_async(PyObject *self, PyObject *unused)
{
    (void)unused;
    return helper_call("tcpx._asyncio", "itself", "O", self);
}

static PyObject *session_exit_async(PyObject *self, PyObject *unused)
{
    (void)unused;
    return helper_call("tcpx._asyncio", "close", "O", self);
}

static PyObject *session_wait_notes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return helper_call("tcpx._asyncio", "wait_notes", "O", self);
}

static PyObject *session_repr(PyObject *self)
{
    struct session *session = (struct session *)self;

    return PyUnicode_FromFormat("<tcpx.Session %U%s>", session->path,
                                session->is_closing ? ", closed" : "");
}

/* --- the type -------------------------------------------------------------------------------- */

static PyMethodDef session_methods[] = {
    {"send", WITH_KEYWORDS(session_send), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_SEND},
    {"receive", WITH_KEYWORDS(session_receive), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_RECEIVE},
    {"remote", WITH_KEYWORDS(remote_open), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_REMOTE},
    {"read", WITH_KEYWORDS(session_read), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_READ},
    {"write", WITH_KEYWORDS(session_write), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_WRITE},
    {"note", WITH_KEYWORDS(session_note), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_NOTE},
    {"notes", WITH_KEYWORDS(session_notes), METH_VARARGS | METH_KEYWORDS, DOC_SESSION_NOTES},
    {"wait_notes", session_wait_notes, METH_NOARGS, DOC_SESSION_WAIT_NOTES},
    {"statistics", session_statistics, METH_NOARGS, DOC_SESSION_STATISTICS},
    {"close", session_close, METH_NOARGS, DOC_SESSION_CLOSE},
    {"fileno", session_fileno, METH_NOARGS, DOC_SESSION_FILENO},
    {"_ended", session_ended, METH_NOARGS, NULL},
    {"__enter__", session_enter_block, METH_NOARGS, NULL},
    {"__exit__", session_exit_block, METH_VARARGS, NULL},
    {"__aenter__", session_enter_async, METH_NOARGS, NULL},
    {"__aexit__", session_exit_async, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef session_attributes[] = {
    {"peer", session_get_peer, NULL, "The peer's name, as its options say it; \"\" if none.", NULL},
    {"path", session_get_path, NULL, "In one line: the peer, and by which path bytes travel.",
     NULL},
    {"gpu", session_get_gpu, NULL, "The number of its GPU; None: host memory only.", NULL},
    {"closed", session_get_closed, NULL, "Whether close() was called.", NULL},
    {"_events", session_get_events, session_set_events, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot session_slots[] = {{Py_tp_dealloc, session_dealloc},
                                      {Py_tp_traverse, session_traverse},
                                      {Py_tp_methods, session_methods},
                                      {Py_tp_getset, session_attributes},
                                      {Py_tp_doc, (void *)DOC_SESSION},
                                      {Py_tp_repr, session_repr},
                                      {0, NULL}};

static PyType_Spec session_spec = {
    .name = "tcpx.Session",
    .basicsize = sizeof(struct session),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = session_slots,
};

int session_load(PyObject *module)
{
    return module_add_type(module, "Session", &session_spec, &session_type);
}
