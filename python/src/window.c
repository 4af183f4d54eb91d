/* The type Window: memory of this process for reads and writes, of this side and of peers. */
#include "python/src/window.h"

#include "base/clock.h"
#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"
#include "python/src/parts.h"
#include "python/src/patience.h"

PyObject *window_type;
static struct window *all_windows; /* that are open */

/* --- use ------------------------------------------------------------------------------------- */

int window_enter(struct window *window)
{
    if (window->is_closing) {
        errors_usage("the window is closed");
        return -1;
    }
    window->users++;
    return 0;
}

void window_leave(struct window *window)
{
    window->users--;
    if (window->is_closing)
        patience_changed();
}

/* --- making ---------------------------------------------------------------------------------- */

static int window_open(struct window *window, int access)
{
    struct memory *memory = &window->memory;
    struct tcpx_window *handle = NULL;
    int result;

    if (module_refuse_at_exit() != 0)
        return -1;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_window_open(memory->gpu, memory->address, memory->bytes, access, &handle);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS) {
        errors_raise_local(result);
        return -1;
    }
    window->handle = handle;
    window->bytes = memory->bytes;
    window->is_closing = false;
    window->next = all_windows;
    window->here = &all_windows;
    if (window->next != NULL)
        window->next->here = &window->next;
    all_windows = window;
    return 0;
}

static PyObject *window_make(PyObject *object, int access, uint64_t block)
{
    struct window *window = (struct window *)NEW_OBJECT(window_type);
    bool must_write = (access & TCPX_WINDOW_WRITE) != 0;

    if (window == NULL)
        return NULL;
    window->is_closing = true; /* until it is open */
    window->block = block;
    if ((must_write ? memory_take_writable : memory_take)(object, &window->memory) == 0 &&
        window_open(window, access) == 0)
        return (PyObject *)window;
    Py_DECREF((PyObject *)window);
    return NULL;
}

PyObject *window_of(PyObject *object)
{
    return window_make(object, 0, 0);
}

static PyObject *window_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"object", "read", "write", "block", NULL};
    PyObject *block = Py_None;
    PyObject *object;
    unsigned long long bytes = 0;
    int reads = 0;
    int writes = 0;

    (void)type;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|$ppO:Window", names, &object, &reads,
                                     &writes, &block))
        return NULL;
    if (block != Py_None)
        bytes = PyLong_AsUnsignedLongLong(block);
    if (PyErr_Occurred())
        return NULL;
    return window_make(object, (reads ? TCPX_WINDOW_READ : 0) | (writes ? TCPX_WINDOW_WRITE : 0),
                       bytes);
}

/* --- closing --------------------------------------------------------------------------------- */

static void window_unlist(struct window *window)
{
    if (window->here == NULL)
        return;
    *window->here = window->next;
    if (window->next != NULL)
        window->next->here = window->here;
    window->here = NULL;
}

/* Without signals. TCPX_SUCCESS: nothing touches the memory any more, and it is let go of. */
static int window_close_slice(struct window *window)
{
    struct tcpx_window *handle = window->handle;
    int result;

    window->is_busy = true;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_window_close(handle, SLICE_MS);
    Py_END_ALLOW_THREADS;
    window->is_busy = false;
    if (result == TCPX_SUCCESS) {
        window->handle = NULL;
        window_unlist(window);
        memory_give(&window->memory);
    }
    patience_changed();
    return result;
}

static PyObject *window_close(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    struct window *window = (struct window *)self;
    PyObject *timeout = Py_None;
    uint64_t deadline;
    int ms;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:close", names, &timeout) ||
        patience_ms(timeout, 60000, &ms) != 0)
        return NULL;
    deadline = deadline_after_ms((uint64_t)ms);
    window->is_closing = true;
    while (window->handle != NULL) {
        int result = TCPX_IN_PROGRESS;

        if (window->users == 0 && !window->is_busy)
            result = window_close_slice(window);
        else
            patience_pause();
        if (result != TCPX_SUCCESS && result != TCPX_IN_PROGRESS)
            return errors_raise_local(result);
        if (PyErr_CheckSignals() != 0)
            return NULL;
        if (result == TCPX_IN_PROGRESS && deadline_passed(deadline))
            return errors_timeout("the memory of the window is still accessed: close it again");
    }
    Py_RETURN_NONE;
}

