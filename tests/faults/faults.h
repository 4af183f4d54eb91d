/*
 * Calls of libc that fail or do less on purpose, for a library whose calls were redirected by
 * tests/faults/calls.def. Which call is hit is decided by a seed. A fault is something that the
 * kernel may do at any time, and nothing may change because of it.
 */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum faults_kind {
    FAULT_SHORT_READ,  /* of fewer bytes than there are, often of one */
    FAULT_SHORT_WRITE, /* of fewer bytes than fit */
    FAULT_AGAIN,       /* EAGAIN although the socket is ready */
    FAULT_INTERRUPTED, /* EINTR */
    FAULT_NO_BUFFERS,  /* ENOBUFS on a send; it passes */
    FAULT_ABORTED,     /* ECONNABORTED on accept: that connection is gone, others may come */
    FAULT_NO_ACCEPT,   /* EMFILE, ENFILE, ENOMEM on accept; it passes */
    FAULT_FEWER,       /* one event of epoll_wait() although there may be more */
    FAULTS_KINDS,
    FAULTS_ALL = (1 << FAULTS_KINDS) - 1,
};

/*
 * Faults in one of `one_in` calls from now on; `kinds` is a mask of 1 << kind. Each thread
 * has its own sequence, by the seed and by the order in which threads made their first call.
 * TCPX_TEST_FAULTS=SEED[:ONE_IN[:KIND,KIND...]] does the same from the start of a program.
 */
void faults_by_seed(uint64_t seed, unsigned one_in, unsigned kinds);

/* No further faults; returns how many there were since they began. */
unsigned long faults_stop(void);

/* Since the program started. */
unsigned long faults_seen(enum faults_kind kind);

/* --- for the replacements ------------------------------------------------------------------- */

/* Whether this call has that fault, which is then counted. */
bool faults_hit(enum faults_kind kind);

/* A random number of this thread's sequence, below `limit`. */
uint64_t faults_below(uint64_t limit);

#endif
