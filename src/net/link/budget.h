/*
 * How many connections the comms to one process may have beyond one each. All comms between two
 * processes share CPUs and network: more connections than these can keep busy only cost.
 */
#ifndef TCPX_NET_LINK_BUDGET_H
#define TCPX_NET_LINK_BUDGET_H

#include "base/error.h"

#include <stdint.h>

/*
 * *granted: at most `wanted`. The first comm may take all there is, a later one a quarter of what
 * is left, so that further comms get some, too. To be given back.
 */
MUST_CHECK int budget_take(uint64_t process, unsigned wanted, unsigned *granted);

void budget_give(uint64_t process, unsigned granted);

#endif
