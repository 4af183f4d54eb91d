/* Reports at once when an interface is shut down or removed. */
#ifndef TCPX_NET_NIC_LINK_WATCH_H
#define TCPX_NET_NIC_LINK_WATCH_H

#include "base/error.h"

#include <stdbool.h>

/* Instead of an index: the kernel dropped messages, so any interface may have gone down. */
enum { NIC_WATCH_LOST = 0 };

/*
 * From now on a thread of its own calls `down` with the index of each such interface, or with
 * NIC_WATCH_LOST, after which `down` has to check the interfaces that matter. All callers pass the
 * same function. Calls of begin and end are counted; after the last end, `down` is not running.
 */
MUST_CHECK int nic_watch_begin(void (*down)(unsigned ifindex));
void nic_watch_end(void);

/* Whether the interface exists and is not shut down. */
bool nic_watch_is_up(unsigned ifindex);

#endif
