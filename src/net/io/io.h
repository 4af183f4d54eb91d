/*
 * The I/O threads of this process. A task is a descriptor that one thread owns: only that thread
 * runs it, when the descriptor has events and when another thread wakes it. Descriptors are
 * registered once and edge-triggered, so that nothing on the data path changes an epoll set. No
 * lock is shared by the threads. They know nothing of comms. Threads are started as tasks need
 * them; the last group ends them. A thread without work sleeps.
 */
#ifndef TCPX_NET_IO_IO_H
#define TCPX_NET_IO_IO_H

#include "base/error.h"
#include "net/io/plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* When to run a task again, if nothing happens before. */
enum io_again {
    IO_IDLE,  /* never */
    IO_LATER, /* in about 2 ms */
    IO_SOON,  /* as soon as is possible without using a CPU for it: something has to be polled */
    IO_MORE,  /* after the other tasks: it has more to do */
};

struct io_task;

/* Called by the thread that owns the task. `events` of epoll; 0: it was woken or runs again. */
typedef enum io_again io_run(struct io_task *task, uint32_t events);

/* Embedded in what it belongs to. Only this room uses its fields. */
struct io_task {
    io_run *run;
    struct io_thread *thread; /* its owner; NULL: none */
    int fd;
    uint32_t events; /* that it is registered with */
    /* Guarded by the lock of the task's user, who wakes and removes it: */
    atomic_bool is_removed;
    bool keeps_awake; /* also where CPUs are few */
    /* Any thread: */
    atomic_bool is_woken; /* is in its thread's inbox, */
    struct io_task *next_woken;
    /* Its thread: */
    enum io_again again;
    bool is_listed; /* runs again, */
    struct io_task *next_listed;
};

/* Tasks that come and go together: the sockets of a comm. */
struct io_group {
    struct io_crew *crew; /* NULL: there are no threads */
    unsigned home;        /* the thread of place 0, */
    uint64_t threads;     /* those that have a task, as bits */
    struct io_plan plan;  /* when it joined */
    int numa_node;
};

/*
 * `places`: how many threads the group can use, at least one; the next group gets the threads
 * behind them. Threads that are started for the group stay near `numa_node`; -1: anywhere. If the
 * settings allow no threads, `group->crew` stays NULL: no error.
 */
MUST_CHECK int io_join(struct io_group *group, unsigned places, int numa_node);

/*
 * Gives a descriptor to the group's thread number `place`. A running thread replaces one that
 * cannot be started; it is an error if none runs. `events` of epoll; errors and hang-ups are always
 * reported.
 */
MUST_CHECK int io_add(struct io_group *group, struct io_task *task, io_run *run, int fd,
                      unsigned place, uint32_t events);

/* Changes the events. What is ready now is reported again. */
void io_change(struct io_task *task, uint32_t events);

/*
 * Its thread runs it. Costs no system call if the thread is awake. The caller holds the lock that
 * it holds around io_remove(). No effect on a task without a thread.
 */
void io_wake(struct io_task *task);

/*
 * Its thread stays awake for a short while after work, also where CPUs are few: no call will do
 * what follows.
 */
void io_keep_awake(struct io_task *task);

/* Whether its thread is awake, so that io_wake() is cheap. */
bool io_is_awake(const struct io_task *task);

/* From now on the task is not run, though a run may be under way. */
void io_remove(struct io_task *task);

/*
 * Its tasks have been removed: waits until no thread knows them any more. No effect if it has not
 * joined. Not called by an I/O thread.
 */
void io_leave(struct io_group *group);

#endif
