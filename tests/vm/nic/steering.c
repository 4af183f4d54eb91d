// SPDX-License-Identifier: GPL-2.0
/*
 * Which receive queue a packet is for: that of the first rule that fits, in the
 * order of their locations, else what the hash of its flow says.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/jhash.h>
#include <linux/slab.h>
#include <linux/tcp.h>
#include <linux/unaligned.h>

#include "devmem_pair.h"

/* --- one rule */

static bool fits4(const struct ethtool_rx_flow_spec *spec, const struct sk_buff *skb)
{
	const struct ethtool_tcpip4_spec *value = &spec->h_u.tcp_ip4_spec;
	const struct ethtool_tcpip4_spec *mask = &spec->m_u.tcp_ip4_spec;
	const struct tcphdr *tcp = tcp_hdr(skb);
	const struct iphdr *ip = ip_hdr(skb);

	return !((ip->saddr ^ value->ip4src) & mask->ip4src) &&
	       !((ip->daddr ^ value->ip4dst) & mask->ip4dst) &&
	       !((tcp->source ^ value->psrc) & mask->psrc) &&
	       !((tcp->dest ^ value->pdst) & mask->pdst);
}

static bool fits_address6(const struct in6_addr *address, const __be32 *value, const __be32 *mask)
{
	int i;

	for (i = 0; i < 4; i++)
		if ((address->s6_addr32[i] ^ value[i]) & mask[i])
			return false;
	return true;
}

static bool fits6(const struct ethtool_rx_flow_spec *spec, const struct sk_buff *skb)
{
	const struct ethtool_tcpip6_spec *value = &spec->h_u.tcp_ip6_spec;
	const struct ethtool_tcpip6_spec *mask = &spec->m_u.tcp_ip6_spec;
	const struct tcphdr *tcp = tcp_hdr(skb);
	const struct ipv6hdr *ip = ipv6_hdr(skb);

	return fits_address6(&ip->saddr, value->ip6src, mask->ip6src) &&
	       fits_address6(&ip->daddr, value->ip6dst, mask->ip6dst) &&
	       !((tcp->source ^ value->psrc) & mask->psrc) &&
	       !((tcp->dest ^ value->pdst) & mask->pdst);
}

static bool fits(const struct ethtool_rx_flow_spec *spec, const struct sk_buff *skb)
{
	if (spec->flow_type == TCP_V4_FLOW)
		return skb->protocol == htons(ETH_P_IP) && fits4(spec, skb);
	return skb->protocol == htons(ETH_P_IPV6) && fits6(spec, skb);
}

/* --- the hash */

static u32 flow_hash(const struct pair_device *pair, const struct sk_buff *skb)
{
	u32 seed = get_unaligned((const u32 *)pair->key);
	const struct tcphdr *tcp = tcp_hdr(skb);
	u32 ports = (__force u32)tcp->source << 16 | (__force u32)tcp->dest;

	if (skb->protocol == htons(ETH_P_IPV6))
		return jhash(&ipv6_hdr(skb)->saddr, 2 * sizeof(struct in6_addr), seed ^ ports);
	return jhash_3words((__force u32)ip_hdr(skb)->saddr, (__force u32)ip_hdr(skb)->daddr,
			    ports, seed);
}

/* The caller is in a read section of RCU. */
unsigned int pair_steer(struct pair_device *pair, const struct sk_buff *skb)
{
	unsigned int i;

	if (!pair_tcp_headers(skb))
		return READ_ONCE(pair->slots[0]);
	for (i = 0; READ_ONCE(pair->rule_count) && i < PAIR_MOST_RULES; i++) {
		const struct pair_rule *rule = rcu_dereference(pair->rules[i]);

		if (rule && fits(&rule->spec, skb))
			return rule->spec.ring_cookie;
	}
	return READ_ONCE(pair->slots[flow_hash(pair, skb) % PAIR_HASH_SLOTS]);
}

/* --- all rules of a device */

