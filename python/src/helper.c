/* Calls a function of a Python module of the package: what is easier said there, such as asyncio.
 */
#include "python/src/session.h"

#include <stdarg.h>

PyObject *helper_call(const char *module, const char *function, const char *format, ...)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *callable = imported != NULL ? PyObject_GetAttrString(imported, function) : NULL;
    PyObject *arguments = NULL;
    PyObject *result = NULL;
    va_list values;

    va_start(values, format);
    if (callable != NULL)
        arguments = Py_VaBuildValue(format, values);
    va_end(values);
    if (arguments != NULL && !PyTuple_Check(arguments)) { /* of one value */
        PyObject *tuple = PyTuple_Pack(1, arguments);

        Py_DECREF(arguments);
        arguments = tuple;
    }
    if (arguments != NULL)
        result = PyObject_Call(callable, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(callable);
    Py_XDECREF(imported);
    return result;
}
