/*
 * Header split by netlink, since ioctls do not know it; queues, hash and rules by ioctls, since
 * netlink does not know rules.
 */
#include "net/nic/nic.h"

#include "base/log.h"
#include "net/nic/netlink.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* --- header split -------------------------------------------------------------------------- */

/* Numbers of the interface, which older headers lack. */
enum {
    RINGS_GET = 15,
    RINGS_SET = 16,
    RINGS_HEADER = 1,
    RINGS_TCP_DATA_SPLIT = 11,
    RINGS_HDS_THRESH = 17,
    HEADER_DEV_NAME = 2,

    SPLIT_OFF = 1,
    SPLIT_ON = 2,
};

struct rings_answer {
    bool has_split;
    struct nic_rings rings;
};

static int read_rings(void *owner, struct netlink_span attributes)
{
    struct rings_answer *answer = owner;
    uint64_t split;
    uint64_t threshold;

    answer->has_split = netlink_find_number(attributes, RINGS_TCP_DATA_SPLIT, &split);
    if (answer->has_split)
        answer->rings.split = split == SPLIT_ON    ? NIC_SPLIT_ON
                              : split == SPLIT_OFF ? NIC_SPLIT_OFF
                                                   : NIC_SPLIT_UNKNOWN;
    answer->rings.has_threshold =
        netlink_find_number(attributes, RINGS_HDS_THRESH, &threshold) && threshold <= UINT32_MAX;
    if (answer->rings.has_threshold)
        answer->rings.threshold = (uint32_t)threshold;
    return 0;
}

/* Asks family "ethtool" about the rings of an interface, or to change them to what `wanted` has. */
static int ask_rings(const char *interface, const struct nic_rings *wanted,
                     struct rings_answer *answer, struct netlink_verdict *verdict)
{
    struct netlink_request request;
    struct netlink_family ethtool;
    struct netlink netlink;
    size_t nest;
    int result = netlink_open(NETLINK_GENERIC, &netlink);

    *verdict = (struct netlink_verdict){.error = EIO};
    if (result != TCPX_SUCCESS)
        return result;
    if (netlink_find_family(&netlink, "ethtool", &ethtool, verdict) == 0) {
        netlink_begin_generic(&request, ethtool.id, wanted != NULL ? RINGS_SET : RINGS_GET, 0);
        nest = netlink_nest(&request, RINGS_HEADER);
        netlink_put_text(&request, HEADER_DEV_NAME, interface);
        netlink_nest_end(&request, nest);
        if (wanted != NULL)
            netlink_put_u8(&request, RINGS_TCP_DATA_SPLIT, SPLIT_ON);
        if (wanted != NULL && wanted->has_threshold)
            netlink_put_u32(&request, RINGS_HDS_THRESH, wanted->threshold);
        netlink_ask(&netlink, &request, answer != NULL ? read_rings : NULL, answer, verdict);
    }
    netlink_close(&netlink);
    if (verdict->error == 0)
        return TCPX_SUCCESS;
    return netlink_refused(verdict, "%s: cannot %s header split (tcp-data-split)", interface,
                           wanted != NULL ? "switch on" : "ask about");
}

int nic_get_rings(const char *interface, struct nic_rings *rings, int *os_error)
{
    struct rings_answer answer = {0};
    struct netlink_verdict verdict;
    int result = ask_rings(interface, NULL, &answer, &verdict);

    /* The kernel leaves out what a driver does not say. */
    if (result == TCPX_SUCCESS && !answer.has_split && !answer.rings.has_threshold) {
        verdict.error = EOPNOTSUPP;
        result = error_set(TCPX_SYSTEM_ERROR,
                           "%s: its driver does not know header split (tcp-data-split)", interface);
    }
    if (result == TCPX_SUCCESS)
        *rings = answer.rings;
    else if (os_error != NULL)
        *os_error = verdict.error;
    return result;
}

