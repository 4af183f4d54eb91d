/*
 * NCCL's language for choosing network interfaces by name, as NCCL_SOCKET_IFNAME speaks it:
 *
 *     eth,ib0     every interface whose name begins with "eth" or with "ib0"
 *     =eth0,eth1  exactly these
 *     ^docker,lo  all but those that begin so
 *     ^=eth0      all but exactly this one
 *
 * The marks stand once, before the whole list. A name may have a port behind it ("mlx5_0:1"), as in
 * NCCL's lists of HCAs; an interface has no port, so that says nothing more about it. Empty places
 * between commas are skipped. Everything else that cannot be the beginning of an interface's name
 * is refused in words, since it would match nothing in silence. Called by device.c.
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
