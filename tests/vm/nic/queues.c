// SPDX-License-Identifier: GPL-2.0
/*
 * The life of a receive queue. A queue owns its NAPI, its page pool and the
 * packets that wait for it; the kernel exchanges a whole queue for a new one
 * when a dma-buf is bound to it or unbound, and the pool of the new one then
 * gets its pages from there.
 */
#include <linux/slab.h>
#include <net/netdev_queues.h>
#include <net/page_pool/helpers.h>

#include "devmem_pair.h"

static struct page_pool *make_pool(struct pair_queue *queue)
{
	struct pair_device *pair = netdev_priv(queue->dev);
	struct page_pool_params params = {
		.pool_size = PAIR_RING,
		.nid = NUMA_NO_NODE,
		.dev = queue->dev->dev.parent,
		.napi = &queue->napi,
		.dma_dir = DMA_FROM_DEVICE,
		.max_len = PAGE_SIZE,
		.netdev = queue->dev,
		/* The kernel looks for a pool of this queue: without the index
		 * a bind fails.
		 */
		.queue_idx = queue->index,
		.flags = PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV,
	};

	if (pair_may_be_unreadable(pair->split))
		params.flags |= PP_FLAG_ALLOW_UNREADABLE_NETMEM;
	return page_pool_create(&params);
}

static struct pair_queue *make_queue(struct net_device *dev, unsigned int index)
{
	struct pair_device *pair = netdev_priv(dev);
	struct pair_queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL);

	if (!queue)
		return ERR_PTR(-ENOMEM);
	queue->dev = dev;
	queue->index = index;
	queue->count = &pair->rx[index];
	skb_queue_head_init(&queue->sent);
	pair_napi_add(dev, &queue->napi, pair_poll);
	queue->pool = make_pool(queue);
	if (IS_ERR(queue->pool)) {
		int error = PTR_ERR(queue->pool);

		pair_napi_del(&queue->napi);
		kfree(queue);
		return ERR_PTR(error);
	}
	return queue;
}

/* The queue is not started, or stopped. */
static void free_queue(struct pair_queue *queue)
{
	struct pair_device *pair = netdev_priv(queue->dev);

	/* A sender that found the queue before it was stopped is done then. */
	synchronize_net();
	atomic_sub(skb_queue_len(&queue->sent), &pair->under_way);
	skb_queue_purge(&queue->sent);
	pair_wake_sender(pair);
	pair_napi_del(&queue->napi);
	page_pool_destroy(queue->pool);
	kfree(queue);
}

static void start_queue(struct pair_queue *queue)
{
	struct pair_device *pair = netdev_priv(queue->dev);

	netif_queue_set_napi(queue->dev, queue->index, NETDEV_QUEUE_TYPE_RX, &queue->napi);
	pair_napi_enable(&queue->napi);
	rcu_assign_pointer(pair->queues[queue->index], queue);
}

static struct pair_queue *stop_queue(struct net_device *dev, unsigned int index)
{
	struct pair_device *pair = netdev_priv(dev);
	/* Whoever opens, stops or exchanges is alone: the core sees to it. */
	struct pair_queue *queue = rcu_dereference_protected(pair->queues[index], true);

	RCU_INIT_POINTER(pair->queues[index], NULL);
	netif_queue_set_napi(dev, index, NETDEV_QUEUE_TYPE_RX, NULL);
	pair_napi_disable(&queue->napi);
	page_pool_disable_direct_recycling(queue->pool);
	return queue;
}

/* --- what the kernel exchanges queues with: the memory is a pointer to ours */

static int queue_alloc(struct net_device *dev, PAIR_QUEUE_CONFIG void *memory, int index)
{
	struct pair_queue **queue = memory;

	*queue = make_queue(dev, index);
	return PTR_ERR_OR_ZERO(*queue);
}

static void queue_free(struct net_device *dev, void *memory)
{
	struct pair_queue **queue = memory;

	if (*queue)
		free_queue(*queue);
}

/* 6.12 also exchanges queues of a device that is down, which has none: what
 * was made for it is what goes.
 */
static int queue_start(struct net_device *dev, PAIR_QUEUE_CONFIG void *memory, int index)
{
	struct pair_queue **queue = memory;

	if (netif_running(dev))
		start_queue(*queue);
	else
		free_queue(*queue);
	return 0;
}

static int queue_stop(struct net_device *dev, void *memory, int index)
{
	struct pair_queue **queue = memory;

	*queue = netif_running(dev) ? stop_queue(dev, index) : NULL;
	return 0;
}

#if PAIR_HAS_DMA_DEVICE
static struct device *queue_dma_device(struct net_device *dev, int index)
{
	return dev->dev.parent;
}
#endif

const struct netdev_queue_mgmt_ops pair_queue_operations = {
	.ndo_queue_mem_size	= sizeof(struct pair_queue *),
	.ndo_queue_mem_alloc	= queue_alloc,
	.ndo_queue_mem_free	= queue_free,
	.ndo_queue_start	= queue_start,
	.ndo_queue_stop		= queue_stop,
#if PAIR_HAS_DMA_DEVICE
	.ndo_queue_get_dma_dev	= queue_dma_device,
#endif
};

/* --- all queues of a device */

/* There is a link when both ends are up. */
static void link_changed(struct pair_device *pair)
{
	if (netif_running(pair->dev) && netif_running(pair->peer)) {
		netif_carrier_on(pair->dev);
		netif_carrier_on(pair->peer);
	} else {
		netif_carrier_off(pair->dev);
		netif_carrier_off(pair->peer);
	}
}

int pair_open(struct net_device *dev)
{
	struct pair_queue *queues[PAIR_MOST_QUEUES];
	unsigned int i;

	for (i = 0; i < pair_queue_count; i++) {
		queues[i] = make_queue(dev, i);
		if (IS_ERR(queues[i])) {
			int error = PTR_ERR(queues[i]);

			while (i--)
				free_queue(queues[i]);
			return error;
		}
	}
	for (i = 0; i < pair_queue_count; i++)
		start_queue(queues[i]);
	netif_tx_start_all_queues(dev);
	link_changed(netdev_priv(dev));
	return 0;
}

int pair_stop(struct net_device *dev)
{
	unsigned int i;

	netif_tx_stop_all_queues(dev);
	link_changed(netdev_priv(dev));
	for (i = 0; i < pair_queue_count; i++)
		free_queue(stop_queue(dev, i));
	return 0;
}
