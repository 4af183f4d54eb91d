/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A pair of network devices, back to back in memory: what one sends the other
 * receives. This header is what the files of the module share.
 *
 *   main.c      the two devices, their parameters, module load and unload
 *   queues.c    a receive queue's life: made, started, stopped, exchanged
 *   transmit.c  a packet leaves a device and joins a receive queue of the other
 *   receive.c   the queue's packets become received ones: the part of the DMA
 *   steering.c  which receive queue a packet is for: rules, then the hash
 *   control.c   everything that ethtool asks for
 */
#ifndef DEVMEM_PAIR_H
#define DEVMEM_PAIR_H

#include <linux/atomic.h>
#include <linux/ethtool.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>

#include "compat.h"

enum {
	PAIR_MOST_QUEUES = 16,
	PAIR_MOST_RULES = 256,
	PAIR_HASH_SLOTS = 64,
	PAIR_HASH_KEY = 40,
	PAIR_RING = 1024,
	PAIR_HIGH_WATER = 512,	/* packets under way: the sender stops, */
	PAIR_LOW_WATER = 256,	/* and goes on */
};

/* Kept by the device, so that they survive the exchange of a queue. */
struct pair_rx_counters {
	u64 packets;
	u64 bytes;
	u64 device_bytes;	/* TCP payload in pages of a dma-buf, */
	u64 page_bytes;		/* in ordinary pages, */
	u64 linear_bytes;	/* and behind the headers */
	u64 pool_empty;		/* packets lost because there was no page */
	u64 lost;		/* packets lost on purpose */
};

struct pair_tx_counters {
	atomic64_t packets;
	atomic64_t bytes;
	atomic64_t device_bytes;
	atomic64_t page_bytes;
	atomic64_t linear_bytes;
	atomic64_t refused;	/* the other end was down or exchanged the queue */
};

struct pair_queue {
	struct napi_struct napi;
	struct net_device *dev;
	struct page_pool *pool;
	struct sk_buff_head sent;	/* by the other device, not received yet */
	unsigned int index;
	struct pair_rx_counters *count;
};

struct pair_rule {
	struct rcu_head rcu;
	struct ethtool_rx_flow_spec spec;
};

struct pair_device {
	struct net_device *dev;
	struct net_device *peer;
	struct pair_queue __rcu *queues[PAIR_MOST_QUEUES];
	atomic_t under_way;		/* packets in all of the queues */
	bool split;			/* headers from payload, */
	u32 split_above;		/* of packets longer than this */

	struct mutex rules_lock;	/* guards changes of rules and rule_count */
	struct pair_rule __rcu *rules[PAIR_MOST_RULES];
	unsigned int rule_count;
	u32 slots[PAIR_HASH_SLOTS];
	u8 key[PAIR_HASH_KEY];

	atomic_t data_packets;		/* for every Nth */
	struct pair_rx_counters rx[PAIR_MOST_QUEUES];
	struct pair_tx_counters tx;
};

/* main.c: the module's parameters, which its README explains. */
extern unsigned int pair_queue_count;
extern unsigned int pair_lro;
extern unsigned int pair_gro;
extern unsigned int pair_linear_bytes;
extern unsigned int pair_unsplit_nth;
extern unsigned int pair_drop_nth;
extern unsigned int pair_frag_size;
extern unsigned int pair_most_rules;

/* queues.c */
extern const struct netdev_queue_mgmt_ops pair_queue_operations;
int pair_open(struct net_device *dev);
int pair_stop(struct net_device *dev);

/* transmit.c */
netdev_tx_t pair_transmit(struct sk_buff *skb, struct net_device *dev);
unsigned int pair_tcp_headers(const struct sk_buff *skb);

/* receive.c */
int pair_poll(struct napi_struct *napi, int budget);
void pair_wake_sender(struct pair_device *pair);

/* steering.c */
unsigned int pair_steer(struct pair_device *pair, const struct sk_buff *skb);
int pair_rule_add(struct pair_device *pair, struct ethtool_rx_flow_spec *spec);
int pair_rule_remove(struct pair_device *pair, u32 location);
int pair_rule_get(struct pair_device *pair, struct ethtool_rx_flow_spec *spec);
int pair_rule_locations(struct pair_device *pair, u32 *locations, u32 *count);
void pair_rules_clear(struct pair_device *pair);

/* control.c */
extern const struct ethtool_ops pair_ethtool_operations;

#endif
