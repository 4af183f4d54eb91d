/*
 * What devmem TCP asks of a NIC, through ethtool: payload apart from headers (header split),
 * receive queues of its own, which the hash of ordinary traffic does not reach, and rules that
 * steer chosen connections there. Changes need CAP_NET_ADMIN. All names are of this network
 * namespace.
 */
#ifndef TCPX_NET_NIC_NIC_H
#define TCPX_NET_NIC_NIC_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { NIC_MOST_QUEUES = 1024 };

enum nic_split {
    NIC_SPLIT_UNKNOWN, /* the driver decides, or does not tell */
    NIC_SPLIT_OFF,
    NIC_SPLIT_ON,
};

struct nic_rings {
    enum nic_split split; /* tcp-data-split */
    bool has_threshold;   /* since 6.14 */
    uint32_t threshold;   /* hds-thresh */
};

/*
 * TCPX_SUCCESS, or the text says why. *os_error, which may be NULL, is the errno behind a failure:
 * EOPNOTSUPP where the driver does not know header split at all.
 */
MUST_CHECK int nic_get_rings(const char *interface, struct nic_rings *rings, int *os_error);

/* Header split on, with a threshold of 0 where there is one. */
MUST_CHECK int nic_split_headers(const char *interface);

/* How many receive queues there are now; at most NIC_MOST_QUEUES are told. */
MUST_CHECK int nic_count_queues(const char *interface, unsigned *queues);

/* Whether ntuple rules are switched on, and can be added. */
MUST_CHECK int nic_has_rules(const char *interface, bool *has_rules);

/* Whether it computes the checksums of what it sends. */
MUST_CHECK int nic_computes_checksums(const char *interface, bool *computes);

/* --- the hash of ordinary traffic ---------------------------------------------------------- */

/* The indirection table as it was, and as it was left. */
struct nic_hash;

/*
 * No entry leads to a queue of `avoid` any more: one's own, and those that are bound to somebody
 * else's memory. *before is NULL if there was nothing to change. Fails where no queue would be
 * left.
 */
MUST_CHECK int nic_hash_avoid(const char *interface, const bool avoid[NIC_MOST_QUEUES],
                              struct nic_hash **before);

/*
 * As it was, but for the queues that are `still` bound, whoever of their users came first. What
 * somebody else has chosen stays, or comes back when no queue is bound any more. Frees `before`,
 * which may be NULL.
 */
void nic_hash_restore(const char *interface, struct nic_hash *before,
                      const bool still[NIC_MOST_QUEUES]);

/* --- rules --------------------------------------------------------------------------------- */

/* TCP from `from` to `to`, both with ports, goes to a queue. IPv4, IPv6, or IPv4 in IPv6. */
struct nic_rule {
    struct sockaddr_storage from;
    struct sockaddr_storage to;
    unsigned queue;
    uint32_t location; /* its number, which the driver chooses */
};

MUST_CHECK int nic_rule_add(const char *interface, struct nic_rule *rule);

/* Only if the rule at that location is this one still; *removed tells, and may be NULL. */
MUST_CHECK int nic_rule_remove(const char *interface, const struct nic_rule *rule, bool *removed);

/* --- inside, for tests --------------------------------------------------------------------- */

struct ethtool_rx_flow_spec;

/*
 * The table without queues of `avoid`: entries that lead there lead to the others that the table
 * uses, in turn; if there are none, to any of the `queues`. False: none is left.
 */
MUST_CHECK bool nic_hash_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                              const bool avoid[NIC_MOST_QUEUES], uint32_t *planned);

/* A rule in ethtool's words; false: it is none. Whether the NIC's rule is this one. */
MUST_CHECK bool nic_rule_to_spec(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec);
MUST_CHECK bool nic_rule_is_spec(const struct nic_rule *rule,
                                 const struct ethtool_rx_flow_spec *spec);

/* The last of all places that is free, since rules in earlier ones go first; false: there is none.
 */
MUST_CHECK bool nic_rule_place(const uint32_t *used, uint32_t count, uint32_t places,
                               uint32_t *location);

#endif
