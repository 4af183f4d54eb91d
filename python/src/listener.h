/* The type Listener, and the function listen(). */
#ifndef TCPX_PYTHON_LISTENER_H
#define TCPX_PYTHON_LISTENER_H

#include "python/src/common.h"

int listener_load(PyObject *module);
PyObject *listener_listen(PyObject *module, PyObject *arguments, PyObject *keywords);

/* At the end of the interpreter. */
void listeners_close_all(void);

#endif
