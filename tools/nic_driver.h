/* The driver behind an interface, and what it is known to be able to. */
#ifndef TCPX_TOOLS_NIC_DRIVER_H
#define TCPX_TOOLS_NIC_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

/* `root`: before /sys, "" but for tests. "": it has none, as loopback. */
void nic_driver(const char *root, const char *interface, char *driver, size_t room);

/* Whether it can bind receive queues to device memory, as of Linux 7.2. */
bool nic_driver_binds_memory(const char *driver);

#endif
