/*
 * What every file of the extension begins with: Python's limited API, so that one module serves
 * 3.11 and all newer versions, and the library. The GIL guards every variable of the extension,
 * unless it is said otherwise; what a thread does without it is marked where it is given away.
 */
#ifndef TCPX_PYTHON_COMMON_H
#define TCPX_PYTHON_COMMON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "tcpx.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* How long a call is in the library at most before it looks at signals and at what others want. */
enum { SLICE_MS = 20 };

/* A function with keywords, as a table of methods wants it. */
#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))(function)

/* Creates an object of a type of this extension: zeroed, tracked by the collector. */
#define NEW_OBJECT(type) PyType_GenericAlloc((PyTypeObject *)(type), 0)

/* The end of a deallocation: instances of types made at run time own a reference to them. */
static inline void object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

    release(self);
    Py_DECREF((PyObject *)type);
}

#endif
