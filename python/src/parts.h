/* The type Parts: ranges of windows, or of remotes, in an order. Reads and writes move them. */
#ifndef TCPX_PYTHON_PARTS_H
#define TCPX_PYTHON_PARTS_H

#include "python/src/common.h"

struct part_range {
    Py_ssize_t owner; /* in the list of owners */
    uint64_t offset;
    uint64_t bytes;
};

struct parts {
    PyObject_HEAD PyObject *owners; /* a list: all Window, or all Remote */
    struct part_range *ranges;
    size_t count;
};

extern PyObject *parts_type;

int parts_load(PyObject *module);

/* [offset, offset + bytes) of one owner. NULL with an exception. */
PyObject *parts_of_range(PyObject *owner, uint64_t offset, uint64_t bytes);

/* Blocks of an owner by their numbers, a sequence or a buffer of integers. `limit`: its bytes. */
PyObject *parts_of_blocks(PyObject *owner, PyObject *numbers, uint64_t block, uint64_t limit);

/* The range of a slice without a step; `limit`: of the owner, which an open end needs. */
PyObject *parts_of_slice(PyObject *owner, PyObject *slice, uint64_t limit);

uint64_t parts_bytes(const struct parts *parts);

#endif