/*
 * Memory that is still accessed is not let go of, however long that takes; but nobody can wait for
 * it any more, so that it stays allocated from then on.
 */
static void window_dealloc(PyObject *self)
{
    struct window *window = (struct window *)self;
    uint64_t deadline = deadline_after_ms(60000);
    struct errors_aside aside;
    int result = TCPX_IN_PROGRESS;

    PyObject_GC_UnTrack(self);
    errors_set_aside(&aside);
    window_unlist(window);
    if (window->handle == NULL)
        memory_give(&window->memory);
    while (window->handle != NULL && result == TCPX_IN_PROGRESS && !deadline_passed(deadline))
        result = window_close_slice(window);
    errors_put_back(&aside);
    object_free(self);
}

void windows_close_all(void)
{
    struct window *next = all_windows;

    while (next != NULL) {
        struct window *window = next;
        int result = TCPX_IN_PROGRESS;

        window->is_closing = true;
        Py_INCREF((PyObject *)window);
        for (int turn = 0; turn < 50 && result == TCPX_IN_PROGRESS && window->handle != NULL &&
                           window->users == 0 && !window->is_busy;
             turn++)
            result = window_close_slice(window);
        next = window->handle != NULL ? window->next : all_windows;
        Py_DECREF((PyObject *)window);
    }
}

/* There is no clear: the memory is kept until nobody accesses it. */
static int window_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return memory_visit(&((struct window *)self)->memory, visit, arg);
}

/* --- attributes and parts -------------------------------------------------------------------- */

static PyObject *window_get_key(PyObject *self, void *unused)
{
    struct window *window = (struct window *)self;
    char key[TCPX_KEY_BYTES];
    int result;

    (void)unused;
    if (window_enter(window) != 0)
        return NULL;
    result = tcpx_window_key(window->handle, key);
    window_leave(window);
    return result == TCPX_SUCCESS ? PyBytes_FromStringAndSize(key, sizeof key)
                                  : errors_raise_local(result);
}

static PyObject *window_get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct window *)self)->bytes);
}

static PyObject *window_blocks(PyObject *self, PyObject *numbers)
{
    const struct window *window = (struct window *)self;

    return parts_of_blocks(self, numbers, window->block, window->bytes);
}

static PyObject *window_subscript(PyObject *self, PyObject *slice)
{
    return parts_of_slice(self, slice, ((struct window *)self)->bytes);
}

static PyObject *window_enter_block(PyObject *self, PyObject *unused)
{
    (void)unused;
    Py_INCREF(self);
    return self;
}

static PyObject *window_exit_block(PyObject *self, PyObject *unused)
{
    PyObject *nothing = PyTuple_New(0);
    PyObject *result = nothing != NULL ? window_close(self, nothing, NULL) : NULL;

    (void)unused;
    Py_XDECREF(nothing);
    return result;
}

/* --- the type -------------------------------------------------------------------------------- */

static PyMethodDef window_methods[] = {
    {"blocks", window_blocks, METH_O, DOC_WINDOW_BLOCKS},
    {"close", WITH_KEYWORDS(window_close), METH_VARARGS | METH_KEYWORDS, DOC_WINDOW_CLOSE},
    {"__enter__", window_enter_block, METH_NOARGS, NULL},
    {"__exit__", window_exit_block, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef window_attributes[] = {
    {"key", window_get_key, NULL, "64 bytes for a peer. Who has them has the access: a secret.",
     NULL},
    {"nbytes", window_get_bytes, NULL, "How many bytes it has.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot window_slots[] = {
    {Py_tp_dealloc, window_dealloc},     {Py_tp_traverse, window_traverse},
    {Py_tp_methods, window_methods},     {Py_tp_getset, window_attributes},
    {Py_tp_doc, (void *)DOC_WINDOW},     {Py_tp_new, window_new},
    {Py_mp_subscript, window_subscript}, {0, NULL}};

static PyType_Spec window_spec = {
    .name = "tcpx.Window",
    .basicsize = sizeof(struct window),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = window_slots,
};

int window_load(PyObject *module)
{
    return module_add_type(module, "Window", &window_spec, &window_type);
}
