/* The two questions that only netlink answers: what the kernel can be asked, and header split. */
#ifndef TCPX_TOOLS_DOCTOR_NETLINK_H
#define TCPX_TOOLS_DOCTOR_NETLINK_H

#include <stdbool.h>
#include <stdint.h>

/* Commands of the family "netdev" that bind device memory to a NIC. */
enum { NETLINK_BIND_RX = 13, NETLINK_BIND_TX = 15 };

struct netlink_family {
    uint16_t id;
    uint64_t commands; /* bit n: command n is there */
};

/* 0, or what went wrong as an errno: ENOENT if the kernel has no family of this name. */
int netlink_family(const char *name, struct netlink_family *family);

enum netlink_split {
    NETLINK_SPLIT_AUTO, /* also: not known */
    NETLINK_SPLIT_OFF,
    NETLINK_SPLIT_ON,
};

/* tcp-data-split of an interface. 0, or an errno: EOPNOTSUPP if its driver does not know it. */
int netlink_header_split(const char *interface, enum netlink_split *split);

#endif
