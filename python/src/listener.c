/* The type Listener: waits on a port for peers. Its asynchronous parts are in tcpx._asyncio. */
#include "python/src/listener.h"

#include "base/clock.h"
#include "base/config.h"
#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/options.h"
#include "python/src/patience.h"
#include "python/src/session.h"
#include "session/session.h"

/* How long it takes at most until a close, or a signal, is seen. */
enum { ACCEPT_SLICE_MS = 50 };

struct listener {
    PyObject_HEAD struct tcpx_session_listener *handle; /* NULL: it is closed */
    struct listener *next;                              /* of all that are open */
    struct listener **here;
    bool is_closing;
    unsigned users; /* calls inside of the library */
    unsigned forks; /* of the process, when it was made */
    int gpu;
    int port;
};

static PyObject *listener_type;
static struct listener *all_listeners; /* that are open */

/* --- making ---------------------------------------------------------------------------------- */

static PyObject *listener_new(struct tcpx_session_listener *handle, int gpu, int port)
{
    struct listener *listener = (struct listener *)NEW_OBJECT(listener_type);

    if (listener == NULL) {
        tcpx_session_stop_listening(handle);
        return NULL;
    }
    listener->handle = handle;
    listener->gpu = gpu;
    listener->port = port;
    listener->forks = patience_forks();
    listener->next = all_listeners;
    listener->here = &all_listeners;
    if (listener->next != NULL)
        listener->next->here = &listener->next;
    all_listeners = listener;
    return (PyObject *)listener;
}

static PyObject *listen_with(const char *address, int port, const struct options *options)
{
    struct tcpx_session_listener *handle = NULL;
    int result;

    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_session_listen(address, port, &options->options, &handle);
    if (result == TCPX_SUCCESS)
        result = tcpx_session_port(handle, &port);
    Py_END_ALLOW_THREADS;
    return result == TCPX_SUCCESS ? listener_new(handle, options->options.gpu, port)
                                  : errors_raise_local(result);
}

PyObject *listener_listen(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"address", "port", OPTION_NAMES, NULL};
    struct option_objects objects = OPTION_OBJECTS;
    struct options options;
    const char *address = NULL;
    PyObject *listener;
    int port = TCPX_SESSION_PORT;

    (void)module;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|zi$" OPTION_FORMAT ":listen", names,
                                     &address, &port, OPTION_PLACES(&objects)) ||
        module_refuse_at_exit() != 0 || options_take(&objects, &options) != 0)
        return NULL;
    listener = listen_with(address, port, &options);
    options_give(&options);
    return listener;
}

/* --- accepting ------------------------------------------------------------------------------- */

/* A peer that has come has the library's time to open the session, however short the slice is. */
static int accept_slice(struct listener *listener, uint64_t deadline, struct tcpx_session **session)
{
    uint64_t open_deadline;
    int result;

    listener->users++;
    Py_BEGIN_ALLOW_THREADS;
    result = config_deadline(TCPX_DEFAULT_TIMEOUT, &open_deadline);
    if (result == TCPX_SUCCESS)
        result = session_accept_until(
            listener->handle, deadline_earlier(deadline, deadline_after_ms(ACCEPT_SLICE_MS)),
            open_deadline, session);
    Py_END_ALLOW_THREADS;
    listener->users--;
    patience_changed();
    return result;
}

static PyObject *listener_accept(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    struct listener *listener = (struct listener *)self;
    struct tcpx_session *session = NULL;
    PyObject *timeout = Py_None;
    uint64_t deadline;
    int ms;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:accept", names, &timeout) ||
        patience_ms(timeout, -1, &ms) != 0)
        return NULL;
    deadline = ms < 0 ? DEADLINE_NEVER : deadline_after_ms((uint64_t)ms);
    for (;;) {
        int result;

        if (listener->is_closing)
            return errors_usage("the listener is closed");
        result = accept_slice(listener, deadline, &session);
        if (result == TCPX_SUCCESS)
            return session_new(session, listener->gpu);
        if (result != TCPX_IN_PROGRESS || deadline_passed(deadline))
            return errors_raise(result);
        if (PyErr_CheckSignals() != 0)
            return NULL;
    }
}

