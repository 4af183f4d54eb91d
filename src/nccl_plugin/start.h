/*
 * What the plugin has found when it started: its mode, its devices and their properties. It is the
 * same for the life of the process, since NCCL keeps pointers to it; the calls below plugin_start()
 * are for after it.
 */
#ifndef TCPX_NCCL_PLUGIN_START_H
#define TCPX_NCCL_PLUGIN_START_H

#include "abi/net_tables.h"
#include "base/config.h"
#include "net/link/link.h"

/* Before the first start: mode unpack, whatever the environment sets, for callers that unpack. */
void plugin_unpack_always(void);

/* Reads the environment and looks for devices, once; after a failure the next call tries again. */
MUST_CHECK int plugin_start(void);

enum config_plugin_mode plugin_mode(void);

/* Whether NCCL's kernels unpack, so that irecv_consumed has to be called. */
bool plugin_unpacks(void);

int plugin_devices(int *count);
int plugin_properties(int number, struct net_properties_v12 *properties);

/* Fails with a text for a number that is not a device. */
MUST_CHECK int plugin_device(int number, const struct net_device **device);

/* Constant since the start, since connect is called many times until it is done. */
struct net_link_options plugin_link_options(const void *owner);

/* Ends every call of NCCL: a failure gets its line in NCCL's log. */
int plugin_answer(const char *call, int result);

#endif
