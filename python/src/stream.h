/* What must have happened on the GPU before a transfer, as the libraries of Python say it. */
#ifndef TCPX_PYTHON_STREAM_H
#define TCPX_PYTHON_STREAM_H

#include "python/src/common.h"

struct after {
    enum tcpx_after after;
    void *what;
};

/*
 * None; a stream as a number, an object with .cuda_stream, .ptr or __cuda_stream__(); "current",
 * that of torch or cupy, whichever is loaded; or an event, an object with .cuda_event. 0, or -1
 * with an exception.
 */
int stream_after(PyObject *object, int gpu, struct after *after);

#endif
