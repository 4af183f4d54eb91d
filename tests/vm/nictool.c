/*
 * Looks at a network device of the virtual machine and sets it up, without the library: what a test
 * finds here is the kernel's own word. Every command prints plain lines; a failure is status 1 and
 * the kernel's reason.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernel_calls.h"

static const char usage[] =
    "usage: nictool COMMAND DEVICE ...\n"
    "  stats DEVICE [NAME]       its counters, or the value of one\n"
    "  split DEVICE on|off       headers from payload\n"
    "  hds DEVICE BYTES          packets up to this length are not split\n"
    "  ntuple DEVICE on|off      whether it takes steering rules\n"
    "  checksums DEVICE on|off   whether it computes those of what it sends\n"
    "  rss DEVICE [equal N]      the queue of each hash slot; over the first N queues\n"
    "  rules DEVICE              one line each\n"
    "  rule-add DEVICE QUEUE tcp4|tcp6 SOURCE PORT DESTINATION PORT   '-': any; prints its "
    "location\n"
    "  rule-del DEVICE LOCATION|all\n"
    "  bound DEVICE              the receive queues with a dma-buf\n"
    "  pages DEVICE              its page pools\n"
    "  hold DEVICE QUEUE         binds a dma-buf to the queue until it is killed\n";

/* --- ioctl ------------------------------------------------------------------------------------*/

/* 0, or the errno. */
static int ethtool(const char *device, void *command)
{
    struct ifreq request = {.ifr_data = command};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = 0;

    if (fd < 0)
        die(1, "socket: %s", strerror(errno));
    if (strlen(device) >= sizeof request.ifr_name)
        die(1, "%s: too long for a device", device);
    memcpy(request.ifr_name, device, strlen(device));
    if (ioctl(fd, SIOCETHTOOL, &request) < 0)
        error = errno;
    close(fd);
    return error;
}

static void must(int error, const char *device, const char *what)
{
    if (error != 0)
        die(1, "%s of %s: %s", what, device, strerror(error));
}

static void *allocate(size_t size)
{
    void *memory = calloc(1, size);

    if (memory == NULL)
        die(1, "out of memory");
    return memory;
}

static bool on_or_off(const char *text)
{
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        die(1, "'%s' is neither on nor off", text);
    return text[1] == 'n';
}

/* --- counters ---------------------------------------------------------------------------------*/

static void show_stats(const char *device, char **words)
{
    const char *only = words[0];
    struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
    struct ethtool_gstrings *names;
    struct ethtool_stats *values;
    bool found = false;
    uint32_t count;

    must(ethtool(device, &driver), device, "the number of counters");
    count = driver.n_stats;
    names = allocate(sizeof *names + (size_t)count * ETH_GSTRING_LEN);
    values = allocate(sizeof *values + count * sizeof values->data[0]);
    *names = (struct ethtool_gstrings){ETHTOOL_GSTRINGS, ETH_SS_STATS, count};
    must(ethtool(device, names), device, "the names of the counters");
    *values = (struct ethtool_stats){ETHTOOL_GSTATS, count};
    must(ethtool(device, values), device, "the counters");
    for (uint32_t i = 0; i < count; i++) {
        const char *name = (const char *)names->data + (size_t)i * ETH_GSTRING_LEN;

        if (only != NULL && strncmp(name, only, ETH_GSTRING_LEN) != 0)
            continue;
        if (only == NULL)
            printf("%.*s ", ETH_GSTRING_LEN, name);
        printf("%llu\n", values->data[i]);
        found = true;
    }
    free(names);
    free(values);
    if (!found)
        die(1, "%s has no counter '%s'", device, only);
}

/* --- rings ------------------------------------------------------------------------------------*/

static void set_rings(const char *device, uint16_t type, const void *value, size_t length)
{
    int netlink = netlink_open();
    struct request request;
    size_t nest;
    int error;

    request_start(&request, netlink_family(netlink, "ethtool"), ETHTOOL_RINGS_SET, NLM_F_ACK);
    nest = request_nest(&request, RINGS_HEADER);
    request_put(&request, HEADER_DEV_NAME, device, strlen(device) + 1);
    request_nest_end(&request, nest);
    request_put(&request, type, value, length);
    error = netlink_ask(netlink, &request, NULL, NULL);
    if (error != 0)
        die(1, "the rings of %s: %s%s", device, strerror(error), netlink_reason());
    close(netlink);
}

