/* The function gpus() and the type GpuMemory. */
#ifndef TCPX_PYTHON_GPU_MEMORY_H
#define TCPX_PYTHON_GPU_MEMORY_H

#include "python/src/common.h"

PyObject *gpu_list(PyObject *module, PyObject *unused);
int gpu_memory_load(PyObject *module);

#endif
