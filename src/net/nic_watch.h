/* Tells at once when an interface is shut down or gone. */
#ifndef TCPX_NET_NIC_WATCH_H
#define TCPX_NET_NIC_WATCH_H

#include "base/error.h"

/*
 * From now on `down` is called, by a thread of its own, with the index of each such interface; it
 * is the same function for all. Begin and end are counted. Nobody is in `down` any more when the
 * last end has returned.
 */
MUST_CHECK int nic_watch_begin(void (*down)(unsigned ifindex));
void nic_watch_end(void);

#endif
