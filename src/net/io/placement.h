/* Where I/O threads run: near the NIC whose sockets they serve. */
#ifndef TCPX_NET_IO_PLACEMENT_H
#define TCPX_NET_IO_PLACEMENT_H

#include "net/io/plan.h"

#include <sched.h>

/*
 * The CPUs of the calling thread that belong to a NUMA node; all of them if none does, or if the
 * node is unknown (-1). False, and `cpus` untouched, if the kernel does not tell them, as with more
 * than 1024 CPUs. `root`: see base/topology.h.
 */
MUST_CHECK bool io_thread_cpus(const char *root, int numa_node, cpu_set_t *cpus);

/*
 * Keeps the calling I/O thread on the CPUs of a NUMA node, once, as it begins: it has inherited the
 * affinity mask of a thread of the program, and never leaves it. Nothing is changed, and the
 * result is false, unless the machine has several nodes and each of the planned threads gets a CPU.
 */
bool io_thread_stay_near(const char *root, int numa_node, const struct io_plan *plan);

#endif