int nic_split_headers(const char *interface)
{
    struct nic_rings rings = {0};
    struct netlink_verdict verdict;
    int error = 0;
    int result = nic_get_rings(interface, &rings, &error);

    /* A driver that says nothing is asked all the same: the refusal comes in the kernel's words. */
    if (result != TCPX_SUCCESS && error != EOPNOTSUPP)
        return result;
    if (rings.split == NIC_SPLIT_ON && (!rings.has_threshold || rings.threshold == 0))
        return TCPX_SUCCESS;
    rings.threshold = 0;
    result = ask_rings(interface, &rings, NULL, &verdict);
    if (result == TCPX_SUCCESS)
        log_debug("%s: header split is on now", interface);
    return result;
}

/* --- ioctls -------------------------------------------------------------------------------- */

/* 0, or an errno. */
static int ethtool(const char *interface, void *command)
{
    struct ifreq request = {.ifr_data = command};
    int error;
    int fd;

    if (strlen(interface) >= sizeof request.ifr_name)
        return ENODEV;
    memcpy(request.ifr_name, interface, strlen(interface) + 1);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    error = ioctl(fd, SIOCETHTOOL, &request) == 0 ? 0 : errno;
    close(fd);
    return error;
}

#define refused(code, ...) netlink_refused(&(struct netlink_verdict){.error = (code)}, __VA_ARGS__)

int nic_count_queues(const char *interface, unsigned *queues)
{
    struct ethtool_rxnfc rings = {.cmd = ETHTOOL_GRXRINGS};
    struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
    uint64_t count = 0;
    int error = ethtool(interface, &rings);

    if (error == 0) {
        count = rings.data;
    } else if (error == EOPNOTSUPP) {
        error = ethtool(interface, &channels);
        count = (uint64_t)channels.rx_count + channels.combined_count;
    }
    if (error != 0)
        return refused(error, "%s: cannot ask how many receive queues it has", interface);
    *queues = count < NIC_MOST_QUEUES ? (unsigned)count : NIC_MOST_QUEUES;
    return TCPX_SUCCESS;
}

int nic_computes_checksums(const char *interface, bool *computes)
{
    struct ethtool_value value = {.cmd = ETHTOOL_GTXCSUM};
    int error = ethtool(interface, &value);

    if (error != 0)
        return refused(error, "%s: cannot ask whether it computes checksums", interface);
    *computes = value.data != 0;
    return TCPX_SUCCESS;
}

int nic_has_rules(const char *interface, bool *has_rules)
{
    struct ethtool_value flags = {.cmd = ETHTOOL_GFLAGS};
    struct ethtool_rxnfc count = {.cmd = ETHTOOL_GRXCLSRLCNT};
    int error = ethtool(interface, &flags);

    if (error != 0)
        return refused(error, "%s: cannot ask whether ntuple rules are on", interface);
    *has_rules = (flags.data & ETH_FLAG_NTUPLE) != 0 && ethtool(interface, &count) == 0;
    return TCPX_SUCCESS;
}

/* --- the hash of ordinary traffic ---------------------------------------------------------- */

enum {
    MOST_ENTRIES = 1 << 16,
    /* How the hash's input is transformed: a byte that headers name differently. */
    TRANSFORM_AT = offsetof(struct ethtool_rxfh, hfunc) + 1,
};

struct nic_hash {
    bool is_old;       /* a kernel or driver with the old command only */
    uint8_t transform; /* to be handed back as it was */
    uint32_t entries;
    uint32_t *before;
    uint32_t *after;
};

static void hash_free(struct nic_hash *hash)
{
    if (hash != NULL) {
        free(hash->before);
        free(hash->after);
    }
    free(hash);
}

/* Both commands have a header and the table behind it. */
static int exchange(const char *interface, const struct nic_hash *hash, bool set, uint32_t *table)
{
    size_t head = hash->is_old ? sizeof(struct ethtool_rxfh_indir) : sizeof(struct ethtool_rxfh);
    size_t bytes = hash->entries * sizeof *table;
    uint8_t *command = calloc(1, head + bytes);
    int error;

    if (command == NULL)
        return ENOMEM;
    if (hash->is_old) {
        const struct ethtool_rxfh_indir old = {.cmd = set ? ETHTOOL_SRXFHINDIR : ETHTOOL_GRXFHINDIR,
                                               .size = hash->entries};

        memcpy(command, &old, sizeof old);
    } else {
        const struct ethtool_rxfh new = {.cmd = set ? ETHTOOL_SRSSH : ETHTOOL_GRSSH,
                                         .indir_size = hash->entries};

        memcpy(command, &new, sizeof new);
        if (set)
            command[TRANSFORM_AT] = hash->transform;
    }
    if (set && bytes > 0)
        memcpy(command + head, table, bytes);
    error = ethtool(interface, command);
    if (error == 0 && !set && bytes > 0)
        memcpy(table, command + head, bytes);
    free(command);
    return error;
}