static void set_split(const char *device, char **words)
{
    uint8_t value = on_or_off(words[0]) ? 2 : 1;

    set_rings(device, RINGS_TCP_DATA_SPLIT, &value, sizeof value);
}

static void set_hds(const char *device, char **words)
{
    uint32_t value = (uint32_t)parse_number("the length", words[0], 0, UINT32_MAX);

    set_rings(device, RINGS_HDS_THRESH, &value, sizeof value);
}

static void set_ntuple(const char *device, char **words)
{
    struct ethtool_value flags = {.cmd = ETHTOOL_GFLAGS};

    must(ethtool(device, &flags), device, "the flags");
    flags.cmd = ETHTOOL_SFLAGS;
    flags.data = on_or_off(words[0]) ? flags.data | ETH_FLAG_NTUPLE : flags.data & ~ETH_FLAG_NTUPLE;
    must(ethtool(device, &flags), device, "the flags");
}

static void set_checksums(const char *device, char **words)
{
    struct ethtool_value value = {.cmd = ETHTOOL_STXCSUM, .data = on_or_off(words[0])};

    must(ethtool(device, &value), device, "whether it computes checksums");
}

/* --- steering ---------------------------------------------------------------------------------*/

static uint32_t slot_count(const char *device)
{
    struct ethtool_rxfh_indir query = {.cmd = ETHTOOL_GRXFHINDIR};

    must(ethtool(device, &query), device, "the number of hash slots");
    return query.size;
}

/* words: nothing, or equal N */
static void show_or_set_slots(const char *device, char **words)
{
    const char *queues = words[0] != NULL ? words[1] : NULL;
    uint32_t count = slot_count(device);
    uint32_t over = queues != NULL ? (uint32_t)parse_number("queues", queues, 0, 1024) : 0;
    struct ethtool_rxfh_indir *table =
        allocate(sizeof *table + count * sizeof table->ring_index[0]);

    if (words[0] != NULL && (strcmp(words[0], "equal") != 0 || queues == NULL))
        die_usage(usage);
    *table = (struct ethtool_rxfh_indir){ETHTOOL_GRXFHINDIR, count};
    must(ethtool(device, table), device, "the hash slots");
    if (queues == NULL)
        for (uint32_t i = 0; i < count; i++)
            printf("%u%c", table->ring_index[i], i + 1 == count ? '\n' : ' ');
    if (queues != NULL) {
        if (over == 0)
            die(1, "a hash over no queue");
        table->cmd = ETHTOOL_SRXFHINDIR;
        for (uint32_t i = 0; i < count; i++)
            table->ring_index[i] = i % over;
        must(ethtool(device, table), device, "the hash slots");
    }
    free(table);
}

/* rule_cnt and rule_locs are those of all rules; to be freed. */
static struct ethtool_rxnfc *all_rules(const char *device)
{
    struct ethtool_rxnfc query = {.cmd = ETHTOOL_GRXCLSRLCNT};
    struct ethtool_rxnfc *all;

    must(ethtool(device, &query), device, "the number of rules");
    all = allocate(sizeof *all + query.rule_cnt * sizeof all->rule_locs[0]);
    *all = (struct ethtool_rxnfc){.cmd = ETHTOOL_GRXCLSRLALL, .rule_cnt = query.rule_cnt};
    must(ethtool(device, all), device, "the rules");
    return all;
}

/* An end of a rule's flow: values and masks. */
struct flow_end {
    void *address;
    void *address_mask;
    uint16_t *port;
    uint16_t *port_mask;
};

