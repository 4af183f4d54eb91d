/*
 * How many I/O threads this process may have, from the settings and from what it may use of the
 * machine.
 */
#ifndef TCPX_NET_IO_PLAN_H
#define TCPX_NET_IO_PLAN_H

#include "base/error.h"
#include "base/topology.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * What this process can have. CPUs are few where the process may use fewer than 4, or where fewer
 * than 2 are left for each process that shares them. Then a thread that waits awake takes the CPU
 * from the thread that it waits for, whether the settings ask for threads or not; and a handover to
 * an I/O thread is a change of threads on one CPU.
 */
struct io_plan {
    unsigned threads;     /* when all are needed */
    bool is_automatic;    /* UCCL_TCPX_THREADS is not set */
    bool cpus_are_scarce; /* few, and automatic: callers move all lanes */
    bool cpus_are_plenty; /* not few: a thread may stay awake for a moment */
    unsigned processes;   /* that share the CPUs, this one included */
    struct topology topology;
};

/* As of now: other processes come and go. */
MUST_CHECK int io_plan(struct io_plan *plan);

/* The same for the machine below a folder: see base/topology.h. */
MUST_CHECK int io_plan_below(const char *root, struct io_plan *plan);

/* The rule itself. `threads`: UCCL_TCPX_THREADS, or CONFIG_AUTO; at least one process. */
struct io_plan io_plan_for(const struct topology *topology, uint64_t threads, unsigned processes);

#endif
