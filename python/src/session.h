/* The type Session, and what the other files need to know of one. */
#ifndef TCPX_PYTHON_SESSION_H
#define TCPX_PYTHON_SESSION_H

#include "python/src/record.h"

struct session {
    PyObject_HEAD struct tcpx_session *handle; /* NULL: it is closed */
    struct session *next;                      /* of all that are open */
    struct session **here;
    bool is_closing; /* no call begins any more */
    unsigned users;  /* calls inside of the library */
    unsigned forks;  /* of the process, when it was made */
    int gpu;
    PyObject *peer;
    PyObject *path;
    PyObject *events; /* what tcpx._asyncio keeps of it; NULL: nothing yet */

    struct record *records; /* under way, or not let go of yet */
    size_t record_count;
    size_t sweep_at; /* when there are as many, those that nobody asked about are looked at */
};

extern PyObject *session_type;

int session_load(PyObject *module);

/* Takes over the library's session, whatever happens. NULL with an exception. */
PyObject *session_new(struct tcpx_session *handle, int gpu);

/* A call uses the library's session until it leaves. -1 with an exception: it is closed. */
int session_enter(struct session *session);
bool session_try_enter(struct session *session); /* false: it is closed */
void session_leave(struct session *session);

/* The event loops that wait have to look: a transfer has ended elsewhere, or the session. */
void session_wake(struct session *session);

/* At the end of the interpreter. */
void sessions_close_all(void);

/* Makes its record that of an object Transfer; takes the reference. NULL with an exception. */
PyObject *transfer_new(struct session *session, struct record *record);
int transfer_load(PyObject *module);

/* session_moves.c and session_notes.c: methods */
PyObject *session_send(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_receive(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_read(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_write(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_note(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_notes(PyObject *self, PyObject *arguments, PyObject *keywords);
PyObject *session_statistics(PyObject *self, PyObject *unused);

/* helper.c: calls a function of a Python module of the package. */
PyObject *helper_call(const char *module, const char *function, const char *format, ...);

#endif
