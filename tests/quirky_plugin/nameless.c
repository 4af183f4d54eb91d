/*
 * A library with two tables: the older one is as it should be, the newer one has no name. Whoever
 * looks for the newest must find the second.
 */
#include "abi/net_tables.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct net_table ncclNetPlugin_v6 = {.name = "nameless"};
EXPORT struct net_table ncclNetPlugin_v8;
