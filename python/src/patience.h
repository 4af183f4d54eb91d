/*
 * How threads wait for each other. An object of the library must not be closed while a call uses
 * it, and one thread at a time may ask about a transfer; calls give the GIL away, so that each
 * object has a mark that says that a call is inside. Who needs it free pauses here until some mark
 * has changed, and looks again.
 */
#ifndef TCPX_PYTHON_PATIENCE_H
#define TCPX_PYTHON_PATIENCE_H

#include "python/src/common.h"

/* When the module is imported. 0, or -1 with an exception. */
int patience_load(void);

/* A mark has changed. */
void patience_changed(void);

/* Until a mark changes, SLICE_MS at most, without the GIL. */
void patience_pause(void);

/* The same; -1 with an exception if a signal handler raised one. */
int patience_pause_or_signal(void);

/* How many forks have made this process since the import: marks of a parent mean nothing. */
unsigned patience_forks(void);

/* Seconds of a caller as milliseconds of the library, rounded up. None becomes `when_none`. */
int patience_ms(PyObject *seconds, int when_none, int *ms);

#endif
