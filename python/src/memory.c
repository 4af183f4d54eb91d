/* The memory behind a Python object, by the protocols of the libraries that make such objects. */
#include "python/src/memory.h"

#include "gpu/gpu.h"
#include "python/src/dlpack.h"
#include "python/src/errors.h"

/* A protocol looks at an object. */
enum found { FAILED = -1, NOT_MINE = 0, FOUND = 1 };

static enum found refuse_layout(PyObject *object)
{
    PyErr_Format(PyExc_TypeError,
                 "%R is not contiguous: its bytes have gaps or another order; make a contiguous "
                 "copy first",
                 (PyObject *)Py_TYPE(object));
    return FAILED;
}

static bool has(PyObject *object, const char *name)
{
    return PyObject_HasAttrString(object, name);
}

/* An attribute, or the result of the method of that name, as a number; -1 with an exception. */
static long long number_of(PyObject *object, const char *name, bool is_method)
{
    PyObject *value =
        is_method ? PyObject_CallMethod(object, name, NULL) : PyObject_GetAttrString(object, name);
    long long number = value != NULL ? PyLong_AsLongLong(value) : -1;

    Py_XDECREF(value);
    return number;
}

/* Whose memory it is, as the driver knows it, which is loaded and asked without the GIL. */
static int classify(struct memory *memory)
{
    struct gpu_pointer pointer = {.device = -1};
    int result = TCPX_SUCCESS;

    memory->gpu = 0;
    if (memory->bytes == 0)
        return 0;
    Py_BEGIN_ALLOW_THREADS;
    result = gpu_classify(memory->address, memory->bytes, &pointer);
    Py_END_ALLOW_THREADS;
    if (result != TCPX_SUCCESS) {
        errors_raise_local(result);
        return -1;
    }
    memory->gpu = pointer.kind == GPU_POINTER_DEVICE || pointer.kind == GPU_POINTER_MANAGED
                      ? pointer.device
                      : -1;
    return 0;
}

/* --- torch ----------------------------------------------------------------------------------- */

/* Its __cuda_array_interface__ refuses weights and some types, so that it is asked like this. */
static int torch_device(PyObject *device, int *gpu)
{
    PyObject *type = PyObject_GetAttrString(device, "type");
    long long index = -1;
    int result = 0;

    if (type == NULL)
        return -1;
    if (PyUnicode_CompareWithASCIIString(type, "cuda") == 0) {
        index = number_of(device, "index", false);
        result = index == -1 && PyErr_Occurred() ? -1 : 0;
    } else if (PyUnicode_CompareWithASCIIString(type, "cpu") != 0) {
        PyErr_Format(PyExc_TypeError, "a tensor on device %R: cpu and cuda can be moved", device);
        result = -1;
    }
    Py_DECREF(type);
    *gpu = (int)index;
    return result;
}

static int torch_bytes(PyObject *object, uint64_t *bytes)
{
    long long size = 1;
    long long count = has(object, "nbytes") ? number_of(object, "nbytes", false)
                                            : number_of(object, "numel", true);

    if (count >= 0 && !has(object, "nbytes"))
        size = number_of(object, "element_size", true);
    if (count < 0 || size < 0)
        return -1;
    *bytes = (uint64_t)count * (uint64_t)size;
    return 0;
}

/* What a method without arguments says: 1, 0, or -1 with an exception. */
static int says(PyObject *object, const char *method)
{
    PyObject *answer = PyObject_CallMethod(object, method, NULL);
    int is_true = answer != NULL ? PyObject_IsTrue(answer) : -1;

    Py_XDECREF(answer);
    return is_true;
}

/* Tensors that torch conjugates or negates when it reads them: their bytes are other numbers. */
static int check_bits(PyObject *object)
{
    static const char *const marks[][2] = {{"is_conj", "resolve_conj"}, {"is_neg", "resolve_neg"}};

    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        int is_marked = has(object, marks[i][0]) ? says(object, marks[i][0]) : 0;

        if (is_marked > 0)
            PyErr_Format(PyExc_TypeError,
                         "%R whose bytes are not its numbers, since %s() holds: move what %s() "
                         "returns",
                         (PyObject *)Py_TYPE(object), marks[i][0], marks[i][1]);
        if (is_marked != 0)
            return -1;
    }
    return 0;
}

static enum found take_torch(PyObject *object, struct memory *memory)
{
    PyObject *device;
    PyObject *answer;
    int is_contiguous;
    int result;

    if (!has(object, "data_ptr") || !has(object, "is_contiguous") || !has(object, "device"))
        return NOT_MINE;
    is_contiguous = says(object, "is_contiguous");
    if (is_contiguous < 0 || check_bits(object) != 0)
        return FAILED;
    if (!is_contiguous)
        return refuse_layout(object);
    device = PyObject_GetAttrString(object, "device");
    result = device != NULL ? torch_device(device, &memory->gpu) : -1;
    Py_XDECREF(device);
    if (result == 0)
        result = torch_bytes(object, &memory->bytes);
    answer = result == 0 ? PyObject_CallMethod(object, "data_ptr", NULL) : NULL;
    if (answer == NULL)
        return FAILED;
    memory->address = PyLong_AsVoidPtr(answer);
    Py_DECREF(answer);
    return PyErr_Occurred() ? FAILED : FOUND;
}

