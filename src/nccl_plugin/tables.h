/* The newest of the plugin's tables, for callers that do not look it up by its name. */
#ifndef TCPX_NCCL_PLUGIN_TABLES_H
#define TCPX_NCCL_PLUGIN_TABLES_H

#include "abi/net_tables.h"

extern struct net_table ncclNetPlugin_v12;

#endif
