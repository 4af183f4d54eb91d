/* What the files of the plugin share. */
#ifndef TCPX_NCCL_PLUGIN_PLUGIN_STATE_H
#define TCPX_NCCL_PLUGIN_PLUGIN_STATE_H

#include "nccl_plugin/plugin.h"
#include "net/transport.h"

/* Both in a list that starts in their context; plugin_lock() guards it. */
struct plugin_listener {
    struct plugin_listener *next;
    struct plugin_context *context;
    struct net_listener *listener;
};

struct plugin_comm {
    struct plugin_comm *next;
    struct plugin_context *context;
    struct net_comm *comm;
    bool unpacks; /* its receives live until they are consumed */
};

struct plugin_context {
    struct plugin_listener *listeners;
    struct plugin_comm *comms;
};

/* Guards the lists of all contexts. */
void plugin_lock(void);
void plugin_unlock(void);

/* NULL becomes the context that never ends. */
struct plugin_context *plugin_context_or_shared(struct plugin_context *context);

/* Fails in words for a number that is none of ours. */
MUST_CHECK int plugin_device(int number, const struct net_device **device);

enum config_plugin_mode plugin_mode(void);

/* Known since the start: a connect is asked for again and again. */
struct net_link_options plugin_link_options(const struct plugin_context *context);

/* The last thing of every call: a failure gets its line in NCCL's log. */
int plugin_answer(const char *call, int result);

#endif
