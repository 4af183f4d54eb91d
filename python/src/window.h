/* The type Window: memory of this process for reads and writes, of this side and of peers. */
#ifndef TCPX_PYTHON_WINDOW_H
#define TCPX_PYTHON_WINDOW_H

#include "python/src/memory.h"

struct window {
    PyObject_HEAD struct tcpx_window *handle; /* NULL: it is closed */
    struct window *next;                      /* of all that are open */
    struct window **here;
    bool is_closing; /* no call begins any more */
    bool is_busy;    /* a thread closes it just now */
    unsigned users;  /* calls inside of the library */
    struct memory memory;
    uint64_t bytes;
    uint64_t block; /* 0: none was given */
};

extern PyObject *window_type;

int window_load(PyObject *module);

/* For this side only, of an object's memory. NULL with an exception. */
PyObject *window_of(PyObject *object);

/* A call uses the library's window until it leaves. -1 with an exception: it is closed. */
int window_enter(struct window *window);
void window_leave(struct window *window);

/* At the end of the interpreter, after all sessions. */
void windows_close_all(void);

#endif