/* --- the array interfaces -------------------------------------------------------------------- */

/* The number of a tuple; -1 with an exception. */
static long long item_of(PyObject *tuple, Py_ssize_t index)
{
    PyObject *item = PySequence_GetItem(tuple, index);
    long long number = item != NULL ? PyLong_AsLongLong(item) : -1;

    Py_XDECREF(item);
    return number;
}

/* Of "<f4", "|V2": the digits at the end. */
static int item_bytes(PyObject *interface, uint64_t *bytes)
{
    PyObject *typestr = PyDict_GetItemString(interface, "typestr");
    const char *text = NULL;

    if (typestr != NULL && PyUnicode_Check(typestr))
        text = PyUnicode_AsUTF8AndSize(typestr, NULL);
    if (text == NULL || strlen(text) < 3) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "an array interface without a typestr as \"<f4\"");
        return -1;
    }
    *bytes = strtoull(text + 2, NULL, 10);
    return 0;
}

/* Its extent, last dimension first, so that strides can be compared. 1: contiguous; 0: not. */
static int interface_extent(PyObject *shape, PyObject *strides, uint64_t *bytes)
{
    Py_ssize_t dimensions = PySequence_Size(shape);
    bool is_contiguous = true;
    bool is_empty = false;

    if (dimensions < 0)
        return -1;
    for (Py_ssize_t i = dimensions - 1; i >= 0; i--) {
        long long count = item_of(shape, i);
        long long stride = strides != NULL ? item_of(strides, i) : 0;

        if (PyErr_Occurred())
            return -1;
        if (strides != NULL && count > 1 && stride != (long long)*bytes)
            is_contiguous = false;
        is_empty = is_empty || count == 0;
        if (count < 0 || __builtin_mul_overflow(*bytes, (uint64_t)count, bytes)) {
            PyErr_SetString(PyExc_TypeError, "an array interface whose shape is no size");
            return -1;
        }
        if (is_empty)
            *bytes = 0;
    }
    return is_contiguous || is_empty;
}

static int interface_data(PyObject *interface, struct memory *memory)
{
    PyObject *data = PyDict_GetItemString(interface, "data");
    PyObject *address;
    int is_read_only;

    if (data == NULL || !PyTuple_Check(data) || PyTuple_Size(data) != 2) {
        PyErr_SetString(PyExc_TypeError, "an array interface without data as (address, flag)");
        return -1;
    }
    address = PyTuple_GetItem(data, 0);
    memory->address = address != Py_None ? PyLong_AsVoidPtr(address) : NULL;
    is_read_only = PyObject_IsTrue(PyTuple_GetItem(data, 1));
    memory->is_read_only = is_read_only != 0;
    return PyErr_Occurred() || is_read_only < 0 ? -1 : 0;
}

static enum found read_interface(PyObject *object, PyObject *interface, struct memory *memory)
{
    PyObject *shape = PyDict_GetItemString(interface, "shape");
    PyObject *strides = PyDict_GetItemString(interface, "strides");
    PyObject *mask = PyDict_GetItemString(interface, "mask");
    int is_contiguous;

    if (shape == NULL || (mask != NULL && mask != Py_None)) {
        PyErr_SetString(PyExc_TypeError, "an array interface without a shape, or with a mask");
        return FAILED;
    }
    if (item_bytes(interface, &memory->bytes) != 0)
        return FAILED;
    is_contiguous = interface_extent(shape, strides != Py_None ? strides : NULL, &memory->bytes);
    if (is_contiguous < 0)
        return FAILED;
    if (!is_contiguous)
        return refuse_layout(object);
    return interface_data(interface, memory) == 0 ? FOUND : FAILED;
}

static enum found take_interface(PyObject *object, const char *name, struct memory *memory)
{
    PyObject *interface;
    enum found found;

    if (!has(object, name))
        return NOT_MINE;
    interface = PyObject_GetAttrString(object, name);
    if (interface == NULL)
        return FAILED;
    if (!PyDict_Check(interface)) {
        Py_DECREF(interface);
        PyErr_Format(PyExc_TypeError, "%s is not a dict", name);
        return FAILED;
    }
    found = read_interface(object, interface, memory);
    Py_DECREF(interface);
    return found;
}

static enum found take_cuda_array(PyObject *object, struct memory *memory)
{
    enum found found = take_interface(object, "__cuda_array_interface__", memory);

    return found == FOUND && classify(memory) != 0 ? FAILED : found;
}

/* numpy's arrays of types that have no letter in a buffer, such as bfloat16. */
static enum found take_array(PyObject *object, struct memory *memory)
{
    return take_interface(object, "__array_interface__", memory);
}

/* --- buffers --------------------------------------------------------------------------------- */

