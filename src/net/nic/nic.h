/*
 * What devmem TCP needs of a NIC: header split, receive queues that ordinary traffic avoids, rules
 * that steer connections to them, and device memory bound to them; also the interface of a route,
 * and a watch for interfaces that go down. The transport changes NICs through it, tools only query.
 * Interface names are those of this network namespace. Changes need CAP_NET_ADMIN.
 *
 * Files outside of src/net/nic include this header only. ethtool.h, netlink.h and rule_journal.h
 * are private to the folder and its tests.
 */
#ifndef TCPX_NET_NIC_NIC_H
#define TCPX_NET_NIC_NIC_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* --- what a NIC has, by a single question to its driver ------------------------------------ */

enum { NIC_MOST_QUEUES = 1024 };

/* The number of receive queues now, NIC_MOST_QUEUES if there are more. */
MUST_CHECK int nic_count_queues(const char *interface, unsigned *queues);

/* Whether ntuple rules are switched on, and can be added. */
MUST_CHECK int nic_has_rules(const char *interface, bool *has_rules);

/* Whether it computes the checksums of what it sends. */
MUST_CHECK int nic_computes_checksums(const char *interface, bool *computes);

/* --- header split -------------------------------------------------------------------------- */

/* The NIC puts payload apart from headers, so that payload alone is device memory. */
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

/* --- bindings of device memory ------------------------------------------------------------- */

/*
 * Device memory that the kernel may receive into and send from: a dma-buf bound to receive queues
 * of a NIC, or to its sending side. A binding lives as long as its netlink socket, which forked
 * children close (base/fork.h).
 */
struct nic_binding {
    int socket;  /* -1: not bound */
    uint32_t id; /* the dma-buf's number in control messages */
};

/* What this kernel has: 6.12 receives, since 6.16 it also sends. */
MUST_CHECK int nic_kernel_binds(bool *receive, bool *send);

/*
 * Fails if this process may not bind receive queues, for want of CAP_NET_ADMIN; the text says how
 * to get it. In a container, the capability for the container's network counts.
 */
MUST_CHECK int nic_check_privilege(void);

/*
 * The text has the kernel's own explanation if it gave one. *os_error, which may be NULL: the errno
 * behind a failure; EPERM without CAP_NET_ADMIN, EEXIST if one of the queues is bound already.
 */
MUST_CHECK int nic_bind_receive(unsigned ifindex, const unsigned *queues, unsigned count,
                                int dmabuf, struct nic_binding *binding, int *os_error);

/* Needs no privilege. */
MUST_CHECK int nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding,
                             int *os_error);

/*
 * {.socket = -1} is allowed.
 *
 * A binding for sending has to end before its interface goes away: kernels up to 7.2 crash when the
 * socket is closed after the driver was unloaded or the device removed. Its owner watches the link
 * (nic_watch_begin()) and ends the binding in time.
 */
void nic_unbind(struct nic_binding *binding);

/* Which receive queues use memory of an application: a dma-buf, io_uring's or AF_XDP's. */
MUST_CHECK int nic_find_bound_queues(unsigned ifindex, bool bound[NIC_MOST_QUEUES]);

/*
 * Pages of a receive binding that are out: with the NIC for what comes next, in sockets, or
 * received and not returned.
 */
MUST_CHECK int nic_count_pages_out(unsigned ifindex, uint32_t id, uint64_t *pages);

/* --- receive-side scaling ------------------------------------------------------------------ */

/*
 * The table by which a NIC's hash spreads ordinary traffic over its receive queues, before a change
 * and after it. Queues that are bound to device memory are taken out of it, and come back.
 */
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

/* --- flow rules ---------------------------------------------------------------------------- */

/*
 * An ntuple filter: TCP from `from` to `to`, both with ports, goes to a queue. IPv4, IPv6, or IPv4
 * in IPv6.
 */
struct nic_rule {
    struct sockaddr_storage from;
    struct sockaddr_storage to;
    unsigned queue;
    uint32_t location; /* the rule's number in the NIC, set by nic_rule_add() */
};

MUST_CHECK int nic_rule_add(const char *interface, struct nic_rule *rule);

/* Only if the rule at that location is still this one; *removed says so, and may be NULL. */
MUST_CHECK int nic_rule_remove(const char *interface, const struct nic_rule *rule, bool *removed);

/* --- steering ------------------------------------------------------------------------------ */

/*
 * Connections that are steered to receive queues by rules of the NIC. The rules of a process that
 * was killed stay in the NIC; the next process finds them in a journal and removes them.
 */

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

/* --- routes -------------------------------------------------------------------------------- */

/*
 * The interface through which packets from `from` to `to` leave. Where both have ports, it is the
 * one for TCP between these.
 */
MUST_CHECK int nic_of_route(const struct sockaddr_storage *from, const struct sockaddr_storage *to,
                            unsigned *ifindex);

/* --- interfaces that go down --------------------------------------------------------------- */

/* Instead of an index: the kernel dropped messages, so any interface may have gone down. */
enum { NIC_WATCH_LOST = 0 };

/*
 * From now on a thread of its own calls `down` at once with the index of each interface that is
 * shut down or removed, or with NIC_WATCH_LOST, after which `down` has to check the interfaces that
 * matter. All callers pass the same function, which may be called by two threads at once. Calls of
 * begin and end are counted; the last end waits until `down` has returned, without a lock.
 */
MUST_CHECK int nic_watch_begin(void (*down)(unsigned ifindex));
void nic_watch_end(void);

/* Whether the interface exists and is not shut down. */
bool nic_watch_is_up(unsigned ifindex);

/* --- inside, for tests --------------------------------------------------------------------- */

/*
 * The table without queues of `avoid`: their entries go to the other queues that the table uses,
 * round robin; if there are none, to any of the `queues`. False: no queue is left.
 */
MUST_CHECK bool nic_hash_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                              const bool avoid[NIC_MOST_QUEUES], uint32_t *planned);

struct ethtool_rx_flow_spec;

/* A rule as ethtool describes it; false if it cannot. Whether the NIC's rule is this one. */
MUST_CHECK bool nic_rule_to_spec(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec);
MUST_CHECK bool nic_rule_is_spec(const struct nic_rule *rule,
                                 const struct ethtool_rx_flow_spec *spec);

/* The last free location, since rules at lower ones take precedence. False: all are in use. */
MUST_CHECK bool nic_rule_place(const uint32_t *used, uint32_t count, uint32_t places,
                               uint32_t *location);

/* The rule for what arrives on a connected socket; its queue and location are 0. */
MUST_CHECK int steering_describe(int socket, struct nic_rule *rule);

#endif
