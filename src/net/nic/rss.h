/*
 * Receive-side scaling: the table by which a NIC's hash spreads ordinary traffic over its receive
 * queues. Queues that are bound to device memory are taken out of it, and come back.
 */
#ifndef TCPX_NET_NIC_RSS_H
#define TCPX_NET_NIC_RSS_H

#include "net/nic/features.h"

#include <stdint.h>

/* The table before a change, and after it. */
struct nic_hash;

/*
 * Removes the queues of `avoid` from the table: the caller's, and all that are bound to memory of
 * others. *before is NULL if the table needed no change. Fails if no queue would be left.
 */
MUST_CHECK int nic_hash_avoid(const char *interface, const bool avoid[NIC_MOST_QUEUES],
                              struct nic_hash **before);

/*
 * Restores the table, without the queues that are `still` bound, in whatever order their users end.
 * A table that another program has set stays, or comes back once no queue is bound. Frees `before`,
 * which may be NULL.
 */
void nic_hash_restore(const char *interface, struct nic_hash *before,
                      const bool still[NIC_MOST_QUEUES]);

/* --- inside, for tests --------------------------------------------------------------------- */

/*
 * The table without queues of `avoid`: their entries go to the other queues that the table uses,
 * round robin; if there are none, to any of the `queues`. False: no queue is left.
 */
MUST_CHECK bool nic_hash_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                              const bool avoid[NIC_MOST_QUEUES], uint32_t *planned);

#endif
