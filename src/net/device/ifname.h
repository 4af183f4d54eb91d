/*
 * NCCL's filter for network interfaces by name, as in NCCL_SOCKET_IFNAME:
 *
 *     eth,ib0     every interface whose name begins with "eth" or with "ib0"
 *     =eth0,eth1  exactly these
 *     ^docker,lo  all but those that begin with one of these
 *     ^=eth0      all but exactly this one
 *
 * "^" and "=" come once, before the whole list. A name may have a port behind it ("mlx5_0:1"), as
 * in NCCL's lists of HCAs; an interface has no port, so it is ignored. Empty places between commas
 * are skipped. Anything else that cannot be the beginning of an interface's name is an error, since
 * it would silently match nothing. Private to src/net/device and its tests.
 */
#ifndef TCPX_NET_DEVICE_IFNAME_H
#define TCPX_NET_DEVICE_IFNAME_H

#include "base/error.h"

#include <net/if.h>
#include <stdbool.h>

enum { IFNAME_FILTER_NAMES = 64 };

struct ifname_filter {
    bool excludes; /* "^": what is not in the list matches */
    bool exact;    /* "=": whole names, not their beginnings */
    int count;     /* at least 1 */
    char names[IFNAME_FILTER_NAMES][IFNAMSIZ];
};

MUST_CHECK int ifname_filter_parse(const char *text, struct ifname_filter *filter);

bool ifname_filter_matches(const struct ifname_filter *filter, const char *name);

#endif
