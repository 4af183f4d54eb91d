/* The type Transfer: what the program keeps of a transfer, to ask about it, wait for it, cancel it.
 */
#include "base/clock.h"
#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/patience.h"
#include "python/src/session.h"
#include "python/src/stream.h"

struct transfer {
    PyObject_HEAD struct session *session;
    struct record *record;
};

static PyObject *transfer_type;

PyObject *transfer_new(struct session *session, struct record *record)
{
    struct transfer *transfer = (struct transfer *)NEW_OBJECT(transfer_type);

    if (transfer == NULL) {
        record_drop(record);
        return NULL;
    }
    Py_INCREF((PyObject *)session);
    transfer->session = session;
    transfer->record = record;
    return (PyObject *)transfer;
}

static void transfer_dealloc(PyObject *self)
{
    struct transfer *transfer = (struct transfer *)self;

    PyObject_GC_UnTrack(self);
    if (transfer->record != NULL)
        record_drop(transfer->record);
    Py_XDECREF((PyObject *)transfer->session);
    object_free(self);
}

static int transfer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)((struct transfer *)self)->session);
    return 0;
}

/* Whether the library can be asked about it now; then transfer_release() follows. */
static bool transfer_take(struct transfer *transfer, bool is_urgent)
{
    struct record *record = transfer->record;

    if (record->transfer == NULL || record->is_busy || (record->urgent > 0 && !is_urgent) ||
        !session_try_enter(transfer->session))
        return false;
    record_begin(record);
    return true;
}

static void transfer_release(struct transfer *transfer)
{
    record_end(transfer->session, transfer->record);
    session_leave(transfer->session);
}

/* --- done ------------------------------------------------------------------------------------ */

static void transfer_ask(struct transfer *transfer, const struct after *on)
{
    struct record *record = transfer->record;
    int result;
    int done;

    Py_BEGIN_ALLOW_THREADS;
    done = 0;
    result = on->after == TCPX_AFTER_STREAM
                 ? tcpx_transfer_test_on_stream(record->transfer, on->what, &done)
                 : tcpx_transfer_test(record->transfer, &done);
    record_note(transfer->session, record, result, done != 0);
    Py_END_ALLOW_THREADS;
}

static PyObject *transfer_done(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"stream", NULL};
    struct transfer *transfer = (struct transfer *)self;
    PyObject *stream = Py_None;
    PyObject *report;
    struct after on;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:done", names, &stream) ||
        stream_after(stream, transfer->session->gpu, &on) != 0)
        return NULL;
    if (on.after == TCPX_AFTER_EVENT)
        return errors_usage("done(): a stream is expected, not an event");
    if (transfer_take(transfer, false)) {
        transfer_ask(transfer, &on);
        transfer_release(transfer);
    }
    if (transfer->record->transfer != NULL || transfer->record->is_busy)
        Py_RETURN_FALSE;
    report = record_report(transfer->record);
    if (report == NULL)
        return NULL;
    Py_DECREF(report);
    Py_RETURN_TRUE;
}

/* --- wait ------------------------------------------------------------------------------------ */

/* In slices: a signal is handled, and another thread can cancel it or close the session. */
static void transfer_wait_slice(struct transfer *transfer, uint64_t deadline)
{
    struct record *record = transfer->record;
    int slice = deadline_poll_ms(deadline_earlier(deadline, deadline_after_ms(SLICE_MS)));

    Py_BEGIN_ALLOW_THREADS;
    record_note(transfer->session, record, tcpx_transfer_wait(record->transfer, slice), true);
    Py_END_ALLOW_THREADS;
}

static PyObject *transfer_wait(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    struct transfer *transfer = (struct transfer *)self;
    struct record *record = transfer->record;
    PyObject *timeout = Py_None;
    uint64_t deadline;
    int ms;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:wait", names, &timeout) ||
        patience_ms(timeout, -1, &ms) != 0)
        return NULL;
    deadline = ms < 0 ? DEADLINE_NEVER : deadline_after_ms((uint64_t)ms);
    for (;;) {
        if (transfer_take(transfer, false)) {
            transfer_wait_slice(transfer, deadline);
            transfer_release(transfer);
        } else if (record->transfer != NULL || record->is_busy) {
            patience_pause();
        }
        if (record->transfer == NULL && !record->is_busy)
            return record_report(record);
        if (PyErr_CheckSignals() != 0)
            return NULL;
        if (deadline_passed(deadline))
            return errors_timeout("a transfer of %llu bytes was not done in time",
                                  (unsigned long long)record->bytes);
    }
}