/* --- closing --------------------------------------------------------------------------------- */

static void listener_shut(struct listener *listener)
{
    struct tcpx_session_listener *handle = listener->handle;

    listener->is_closing = true;
    *listener->here = listener->next;
    if (listener->next != NULL)
        listener->next->here = listener->here;
    while (listener->users > 0 && listener->forks == patience_forks())
        patience_pause();
    Py_BEGIN_ALLOW_THREADS;
    tcpx_session_stop_listening(handle);
    Py_END_ALLOW_THREADS;
    listener->handle = NULL;
    patience_changed();
}

static PyObject *listener_close(PyObject *self, PyObject *unused)
{
    struct listener *listener = (struct listener *)self;

    (void)unused;
    if (!listener->is_closing)
        listener_shut(listener);
    while (listener->handle != NULL && listener->forks == patience_forks())
        if (patience_pause_or_signal() != 0) /* another thread closes it */
            return NULL;
    Py_RETURN_NONE;
}

void listeners_close_all(void)
{
    while (all_listeners != NULL) {
        PyObject *listener = (PyObject *)all_listeners;

        Py_INCREF(listener);
        Py_XDECREF(listener_close(listener, NULL));
        PyErr_Clear();
        Py_DECREF(listener);
    }
}

static void listener_dealloc(PyObject *self)
{
    struct errors_aside aside;

    errors_set_aside(&aside);
    if (((struct listener *)self)->handle != NULL)
        listener_shut((struct listener *)self);
    errors_put_back(&aside);
    object_free(self);
}

/* --- the rest -------------------------------------------------------------------------------- */

static PyObject *listener_get_port(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct listener *)self)->port);
}

static PyObject *listener_get_closed(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((struct listener *)self)->is_closing);
}

static PyObject *listener_itself(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

static PyObject *listener_enter_block(PyObject *self, PyObject *unused)
{
    (void)unused;
    return listener_itself(self);
}

static PyObject *listener_next_async(PyObject *self)
{
    return helper_call("tcpx._asyncio", "accept", "O", self);
}

static PyObject *listener_serve(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"on_note", "on_session", NULL};
    PyObject *on_note = Py_None;
    PyObject *on_session = Py_None;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|OO:serve", names, &on_note,
                                     &on_session))
        return NULL;
    return helper_call("tcpx._serve", "serve", "OOO", self, on_note, on_session);
}

static PyMethodDef listener_methods[] = {
    {"accept", WITH_KEYWORDS(listener_accept), METH_VARARGS | METH_KEYWORDS, DOC_LISTENER_ACCEPT},
    {"serve", WITH_KEYWORDS(listener_serve), METH_VARARGS | METH_KEYWORDS, DOC_LISTENER_SERVE},
    {"close", listener_close, METH_NOARGS, DOC_LISTENER_CLOSE},
    {"__enter__", listener_enter_block, METH_NOARGS, NULL},
    {"__exit__", listener_close, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef listener_attributes[] = {
    {"port", listener_get_port, NULL, "The port it waits on.", NULL},
    {"closed", listener_get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot listener_slots[] = {{Py_tp_dealloc, listener_dealloc},
                                       {Py_tp_methods, listener_methods},
                                       {Py_tp_getset, listener_attributes},
                                       {Py_tp_doc, (void *)DOC_LISTENER},
                                       {Py_am_aiter, listener_itself},
                                       {Py_am_anext, listener_next_async},
                                       {0, NULL}};

static PyType_Spec listener_spec = {
    .name = "tcpx.Listener",
    .basicsize = sizeof(struct listener),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = listener_slots,
};

int listener_load(PyObject *module)
{
    return module_add_type(module, "Listener", &listener_spec, &listener_type);
}
