/* What must have happened on the GPU before a transfer, as the libraries of Python say it. */
#include "python/src/stream.h"

#include "python/src/errors.h"

/* A new reference to a library that the program has imported; NULL without an exception if not. */
static PyObject *imported(const char *name)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed */
    PyObject *module = modules != NULL ? PyDict_GetItemString(modules, name) : NULL;

    Py_XINCREF(module);
    return module;
}

/* Takes the references to both. */
static PyObject *call_in(PyObject *module, const char *part, const char *function,
                         PyObject *argument)
{
    PyObject *place = PyObject_GetAttrString(module, part);
    PyObject *result = NULL;

    if (place != NULL)
        result = argument != NULL ? PyObject_CallMethod(place, function, "O", argument)
                                  : PyObject_CallMethod(place, function, NULL);
    Py_XDECREF(place);
    Py_XDECREF(argument);
    Py_DECREF(module);
    return result;
}

static PyObject *current_stream(int gpu)
{
    PyObject *library = imported("torch");

    if (library != NULL)
        return call_in(library, "cuda", "current_stream", PyLong_FromLong(gpu));
    library = imported("cupy");
    if (library != NULL)
        return call_in(library, "cuda", "get_current_stream", NULL);
    return errors_usage("after=\"current\": neither torch nor cupy is loaded");
}

/* Takes the reference to `number`, which may be NULL with an exception. */
static int after_number(PyObject *number, enum tcpx_after kind, struct after *after)
{
    void *what = number != NULL ? PyLong_AsVoidPtr(number) : NULL;

    Py_XDECREF(number);
    if (PyErr_Occurred())
        return -1;
    *after = (struct after){kind, what};
    return 0;
}

/* The protocol's answer is (version, stream). */
static PyObject *protocol_stream(PyObject *object)
{
    PyObject *answer = PyObject_CallMethod(object, "__cuda_stream__", NULL);
    PyObject *stream = answer != NULL ? PySequence_GetItem(answer, 1) : NULL;

    Py_XDECREF(answer);
    return stream;
}

static int after_object(PyObject *object, struct after *after)
{
    if (PyObject_HasAttrString(object, "cuda_stream"))
        return after_number(PyObject_GetAttrString(object, "cuda_stream"), TCPX_AFTER_STREAM,
                            after);
    if (PyObject_HasAttrString(object, "cuda_event"))
        return after_number(PyObject_GetAttrString(object, "cuda_event"), TCPX_AFTER_EVENT, after);
    if (PyObject_HasAttrString(object, "__cuda_stream__"))
        return after_number(protocol_stream(object), TCPX_AFTER_STREAM, after);
    if (PyObject_HasAttrString(object, "ptr"))
        return after_number(PyObject_GetAttrString(object, "ptr"), TCPX_AFTER_STREAM, after);
    PyErr_Format(PyExc_TypeError,
                 "%R is no stream: expected None, \"current\", a number, or an object with "
                 ".cuda_stream, .ptr, __cuda_stream__ or .cuda_event",
                 (PyObject *)Py_TYPE(object));
    return -1;
}

int stream_after(PyObject *object, int gpu, struct after *after)
{
    PyObject *current;
    int result;

    *after = (struct after){TCPX_AFTER_NOTHING, NULL};
    if (object == NULL || object == Py_None)
        return 0;
    if (PyLong_Check(object)) {
        Py_INCREF(object);
        return after_number(object, TCPX_AFTER_STREAM, after);
    }
    if (!PyUnicode_Check(object))
        return after_object(object, after);
    if (PyUnicode_CompareWithASCIIString(object, "current") != 0) {
        errors_usage("after=%R: the only name is \"current\"", object);
        return -1;
    }
    current = current_stream(gpu);
    result = current != NULL ? after_object(current, after) : -1;
    Py_XDECREF(current);
    return result;
}