/* --- cancel ---------------------------------------------------------------------------------- */

static int transfer_cancel_once(struct transfer *transfer)
{
    struct record *record = transfer->record;
    int result;

    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_transfer_cancel(record->transfer);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS && result != TCPX_IN_PROGRESS)
        errors_raise(result);
    record->is_cancelled = record->is_cancelled || result == TCPX_SUCCESS;
    return result;
}

static int transfer_cancel_in_turn(struct transfer *transfer)
{
    int result = TCPX_IN_PROGRESS;

    if (!transfer_take(transfer, true)) {
        patience_pause();
        return TCPX_IN_PROGRESS;
    }
    result = transfer_cancel_once(transfer);
    transfer_release(transfer);
    return result;
}

static PyObject *transfer_cancel(PyObject *self, PyObject *unused)
{
    struct transfer *transfer = (struct transfer *)self;
    struct record *record = transfer->record;
    int result = TCPX_IN_PROGRESS;

    (void)unused;
    record->urgent++;
    while (result == TCPX_IN_PROGRESS && record->transfer != NULL && !PyErr_Occurred()) {
        result = transfer_cancel_in_turn(transfer);
        if (result == TCPX_IN_PROGRESS)
            (void)PyErr_CheckSignals(); /* which may raise */
    }
    record->urgent--;
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* --- for tcpx._asyncio ----------------------------------------------------------------------- */

/* True: it has ended already, and the waiter will not come back. */
static PyObject *transfer_add_waiter(PyObject *self, PyObject *waiter)
{
    struct record *record = ((struct transfer *)self)->record;

    if (record->transfer == NULL && !record->is_busy)
        Py_RETURN_TRUE;
    if (record->waiters == NULL)
        record->waiters = PyList_New(0);
    if (record->waiters == NULL || PyList_Append(record->waiters, waiter) != 0)
        return NULL;
    Py_RETURN_FALSE;
}

static PyObject *transfer_await(PyObject *self)
{
    PyObject *coroutine = helper_call("tcpx._asyncio", "wait_for", "O", self);
    PyObject *iterator =
        coroutine != NULL ? PyObject_CallMethod(coroutine, "__await__", NULL) : NULL;

    Py_XDECREF(coroutine);
    return iterator;
}

static PyObject *transfer_get_session(PyObject *self, void *unused)
{
    PyObject *session = (PyObject *)((struct transfer *)self)->session;

    (void)unused;
    Py_INCREF(session);
    return session;
}

static PyObject *transfer_get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct transfer *)self)->record->bytes);
}

/* --- the type -------------------------------------------------------------------------------- */

static PyMethodDef transfer_methods[] = {
    {"done", WITH_KEYWORDS(transfer_done), METH_VARARGS | METH_KEYWORDS, DOC_TRANSFER_DONE},
    {"wait", WITH_KEYWORDS(transfer_wait), METH_VARARGS | METH_KEYWORDS, DOC_TRANSFER_WAIT},
    {"cancel", transfer_cancel, METH_NOARGS, DOC_TRANSFER_CANCEL},
    {"_add_waiter", transfer_add_waiter, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef transfer_attributes[] = {
    {"nbytes", transfer_get_bytes, NULL, "How many bytes it moves.", NULL},
    {"_session", transfer_get_session, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot transfer_slots[] = {{Py_tp_dealloc, transfer_dealloc},
                                       {Py_tp_traverse, transfer_traverse},
                                       {Py_tp_methods, transfer_methods},
                                       {Py_tp_getset, transfer_attributes},
                                       {Py_tp_doc, (void *)DOC_TRANSFER},
                                       {Py_am_await, transfer_await},
                                       {0, NULL}};

static PyType_Spec transfer_spec = {
    .name = "tcpx.Transfer",
    .basicsize = sizeof(struct transfer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = transfer_slots,
};

int transfer_load(PyObject *module)
{
    return module_add_type(module, "Transfer", &transfer_spec, &transfer_type);
}
