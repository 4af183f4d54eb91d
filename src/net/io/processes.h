/*
 * How many processes of this node share the CPUs of this one: those of this user that have I/O
 * threads of tcpx now, or as many as a launcher says that it starts, whichever is more. Ranks start
 * at the same time, so the first ones find few others.
 */
#ifndef TCPX_NET_IO_PROCESSES_H
#define TCPX_NET_IO_PROCESSES_H

#include "base/topology.h"

/*
 * The process is registered between the first join and the last leave, for the CPUs that the thread
 * of the first join may use. The caller has I/O threads meanwhile. A process that has loaded both
 * libtcpx and the NCCL plugin is registered twice if both have I/O threads: these are two sets of
 * threads that compete for the CPUs.
 */
void processes_join(void);
void processes_leave(void);

/* At least 1: this process. `topology` is of the calling thread. */
unsigned processes_count(const struct topology *topology);

#endif
