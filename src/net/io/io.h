/*
 * The I/O threads of this process: they wait for descriptors, and look now and then at members that
 * have something under way. They know nothing of comms. The first member starts them one by one as
 * they are needed, the last one ends them; without anything to do they sleep.
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
    /* Every few milliseconds, or sooner, or not until io_nudge(). */
    enum io_again (*tick)(void *owner);
};

struct io_crew;

/* What a member is to the threads. All of it is theirs. */
struct io_member {
    struct io_crew *crew; /* NULL: not a member */
    const struct io_calls *calls;
    void *owner;
    unsigned home; /* the thread that ticks */
    unsigned slot;
    uint64_t generation;
    unsigned inside; /* threads in a call of it */
};

/* What this process can have. */
struct io_plan {
    unsigned threads;     /* when all are needed */
    bool cpus_are_scarce; /* so that callers move all themselves, unless threads were asked for */
    bool cpus_are_plenty; /* a thread may stay awake for a moment */
};

MUST_CHECK int io_plan(struct io_plan *plan);

/* As it was planned when the member's threads were started. */
bool io_cpus_are_scarce(const struct io_member *member);

/*
 * `places`: how many threads, at least one, would be good for it; the next member begins behind.
 * If there shall be no threads, `member->crew` stays NULL, and that is fine.
 */
MUST_CHECK int io_join(struct io_member *member, const struct io_calls *calls, void *owner,
                       unsigned places);

/* Returns when no thread is in a call of this member any more. No effect without a member. */
void io_leave(struct io_member *member);

/*
 * Adds a descriptor under a number: the threads take turns from `place` on, 0 being the one that
 * ticks. A thread that cannot be started is replaced by one that runs; it is an error if none does.
 * `events` of epoll are reported as long as they last; errors and hang-ups always.
 */
MUST_CHECK int io_add(struct io_member *member, int fd, unsigned number, unsigned place,
                      uint32_t events);

/* Other events from now on. `place`, `number`: as it was added. */
void io_change(struct io_member *member, int fd, unsigned number, unsigned place, uint32_t events);

void io_remove(struct io_member *member, int fd, unsigned place);

/* Ticks go on. Costs one load if they never ended. */
void io_nudge(struct io_member *member);

/* The next tick comes as soon as one that said IO_SOON would. */
void io_hurry(struct io_member *member);

#endif
