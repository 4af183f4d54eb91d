/* What this process may do to the network. */
#ifndef TCPX_NET_NIC_PRIVILEGE_H
#define TCPX_NET_NIC_PRIVILEGE_H

#include "base/error.h"

/*
 * Whether it has CAP_NET_ADMIN, without which no receive queue can be bound; the text says how to
 * get it. It counts where the process is: in a container, in that one's network.
 */
MUST_CHECK int privilege_check_net_admin(void);

#endif
