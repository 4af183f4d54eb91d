/* The type Parts: ranges of windows, or of remotes, in an order. */
#include "python/src/parts.h"

#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"

PyObject *parts_type;

/* --- life ------------------------------------------------------------------------------------ */

static struct parts *parts_allocate(size_t count)
{
    struct parts *parts = (struct parts *)NEW_OBJECT(parts_type);

    if (parts == NULL)
        return NULL;
    parts->owners = PyList_New(0);
    parts->ranges = PyMem_Calloc(count > 0 ? count : 1, sizeof *parts->ranges);
    parts->count = count;
    if (parts->owners != NULL && parts->ranges != NULL)
        return parts;
    if (parts->owners != NULL)
        PyErr_NoMemory();
    Py_DECREF((PyObject *)parts);
    return NULL;
}

/* Of one owner. */
static struct parts *parts_make(PyObject *owner, size_t count)
{
    struct parts *parts = parts_allocate(count);

    if (parts == NULL || PyList_Append(parts->owners, owner) == 0)
        return parts;
    Py_DECREF((PyObject *)parts);
    return NULL;
}

static void parts_dealloc(PyObject *self)
{
    struct parts *parts = (struct parts *)self;

    PyObject_GC_UnTrack(self);
    Py_XDECREF(parts->owners);
    PyMem_Free(parts->ranges);
    object_free(self);
}

static int parts_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct parts *)self)->owners);
    return 0;
}

/* --- ranges ---------------------------------------------------------------------------------- */

PyObject *parts_of_range(PyObject *owner, uint64_t offset, uint64_t bytes)
{
    struct parts *parts = parts_make(owner, 1);

    if (parts != NULL)
        parts->ranges[0] = (struct part_range){0, offset, bytes};
    return (PyObject *)parts;
}

/* An end of a slice; None is `otherwise`, and negative ones count from `limit`. */
static int slice_end(PyObject *slice, const char *name, uint64_t otherwise, uint64_t limit,
                     uint64_t *end)
{
    PyObject *value = PyObject_GetAttrString(slice, name);
    PyObject *index = value != NULL && value != Py_None ? PyNumber_Index(value) : NULL;
    long long number = index != NULL ? PyLong_AsLongLong(index) : 0;
    bool is_none = value == Py_None;

    Py_XDECREF(value);
    Py_XDECREF(index);
    if (PyErr_Occurred())
        return -1;
    *end = is_none ? otherwise : (uint64_t)(number < 0 ? number + (long long)limit : number);
    if (number < 0 && (limit == UINT64_MAX || (uint64_t)-number > limit)) {
        PyErr_Format(PyExc_IndexError,
                     "%lld lies before the beginning, or counts from an end "
                     "that is not known here",
                     number);
        return -1;
    }
    return 0;
}

PyObject *parts_of_slice(PyObject *owner, PyObject *slice, uint64_t limit)
{
    PyObject *step;
    bool has_step;
    uint64_t from;
    uint64_t to;

    if (!PyObject_TypeCheck(slice, &PySlice_Type))
        return PyErr_Format(PyExc_TypeError, "%R: expected a range of bytes, [a:b], or blocks()",
                            slice);
    step = PyObject_GetAttrString(slice, "step");
    has_step = step != NULL && step != Py_None;
    Py_XDECREF(step);
    if (has_step)
        return errors_usage("a range of bytes has no step");
    if (slice_end(slice, "start", 0, limit, &from) != 0 ||
        slice_end(slice, "stop", limit, limit, &to) != 0)
        return NULL;
    if (to == UINT64_MAX)
        return errors_usage("a range of a remote needs an end: [a:b]");
    if (from > to || to > limit)
        return PyErr_Format(PyExc_IndexError, "bytes %llu to %llu, of %llu",
                            (unsigned long long)from, (unsigned long long)to,
                            (unsigned long long)limit);
    return parts_of_range(owner, from, to - from);
}

/* --- blocks ---------------------------------------------------------------------------------- */

struct blocks {
    struct parts *parts;
    uint64_t block;
    uint64_t limit;
};

static int set_block(const struct blocks *blocks, size_t i, long long number)
{
    uint64_t offset;
    uint64_t end;

    if (number < 0 || __builtin_mul_overflow((uint64_t)number, blocks->block, &offset) ||
        __builtin_add_overflow(offset, blocks->block, &end) || end > blocks->limit) {
        if (blocks->limit != UINT64_MAX)
            PyErr_Format(PyExc_IndexError, "block %lld: there are 0 to %lld", number,
                         (long long)(blocks->limit / blocks->block) - 1);
        else
            PyErr_Format(PyExc_IndexError, "block %lld: expected 0 or more", number);
        return -1;
    }
    blocks->parts->ranges[i] = (struct part_range){0, offset, blocks->block};
    return 0;
}

/* Whether the items are integers in native order, and whether those have a sign. */
static bool is_integers(const Py_buffer *view, bool *is_signed)
{
    const char *format = view->format != NULL ? view->format : "B";

    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    *is_signed = strchr("ilq", *format) != NULL;
    return format[0] != '\0' && format[1] == '\0' && strchr("iIlLqQ", *format) != NULL &&
           (view->itemsize == 4 || view->itemsize == 8);
}