/* The source and the destination of a rule, of TCP over IPv4 or IPv6; returns their family. */
static int flow_ends(struct ethtool_rx_flow_spec *rule, struct flow_end ends[2])
{
    struct ethtool_tcpip4_spec *value4 = &rule->h_u.tcp_ip4_spec;
    struct ethtool_tcpip4_spec *mask4 = &rule->m_u.tcp_ip4_spec;
    struct ethtool_tcpip6_spec *value6 = &rule->h_u.tcp_ip6_spec;
    struct ethtool_tcpip6_spec *mask6 = &rule->m_u.tcp_ip6_spec;

    if (rule->flow_type == TCP_V4_FLOW) {
        ends[0] = (struct flow_end){&value4->ip4src, &mask4->ip4src, &value4->psrc, &mask4->psrc};
        ends[1] = (struct flow_end){&value4->ip4dst, &mask4->ip4dst, &value4->pdst, &mask4->pdst};
        return AF_INET;
    }
    ends[0] = (struct flow_end){value6->ip6src, mask6->ip6src, &value6->psrc, &mask6->psrc};
    ends[1] = (struct flow_end){value6->ip6dst, mask6->ip6dst, &value6->pdst, &mask6->pdst};
    return AF_INET6;
}

static size_t address_bytes(int family)
{
    return family == AF_INET ? sizeof(struct in_addr) : sizeof(struct in6_addr);
}

/* '-' stands for what the rule does not look at. */
static void print_rule(struct ethtool_rx_flow_spec *rule)
{
    static const uint8_t nothing[sizeof(struct in6_addr)];
    struct flow_end ends[2];
    int family = flow_ends(rule, ends);

    printf("%u queue %llu %s", rule->location, rule->ring_cookie,
           family == AF_INET ? "tcp4" : "tcp6");
    for (int i = 0; i < 2; i++) {
        char address[INET6_ADDRSTRLEN] = "-";
        char port[8] = "-";

        if (memcmp(ends[i].address_mask, nothing, address_bytes(family)) != 0)
            inet_ntop(family, ends[i].address, address, sizeof address);
        if (*ends[i].port_mask != 0)
            snprintf(port, sizeof port, "%u", ntohs(*ends[i].port));
        printf(" %s %s", address, port);
    }
    putchar('\n');
}

static void show_rules(const char *device, char **words)
{
    struct ethtool_rxnfc *all = all_rules(device);

    for (uint32_t i = 0; i < all->rule_cnt; i++) {
        struct ethtool_rxnfc query = {.cmd = ETHTOOL_GRXCLSRULE, .fs.location = all->rule_locs[i]};

        must(ethtool(device, &query), device, "a rule");
        print_rule(&query.fs);
    }
    (void)words;
    free(all);
}

/* words: ADDRESS PORT */
static void read_end(int family, char **words, const struct flow_end *end)
{
    if (strcmp(words[0], "-") != 0) {
        if (inet_pton(family, words[0], end->address) != 1)
            die(1, "'%s' is not an address of the family", words[0]);
        memset(end->address_mask, 0xff, address_bytes(family));
    }
    if (strcmp(words[1], "-") != 0) {
        *end->port = htons((uint16_t)parse_number("the port", words[1], 0, UINT16_MAX));
        *end->port_mask = UINT16_MAX;
    }
}

/* words: QUEUE tcp4|tcp6 SOURCE PORT DESTINATION PORT */
static void add_rule(const char *device, char **words)
{
    struct ethtool_rxnfc request = {.cmd = ETHTOOL_SRXCLSRLINS};
    struct ethtool_rx_flow_spec *rule = &request.fs;
    struct flow_end ends[2];
    int family;

    rule->location = RX_CLS_LOC_ANY;
    rule->ring_cookie = parse_number("the queue", words[0], 0, UINT32_MAX);
    if (strcmp(words[1], "tcp4") != 0 && strcmp(words[1], "tcp6") != 0)
        die(1, "'%s' is neither tcp4 nor tcp6", words[1]);
    rule->flow_type = strcmp(words[1], "tcp4") == 0 ? TCP_V4_FLOW : TCP_V6_FLOW;
    family = flow_ends(rule, ends);
    read_end(family, words + 2, &ends[0]);
    read_end(family, words + 4, &ends[1]);
    must(ethtool(device, &request), device, "a new rule");
    printf("%u\n", rule->location);
}

static void remove_rule(const char *device, uint32_t location)
{
    struct ethtool_rxnfc request = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs.location = location};

    must(ethtool(device, &request), device, "the end of a rule");
}

