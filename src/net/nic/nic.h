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

#include "net/nic/dmabuf_binding.h"
#include "net/nic/features.h"
#include "net/nic/flow_rule.h"
#include "net/nic/header_split.h"
#include "net/nic/link_watch.h"
#include "net/nic/route.h"
#include "net/nic/rss.h"
#include "net/nic/steering.h"

#endif
