/* Rules (ntuple filters) by which a NIC steers a TCP connection to a receive queue. */
#ifndef TCPX_NET_NIC_FLOW_RULE_H
#define TCPX_NET_NIC_FLOW_RULE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* TCP from `from` to `to`, both with ports, goes to a queue. IPv4, IPv6, or IPv4 in IPv6. */
struct nic_rule {
    struct sockaddr_storage from;
    struct sockaddr_storage to;
    unsigned queue;
    uint32_t location; /* the rule's number in the NIC, set by nic_rule_add() */
};

MUST_CHECK int nic_rule_add(const char *interface, struct nic_rule *rule);

/* Only if the rule at that location is still this one; *removed says so, and may be NULL. */
MUST_CHECK int nic_rule_remove(const char *interface, const struct nic_rule *rule, bool *removed);

/* --- inside, for tests --------------------------------------------------------------------- */

struct ethtool_rx_flow_spec;

/* A rule as ethtool describes it; false if it cannot. Whether the NIC's rule is this one. */
MUST_CHECK bool nic_rule_to_spec(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec);
MUST_CHECK bool nic_rule_is_spec(const struct nic_rule *rule,
                                 const struct ethtool_rx_flow_spec *spec);

/* The last free location, since rules at lower ones take precedence; false: there is none. */
MUST_CHECK bool nic_rule_place(const uint32_t *used, uint32_t count, uint32_t places,
                               uint32_t *location);

#endif
