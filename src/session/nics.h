/* Which network devices a session uses: those nearest to its GPU. */
#ifndef TCPX_SESSION_NICS_H
#define TCPX_SESSION_NICS_H

#include "net/device/device.h"

/* What is known of a device, of the transport's or of a plugin's. */
struct nic {
    int number;
    char name[64];
    char pci_path[256]; /* "": unknown */
    int numa_node;      /* -1: unknown */
};

/*
 * Puts the nearest ones first and returns how many are equally near: fewest steps between the PCI
 * devices, then the same NUMA node. All of them, where nothing is known. `gpu_path` may be "".
 */
int nics_choose(struct nic *nics, int count, const char *gpu_path, int gpu_node);

#endif
