/* The ioctl of ethtool: queues, hash and rules are reached by it, since netlink has no rules. */
#ifndef TCPX_NET_NIC_ETHTOOL_H
#define TCPX_NET_NIC_ETHTOOL_H

#include "net/nic/netlink.h"

/* `command` begins with its number. 0, or an errno. */
int ethtool_call(const char *interface, void *command);

/* netlink_refused() for an errno; ioctls have no explanation of the kernel's. */
#define ethtool_refused(code, ...)                                                                 \
    netlink_refused(&(struct netlink_verdict){.error = (code)}, __VA_ARGS__)

#endif
