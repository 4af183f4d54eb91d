/* The type Remote: a window of the peer, in one session. */
#ifndef TCPX_PYTHON_REMOTE_H
#define TCPX_PYTHON_REMOTE_H

#include "python/src/session.h"

struct remote {
    PyObject_HEAD struct session *session;
    struct tcpx_remote *handle; /* the library's, as long as its session is open */
    uint64_t block;             /* 0: none was given */
};

extern PyObject *remote_type;

int remote_load(PyObject *module);

/* The method Session.remote(). */
PyObject *remote_open(PyObject *session, PyObject *arguments, PyObject *keywords);

#endif
