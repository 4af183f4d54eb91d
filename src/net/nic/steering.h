/*
 * Connections that are steered to receive queues by rules of the NIC. The rules of a process that
 * was killed stay in the NIC; the next process finds them in a journal and removes them.
 */
#ifndef TCPX_NET_NIC_STEERING_H
#define TCPX_NET_NIC_STEERING_H

#include "net/nic/flow_rule.h"

/*
 * Steers what arrives on this connected socket to `queue`. Never waits for another process:
 * TCPX_IN_PROGRESS while one has the journal, and the caller tries again; after `patience_ends` the
 * rule is added without a line in the journal.
 */
MUST_CHECK int steering_begin(const char *interface, int socket, unsigned queue,
                              uint64_t patience_ends, struct nic_rule *rule);

/* May wait up to 2 s for another process; then a line stays in the journal, which does no harm. */
void steering_end(const char *interface, const struct nic_rule *rule);

/* Removes the rules of processes that are gone; returns how many. Without a journal: 0. */
unsigned steering_clean(const char *interface);

/*
 * Held while a process chooses queues of the NIC and changes its hash: two that do so at once would
 * undo each other's changes. -1: others are not kept out, since no folder could be used or the lock
 * was not free within 2 s. The calls above may be made while it is held.
 */
MUST_CHECK int steering_lock(const char *interface);
void steering_unlock(int lock);

/* --- inside, for tests --------------------------------------------------------------------- */

/* The rule for what arrives on a connected socket; its queue and location are 0. */
MUST_CHECK int steering_describe(int socket, struct nic_rule *rule);

#endif