/* How long the table is, and by which command it is reached. */
static int measure_hash(const char *interface, struct nic_hash *hash)
{
    struct ethtool_rxfh new = {.cmd = ETHTOOL_GRSSH};
    struct ethtool_rxfh_indir old = {.cmd = ETHTOOL_GRXFHINDIR};
    int error = ethtool(interface, &new);

    if (error == 0) {
        hash->entries = new.indir_size;
        memcpy(&hash->transform, (const uint8_t *)&new + TRANSFORM_AT, sizeof hash->transform);
    } else if (error == EOPNOTSUPP) {
        error = ethtool(interface, &old);
        hash->entries = old.size;
        hash->is_old = true;
    }
    if (error == 0 && hash->entries == 0)
        error = EOPNOTSUPP;
    return error == 0 && hash->entries > MOST_ENTRIES ? EOVERFLOW : error;
}

/* NULL: *error says why. */
static struct nic_hash *hash_read(const char *interface, int *error)
{
    struct nic_hash *hash = calloc(1, sizeof *hash);

    if (hash == NULL) {
        *error = ENOMEM;
        return NULL;
    }
    *error = measure_hash(interface, hash);
    if (*error == 0) {
        hash->before = calloc(hash->entries, sizeof *hash->before);
        hash->after = calloc(hash->entries, sizeof *hash->after);
        *error = hash->before == NULL || hash->after == NULL ? ENOMEM : 0;
    }
    if (*error == 0)
        *error = exchange(interface, hash, false, hash->before);
    if (*error == 0)
        return hash;
    hash_free(hash);
    return NULL;
}

/* Queues that entries can lead to; how many. */
static unsigned choose_queues(const uint32_t *table, uint32_t entries, unsigned queues,
                              const bool avoid[NIC_MOST_QUEUES], uint32_t chosen[NIC_MOST_QUEUES])
{
    bool used[NIC_MOST_QUEUES] = {false};
    unsigned count = 0;

    for (uint32_t i = 0; i < entries; i++)
        if (table[i] < NIC_MOST_QUEUES)
            used[table[i]] = true;
    for (unsigned i = 0; i < NIC_MOST_QUEUES; i++)
        if (used[i] && !avoid[i])
            chosen[count++] = i;
    if (count > 0)
        return count;
    for (unsigned i = 0; i < queues && i < NIC_MOST_QUEUES; i++)
        if (!avoid[i])
            chosen[count++] = i;
    return count;
}

/* From the end on: as nobody does who spreads packets evenly over some queues. */
bool nic_hash_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                   const bool avoid[NIC_MOST_QUEUES], uint32_t *planned)
{
    uint32_t chosen[NIC_MOST_QUEUES];
    unsigned count = choose_queues(table, entries, queues, avoid, chosen);
    unsigned next = 0;

    if (count == 0)
        return false;
    for (uint32_t i = 0; i < entries; i++)
        planned[i] = table[i] < NIC_MOST_QUEUES && avoid[table[i]]
                         ? chosen[count - 1 - next++ % count]
                         : table[i];
    return true;
}

/* As the kernel spreads packets where nobody said anything, but for these queues. */
static bool plan_from_default(uint32_t entries, unsigned queues, const bool avoid[NIC_MOST_QUEUES],
                              uint32_t *planned)
{
    if (queues == 0)
        return false;
    for (uint32_t i = 0; i < entries; i++)
        planned[i] = i % queues;
    return nic_hash_plan(planned, entries, queues, avoid, planned);
}

