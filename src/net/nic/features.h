/* What a NIC has, by a single question to its driver. */
#ifndef TCPX_NET_NIC_FEATURES_H
#define TCPX_NET_NIC_FEATURES_H

#include "base/error.h"

#include <stdbool.h>

enum { NIC_MOST_QUEUES = 1024 };

/* The number of receive queues now, NIC_MOST_QUEUES if there are more. */
MUST_CHECK int nic_count_queues(const char *interface, unsigned *queues);

/* Whether ntuple rules are switched on, and can be added. */
MUST_CHECK int nic_has_rules(const char *interface, bool *has_rules);

/* Whether it computes the checksums of what it sends. */
MUST_CHECK int nic_computes_checksums(const char *interface, bool *computes);

#endif
