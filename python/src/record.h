/*
 * A transfer that was begun, and all that must stay alive until it has ended. It belongs to its
 * session until then, whether or not the program keeps the object Transfer: to lose that loses
 * nothing.
 */
#ifndef TCPX_PYTHON_RECORD_H
#define TCPX_PYTHON_RECORD_H

#include "python/src/memory.h"

struct session;

struct record {
    struct record *next; /* in the session's list */
    struct record **here;
    unsigned references; /* the session's list, the object Transfer, a call that uses it */
    bool is_listed;
    bool is_busy;    /* a call asks the library about it without the GIL: others leave it alone */
    unsigned urgent; /* calls that have to get at it before those that only wait */
    bool is_access;
    bool is_cancelled; /* by the program */
    uint64_t expires;  /* an access: then the library cancels it */
    uint64_t bytes;

    struct tcpx_transfer *transfer; /* NULL: it has ended */
    bool has_ended;                 /* the same, for the call that makes it busy */
    int result;                     /* then */
    char *why;                      /* of a failure; NULL: no memory for the text */

    struct tcpx_memory *registered; /* of a send or a receive, and NULL as soon as possible */
    struct memory memory;           /* the same */
    PyObject *kept;                 /* the windows of an access */
    PyObject *waiters;              /* a list of what asyncio wants back at the end; NULL: none */
};

/* NULL with an exception. It has one reference, and no place in a session yet. */
struct record *record_new(void);
void record_hold(struct record *record);
void record_drop(struct record *record);

/* From now on the session has it, too. */
void record_list(struct session *session, struct record *record);

/*
 * Between these two the caller may ask the library about it, without the GIL. The second one lets
 * go of what is not needed any more.
 */
void record_begin(struct record *record);
void record_end(struct session *session, struct record *record);

/* Without the GIL, in between: `result` is what a test, or a wait, has returned. */
void record_note(struct session *session, struct record *record, int result, bool is_done);

/* Asks about all that are under way. */
void records_ask(struct session *session);

/* A list of the waiters of those that have ended; they are forgotten. */
PyObject *records_take_waiters(struct session *session);

/* The library has closed the session: nothing is under way any more. */
void records_end_all(struct session *session);

/* The session itself goes: what waits for an end does so in vain. */
void records_drop_all(struct session *session);

/* None, or NULL with the exception of a failure. It has ended. */
PyObject *record_report(const struct record *record);

int records_visit(struct session *session, visitproc visit, void *arg);

#endif
