/* Failures of the library as exceptions of tcpx._errors, with the library's own text. */
#ifndef TCPX_PYTHON_ERRORS_H
#define TCPX_PYTHON_ERRORS_H

#include "python/src/common.h"

/* When the module is imported. 0, or -1 with an exception. */
int errors_load(void);

/* Raises what the latest call of this thread has left in tcpx_last_error(); its value is NULL. */
PyObject *errors_raise(int result);

/* The same for a call that has no peer, whose system calls have failed for other reasons. */
PyObject *errors_raise_local(int result);

PyObject *errors_raise_text(int result, const char *text);

/* With a text of ours, formatted as PyErr_Format() does. */
PyObject *errors_raise_format(int result, const char *format, ...);

#define errors_usage(...)   errors_raise_format(TCPX_INVALID_USAGE, __VA_ARGS__)
#define errors_timeout(...) errors_raise_format(TCPX_IN_PROGRESS, __VA_ARGS__)

/* Sets an exception aside while an object is torn down, and puts it back. */
struct errors_aside {
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
};

void errors_set_aside(struct errors_aside *aside);
void errors_put_back(struct errors_aside *aside);

#endif
