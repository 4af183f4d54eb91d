// SPDX-License-Identifier: GPL-2.0
/*
 * The way in. A queue's poll plays the DMA engine of a card: it copies headers
 * to ordinary memory and TCP payload to pages of the queue's pool, wherever
 * those are, and hands the packet up. Faults that were asked for happen here.
 */
#include <linux/etherdevice.h>
#include <linux/io.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <net/ip.h>
#include <net/page_pool/helpers.h>

#include "devmem_pair.h"

/* One packet on the wire: part of what was sent, or all of it. */
struct wire_packet {
	const struct sk_buff *sent;
	unsigned int headers;	/* their length */
	unsigned int offset;	/* of the payload, in that of what was sent */
	unsigned int length;	/* of the payload */
	bool last;		/* of what was sent */
};

/* --- memory */

static void *at_bus_address(dma_addr_t address)
{
	return phys_to_virt(address);
}

static const void *frag_memory(const skb_frag_t *frag)
{
	if (!skb_frag_is_net_iov(frag))
		return skb_frag_address(frag);
	return at_bus_address(pair_device_page_address(skb_frag_netmem(frag)) +
			      skb_frag_off(frag));
}

static void copy_sent(const struct sk_buff *sent, unsigned int offset, void *to,
		      unsigned int length)
{
	const void *from = sent->data;
	unsigned int size = skb_headlen(sent);
	unsigned int next = 0;

	while (length) {
		if (offset < size) {
			unsigned int part = min(length, size - offset);

			memcpy(to, from + offset, part);
			to += part;
			offset += part;
			length -= part;
		}
		offset -= size;
		if (next == skb_shinfo(sent)->nr_frags)
			break;
		from = frag_memory(&skb_shinfo(sent)->frags[next]);
		size = skb_frag_size(&skb_shinfo(sent)->frags[next]);
		next++;
	}
}

/* --- one packet */

/* Payload from the given offset on to pages of the pool. */
static int fill_pages(struct pair_queue *queue, struct sk_buff *skb,
		      const struct wire_packet *packet, unsigned int done)
{
	unsigned int most = clamp(READ_ONCE(pair_frag_size), 64U, (unsigned int)PAGE_SIZE);

	/* A packet has only so many pages. */
	most = max(most, DIV_ROUND_UP(packet->length - done, MAX_SKB_FRAGS));
	while (done < packet->length) {
		unsigned int part = min(packet->length - done, most);
		netmem_ref page = page_pool_alloc_netmems(queue->pool, GFP_ATOMIC | __GFP_NOWARN);

		if (!page)
			return -ENOBUFS;
		copy_sent(packet->sent, packet->headers + packet->offset + done,
			  at_bus_address(page_pool_get_dma_addr_netmem(page)), part);
		skb_add_rx_frag_netmem(skb, skb_shinfo(skb)->nr_frags, page, 0, part, PAGE_SIZE);
		done += part;
	}
	return 0;
}

static struct sk_buff *build(struct pair_queue *queue, const struct wire_packet *packet,
			     unsigned int linear)
{
	struct sk_buff *skb = napi_alloc_skb(&queue->napi, packet->headers + linear);

	if (!skb)
		return NULL;
	copy_sent(packet->sent, 0, skb_put(skb, packet->headers), packet->headers);
	if (linear)
		copy_sent(packet->sent, packet->headers + packet->offset,
			  skb_put(skb, linear), linear);
	if (linear == packet->length)
		return skb;
	/* Only with pages of the pool: the kernel would merge a marked packet
	 * that has none of them with unreadable ones.
	 */
	skb_mark_for_recycle(skb);
	if (fill_pages(queue, skb, packet, linear) < 0) {
		dev_kfree_skb_any(skb);
		return NULL;
	}
	return skb;
}

/* The headers of a segment differ from those of the burst. */
static void correct_headers(struct sk_buff *skb, const struct wire_packet *packet,
			    unsigned int number)
{
	unsigned int network = skb_network_offset(packet->sent);
	struct tcphdr *tcp = (void *)skb->data + skb_transport_offset(packet->sent);
	unsigned int length = packet->headers - network + packet->length;

	if (packet->sent->protocol == htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)skb->data + network;

		ip->tot_len = htons(length);
		ip->id = htons(ntohs(ip->id) + number);
		ip_send_check(ip);
	} else {
		struct ipv6hdr *ip = (void *)skb->data + network;

		ip->payload_len = htons(length - sizeof(*ip));
	}
	tcp->seq = htonl(ntohl(tcp->seq) + packet->offset);
	if (!packet->last) {
		tcp->fin = 0;
		tcp->psh = 0;
	}
	if (packet->offset)
		tcp->cwr = 0;
}

static void count_payload(struct pair_rx_counters *count, const struct sk_buff *skb,
			  unsigned int linear)
{
	unsigned int i;

	count->linear_bytes += linear;
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		if (skb_frag_is_net_iov(frag))
			count->device_bytes += skb_frag_size(frag);
		else
			count->page_bytes += skb_frag_size(frag);
	}
}

