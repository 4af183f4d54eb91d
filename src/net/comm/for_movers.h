/*
 * What a comm shows to its movers (net/gpu), which bring sources and sinks of their own: its state,
 * its requests and how they end, and how it fails. All others use comm.h.
 */
#ifndef TCPX_NET_COMM_FOR_MOVERS_H
#define TCPX_NET_COMM_FOR_MOVERS_H

#include "net/comm/accounting.h"
#include "net/comm/comm_state.h"
#include "net/comm/fail.h"
#include "net/comm/memory.h"
#include "net/comm/parts.h"
#include "net/comm/request.h"
#include "net/comm/rx_done.h"
#include "net/comm/rx_unexpected.h"
#include "net/comm/slices.h"
#include "net/comm/tx_work.h"

#endif
