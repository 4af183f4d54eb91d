// SPDX-License-Identifier: GPL-2.0
/*
 * What ethtool asks for: rings and the split of headers, channels, steering,
 * counters.
 */
#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/netdevice.h>
#include <linux/string.h>

#include "devmem_pair.h"

static void get_driver(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, "devmem_pair", sizeof(info->driver));
}

/* --- rings */

static void get_rings(struct net_device *dev, struct ethtool_ringparam *rings,
		      struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct pair_device *pair = netdev_priv(dev);

	rings->rx_max_pending = PAIR_RING;
	rings->tx_max_pending = PAIR_RING;
	rings->rx_pending = PAIR_RING;
	rings->tx_pending = PAIR_RING;
	more->tcp_data_split = pair->split ? ETHTOOL_TCP_DATA_SPLIT_ENABLED :
					     ETHTOOL_TCP_DATA_SPLIT_DISABLED;
#if PAIR_HAS_SPLIT_LIMIT
	more->hds_thresh = pair->split_above;
	more->hds_thresh_max = 1024;
#endif
}

static int set_rings(struct net_device *dev, struct ethtool_ringparam *rings,
		     struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct pair_device *pair = netdev_priv(dev);

	if (rings->rx_pending != PAIR_RING || rings->tx_pending != PAIR_RING)
		return -EOPNOTSUPP;
	WRITE_ONCE(pair->split, more->tcp_data_split == ETHTOOL_TCP_DATA_SPLIT_ENABLED);
#if PAIR_HAS_SPLIT_LIMIT
	WRITE_ONCE(pair->split_above, more->hds_thresh);
#endif
	return 0;
}

static void get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	channels->max_combined = pair_queue_count;
	channels->combined_count = pair_queue_count;
}

/* --- steering */

static u32 get_slots(struct net_device *dev)
{
	return PAIR_HASH_SLOTS;
}

static u32 get_key_size(struct net_device *dev)
{
	return PAIR_HASH_KEY;
}

static int get_hash(struct net_device *dev, struct ethtool_rxfh_param *hash)
{
	struct pair_device *pair = netdev_priv(dev);

	hash->hfunc = ETH_RSS_HASH_TOP;
	if (hash->indir)
		memcpy(hash->indir, pair->slots, sizeof(pair->slots));
	if (hash->key)
		memcpy(hash->key, pair->key, sizeof(pair->key));
	return 0;
}

static int set_hash(struct net_device *dev, struct ethtool_rxfh_param *hash,
		    struct netlink_ext_ack *extack)
{
	struct pair_device *pair = netdev_priv(dev);
	unsigned int i;

	if (hash->hfunc != ETH_RSS_HASH_NO_CHANGE && hash->hfunc != ETH_RSS_HASH_TOP)
		return -EOPNOTSUPP;
	for (i = 0; hash->indir && i < PAIR_HASH_SLOTS; i++)
		WRITE_ONCE(pair->slots[i], hash->indir[i]);
	if (hash->key)
		memcpy(pair->key, hash->key, sizeof(pair->key));
	return 0;
}

static int get_rules(struct net_device *dev, struct ethtool_rxnfc *request, u32 *locations)
{
	struct pair_device *pair = netdev_priv(dev);

	switch (request->cmd) {
	case ETHTOOL_GRXRINGS:
		request->data = pair_queue_count;
		return 0;
	case ETHTOOL_GRXCLSRLCNT:
		request->rule_cnt = READ_ONCE(pair->rule_count);
		request->data = PAIR_MOST_RULES | RX_CLS_LOC_SPECIAL;
		return 0;
	case ETHTOOL_GRXCLSRULE:
		return pair_rule_get(pair, &request->fs);
	case ETHTOOL_GRXCLSRLALL:
		request->data = PAIR_MOST_RULES;
		return pair_rule_locations(pair, locations, &request->rule_cnt);
	default:
		return -EOPNOTSUPP;
	}
}

static int set_rules(struct net_device *dev, struct ethtool_rxnfc *request)
{
	struct pair_device *pair = netdev_priv(dev);

	switch (request->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		return pair_rule_add(pair, &request->fs);
	case ETHTOOL_SRXCLSRLDEL:
		return pair_rule_remove(pair, request->fs.location);
	default:
		return -EOPNOTSUPP;
	}
}

#if PAIR_HAS_RING_COUNT
static u32 get_ring_count(struct net_device *dev)
{
	return pair_queue_count;
}
#endif

/* --- counters, in the order of the structures */

static const char *const tx_names[] = {
	"packets", "bytes", "device_bytes", "page_bytes", "linear_bytes", "refused",
};

static const char *const rx_names[] = {
	"packets", "bytes", "device_bytes", "page_bytes", "linear_bytes", "pool_empty", "lost",
};

static_assert(ARRAY_SIZE(tx_names) * sizeof(atomic64_t) == sizeof(struct pair_tx_counters));
static_assert(ARRAY_SIZE(rx_names) * sizeof(u64) == sizeof(struct pair_rx_counters));

static int get_set_count(struct net_device *dev, int set)
{
	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return ARRAY_SIZE(tx_names) + pair_queue_count * ARRAY_SIZE(rx_names);
}

static void get_names(struct net_device *dev, u32 set, u8 *names)
{
	unsigned int queue;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(tx_names); i++)
		ethtool_sprintf(&names, "tx_%s", tx_names[i]);
	for (queue = 0; queue < pair_queue_count; queue++)
		for (i = 0; i < ARRAY_SIZE(rx_names); i++)
			ethtool_sprintf(&names, "rx%u_%s", queue, rx_names[i]);
}

static void get_counters(struct net_device *dev, struct ethtool_stats *stats, u64 *values)
{
	struct pair_device *pair = netdev_priv(dev);
	const atomic64_t *tx = (const atomic64_t *)&pair->tx;
	unsigned int queue;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(tx_names); i++)
		*values++ = atomic64_read(&tx[i]);
	for (queue = 0; queue < pair_queue_count; queue++) {
		memcpy(values, &pair->rx[queue], sizeof(pair->rx[queue]));
		values += ARRAY_SIZE(rx_names);
	}
}

const struct ethtool_ops pair_ethtool_operations = {
	.supported_ring_params	= PAIR_RING_PARAMS,
	.get_drvinfo		= get_driver,
	.get_link		= ethtool_op_get_link,
	.get_ringparam		= get_rings,
	.set_ringparam		= set_rings,
	.get_channels		= get_channels,
	.get_rxfh_indir_size	= get_slots,
	.get_rxfh_key_size	= get_key_size,
	.get_rxfh		= get_hash,
	.set_rxfh		= set_hash,
	.get_rxnfc		= get_rules,
	.set_rxnfc		= set_rules,
#if PAIR_HAS_RING_COUNT
	.get_rx_ring_count	= get_ring_count,
#endif
	.get_sset_count		= get_set_count,
	.get_strings		= get_names,
	.get_ethtool_stats	= get_counters,
};
