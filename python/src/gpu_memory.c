/*
 * The function gpus(), and the type GpuMemory: memory of a GPU for programs that have no library
 * for it, and for emulated GPUs, whose memory only tcpx reaches.
 */
#include "python/src/gpu_memory.h"

#include "base/checked.h"
#include "python/src/docs.h"
#include "python/src/errors.h"
#include "python/src/module.h"

/* --- gpus() ---------------------------------------------------------------------------------- */

static PyObject *describe(int index)
{
    struct tcpx_gpu_properties gpu;
    int result;

    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_gpu_get_properties(index, &gpu);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS)
        return errors_raise_local(result);
    return Py_BuildValue("{s:i,s:s,s:N,s:s,s:i,s:N,s:(ii),s:K}", "index", index, "name", gpu.name,
                         "emulated", PyBool_FromLong(strcmp(gpu.backend, "host") == 0), "pci_path",
                         gpu.pci_path, "numa_node", gpu.numa_node, "dmabuf",
                         PyBool_FromLong(gpu.dmabuf), "compute", gpu.compute_major,
                         gpu.compute_minor, "memory_bytes", (unsigned long long)gpu.memory_bytes);
}

PyObject *gpu_list(PyObject *module, PyObject *unused)
{
    PyObject *list;
    int count = 0;
    int result;

    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_gpu_count(&count);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS)
        return errors_raise_local(result);
    list = PyList_New(0);
    for (int i = 0; i < count && list != NULL; i++) {
        PyObject *gpu = describe(i);

        result = gpu != NULL ? PyList_Append(list, gpu) : -1;
        Py_XDECREF(gpu);
        if (result != 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

/* --- GpuMemory ------------------------------------------------------------------------------- */

struct gpu_memory_object {
    PyObject_HEAD void *address;
    uint64_t bytes;
    int gpu;
};

static PyObject *gpu_memory_type;

static PyObject *gpu_memory_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"nbytes", "gpu", NULL};
    struct gpu_memory_object *memory;
    unsigned long long bytes;
    PyObject *size;
    int gpu = 0;
    int result;

    (void)type;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|i:GpuMemory", names, &size, &gpu))
        return NULL;
    bytes = PyLong_AsUnsignedLongLong(size);
    if (PyErr_Occurred())
        return NULL;
    memory = (struct gpu_memory_object *)NEW_OBJECT(gpu_memory_type);
    if (memory == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_gpu_alloc(gpu, bytes, &memory->address);
    Py_END_ALLOW_THREADS;
    memory->bytes = bytes;
    memory->gpu = gpu;
    if (result == TCPX_SUCCESS)
        return (PyObject *)memory;
    errors_raise_local(result);
    Py_DECREF((PyObject *)memory);
    return NULL;
}

static void gpu_memory_dealloc(PyObject *self)
{
    void *address = ((struct gpu_memory_object *)self)->address;
    int result;

    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_gpu_free(address);
    Py_END_ALLOW_THREADS;
    (void)result; /* of a child made by fork(), or of a GPU that has failed */
    object_free(self);
}

static int check_range(const struct gpu_memory_object *memory, uint64_t offset, uint64_t bytes)
{
    if (range_inside(offset, bytes, memory->bytes))
        return 0;
    errors_usage("%llu bytes at %llu are not inside of %llu bytes of GPU memory",
                 (unsigned long long)bytes, (unsigned long long)offset,
                 (unsigned long long)memory->bytes);
    return -1;
}

static PyObject *gpu_memory_write(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"data", "offset", NULL};
    struct gpu_memory_object *memory = (struct gpu_memory_object *)self;
    unsigned long long offset = 0;
    Py_buffer data;
    int result = -1;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "y*|K:write", names, &data, &offset))
        return NULL;
    if (check_range(memory, offset, (uint64_t)data.len) == 0) {
        Py_BEGIN_ALLOW_THREADS;
        result = tcpx_gpu_write((char *)memory->address + offset, data.buf, (uint64_t)data.len);
        Py_END_ALLOW_THREADS;
        if (result != TCPX_SUCCESS)
            errors_raise_local(result);
    }
    PyBuffer_Release(&data);
    if (result != TCPX_SUCCESS)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *gpu_memory_read(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"offset", "nbytes", NULL};
    struct gpu_memory_object *memory = (struct gpu_memory_object *)self;
    unsigned long long offset = 0;
    PyObject *size = Py_None;
    PyObject *bytes;
    uint64_t wanted;
    int result;

    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|KO:read", names, &offset, &size))
        return NULL;
    wanted = offset <= memory->bytes ? memory->bytes - offset : 0;
    if (size != Py_None)
        wanted = PyLong_AsUnsignedLongLong(size);
    if (PyErr_Occurred() || check_range(memory, offset, wanted) != 0)
        return NULL;
    bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wanted);
    if (bytes == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    result = tcpx_gpu_read(PyBytes_AsString(bytes), (const char *)memory->address + offset, wanted);
    Py_END_ALLOW_THREADS;
    if (result == TCPX_SUCCESS)
        return bytes;
    Py_DECREF(bytes);
    return errors_raise_local(result);
}

static PyObject *gpu_memory_get_interface(PyObject *self, void *unused)
{
    const struct gpu_memory_object *memory = (struct gpu_memory_object *)self;

    (void)unused;
    return Py_BuildValue("{s:(K),s:s,s:(NO),s:i}", "shape", (unsigned long long)memory->bytes,
                         "typestr", "|u1", "data", PyLong_FromVoidPtr(memory->address), Py_False,
                         "version", 3);
}

static PyObject *gpu_memory_get_bytes(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(((struct gpu_memory_object *)self)->bytes);
}

static PyObject *gpu_memory_get_gpu(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct gpu_memory_object *)self)->gpu);
}

static PyMethodDef gpu_memory_methods[] = {
    {"write", WITH_KEYWORDS(gpu_memory_write), METH_VARARGS | METH_KEYWORDS, DOC_GPU_MEMORY_WRITE},
    {"read", WITH_KEYWORDS(gpu_memory_read), METH_VARARGS | METH_KEYWORDS, DOC_GPU_MEMORY_READ},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef gpu_memory_attributes[] = {
    {"nbytes", gpu_memory_get_bytes, NULL, "How many bytes it has.", NULL},
    {"gpu", gpu_memory_get_gpu, NULL, "The number of its GPU.", NULL},
    {"__cuda_array_interface__", gpu_memory_get_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot gpu_memory_slots[] = {
    {Py_tp_dealloc, gpu_memory_dealloc},   {Py_tp_methods, gpu_memory_methods},
    {Py_tp_getset, gpu_memory_attributes}, {Py_tp_doc, (void *)DOC_GPU_MEMORY},
    {Py_tp_new, gpu_memory_new},           {0, NULL}};

static PyType_Spec gpu_memory_spec = {
    .name = "tcpx.GpuMemory",
    .basicsize = sizeof(struct gpu_memory_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = gpu_memory_slots,
};

int gpu_memory_load(PyObject *module)
{
    return module_add_type(module, "GpuMemory", &gpu_memory_spec, &gpu_memory_type);
}