static void deliver(struct pair_queue *queue, struct sk_buff *skb)
{
	queue->count->packets++;
	queue->count->bytes += skb->len;
	skb->protocol = eth_type_trans(skb, queue->dev);
	skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb_record_rx_queue(skb, queue->index);
	if (READ_ONCE(pair_gro))
		napi_gro_receive(&queue->napi, skb);
	else
		netif_receive_skb(skb);
}

static bool every_nth(unsigned int number, unsigned int n)
{
	return n && number % n == 0;
}

/* A packet with payload, as the faults leave it; NULL if it is lost. */
static struct sk_buff *receive(struct pair_queue *queue, const struct wire_packet *packet)
{
	struct pair_device *pair = netdev_priv(queue->dev);
	unsigned int number = atomic_inc_return(&pair->data_packets);
	unsigned int linear = packet->length;
	struct sk_buff *skb;

	if (every_nth(number, READ_ONCE(pair_drop_nth))) {
		queue->count->lost++;
		return NULL;
	}
	if (READ_ONCE(pair->split) && !every_nth(number, READ_ONCE(pair_unsplit_nth)) &&
	    packet->headers + packet->length > READ_ONCE(pair->split_above))
		linear = min(packet->length, READ_ONCE(pair_linear_bytes));
	skb = build(queue, packet, linear);
	if (!skb) {
		queue->count->pool_empty++;
		return NULL;
	}
	count_payload(queue->count, skb, linear);
	return skb;
}

/* --- what was sent */

static void receive_burst(struct pair_queue *queue, const struct wire_packet *burst)
{
	struct sk_buff *skb = receive(queue, burst);

	if (!skb)
		return;
	if (skb_is_gso(burst->sent)) {
		const struct skb_shared_info *sent = skb_shinfo(burst->sent);

		skb_shinfo(skb)->gso_size = sent->gso_size;
		skb_shinfo(skb)->gso_segs = DIV_ROUND_UP(burst->length, sent->gso_size);
		skb_shinfo(skb)->gso_type = sent->gso_type & (SKB_GSO_TCPV4 | SKB_GSO_TCPV6);
	}
	deliver(queue, skb);
}

static void receive_segments(struct pair_queue *queue, const struct wire_packet *burst)
{
	unsigned int most = skb_shinfo(burst->sent)->gso_size;
	struct wire_packet packet = *burst;
	unsigned int number;

	for (number = 0; packet.offset < burst->length; number++) {
		struct sk_buff *skb;

		packet.length = min(most, burst->length - packet.offset);
		packet.last = packet.offset + packet.length == burst->length;
		skb = receive(queue, &packet);
		if (skb) {
			correct_headers(skb, &packet, number);
			deliver(queue, skb);
		}
		packet.offset += packet.length;
	}
}

static void receive_whole(struct pair_queue *queue, const struct sk_buff *sent)
{
	struct sk_buff *skb = napi_alloc_skb(&queue->napi, sent->len);

	if (!skb)
		return;
	copy_sent(sent, 0, skb_put(skb, sent->len), sent->len);
	deliver(queue, skb);
}

static void receive_sent(struct pair_queue *queue, const struct sk_buff *sent)
{
	struct wire_packet burst = {
		.sent = sent,
		.headers = pair_tcp_headers(sent),
		.last = true,
	};

	if (!burst.headers || burst.headers == sent->len) {
		receive_whole(queue, sent);
		return;
	}
	burst.length = sent->len - burst.headers;
	if (!skb_is_gso(sent) ||
	    (READ_ONCE(pair_lro) && burst.length <= MAX_SKB_FRAGS * PAGE_SIZE))
		receive_burst(queue, &burst);
	else
		receive_segments(queue, &burst);
}

/* The sender goes on when enough of what is under way has left. */
void pair_wake_sender(struct pair_device *pair)
{
	/* Behind the count, as the sender's stop is before it. */
	smp_mb();
	if (atomic_read(&pair->under_way) < PAIR_LOW_WATER && netif_running(pair->peer))
		netif_tx_wake_all_queues(pair->peer);
}

int pair_poll(struct napi_struct *napi, int budget)
{
	struct pair_queue *queue = container_of(napi, struct pair_queue, napi);
	struct pair_device *pair = netdev_priv(queue->dev);
	struct sk_buff *sent;
	int done = 0;

	while (done < budget && (sent = skb_dequeue(&queue->sent)) != NULL) {
		atomic_dec(&pair->under_way);
		receive_sent(queue, sent);
		napi_consume_skb(sent, budget);
		done++;
	}
	pair_wake_sender(pair);
	/* A sender that schedules us while we complete is not lost: NAPI
	 * remembers it and polls again.
	 */
	if (done < budget)
		napi_complete_done(napi, done);
	return done;
}