/* Whether it is that, for the queues that it does not lead to: nobody chose it but those here. */
static bool is_from_default(const uint32_t *table, uint32_t entries, unsigned queues,
                            uint32_t *scratch)
{
    bool unused[NIC_MOST_QUEUES];

    memset(unused, true, sizeof unused);
    for (uint32_t i = 0; i < entries; i++)
        if (table[i] < NIC_MOST_QUEUES)
            unused[table[i]] = false;
    return plan_from_default(entries, queues, unused, scratch) &&
           memcmp(table, scratch, entries * sizeof *table) == 0;
}

int nic_hash_avoid(const char *interface, const bool avoid[NIC_MOST_QUEUES],
                   struct nic_hash **before)
{
    struct nic_hash *hash;
    unsigned queues;
    bool planned;
    int error;
    int result = nic_count_queues(interface, &queues);

    if (result != TCPX_SUCCESS)
        return result;
    hash = hash_read(interface, &error);
    if (hash == NULL)
        return refused(error, "%s: cannot read how its hash spreads packets over queues",
                       interface);
    planned = is_from_default(hash->before, hash->entries, queues, hash->after)
                  ? plan_from_default(hash->entries, queues, avoid, hash->after)
                  : nic_hash_plan(hash->before, hash->entries, queues, avoid, hash->after);
    if (!planned) {
        hash_free(hash);
        return error_set(TCPX_INVALID_USAGE,
                         "%s: of its %u receive queue%s none would be left for other traffic; "
                         "'ethtool -L %s' can give it more",
                         interface, queues, queues == 1 ? "" : "s", interface);
    }
    if (memcmp(hash->before, hash->after, hash->entries * sizeof *hash->before) == 0) {
        hash_free(hash);
        *before = NULL;
        return TCPX_SUCCESS;
    }
    error = exchange(interface, hash, true, hash->after);
    if (error != 0) {
        hash_free(hash);
        return refused(error, "%s: cannot lead ordinary traffic away from queues", interface);
    }
    *before = hash;
    return TCPX_SUCCESS;
}

static bool is_any(const bool flags[NIC_MOST_QUEUES])
{
    for (unsigned i = 0; i < NIC_MOST_QUEUES; i++)
        if (flags[i])
            return true;
    return false;
}

/*
 * A table of no entries stands for the default. Only by it does the kernel forget that somebody
 * chose the table, and let the number of queues be changed as before.
 */
static int put_default(const char *interface, const struct nic_hash *now)
{
    const struct nic_hash none = {.is_old = now->is_old, .transform = now->transform};
    int error = exchange(interface, &none, true, NULL);

    return error != 0 ? exchange(interface, now, true, now->after) : 0;
}

/* now->after is where the new table goes. */
static int put_back(const char *interface, struct nic_hash *now, const struct nic_hash *before,
                    const bool still[NIC_MOST_QUEUES])
{
    unsigned queues = 0;

    if (nic_count_queues(interface, &queues) != TCPX_SUCCESS)
        return ENODEV;
    if (is_from_default(now->before, now->entries, queues, now->after)) {
        if (!plan_from_default(now->entries, queues, still, now->after))
            return EINVAL;
        return is_any(still) ? exchange(interface, now, true, now->after)
                             : put_default(interface, now);
    }
    if (before == NULL || is_any(still))
        return 0;
    if (now->entries != before->entries ||
        memcmp(now->before, before->after, before->entries * sizeof *before->after) != 0) {
        log_debug("%s: somebody changed how its hash spreads packets; it stays so", interface);
        return 0;
    }
    return exchange(interface, before, true, before->before);
}

void nic_hash_restore(const char *interface, struct nic_hash *before,
                      const bool still[NIC_MOST_QUEUES])
{
    int error = 0;
    struct nic_hash *now = hash_read(interface, &error);

    if (now != NULL)
        error = put_back(interface, now, before, still);
    if (error != 0)
        log_debug("%s: its hash could not be put back: %s", interface, strerror(error));
    hash_free(now);
    hash_free(before);
}

/* --- rules --------------------------------------------------------------------------------- */