/* Only a view that is also asked for its strides is known to have some. */
static bool is_scattered(PyObject *object)
{
    Py_buffer view;
    bool scattered;

    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear();
        return false;
    }
    scattered = !PyBuffer_IsContiguous(&view, 'C');
    PyBuffer_Release(&view);
    return scattered;
}

static enum found take_buffer(PyObject *object, struct memory *memory)
{
    Py_buffer *buffer = &memory->buffer;

    if (!PyObject_CheckBuffer(object))
        return NOT_MINE;
    if (PyObject_GetBuffer(object, buffer, PyBUF_WRITABLE) != 0) {
        PyErr_Clear();
        if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) != 0) {
            memset(buffer, 0, sizeof *buffer);
            PyErr_Clear();
            if (is_scattered(object))
                return refuse_layout(object);
            return NOT_MINE; /* the type of its elements, mostly */
        }
    }
    memory->address = buffer->buf;
    memory->bytes = (uint64_t)buffer->len;
    memory->is_read_only = buffer->readonly != 0;
    return FOUND;
}

/* --- DLPack ---------------------------------------------------------------------------------- */

static bool dlpack_is_contiguous(const struct dlpack_tensor *tensor)
{
    int64_t expected = 1;

    for (int32_t i = tensor->dimensions - 1; i >= 0 && tensor->strides != NULL; i--) {
        if (tensor->shape[i] > 1 && tensor->strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

static enum found read_dlpack(PyObject *object, const struct dlpack_tensor *tensor,
                              struct memory *memory)
{
    uint64_t bytes = ((uint64_t)tensor->type_bits * tensor->type_lanes + 7) / 8;

    if (!dlpack_is_contiguous(tensor))
        return refuse_layout(object);
    for (int32_t i = 0; i < tensor->dimensions; i++)
        bytes *= (uint64_t)tensor->shape[i];
    if (tensor->device_type == DLPACK_CUDA || tensor->device_type == DLPACK_MANAGED) {
        memory->gpu = tensor->device;
    } else if (tensor->device_type != DLPACK_CPU && tensor->device_type != DLPACK_CUDA_HOST) {
        PyErr_Format(PyExc_TypeError,
                     "an array on DLPack's device type %d: CPU and CUDA can be moved",
                     (int)tensor->device_type);
        return FAILED;
    }
    memory->address = (char *)tensor->data + tensor->offset;
    memory->bytes = bytes;
    memory->is_read_only = true; /* this version of the protocol does not say; jax's are */
    return FOUND;
}

/* The capsule is kept in place of the object: it gives the memory back when it is dropped. */
static enum found take_dlpack(PyObject *object, struct memory *memory)
{
    const struct dlpack_tensor *tensor;
    PyObject *capsule;
    enum found found;

    if (!has(object, "__dlpack__"))
        return NOT_MINE;
    capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    if (capsule == NULL)
        return FAILED;
    tensor = PyCapsule_GetPointer(capsule, "dltensor");
    found = tensor != NULL ? read_dlpack(object, tensor, memory) : FAILED;
    if (found == FOUND)
        memory->object = capsule;
    else
        Py_DECREF(capsule);
    return found;
}

/* --- all of them ----------------------------------------------------------------------------- */

int memory_take(PyObject *object, struct memory *memory)
{
    static enum found (*const protocols[])(PyObject *, struct memory *) = {
        take_torch, take_cuda_array, take_buffer, take_array, take_dlpack};
    enum found found = NOT_MINE;

    for (size_t i = 0; i < sizeof protocols / sizeof *protocols && found == NOT_MINE; i++) {
        *memory = (struct memory){.gpu = -1};
        found = protocols[i](object, memory);
    }
    if (found == NOT_MINE)
        PyErr_Format(PyExc_TypeError,
                     "%R has no memory that can be moved: expected a tensor or array (torch, "
                     "cupy, numpy, jax), or an object with a buffer",
                     (PyObject *)Py_TYPE(object));
    if (found != FOUND) {
        *memory = (struct memory){.gpu = -1};
        return -1;
    }
    if (memory->object == NULL) {
        Py_INCREF(object);
        memory->object = object;
    }
    return 0;
}

int memory_take_writable(PyObject *object, struct memory *memory)
{
    if (memory_take(object, memory) != 0)
        return -1;
    if (!memory->is_read_only)
        return 0;
    memory_give(memory);
    PyErr_Format(PyExc_TypeError, "%R is read-only, and this would write to it",
                 (PyObject *)Py_TYPE(object));
    return -1;
}

/* What is held is forgotten first: releasing it may run any code. */
void memory_give(struct memory *memory)
{
    struct memory held = *memory;

    *memory = (struct memory){.gpu = -1};
    if (held.buffer.obj != NULL)
        PyBuffer_Release(&held.buffer);
    Py_XDECREF(held.object);
}

int memory_visit(struct memory *memory, visitproc visit, void *arg)
{
    Py_VISIT(memory->object);
    Py_VISIT(memory->buffer.obj); /* a reference of its own */
    return 0;
}
