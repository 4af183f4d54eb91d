/*
 * What this process may use of the machine, and where its PCI devices sit. Everything is read from
 * /proc and /sys below `root`, which is "" for the real machine and a folder in tests. Nothing
 * read there is trusted: what is missing or makes no sense is unknown, never an error.
 */
#ifndef TCPX_BASE_TOPOLOGY_H
#define TCPX_BASE_TOPOLOGY_H

#include "base/error.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct topology {
    int mask_cpus;   /* in the affinity mask of the calling thread */
    int group_cpus;  /* of its cpuset, which other processes may use, too, or all; 0: unknown */
    int quota_cpus;  /* the least cgroup quota, rounded up; 0: there is none */
    int usable_cpus; /* the smaller of both, at least 1 */
    int numa_nodes;  /* 1 where the kernel does not report it */
};

MUST_CHECK int topology_read(const char *root, struct topology *topology);

/* Bytes of memory that this process may still take, of the system and of its cgroup; 0: unknown. */
uint64_t topology_available_memory(const char *root);

/*
 * The CPUs of a NUMA node. False, and `cpus` untouched, if the node is unknown, has none, or has
 * one that no cpu_set_t holds.
 */
MUST_CHECK bool topology_node_cpus(const char *root, int node, cpu_set_t *cpus);

/*
 * The folder of a PCI device, as "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", from its
 * address in either case, with four to eight digits of domain. False, and `path` untouched, if
 * there is none.
 */
MUST_CHECK bool topology_pci_path(const char *root, const char *address, char *path, size_t size);

/* The NUMA node of a device by its folder; -1 when unknown. */
int topology_numa_node(const char *root, const char *pci_path);

/*
 * How far apart two devices are: the steps from one folder up to the last one they share and down
 * to the other. 0 for the same device, 2 for neighbours on one bus, more through more bridges;
 * INT_MAX when one of them is unknown ("").
 */
int topology_pci_distance(const char *path_a, const char *path_b);

#endif