/* IPv4, also inside IPv6. */
static bool as_ipv4(const struct sockaddr_storage *address, uint32_t *ip, uint16_t *port)
{
    const union socket_address any = {.storage = *address};

    if (address->ss_family == AF_INET) {
        *ip = any.ipv4.sin_addr.s_addr;
        *port = any.ipv4.sin_port;
        return true;
    }
    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr))
        return false;
    memcpy(ip, any.ipv6.sin6_addr.s6_addr + 12, sizeof *ip);
    *port = any.ipv6.sin6_port;
    return true;
}

static bool as_ipv6(const struct sockaddr_storage *address, uint32_t ip[4], uint16_t *port)
{
    const union socket_address any = {.storage = *address};

    if (address->ss_family != AF_INET6 || IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr))
        return false;
    memcpy(ip, &any.ipv6.sin6_addr, sizeof any.ipv6.sin6_addr);
    *port = any.ipv6.sin6_port;
    return true;
}

static bool put_ipv4(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_tcpip4_spec *value = &spec->h_u.tcp_ip4_spec;
    struct ethtool_tcpip4_spec *mask = &spec->m_u.tcp_ip4_spec;

    if (!as_ipv4(&rule->from, &value->ip4src, &value->psrc) ||
        !as_ipv4(&rule->to, &value->ip4dst, &value->pdst))
        return false;
    spec->flow_type = TCP_V4_FLOW;
    mask->ip4src = mask->ip4dst = UINT32_MAX;
    mask->psrc = mask->pdst = UINT16_MAX;
    return value->psrc != 0 && value->pdst != 0;
}

static bool put_ipv6(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_tcpip6_spec *value = &spec->h_u.tcp_ip6_spec;
    struct ethtool_tcpip6_spec *mask = &spec->m_u.tcp_ip6_spec;

    if (!as_ipv6(&rule->from, value->ip6src, &value->psrc) ||
        !as_ipv6(&rule->to, value->ip6dst, &value->pdst))
        return false;
    spec->flow_type = TCP_V6_FLOW;
    memset(mask->ip6src, 0xff, sizeof mask->ip6src);
    memset(mask->ip6dst, 0xff, sizeof mask->ip6dst);
    mask->psrc = mask->pdst = UINT16_MAX;
    return value->psrc != 0 && value->pdst != 0;
}

bool nic_rule_to_spec(const struct nic_rule *rule, struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_rx_flow_spec made = {.ring_cookie = rule->queue, .location = rule->location};

    if (!put_ipv4(rule, &made)) {
        memset(&made.h_u, 0, sizeof made.h_u);
        memset(&made.m_u, 0, sizeof made.m_u);
        if (!put_ipv6(rule, &made))
            return false;
    }
    *spec = made;
    return true;
}

static bool same_ipv4(const struct ethtool_tcpip4_spec *a, const struct ethtool_tcpip4_spec *b)
{
    return a->ip4src == b->ip4src && a->ip4dst == b->ip4dst && a->psrc == b->psrc &&
           a->pdst == b->pdst;
}

static bool same_ipv6(const struct ethtool_tcpip6_spec *a, const struct ethtool_tcpip6_spec *b)
{
    return memcmp(a->ip6src, b->ip6src, sizeof a->ip6src) == 0 &&
           memcmp(a->ip6dst, b->ip6dst, sizeof a->ip6dst) == 0 && a->psrc == b->psrc &&
           a->pdst == b->pdst;
}

/* What a rule matches and where it leads counts; drivers hand back other fields as they like. */
bool nic_rule_is_spec(const struct nic_rule *rule, const struct ethtool_rx_flow_spec *spec)
{
    struct ethtool_rx_flow_spec ours;

    if (!nic_rule_to_spec(rule, &ours) || ours.location != spec->location ||
        ours.flow_type != spec->flow_type || ours.ring_cookie != spec->ring_cookie)
        return false;
    if (ours.flow_type == TCP_V4_FLOW)
        return same_ipv4(&ours.h_u.tcp_ip4_spec, &spec->h_u.tcp_ip4_spec) &&
               same_ipv4(&ours.m_u.tcp_ip4_spec, &spec->m_u.tcp_ip4_spec) &&
               spec->m_u.tcp_ip4_spec.tos == 0;
    return same_ipv6(&ours.h_u.tcp_ip6_spec, &spec->h_u.tcp_ip6_spec) &&
           same_ipv6(&ours.m_u.tcp_ip6_spec, &spec->m_u.tcp_ip6_spec) &&
           spec->m_u.tcp_ip6_spec.tclass == 0;
}

