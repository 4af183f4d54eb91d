/* What both sides of a link have in common: default options and closing. */
#include "net/link/link.h"

#include "base/config.h"
#include "net/io/io.h"
#include "net/link/budget.h"

/* One for each thread that can own it. */
static unsigned link_useful_sockets(const struct io_plan *plan)
{
    if (plan->cpus_are_scarce || plan->threads == 0)
        return 1;
    return plan->threads < WIRE_MOST_SOCKETS ? plan->threads : WIRE_MOST_SOCKETS;
}

int net_link_defaults(enum wire_match match, struct net_link_options *options)
{
    enum { HANDSHAKE_MS = 5000, LEAST_CREDIT = 64 << 10, CREDIT_MESSAGES = 8 };
    const struct config *config;
    uint64_t credit;
    struct io_plan plan;
    unsigned sockets;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = io_plan(&plan);
    if (result != TCPX_SUCCESS)
        return result;
    credit = CREDIT_MESSAGES * (config->eager_bytes + WIRE_EAGER_CHARGE);
    credit = credit > LEAST_CREDIT ? credit : LEAST_CREDIT;
    if (match == WIRE_MATCH_FIFO)
        credit += config->ahead_bytes;
    sockets =
        config->sockets != CONFIG_AUTO ? (unsigned)config->sockets : link_useful_sockets(&plan);
    *options = (struct net_link_options){
        .sockets = (uint8_t)sockets,
        .match = match,
        .framing = config->soft_devmem != 0 ? WIRE_SEPARATE : WIRE_INLINE,
        .gpu = -1,
        .eager_limit = config->eager_bytes,
        .eager_credit = credit,
        .largest_slice = NET_HOST_SHARE * config->slice_bytes,
        .timeout_ms = config->timeout_ms,
        .handshake_ms = HANDSHAKE_MS,
    };
    return TCPX_SUCCESS;
}

void net_link_close(struct net_link *link)
{
    for (unsigned i = 0; i < WIRE_MOST_SOCKETS; i++)
        socket_close(&link->forward[i]);
    socket_close(&link->reverse);
    devmem_link_close(link->devmem);
    link->devmem = NULL;
    budget_give(link->process, link->budgeted);
    link->budgeted = 0;
}
