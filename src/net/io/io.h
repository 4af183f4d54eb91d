/*
 * The I/O threads of this process: they wait for descriptors, and tick members that have work in
 * flight. They know nothing of comms. Threads are started one by one as members need them; the last
 * member ends them. A thread without work sleeps.
 */
#ifndef TCPX_NET_IO_IO_H
#define TCPX_NET_IO_IO_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum io_again { IO_NEVER, IO_LATER, IO_SOON };

/* Called by an I/O thread, never for a member that has left. */
struct io_calls {
    /* Descriptor `number` of the member is ready: `events` of epoll. */
    void (*ready)(void *owner, unsigned number, uint32_t events);
    /* The result is when to call again: in 2 ms, sooner, or only after io_nudge(). */
    enum io_again (*tick)(void *owner);
};

struct io_crew;

/* A member, embedded in its owner. Only this room uses its fields, except `crew`. */
struct io_member {
    struct io_crew *crew; /* NULL: not a member */
    const struct io_calls *calls;
    void *owner;
    unsigned home; /* the thread that ticks it */
    unsigned slot;
    uint64_t generation;
    unsigned inside; /* threads that are in one of its calls */
};

/* What this process can have. */
struct io_plan {
    unsigned threads;     /* when all are needed */
    bool cpus_are_scarce; /* callers move all lanes, unless the settings ask for threads */
    bool cpus_are_plenty; /* a thread may stay awake for a moment */
};

MUST_CHECK int io_plan(struct io_plan *plan);

/* The plan's value when the member's threads were started. */
bool io_cpus_are_scarce(const struct io_member *member);

/*
 * `places`: how many threads the member can use, at least one; the next member gets the threads
 * behind them. If the settings allow no threads, `member->crew` stays NULL: no error.
 */
MUST_CHECK int io_join(struct io_member *member, const struct io_calls *calls, void *owner,
                       unsigned places);

/* Waits until no thread is in a call of this member. No effect if it is not a member. */
void io_leave(struct io_member *member);

/*
 * Adds a descriptor under a number to the member's thread number `place`; thread 0 also ticks. A
 * running thread replaces one that cannot be started; it is an error if none runs. `events` of
 * epoll are level-triggered; errors and hang-ups are always reported.
 */
MUST_CHECK int io_add(struct io_member *member, int fd, unsigned number, unsigned place,
                      uint32_t events);

/* Changes the events. `number` and `place` are those of io_add(). */
void io_change(struct io_member *member, int fd, unsigned number, unsigned place, uint32_t events);

void io_remove(struct io_member *member, int fd, unsigned place);

/* Resumes the ticks. Costs one load if the thread is awake. */
void io_nudge(struct io_member *member);

/* The next tick comes as soon as after IO_SOON. */
void io_hurry(struct io_member *member);

#endif
