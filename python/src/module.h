/* The module as a whole. */
#ifndef TCPX_PYTHON_MODULE_H
#define TCPX_PYTHON_MODULE_H

#include "python/src/common.h"

/*
 * At the end of the interpreter everything is closed, since its objects go then, and their memory.
 * What begins afterwards is refused: -1 with an exception.
 */
int module_refuse_at_exit(void);

/* Makes the type, once in a process, and shows it in the module. 0, or -1 with an exception. */
int module_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type);

#endif
