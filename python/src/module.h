/* The module as a whole. */
#ifndef TCPX_PYTHON_MODULE_H
#define TCPX_PYTHON_MODULE_H

#include "python/src/common.h"

/*
 * At the end of the interpreter everything is closed, since its objects go then, and their memory.
 * What begins afterwards is refused: -1 with an exception.
 */
int module_refuse_at_exit(void);

#endif