static void name_rule(const struct nic_rule *rule, char *text, size_t room)
{
    char from[SOCKET_NAME_BYTES];
    char to[SOCKET_NAME_BYTES];

    socket_address_name(&rule->from, from);
    socket_address_name(&rule->to, to);
    snprintf(text, room, "TCP from %s to %s to queue %u", from, to, rule->queue);
}

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

/* For drivers that do not choose themselves. 0, or an errno. */
static int find_place(const char *interface, uint32_t rules, uint32_t *location)
{
    struct ethtool_rxnfc *all = calloc(1, sizeof *all + rules * sizeof *all->rule_locs);
    uint32_t places;
    int error;

    if (all == NULL)
        return ENOMEM;
    all->cmd = ETHTOOL_GRXCLSRLALL;
    all->rule_cnt = rules;
    error = ethtool(interface, all);
    if (error == 0) {
        places = all->data < UINT32_MAX ? (uint32_t)all->data : UINT32_MAX;
        if (!nic_rule_place(all->rule_locs, all->rule_cnt < rules ? all->rule_cnt : rules, places,
                            location))
            error = ENOSPC;
    }
    free(all);
    return error;
}

/* Where the next rule can be: RX_CLS_LOC_ANY where the driver chooses. 0, or an errno. */
static int choose_place(const char *interface, uint32_t *location)
{
    enum { MOST_RULES = 1 << 20 };
    struct ethtool_rxnfc count = {.cmd = ETHTOOL_GRXCLSRLCNT};
    int error = ethtool(interface, &count);

    if (error != 0)
        return error;
    if ((count.data & RX_CLS_LOC_SPECIAL) == 0)
        return find_place(interface, count.rule_cnt < MOST_RULES ? count.rule_cnt : MOST_RULES,
                          location);
    *location = RX_CLS_LOC_ANY;
    return 0;
}

int nic_rule_add(const char *interface, struct nic_rule *rule)
{
    struct ethtool_rxnfc command = {.cmd = ETHTOOL_SRXCLSRLINS};
    char name[2 * SOCKET_NAME_BYTES + 40];
    int error;

    name_rule(rule, name, sizeof name);
    if (!nic_rule_to_spec(rule, &command.fs))
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%s: no rule can lead %s: both ends must be IPv4 or both IPv6, with ports",
                         interface, name);
    error = choose_place(interface, &command.fs.location);
    if (error == 0)
        error = ethtool(interface, &command);
    if (error == EOPNOTSUPP)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s: cannot add a rule for %s: its driver has no ntuple rules, or they "
                         "are off; as root: 'ethtool -K %s ntuple on'",
                         interface, name, interface);
    if (error != 0)
        return refused(error, "%s: cannot add a rule for %s", interface, name);
    rule->location = command.fs.location;
    log_debug("%s: rule %u leads %s", interface, rule->location, name);
    return TCPX_SUCCESS;
}

int nic_rule_remove(const char *interface, const struct nic_rule *rule, bool *removed)
{
    struct ethtool_rxnfc seen = {.cmd = ETHTOOL_GRXCLSRULE, .fs = {.location = rule->location}};
    struct ethtool_rxnfc command = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs = {.location = rule->location}};
    int error = ethtool(interface, &seen);
    /* There is no rule there; or no such interface any more, and with it went its rules. */
    bool gone = error == ENOENT || error == EINVAL || error == ENODEV || error == EOPNOTSUPP;
    bool is_ours = error == 0 && nic_rule_is_spec(rule, &seen.fs);

    if (is_ours)
        error = ethtool(interface, &command);
    if (error != 0 && !gone)
        return refused(error, "%s: cannot remove rule %u", interface, rule->location);
    if (removed != NULL)
        *removed = is_ours;
    if (is_ours)
        log_debug("%s: rule %u is removed", interface, rule->location);
    return TCPX_SUCCESS;
}
