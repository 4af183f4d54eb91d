/* Tells at once when an interface is shut down or gone. */
#ifndef TCPX_NET_NIC_NIC_WATCH_H
#define TCPX_NET_NIC_NIC_WATCH_H

#include "base/error.h"

#include <stdbool.h>

/* In place of an index: the kernel dropped messages, so any interface may have gone down. */
enum { NIC_WATCH_LOST = 0 };

/*
 * From now on `down` is called, by a thread of its own, with the index of each such interface, or
 * with NIC_WATCH_LOST, after which it has to look at those that matter; it is the same function for
 * all. Begin and end are counted. Nobody is in `down` any more when the last end has returned.
 */
MUST_CHECK int nic_watch_begin(void (*down)(unsigned ifindex));
void nic_watch_end(void);

/* Whether there is such an interface now, and it is not shut down. */
bool nic_watch_is_up(unsigned ifindex);

#endif
