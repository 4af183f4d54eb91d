/* Rules by the ioctls of ethtool. The location of a rule is chosen here if the driver does not. */
#include "net/nic/nic.h"

#include "base/log.h"
#include "net/nic/ethtool.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what a rule matches ------------------------------------------------------------------- */

/* The fields up to these, and their masks, are all that a rule of ours sets. */
enum {
    IPV4_BYTES = offsetof(struct ethtool_tcpip4_spec, tos),
    IPV6_BYTES = offsetof(struct ethtool_tcpip6_spec, tclass),
};

bool nic_rule_to_spec(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_rx_flow_spec made = {.ring_cookie = rule->queue, .location = rule->location};
    struct ethtool_tcpip4_spec *ipv4 = &made.h_u.tcp_ip4_spec;
    struct ethtool_tcpip6_spec *ipv6 = &made.h_u.tcp_ip6_spec;
    union socket_address from = {.storage = rule->from};
    union socket_address to = {.storage = rule->to};

    socket_address_unmap(&from.storage);
    socket_address_unmap(&to.storage);
    if (from.storage.ss_family != to.storage.ss_family)
        return false;
    if (from.storage.ss_family == AF_INET) {
        made.flow_type = TCP_V4_FLOW;
        *ipv4 = (struct ethtool_tcpip4_spec){.ip4src = from.ipv4.sin_addr.s_addr,
                                             .ip4dst = to.ipv4.sin_addr.s_addr,
                                             .psrc = from.ipv4.sin_port,
                                             .pdst = to.ipv4.sin_port};
        memset(&made.m_u, 0xff, IPV4_BYTES);
    } else if (from.storage.ss_family == AF_INET6) {
        made.flow_type = TCP_V6_FLOW;
        memcpy(ipv6->ip6src, &from.ipv6.sin6_addr, sizeof ipv6->ip6src);
        memcpy(ipv6->ip6dst, &to.ipv6.sin6_addr, sizeof ipv6->ip6dst);
        ipv6->psrc = from.ipv6.sin6_port;
        ipv6->pdst = to.ipv6.sin6_port;
        memset(&made.m_u, 0xff, IPV6_BYTES);
    } else {
        return false;
    }
    /* Both families have their port at one place. */
    if (from.ipv4.sin_port == 0 || to.ipv4.sin_port == 0)
        return false;
    *spec = made;
    return true;
}

/*
 * Compares what a rule matches and its queue; drivers return arbitrary values in other fields. One
 * more byte of the mask is compared: the type of service, which our rules ignore.
 */
bool nic_rule_is_spec(const struct nic_rule *rule, const struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_rx_flow_spec ours;
    size_t bytes;

    if (!nic_rule_to_spec(rule, &ours) || ours.location != spec->location ||
        ours.flow_type != spec->flow_type || ours.ring_cookie != spec->ring_cookie)
        return false;
    bytes = ours.flow_type == TCP_V4_FLOW ? IPV4_BYTES : IPV6_BYTES;
    return memcmp(&ours.h_u, &spec->h_u, bytes) == 0 &&
           memcmp(&ours.m_u, &spec->m_u, bytes + 1) == 0;
}

/* --- where a rule is kept ------------------------------------------------------------------ */

bool nic_rule_place(const uint32_t *used, uint32_t count, uint32_t places, uint32_t *location)
{
    for (uint32_t place = places; place-- > 0;) {
        bool is_free = true;

        for (uint32_t i = 0; i < count && is_free; i++)
            is_free = used[i] != place;
        if (is_free) {
            *location = place;
            return true;
        }
    }
    return false;
}

/* RX_CLS_LOC_ANY where the driver chooses, else a free location. 0, or an errno. */
static int rule_choose_place(const char *interface, uint32_t *location)
{
    enum { MOST_RULES = 1 << 20 };
    struct ethtool_rxnfc count = {.cmd = ETHTOOL_GRXCLSRLCNT};
    struct ethtool_rxnfc *all;
    uint32_t rules;
    int error = ethtool_call(interface, &count);

    if (error != 0)
        return error;
    if ((count.data & RX_CLS_LOC_SPECIAL) != 0) {
        *location = RX_CLS_LOC_ANY;
        return 0;
    }
    rules = count.rule_cnt < MOST_RULES ? count.rule_cnt : MOST_RULES;
    all = calloc(1, sizeof *all + rules * sizeof *all->rule_locs);
    if (all == NULL)
        return ENOMEM;
    all->cmd = ETHTOOL_GRXCLSRLALL;
    all->rule_cnt = rules;
    error = ethtool_call(interface, all);
    if (error == 0 &&
        !nic_rule_place(all->rule_locs, all->rule_cnt < rules ? all->rule_cnt : rules,
                        all->data < UINT32_MAX ? (uint32_t)all->data : UINT32_MAX, location))
        error = ENOSPC;
    free(all);
    return error;
}

/* --- add and remove ------------------------------------------------------------------------ */

int nic_rule_add(const char *interface, struct nic_rule *rule)
{
    struct ethtool_rxnfc command = {.cmd = ETHTOOL_SRXCLSRLINS};
    char from[SOCKET_NAME_BYTES];
    char to[SOCKET_NAME_BYTES];
    char name[2 * SOCKET_NAME_BYTES + 40];
    int error;

    socket_address_name(&rule->from, from);
    socket_address_name(&rule->to, to);
    snprintf(name, sizeof name, "TCP from %s to %s to queue %u", from, to, rule->queue);
    if (!nic_rule_to_spec(rule, &command.fs))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%s: no rule can lead %s: both ends must be IPv4 or both IPv6, with ports",
                         interface, name);
    error = rule_choose_place(interface, &command.fs.location);
    if (error == 0)
        error = ethtool_call(interface, &command);
    if (error == EOPNOTSUPP)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s: cannot add a rule for %s: its driver has no ntuple rules, or they "
                         "are off; as root: 'ethtool -K %s ntuple on'",
                         interface, name, interface);
    if (error != 0)
        return ethtool_refused(error, "%s: cannot add a rule for %s", interface, name);
    rule->location = command.fs.location;
    log_debug("%s: rule %u leads %s", interface, rule->location, name);
    return TCPX_SUCCESS;
}

int nic_rule_remove(const char *interface, const struct nic_rule *rule, bool *removed)
{
    struct ethtool_rxnfc seen = {.cmd = ETHTOOL_GRXCLSRULE, .fs = {.location = rule->location}};
    struct ethtool_rxnfc command = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs = {.location = rule->location}};
    int error = ethtool_call(interface, &seen);
    /* There is no rule there; or no such interface any more, and with it went its rules. */
    bool gone = error == ENOENT || error == EINVAL || error == ENODEV || error == EOPNOTSUPP;
    bool is_ours = error == 0 && nic_rule_is_spec(rule, &seen.fs);

    if (is_ours)
        error = ethtool_call(interface, &command);
    if (error != 0 && !gone)
        return ethtool_refused(error, "%s: cannot remove rule %u", interface, rule->location);
    if (removed != NULL)
        *removed = is_ours;
    if (is_ours)
        log_debug("%s: rule %u is removed", interface, rule->location);
    return TCPX_SUCCESS;
}
