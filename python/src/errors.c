/* Failures of the library as exceptions of tcpx._errors, with the library's own text. */
#include "python/src/errors.h"

#include <stdarg.h>

/* The Python function that makes an exception of a result and a text. */
static PyObject *exception_of;

int errors_load(void)
{
    PyObject *module = PyImport_ImportModule("tcpx._errors");

    if (module == NULL)
        return -1;
    Py_XDECREF(exception_of);
    exception_of = PyObject_GetAttrString(module, "exception_of");
    Py_DECREF(module);
    return exception_of != NULL ? 0 : -1;
}

/* Takes the reference to `text`, which may be NULL with an exception. */
static PyObject *errors_raise_object(int result, PyObject *text, bool has_peer)
{
    PyObject *exception;

    if (text == NULL)
        return NULL;
    exception =
        PyObject_CallFunction(exception_of, "iOO", result, text, has_peer ? Py_True : Py_False);
    Py_DECREF(text);
    if (exception == NULL)
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return NULL;
}

static PyObject *errors_decode(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *errors_raise_text(int result, const char *text)
{
    return errors_raise_object(result, errors_decode(text), true);
}

PyObject *errors_raise_local(int result)
{
    return errors_raise_object(result, errors_decode(tcpx_last_error()), false);
}

PyObject *errors_raise(int result)
{
    return errors_raise_text(result, tcpx_last_error());
}

PyObject *errors_raise_format(int result, const char *format, ...)
{
    PyObject *text;
    va_list arguments;

    va_start(arguments, format);
    text = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    return errors_raise_object(result, text, true);
}

void errors_set_aside(struct errors_aside *aside)
{
    PyErr_Fetch(&aside->type, &aside->value, &aside->traceback);
}

void errors_put_back(struct errors_aside *aside)
{
    PyErr_Restore(aside->type, aside->value, aside->traceback);
}
