// SPDX-License-Identifier: GPL-2.0
/*
 * The two devices: dm0 and dm1 have one platform device as their parent, which
 * is also what memory is mapped for.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/random.h>

#include "devmem_pair.h"

MODULE_DESCRIPTION("two network devices back to back, for tests of devmem TCP");
MODULE_LICENSE("GPL");

/* What they mean is in the README. */
unsigned int pair_queue_count = 4;
module_param_named(nq, pair_queue_count, uint, 0444);

unsigned int pair_lro = 1;
module_param_named(lro, pair_lro, uint, 0644);

unsigned int pair_gro = 1;
module_param_named(gro, pair_gro, uint, 0644);

unsigned int pair_linear_bytes;
module_param_named(linear_bytes, pair_linear_bytes, uint, 0644);

unsigned int pair_unsplit_nth;
module_param_named(unsplit_nth, pair_unsplit_nth, uint, 0644);

unsigned int pair_drop_nth;
module_param_named(drop_nth, pair_drop_nth, uint, 0644);

unsigned int pair_frag_size = PAGE_SIZE;
module_param_named(frag_size, pair_frag_size, uint, 0644);

unsigned int pair_most_rules = PAIR_MOST_RULES;
module_param_named(most_rules, pair_most_rules, uint, 0644);

static struct platform_device *parent;
static struct net_device *devices[2];

static const struct net_device_ops device_operations = {
	.ndo_open		= pair_open,
	.ndo_stop		= pair_stop,
	.ndo_start_xmit		= pair_transmit,
	.ndo_set_mac_address	= eth_mac_addr,
	.ndo_validate_addr	= eth_validate_addr,
};

static void set_up(struct net_device *dev)
{
	ether_setup(dev);
	eth_hw_addr_random(dev);
	dev->netdev_ops = &device_operations;
	dev->ethtool_ops = &pair_ethtool_operations;
	dev->queue_mgmt_ops = &pair_queue_operations;
	pair_allow_device_pages(dev);
	dev->max_mtu = 9216;
	dev->features |= NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_RXCSUM | NETIF_F_TSO |
			 NETIF_F_TSO6 | NETIF_F_HIGHDMA | NETIF_F_NTUPLE;
	dev->hw_features |= dev->features;
}

static struct net_device *make_device(void)
{
	struct net_device *dev;
	struct pair_device *pair;
	unsigned int i;

	dev = alloc_netdev_mqs(sizeof(*pair), "dm%d", NET_NAME_ENUM, set_up,
			       pair_queue_count, pair_queue_count);
	if (!dev)
		return NULL;
	SET_NETDEV_DEV(dev, &parent->dev);
	pair = netdev_priv(dev);
	pair->dev = dev;
	mutex_init(&pair->rules_lock);
	for (i = 0; i < PAIR_HASH_SLOTS; i++)
		pair->slots[i] = ethtool_rxfh_indir_default(i, pair_queue_count);
	get_random_bytes(pair->key, sizeof(pair->key));
	return dev;
}

static void free_device(struct net_device *dev)
{
	if (!dev)
		return;
	pair_rules_clear(netdev_priv(dev));
	free_netdev(dev);
}

static int register_both(void)
{
	int error;

	netif_carrier_off(devices[0]);
	netif_carrier_off(devices[1]);
	error = register_netdev(devices[0]);
	if (error)
		return error;
	error = register_netdev(devices[1]);
	if (error)
		unregister_netdev(devices[0]);
	return error;
}

static int make_both(void)
{
	int error = -ENOMEM;

	devices[0] = make_device();
	devices[1] = make_device();
	if (devices[0] && devices[1]) {
		struct pair_device *first = netdev_priv(devices[0]);
		struct pair_device *second = netdev_priv(devices[1]);

		first->peer = devices[1];
		second->peer = devices[0];
		error = register_both();
	}
	if (error) {
		free_device(devices[0]);
		free_device(devices[1]);
	}
	return error;
}

static int __init pair_init(void)
{
	int error;

	pair_queue_count = clamp(pair_queue_count, 1U, (unsigned int)PAIR_MOST_QUEUES);
	parent = platform_device_register_simple("devmem_pair", -1, NULL, 0);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	/* With all of memory in reach nothing is bounced, and an address of the
	 * bus is a physical one: receive.c relies on it.
	 */
	error = dma_coerce_mask_and_coherent(&parent->dev, DMA_BIT_MASK(64));
	if (!error)
		error = make_both();
	if (error)
		platform_device_unregister(parent);
	return error;
}

static void __exit pair_exit(void)
{
	unregister_netdev(devices[0]);
	unregister_netdev(devices[1]);
	free_device(devices[0]);
	free_device(devices[1]);
	platform_device_unregister(parent);
}

module_init(pair_init);
module_exit(pair_exit);