static struct pair_rule *locked_rule(struct pair_device *pair, u32 location)
{
	if (location >= PAIR_MOST_RULES)
		return NULL;
	return rcu_dereference_protected(pair->rules[location],
					 lockdep_is_held(&pair->rules_lock));
}

static void replace(struct pair_device *pair, u32 location, struct pair_rule *rule)
{
	struct pair_rule *old = locked_rule(pair, location);

	rcu_assign_pointer(pair->rules[location], rule);
	WRITE_ONCE(pair->rule_count, pair->rule_count + !!rule - !!old);
	if (old)
		kfree_rcu(old, rcu);
}

/* A place for the rule, which the caller may have chosen. */
static int find_location(struct pair_device *pair, u32 *location)
{
	bool any = *location == RX_CLS_LOC_ANY;
	u32 i;

	if (!any && *location >= PAIR_MOST_RULES)
		return -EINVAL;
	if (!any && locked_rule(pair, *location))
		return 0;
	if (pair->rule_count >= min(READ_ONCE(pair_most_rules), (unsigned int)PAIR_MOST_RULES))
		return -ENOSPC;
	for (i = 0; any && i < PAIR_MOST_RULES; i++) {
		if (!locked_rule(pair, i)) {
			*location = i;
			break;
		}
	}
	return 0;
}

static bool is_known(const struct ethtool_rx_flow_spec *spec)
{
	if (spec->flow_type == TCP_V4_FLOW)
		return !spec->m_u.tcp_ip4_spec.tos;
	return spec->flow_type == TCP_V6_FLOW && !spec->m_u.tcp_ip6_spec.tclass;
}

int pair_rule_add(struct pair_device *pair, struct ethtool_rx_flow_spec *spec)
{
	struct pair_rule *rule;
	int error;

	if (!(pair->dev->features & NETIF_F_NTUPLE) || !is_known(spec))
		return -EOPNOTSUPP;
	if (spec->ring_cookie >= pair_queue_count)
		return -EINVAL;
	rule = kzalloc(sizeof(*rule), GFP_KERNEL);
	if (!rule)
		return -ENOMEM;
	mutex_lock(&pair->rules_lock);
	error = find_location(pair, &spec->location);
	if (!error) {
		rule->spec = *spec;
		replace(pair, spec->location, rule);
	}
	mutex_unlock(&pair->rules_lock);
	if (error)
		kfree(rule);
	return error;
}

int pair_rule_remove(struct pair_device *pair, u32 location)
{
	int error = -ENOENT;

	mutex_lock(&pair->rules_lock);
	if (locked_rule(pair, location)) {
		replace(pair, location, NULL);
		error = 0;
	}
	mutex_unlock(&pair->rules_lock);
	return error;
}

int pair_rule_get(struct pair_device *pair, struct ethtool_rx_flow_spec *spec)
{
	const struct pair_rule *rule;

	mutex_lock(&pair->rules_lock);
	rule = locked_rule(pair, spec->location);
	if (rule)
		*spec = rule->spec;
	mutex_unlock(&pair->rules_lock);
	return rule ? 0 : -ENOENT;
}

/* *count: the room in locations, then how many there are. */
int pair_rule_locations(struct pair_device *pair, u32 *locations, u32 *count)
{
	int error = 0;
	u32 found = 0;
	u32 i;

	mutex_lock(&pair->rules_lock);
	if (pair->rule_count > *count)
		error = -EMSGSIZE;
	for (i = 0; !error && i < PAIR_MOST_RULES; i++)
		if (locked_rule(pair, i))
			locations[found++] = i;
	mutex_unlock(&pair->rules_lock);
	if (!error)
		*count = found;
	return error;
}

void pair_rules_clear(struct pair_device *pair)
{
	u32 i;

	mutex_lock(&pair->rules_lock);
	for (i = 0; i < PAIR_MOST_RULES; i++)
		replace(pair, i, NULL);
	mutex_unlock(&pair->rules_lock);
}
