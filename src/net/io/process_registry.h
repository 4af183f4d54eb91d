/*
 * Which processes of this user have I/O threads, and on which CPUs: locks on the bytes of an empty
 * file that all of them open. The kernel releases the locks of a process that ends, however it
 * ends, so there is nothing to clean up and nobody to ask. No call waits, and no failure matters:
 * a process that cannot register is not counted.
 */
#ifndef TCPX_NET_IO_PROCESS_REGISTRY_H
#define TCPX_NET_IO_PROCESS_REGISTRY_H

#include <sched.h>
#include <stdbool.h>

/*
 * Opens the registry of this user in a folder; -1: there is none, or the file is not one that only
 * this user can open. `make`: it is created if it does not exist. Close it with fork_close().
 */
int process_registry_open(const char *folder, bool make);

/* Registers the holder of this descriptor for these CPUs until it is closed. */
bool process_registry_enter(int registry, const cpu_set_t *cpus);

/* How many others are registered for at least one of these CPUs. */
unsigned process_registry_count(int registry, const cpu_set_t *cpus);

#endif