static long long number_at(const Py_buffer *view, bool is_signed, size_t i)
{
    const char *at = (const char *)view->buf + i * (size_t)view->itemsize;
    int64_t wide;
    int32_t narrow;

    if (view->itemsize == 8) {
        memcpy(&wide, at, sizeof wide); /* beyond 2^63 it is negative, and refused */
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return is_signed ? narrow : (long long)(uint32_t)narrow;
}

static PyObject *blocks_of_view(PyObject *owner, const Py_buffer *view, struct blocks blocks)
{
    bool is_signed;
    size_t count;

    if (!is_integers(view, &is_signed))
        return PyErr_Format(PyExc_TypeError,
                            "numbers of blocks as items of format \"%s\": expected integers of 32 "
                            "or 64 bits",
                            view->format != NULL ? view->format : "B");
    count = (size_t)(view->len / view->itemsize);
    blocks.parts = parts_make(owner, count);
    if (blocks.parts == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (set_block(&blocks, i, number_at(view, is_signed, i)) != 0) {
            Py_DECREF((PyObject *)blocks.parts);
            return NULL;
        }
    return (PyObject *)blocks.parts;
}

/* Whatever is an integer. -1 with an exception. */
static long long number_of(PyObject *item)
{
    PyObject *index;
    long long number;

    if (Py_IS_TYPE(item, &PyLong_Type))
        return PyLong_AsLongLong(item);
    Py_INCREF(item); /* its __index__ may change the list */
    index = PyNumber_Index(item);
    Py_DECREF(item);
    number = index != NULL ? PyLong_AsLongLong(index) : -1;
    Py_XDECREF(index);
    return number;
}

/* Takes the reference to `list`, which its items' __index__ may change. */
static PyObject *blocks_of_list(PyObject *owner, PyObject *list, struct blocks blocks)
{
    size_t count = (size_t)PyList_Size(list);
    int result = 0;

    blocks.parts = parts_make(owner, count);
    for (size_t i = 0; i < count && blocks.parts != NULL && result == 0; i++) {
        PyObject *item = PyList_GetItem(list, (Py_ssize_t)i);
        long long number = item != NULL ? number_of(item) : -1;

        result = number == -1 && PyErr_Occurred() ? -1 : set_block(&blocks, i, number);
    }
    Py_DECREF(list);
    if (blocks.parts == NULL || result == 0)
        return (PyObject *)blocks.parts;
    Py_DECREF((PyObject *)blocks.parts);
    return NULL;
}

PyObject *parts_of_blocks(PyObject *owner, PyObject *numbers, uint64_t block, uint64_t limit)
{
    const struct blocks blocks = {NULL, block, limit};
    PyObject *list;
    Py_buffer view;

    if (block == 0)
        return errors_usage("blocks(): the size of a block is not known: give block=...");
    if (PyObject_CheckBuffer(numbers)) {
        PyObject *parts;

        if (PyObject_GetBuffer(numbers, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
            return NULL;
        parts = blocks_of_view(owner, &view, blocks);
        PyBuffer_Release(&view);
        return parts;
    }
    list = PyObject_HasAttrString(numbers, "tolist") ? PyObject_CallMethod(numbers, "tolist", NULL)
                                                     : PySequence_List(numbers);
    if (list != NULL && !PyList_Check(list)) { /* of a tensor without dimensions */
        Py_DECREF(list);
        return PyErr_Format(PyExc_TypeError, "%R is no sequence of numbers of blocks", numbers);
    }
    return list != NULL ? blocks_of_list(owner, list, blocks) : NULL;
}

/* --- what programs do with them -------------------------------------------------------------- */

uint64_t parts_bytes(const struct parts *parts)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < parts->count; i++)
        bytes += parts->ranges[i].bytes;
    return bytes;
}

static PyObject *parts_get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(parts_bytes((struct parts *)self));
}

static Py_ssize_t parts_length(PyObject *self)
{
    return (Py_ssize_t)((struct parts *)self)->count;
}

static int parts_extend(struct parts *to, const struct parts *from, size_t at)
{
    Py_ssize_t before = PyList_Size(to->owners);

    for (Py_ssize_t i = 0; i < PyList_Size(from->owners); i++)
        if (PyList_Append(to->owners, PyList_GetItem(from->owners, i)) != 0)
            return -1;
    for (size_t i = 0; i < from->count; i++) {
        to->ranges[at + i] = from->ranges[i];
        to->ranges[at + i].owner += before;
    }
    return 0;
}

static PyObject *parts_concatenate(PyObject *left, PyObject *right)
{
    const struct parts *first = (struct parts *)left;
    const struct parts *second = (struct parts *)right;
    struct parts *both;

    if (!PyObject_TypeCheck(right, (PyTypeObject *)parts_type))
        return PyErr_Format(PyExc_TypeError, "%R are no Parts", right);
    both = parts_allocate(first->count + second->count);
    if (both == NULL)
        return NULL;
    if (parts_extend(both, first, 0) == 0 && parts_extend(both, second, first->count) == 0)
        return (PyObject *)both;
    Py_DECREF((PyObject *)both);
    return NULL;
}

/* --- the type -------------------------------------------------------------------------------- */

static PyGetSetDef parts_attributes[] = {
    {"nbytes", parts_get_bytes, NULL, "The sum of their bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot parts_slots[] = {{Py_tp_dealloc, parts_dealloc},
                                    {Py_tp_traverse, parts_traverse},
                                    {Py_tp_getset, parts_attributes},
                                    {Py_tp_doc, (void *)DOC_PARTS},
                                    {Py_sq_length, parts_length},
                                    {Py_sq_concat, parts_concatenate},
                                    {0, NULL}};

static PyType_Spec parts_spec = {
    .name = "tcpx.Parts",
    .basicsize = sizeof(struct parts),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = parts_slots,
};

int parts_load(PyObject *module)
{
    return module_add_type(module, "Parts", &parts_spec, &parts_type);
}
