/*
 * What /sys/class/net under a root knows of an interface. What is missing or makes no sense is
 * unknown, never an error. Private to src/net/device.
 */
#ifndef TCPX_NET_DEVICE_SYSFS_H
#define TCPX_NET_DEVICE_SYSFS_H

#include <stdbool.h>
#include <stddef.h>

/* A number above 0 that fits an int; 0 for anything else: no file, -1, garbage. */
int sysfs_number(const char *root, const char *name, const char *file);

bool sysfs_is_physical(const char *root, const char *name);

/* Whether it is physical, or made of one that is: a bond, a VLAN, a bridge with such a port. */
bool sysfs_has_hardware(const char *root, const char *name);

bool sysfs_is_bridge(const char *root, const char *name);

/* The PCI path of the interface: of its device, or of the nearest parent with one; "": none. */
void sysfs_find_pci_path(const char *root, const char *name, char *pci_path, size_t size);

#endif
