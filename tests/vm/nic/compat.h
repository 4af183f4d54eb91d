/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that this module is built for: 6.12, whose
 * devmem TCP receives only, and 7.2. Nothing else looks at the version.
 */
#ifndef DEVMEM_PAIR_COMPAT_H
#define DEVMEM_PAIR_COMPAT_H

#include <linux/netdevice.h>
#include <linux/version.h>
#include <net/netdev_queues.h>
#include <net/page_pool/helpers.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 2, 0)

#include <net/netdev_lock.h>

/* Queue operations get the configuration of their queue. */
#define PAIR_QUEUE_CONFIG	struct netdev_queue_config *config,
#define PAIR_NO_CONFIG		NULL,

#define PAIR_RING_PARAMS	(ETHTOOL_RING_USE_TCP_DATA_SPLIT | ETHTOOL_RING_USE_HDS_THRS)
#define PAIR_HAS_SPLIT_LIMIT	1
#define PAIR_HAS_RING_COUNT	1
#define PAIR_HAS_DMA_DEVICE	1

/* The core asks for split packets itself before it binds a queue. */
static inline bool pair_may_be_unreadable(bool split)
{
	return true;
}

static inline void pair_allow_device_pages(struct net_device *dev)
{
	dev->netmem_tx = NETMEM_TX_DMA;
}

static inline dma_addr_t pair_device_page_address(netmem_ref page)
{
	return netmem_get_dma_addr(page);
}

/* The core holds the instance lock of the device around all that we do. */
#define pair_napi_add		netif_napi_add_locked
#define pair_napi_del		netif_napi_del_locked
#define pair_napi_enable	napi_enable_locked
#define pair_napi_disable	napi_disable_locked

#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0) && \
	LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)

#include <net/netdev_rx_queue.h>

#define PAIR_QUEUE_CONFIG
#define PAIR_NO_CONFIG

#define PAIR_RING_PARAMS	ETHTOOL_RING_USE_TCP_DATA_SPLIT
#define PAIR_HAS_SPLIT_LIMIT	0
#define PAIR_HAS_RING_COUNT	0
#define PAIR_HAS_DMA_DEVICE	0

#define page_pool_alloc_netmems	page_pool_alloc_netmem
#define pair_napi_add		netif_napi_add
#define pair_napi_del		netif_napi_del
#define pair_napi_enable	napi_enable
#define pair_napi_disable	napi_disable

static inline bool pair_may_be_unreadable(bool split)
{
	return split;
}

static inline void pair_allow_device_pages(struct net_device *dev)
{
}

/* Nothing can be sent from device pages here. */
static inline dma_addr_t pair_device_page_address(netmem_ref page)
{
	return page_pool_get_dma_addr_netmem(page);
}

#else
#error "devmem_pair knows the kernels 6.12 and 7.2"
#endif

#endif
