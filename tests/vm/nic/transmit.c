// SPDX-License-Identifier: GPL-2.0
/*
 * The way out: a packet is handed to the receive queue of the other device that
 * it is steered to, and stays the sender's until that queue has copied it,
 * which is its completion.
 */
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/ip.h>

#include "devmem_pair.h"

static bool is_tcp(const struct sk_buff *skb)
{
	if (!skb_transport_header_was_set(skb))
		return false;
	switch (skb->protocol) {
	case htons(ETH_P_IP):
		return ip_hdr(skb)->protocol == IPPROTO_TCP && !ip_is_fragment(ip_hdr(skb));
	case htons(ETH_P_IPV6):
		return ipv6_hdr(skb)->nexthdr == IPPROTO_TCP;
	default:
		return false;
	}
}

/* The length of all headers of a TCP packet; 0 for any other. */
unsigned int pair_tcp_headers(const struct sk_buff *skb)
{
	unsigned int length;

	if (!is_tcp(skb) ||
	    skb_transport_offset(skb) + sizeof(struct tcphdr) > skb_headlen(skb))
		return 0;
	length = skb_transport_offset(skb) + tcp_hdrlen(skb);
	return length <= skb_headlen(skb) ? length : 0;
}

static void count_sent(struct pair_device *pair, const struct sk_buff *skb)
{
	unsigned int headers = pair_tcp_headers(skb);
	unsigned int i;

	atomic64_inc(&pair->tx.packets);
	atomic64_add(skb->len, &pair->tx.bytes);
	if (!headers)
		return;
	atomic64_add(skb_headlen(skb) - headers, &pair->tx.linear_bytes);
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		atomic64_add(skb_frag_size(frag), skb_frag_is_net_iov(frag) ?
			     &pair->tx.device_bytes : &pair->tx.page_bytes);
	}
}

netdev_tx_t pair_transmit(struct sk_buff *skb, struct net_device *dev)
{
	struct pair_device *pair = netdev_priv(dev);
	struct pair_device *peer = netdev_priv(pair->peer);
	struct pair_queue *queue;

	rcu_read_lock();
	queue = rcu_dereference(peer->queues[pair_steer(peer, skb)]);
	if (!queue) {
		atomic64_inc(&pair->tx.refused);
		dev_kfree_skb_any(skb);
		goto out;
	}
	count_sent(pair, skb);
	skb_tx_timestamp(skb);
	skb_queue_tail(&queue->sent, skb);
	if (atomic_inc_return(&peer->under_way) >= PAIR_HIGH_WATER) {
		netif_tx_stop_all_queues(dev);
		/* The receiver may have looked just before we stopped. */
		smp_mb();
		if (atomic_read(&peer->under_way) < PAIR_LOW_WATER)
			netif_tx_wake_all_queues(dev);
	}
	napi_schedule(&queue->napi);
out:
	rcu_read_unlock();
	return NETDEV_TX_OK;
}
