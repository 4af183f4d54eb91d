/*
 * The memory behind a Python object, by the protocols of the libraries that make such objects, none
 * of which is imported. It is kept alive until it is given back.
 */
#ifndef TCPX_PYTHON_MEMORY_H
#define TCPX_PYTHON_MEMORY_H

#include "python/src/common.h"

struct memory {
    void *address;
    uint64_t bytes;
    int gpu; /* -1: of the host */
    bool is_read_only;
    PyObject *object; /* NULL: nothing is held */
    Py_buffer buffer; /* its obj is NULL: the object has no buffer */
};

/* 0, or -1 with an exception that names the type and what was expected. */
int memory_take(PyObject *object, struct memory *memory);

/* As above, for what is written to: refuses memory that is read-only. */
int memory_take_writable(PyObject *object, struct memory *memory);

void memory_give(struct memory *memory);

int memory_visit(struct memory *memory, visitproc visit, void *arg);

#endif
