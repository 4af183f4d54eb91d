/* The function connect(). */
#ifndef TCPX_PYTHON_CONNECT_H
#define TCPX_PYTHON_CONNECT_H

#include "python/src/common.h"

PyObject *connect_session(PyObject *module, PyObject *arguments, PyObject *keywords);

#endif
