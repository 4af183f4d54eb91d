/* The options of sessions, as connect() and listen() take them. */
#ifndef TCPX_PYTHON_OPTIONS_H
#define TCPX_PYTHON_OPTIONS_H

#include "python/src/common.h"

struct options {
    struct tcpx_session_options options; /* its texts are those below */
    char *name;
    char *secret;
    char *plugin;
};

/* The keywords of both calls, for one format of PyArg_ParseTupleAndKeywords. */
#define OPTION_NAMES  "gpu", "name", "secret", "windows", "channels", "plugin", "no_kernels"
#define OPTION_FORMAT "OzOpiOp"

struct option_objects {
    PyObject *gpu;
    const char *name;
    PyObject *secret;
    int windows;
    int channels;
    PyObject *plugin;
    int no_kernels;
};

#define OPTION_OBJECTS                                                                             \
    {                                                                                              \
        Py_None, NULL, Py_None, 0, 0, Py_None, 0                                                   \
    }
#define OPTION_PLACES(o)                                                                           \
    &(o)->gpu, &(o)->name, &(o)->secret, &(o)->windows, &(o)->channels, &(o)->plugin,              \
        &(o)->no_kernels

/* Copies all of them, for a thread that has no GIL. 0, or -1 with an exception. */
int options_take(const struct option_objects *objects, struct options *options);
void options_give(struct options *options);

#endif