static void remove_rules(const char *device, char **words)
{
    struct ethtool_rxnfc *all;

    if (strcmp(words[0], "all") != 0) {
        remove_rule(device, (uint32_t)parse_number("the location", words[0], 0, UINT32_MAX));
        return;
    }
    all = all_rules(device);
    for (uint32_t i = 0; i < all->rule_cnt; i++)
        remove_rule(device, all->rule_locs[i]);
    free(all);
}

/* --- queues and pages -------------------------------------------------------------------------*/

/* The dump's answers of all devices, of which one is looked for. */
static void dump(const char *device, uint8_t command, answer_reader reader)
{
    uint32_t ifindex = (uint32_t)interface_index(device);
    int netlink = netlink_open();
    struct request request;
    int error;

    request_start(&request, netlink_family(netlink, "netdev"), command, NLM_F_DUMP);
    error = netlink_ask(netlink, &request, reader, &ifindex);
    if (error != 0)
        die(1, "%s: %s%s", device, strerror(error), netlink_reason());
    close(netlink);
}

static void print_bound(const struct nlattr *first, size_t length, void *ifindex)
{
    const void *dmabuf = attribute(first, length, QUEUE_DMABUF);

    if (attribute_number(first, length, QUEUE_IFINDEX, 0) != *(uint32_t *)ifindex ||
        attribute_number(first, length, QUEUE_TYPE, 1) != 0 || dmabuf == NULL)
        return;
    printf("queue %llu\n", (unsigned long long)attribute_number(first, length, QUEUE_ID, 0));
}

static void print_pool(const struct nlattr *first, size_t length, void *ifindex)
{
    if (attribute_number(first, length, POOL_IFINDEX, 0) != *(uint32_t *)ifindex)
        return;
    printf("pool %llu in flight %llu %s %s\n",
           (unsigned long long)attribute_number(first, length, POOL_ID, 0),
           (unsigned long long)attribute_number(first, length, POOL_INFLIGHT, 0),
           attribute(first, length, POOL_DMABUF) != NULL ? "dmabuf" : "ordinary",
           attribute(first, length, POOL_DETACH_TIME) != NULL ? "detached" : "live");
}

static void show_bound(const char *device, char **words)
{
    (void)words;
    dump(device, NETDEV_QUEUE_GET, print_bound);
}

static void show_pages(const char *device, char **words)
{
    (void)words;
    dump(device, NETDEV_PAGE_POOL_GET, print_pool);
}

/* Until a signal ends it, and the binding with it; not for ever. */
static void hold(const char *device, char **words)
{
    uint32_t queue = (uint32_t)parse_number("the queue", words[0], 0, UINT32_MAX);
    struct dmabuf dmabuf;

    dmabuf_make(&dmabuf, (size_t)1 << 20);
    bind_receive(netlink_open(), interface_index(device), dmabuf.fd, queue);
    puts("held");
    fflush(stdout);
    alarm(300);
    pause();
}

/* --- commands ---------------------------------------------------------------------------------*/

static const struct command {
    const char *name;
    int least; /* words behind the device */
    int most;
    void (*run)(const char *device, char **words);
} commands[] = {
    {"stats", 0, 1, show_stats},
    {"split", 1, 1, set_split},
    {"hds", 1, 1, set_hds},
    {"ntuple", 1, 1, set_ntuple},
    {"checksums", 1, 1, set_checksums},
    {"rss", 0, 2, show_or_set_slots},
    {"rules", 0, 0, show_rules},
    {"rule-add", 6, 6, add_rule},
    {"rule-del", 1, 1, remove_rules},
    {"bound", 0, 0, show_bound},
    {"pages", 0, 0, show_pages},
    {"hold", 1, 1, hold},
};

int main(int argc, char **argv)
{
    int words = argc - 3;

    for (size_t i = 0; words >= 0 && i < sizeof commands / sizeof commands[0]; i++) {
        const struct command *command = &commands[i];

        if (strcmp(argv[1], command->name) != 0 || words < command->least || words > command->most)
            continue;
        command->run(argv[2], argv + 3);
        if (fflush(stdout) != 0)
            die(1, "stdout: %s", strerror(errno));
        return 0;
    }
    die_usage(usage);
}
