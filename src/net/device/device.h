/*
 * The machine's network devices, chosen as NCCL chooses them: interfaces that are up and running
 * and have an address, one address each, filtered by name. Values of sysfs are not trusted: what is
 * missing or makes no sense is unknown, never an error. Called once by the transport when it
 * starts, and by programs that show the devices.
 *
 * With a filter that names interfaces, all that match are devices, in the kernel's order, including
 * loopback. With a filter that only excludes ("^docker0"), all others are devices, physical ones
 * first, and loopback only if nothing else is left. Without a filter the first of these kinds that
 * the machine has is used, all interfaces of that kind, physical ones first:
 *
 *     1. ib...
 *     2. physical ones, and bonds, VLANs and bridges with a physical one below
 *     3. other virtual ones, such as the eth0 of a container, or a tunnel
 *     4. other bridges, and virtual ones with names that container networks use: docker..., br-...,
 *        cni..., flannel..., cilium..., cali..., tunl..., kube-..., lxc..., lxdbr..., podman...,
 *        nerdctl..., vxlan..., weave..., genev..., nodelocaldns, antrea-...
 *     5. any, with only a link-local IPv6 address
 *     6. loopback
 *     7. virbr...
 *
 * (NCCL does not distinguish 2 to 5 but for docker..., and so takes the bridges of a host's
 * containers, and its ends of their veth pairs, for devices.)
 *
 * The address is the first IPv4 address, else the first IPv6 address of wider scope, else a
 * link-local one with its scope. An alias ("eth0:1") is a further address of its interface.
 *
 * Spare devices are for peers that no device reaches: the devices' IPv6 addresses where IPv4 was
 * the first choice, and without a filter the interfaces of kinds 2 and 3 where others go before.
 */
#ifndef TCPX_NET_DEVICE_DEVICE_H
#define TCPX_NET_DEVICE_DEVICE_H

#include "base/error.h"

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    NET_DEVICES_MOST = 32, /* a sensible capacity */
    /* What NCCL assumes for an interface without a speed. Loopback has none. */
    NET_DEVICE_DEFAULT_MBPS = 10000
};

struct net_device_options {
    const char *data_ifname;   /* NCCL_GPUDIRECTTCPX_SOCKET_IFNAME: goes before socket_ifname */
    const char *socket_ifname; /* NCCL_SOCKET_IFNAME; for both, NULL or "" means not set */
    int family;                /* NCCL_SOCKET_FAMILY: AF_INET, AF_INET6; 0: any */
    int speed_mbps;            /* UCCL_TCPX_SPEED; 0: not set */
    const char *root;          /* where /sys is looked for: NULL or "" for the real machine */
};

struct net_device {
    char name[IFNAMSIZ];             /* no two devices have the same */
    struct sockaddr_storage address; /* with port 0 */
    unsigned prefix_bits;            /* of its subnet; 0: unknown */
    /*
     * The speed of a physical interface, else the option's, else what the driver of a virtual one
     * reports (10000 for veth, whatever lies below it), else NET_DEVICE_DEFAULT_MBPS. Never 0.
     */
    int speed_mbps;
    int mtu;       /* 0: unknown */
    int ifindex;   /* 0: unknown */
    int numa_node; /* -1: unknown */
    uint64_t guid; /* from the MAC and the index: the same for every process on the machine */
    bool is_loopback;
    bool is_virtual; /* no device in sysfs: bridges, veth, tunnels, but bonds and VLANs too */
    /*
     * The PCI device it belongs to, from topology_pci_path(); "" without one. For virtio and USB it
     * is the device above the interface's own, which NCCL would not take for PCI.
     */
    char pci_path[256];
};

/*
 * Finds at least one device, at most `capacity`; further ones are left out with a warning. If the
 * filter matches none, the error text has the variable, its filter and the interfaces there are.
 */
MUST_CHECK int net_devices_find(const struct net_device_options *options,
                                struct net_device *devices, int capacity, int *count);

/* Spare ones follow the devices, as many as there is room for; *all: with them. */
MUST_CHECK int net_devices_find_all(const struct net_device_options *options,
                                    struct net_device *devices, int capacity, int *count, int *all);

/* With the options of the environment. */
MUST_CHECK int net_devices_find_configured(struct net_device *devices, int capacity, int *count);
MUST_CHECK int net_devices_find_all_configured(struct net_device *devices, int capacity, int *count,
                                               int *all);

/* The NUMA node of an interface by its name; -1: unknown. `root` is that of the options. */
int net_device_numa_node(const char *root, const char *name);

#endif
