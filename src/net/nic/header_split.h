/* Header split: the NIC puts payload apart from headers, so that payload alone is device memory. */
#ifndef TCPX_NET_NIC_HEADER_SPLIT_H
#define TCPX_NET_NIC_HEADER_SPLIT_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum nic_split {
    NIC_SPLIT_UNKNOWN, /* the driver decides, or does not report it */
    NIC_SPLIT_OFF,
    NIC_SPLIT_ON,
};

struct nic_rings {
    enum nic_split split; /* tcp-data-split */
    bool has_threshold;   /* since 6.14 */
    uint32_t threshold;   /* hds-thresh */
};

/*
 * *os_error, which may be NULL, is the errno behind a failure: EOPNOTSUPP where the driver does not
 * know header split at all.
 */
MUST_CHECK int nic_get_rings(const char *interface, struct nic_rings *rings, int *os_error);

/* Header split on, with a threshold of 0 where there is one. */
MUST_CHECK int nic_split_headers(const char *interface);

#endif
