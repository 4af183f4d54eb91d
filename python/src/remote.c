/* The type Remote: a window of the peer, in one session. */
#include "python/src/remote.h"

#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/parts.h"

PyObject *remote_type;

static PyObject *remote_make(struct session *session, const Py_buffer *key, uint64_t block)
{
    struct remote *remote = (struct remote *)NEW_OBJECT(remote_type);
    struct tcpx_remote *handle = NULL;
    int result;

    if (remote == NULL)
        return NULL;
    Py_INCREF((PyObject *)session);
    remote->session = session;
    remote->block = block;
    if (session_enter(session) != 0) {
        Py_DECREF((PyObject *)remote);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_remote_open(session->handle, key->buf, (size_t)key->len, &handle);
    Py_END_ALLOW_THREADS;
    session_leave(session);
    remote->handle = handle;
    if (result == TCPX_SUCCESS)
        return (PyObject *)remote;
    errors_raise(result);
    Py_DECREF((PyObject *)remote);
    return NULL;
}

PyObject *remote_open(PyObject *session, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"key", "block", NULL};
    PyObject *block = Py_None;
    PyObject *remote = NULL;
    unsigned long long bytes = 0;
    Py_buffer key;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*|$O:remote", names, &key, &block))
        return NULL;
    if (block != Py_None)
        bytes = PyLong_AsUnsignedLongLong(block);
    if (!PyErr_Occurred())
        remote = remote_make((struct session *)session, &key, bytes);
    PyBuffer_Release(&key);
    return remote;
}

/* Accesses that are under way go on, and the session's close closes those that are left. */
static void remote_dealloc(PyObject *self)
{
    struct remote *remote = (struct remote *)self;
    struct errors_aside aside;
    int result;

    PyObject_GC_UnTrack(self);
    errors_set_aside(&aside);
    if (remote->handle != NULL && session_try_enter(remote->session)) {
        Py_BEGIN_ALLOW_THREADS;
        result = tcpx_remote_close(remote->handle);
        Py_END_ALLOW_THREADS;
        (void)result; /* of a child made by fork() */
        session_leave(remote->session);
    }
    Py_XDECREF((PyObject *)remote->session);
    errors_put_back(&aside);
    object_free(self);
}

static int remote_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)((struct remote *)self)->session);
    return 0;
}

static PyObject *remote_blocks(PyObject *self, PyObject *numbers)
{
    return parts_of_blocks(self, numbers, ((struct remote *)self)->block, UINT64_MAX);
}

static PyObject *remote_subscript(PyObject *self, PyObject *slice)
{
    return parts_of_slice(self, slice, UINT64_MAX);
}

static PyMethodDef remote_methods[] = {{"blocks", remote_blocks, METH_O, DOC_REMOTE_BLOCKS},
                                       {NULL, NULL, 0, NULL}};

static PyType_Slot remote_slots[] = {
    {Py_tp_dealloc, remote_dealloc},     {Py_tp_traverse, remote_traverse},
    {Py_tp_methods, remote_methods},     {Py_tp_doc, (void *)DOC_REMOTE},
    {Py_mp_subscript, remote_subscript}, {0, NULL}};

static PyType_Spec remote_spec = {
    .name = "tcpx.Remote",
    .basicsize = sizeof(struct remote),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = remote_slots,
};

int remote_load(PyObject *module)
{
    return module_add_type(module, "Remote", &remote_spec, &remote_type);
}
