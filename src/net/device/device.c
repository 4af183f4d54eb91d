/*
 * Collects the interfaces from the list of getifaddrs(), ranks them in NCCL's order, and reads the
 * details of those of the best rank from sysfs.
 */
#include "net/device/device.h"

#include "base/config.h"
#include "base/log.h"
#include "base/topology.h"
#include "net/device/ifname.h"
#include "net/device/sysfs.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From the best to the last choice. */
enum address_kind { ADDRESS_IPV4, ADDRESS_IPV6, ADDRESS_LINK_LOCAL, ADDRESS_NONE };

/* Only interfaces of the lowest rank that there is become devices. */
enum rank {
    RANK_INFINIBAND,
    RANK_ORDINARY,
    RANK_VIRTUAL,
    RANK_CONTAINERS,
    RANK_LINK_LOCAL,
    RANK_LOOPBACK,
    RANK_VIRBR,
    RANK_NONE /* down, without an address, or not matched by the filter */
};

struct interface {
    char name[IFNAMSIZ];
    unsigned flags;
    const struct sockaddr_ll *link;                /* NULL: unknown */
    const struct ifaddrs *addresses[ADDRESS_NONE]; /* the first of each kind; NULL: none */
    enum address_kind kind;                        /* of the best one */
    enum rank rank;
    bool is_virtual;
};

/* Owns the list and the interfaces. */
struct search {
    const struct net_device_options *options;
    const char *root;
    const char *variable; /* the name of the filter's variable; NULL: there is no filter */
    const char *text;     /* its value */
    struct ifname_filter filter;
    struct ifaddrs *list;
    struct interface *interfaces;
    int count;
};

static bool device_name_begins_with(const char *name, const char *beginning)
{
    return strncmp(name, beginning, strlen(beginning)) == 0;
}

int net_device_numa_node(const char *root, const char *name)
{
    char pci_path[256];

    if (root == NULL)
        root = "";
    sysfs_find_pci_path(root, name, pci_path, sizeof pci_path);
    return topology_numa_node(root, pci_path);
}

static int device_speed(const struct search *search, const struct interface *interface)
{
    int own = sysfs_number(search->root, interface->name, "speed");

    if (own > 0 && !interface->is_virtual)
        return own;
    if (search->options->speed_mbps > 0)
        return search->options->speed_mbps;
    return own > 0 ? own : NET_DEVICE_DEFAULT_MBPS;
}

/* --- what there is --- */

static bool interface_is_running(const struct interface *interface)
{
    return (interface->flags & IFF_UP) != 0 && (interface->flags & IFF_RUNNING) != 0;
}

static enum address_kind interface_address_kind(const struct sockaddr *address, int family)
{
    const struct sockaddr_in6 *ipv6 = (const struct sockaddr_in6 *)address;

    if (family != 0 && address->sa_family != family)
        return ADDRESS_NONE;
    if (address->sa_family == AF_INET)
        return ADDRESS_IPV4;
    if (address->sa_family != AF_INET6)
        return ADDRESS_NONE;
    if (!IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr))
        return ADDRESS_IPV6;
    /* without a scope it would be an address of any link */
    return ipv6->sin6_scope_id != 0 ? ADDRESS_LINK_LOCAL : ADDRESS_NONE;
}

/* The interface of an entry, whose own name may be an alias. */
static struct interface *interface_of_entry(struct search *search, const struct ifaddrs *entry)
{
    struct interface fresh = {.flags = entry->ifa_flags, .kind = ADDRESS_NONE};

    snprintf(fresh.name, sizeof fresh.name, "%.*s", (int)strcspn(entry->ifa_name, ":"),
             entry->ifa_name);
    for (int i = 0; i < search->count; i++)
        if (strcmp(search->interfaces[i].name, fresh.name) == 0)
            return &search->interfaces[i];
    search->interfaces[search->count] = fresh;
    return &search->interfaces[search->count++];
}

static void interface_add_entry(struct search *search, const struct ifaddrs *entry)
{
    struct interface *interface = interface_of_entry(search, entry);
    enum address_kind kind;

    if (entry->ifa_addr == NULL)
        return;
    if (entry->ifa_addr->sa_family == AF_PACKET && interface->link == NULL &&
        strcmp(entry->ifa_name, interface->name) == 0)
        interface->link = (const struct sockaddr_ll *)entry->ifa_addr;
    kind = interface_address_kind(entry->ifa_addr, search->options->family);
    if (kind != ADDRESS_NONE && interface->addresses[kind] == NULL)
        interface->addresses[kind] = entry;
    if (kind < interface->kind)
        interface->kind = kind;
}

/* Whether a filter names interfaces, and does not only exclude some. */
static bool search_names_interfaces(const struct search *search)
{
    return search->variable != NULL && !search->filter.excludes;
}

static bool device_is_for_containers(const char *root, const char *name)
{
    static const char *const beginnings[] = {
        "docker", "br-",   "cni",   "flannel",      "cilium", "cali",
        "tunl",   "kube-", "lxc",   "lxdbr",        "podman", "nerdctl",
        "vxlan",  "weave", "genev", "nodelocaldns", "antrea-"};

    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (device_name_begins_with(name, beginnings[i]))
            return true;
    return sysfs_is_bridge(root, name);
}

/* Without a filter. */
static enum rank interface_rank_by_kind(const struct search *search,
                                        const struct interface *interface)
{
    if (device_name_begins_with(interface->name, "ib"))
        return RANK_INFINIBAND;
    if (sysfs_has_hardware(search->root, interface->name))
        return RANK_ORDINARY;
    return device_is_for_containers(search->root, interface->name) ? RANK_CONTAINERS : RANK_VIRTUAL;
}

static enum rank interface_rank(const struct search *search, const struct interface *interface)
{
    if (interface->kind == ADDRESS_NONE || !interface_is_running(interface) ||
        (search->variable != NULL && !ifname_filter_matches(&search->filter, interface->name)))
        return RANK_NONE;
    if (search_names_interfaces(search))
        return RANK_ORDINARY;
    if ((interface->flags & IFF_LOOPBACK) != 0)
        return RANK_LOOPBACK;
    if (search->variable == NULL && device_name_begins_with(interface->name, "virbr"))
        return RANK_VIRBR;
    if (interface->kind == ADDRESS_LINK_LOCAL)
        return RANK_LINK_LOCAL;
    return search->variable == NULL ? interface_rank_by_kind(search, interface) : RANK_ORDINARY;
}

/* *lowest is RANK_NONE if no interface can be a device. */
static int search_find_interfaces(struct search *search, enum rank *lowest)
{
    size_t entries = 0;

    for (const struct ifaddrs *entry = search->list; entry != NULL; entry = entry->ifa_next)
        entries++;
    /* one more: an empty list is no lack of memory */
    search->interfaces = calloc(entries + 1, sizeof *search->interfaces);
    if (search->interfaces == NULL)
        return error_system(errno, "cannot allocate a list of %zu network interfaces", entries);
    for (const struct ifaddrs *entry = search->list; entry != NULL; entry = entry->ifa_next)
        interface_add_entry(search, entry);
    *lowest = RANK_NONE;
    for (int i = 0; i < search->count; i++) {
        struct interface *interface = &search->interfaces[i];

        interface->is_virtual = !sysfs_is_physical(search->root, interface->name);
        interface->rank = interface_rank(search, interface);
        if (interface->rank < *lowest)
            *lowest = interface->rank;
    }
    return TCPX_SUCCESS;
}

/* --- what there is, in words --- */

/* "lo, eth0 (down), eth1 (no address)", as much of it as fits. */
static void search_describe(const struct search *search, char *text, size_t size)
{
    const char *lacks = search->options->family == AF_INET    ? " (no IPv4 address)"
                        : search->options->family == AF_INET6 ? " (no IPv6 address)"
                                                              : " (no address)";
    size_t used = 0;

    snprintf(text, size, "none");
    for (int i = 0; i < search->count && used < size; i++) {
        const struct interface *interface = &search->interfaces[i];

        used +=
            (size_t)snprintf(text + used, size - used, "%s%s%s", i > 0 ? ", " : "", interface->name,
                             !interface_is_running(interface)  ? " (down)"
                             : interface->kind == ADDRESS_NONE ? lacks
                                                               : "");
    }
}

static int search_refuse(const struct search *search)
{
    char interfaces[512];

    search_describe(search, interfaces, sizeof interfaces);
    if (search->variable == NULL)
        return error_set(TCPX_SYSTEM_ERROR,
                         "no network interface is up and has an address; there are: %s",
                         interfaces);
    return error_set(TCPX_INVALID_ARGUMENT,
                     "%s=%.200s matches no interface that is up and has an address; there are: %s",
                     search->variable, search->text, interfaces);
}

/* --- devices --- */

/* Six bytes of the hardware address; of InfiniBand's twenty, some that the structure has room for.
 */
static uint64_t device_short_mac(const struct sockaddr_ll *link)
{
    size_t length = link->sll_halen < 6 ? link->sll_halen : 6;
    uint64_t mac = 0;

    for (size_t i = 0; i < length; i++)
        mac = mac << 8 | link->sll_addr[i];
    return mac;
}

static struct sockaddr_storage device_address(const struct sockaddr *address)
{
    union socket_address any = {0};

    if (address->sa_family == AF_INET) {
        memcpy(&any.ipv4, address, sizeof any.ipv4);
    } else {
        memcpy(&any.ipv6, address, sizeof any.ipv6);
        any.ipv6.sin6_flowinfo = 0;
    }
    any.ipv4.sin_port = 0; /* at the same place in both families */
    return any.storage;
}

/* 0: unknown. */
static unsigned device_prefix_bits(const struct sockaddr *mask)
{
    union socket_address any = {0};
    unsigned bits = 0;
    const uint8_t *bytes;
    size_t length;

    if (mask == NULL)
        return 0;
    any.storage = device_address(mask);
    bytes = socket_address_bytes(&any, &length);
    while (bits < 8 * length && (bytes[bits / 8] & 0x80 >> bits % 8) != 0)
        bits++;
    return bits;
}

static void device_fill(const struct search *search, const struct interface *interface,
                        enum address_kind kind, struct net_device *device)
{
    const struct sockaddr_ll *link = interface->link;
    const struct ifaddrs *entry = interface->addresses[kind];

    *device = (struct net_device){
        .address = device_address(entry->ifa_addr),
        .prefix_bits = device_prefix_bits(entry->ifa_netmask),
        .ifindex = link != NULL ? link->sll_ifindex : (int)if_nametoindex(interface->name),
        .is_loopback = (interface->flags & IFF_LOOPBACK) != 0,
        .is_virtual = interface->is_virtual,
        .speed_mbps = device_speed(search, interface),
        .mtu = sysfs_number(search->root, interface->name, "mtu"),
    };
    memcpy(device->name, interface->name, sizeof device->name);
    /* VLANs and bonds share a MAC, tunnels have none: the index keeps them apart */
    device->guid = (link != NULL ? device_short_mac(link) : 0) << 16 ^ (uint64_t)device->ifindex;
    sysfs_find_pci_path(search->root, device->name, device->pci_path, sizeof device->pci_path);
    device->numa_node = topology_numa_node(search->root, device->pci_path);
}

/* The interfaces of one rank; physical ones first, unless a filter names them. */
static int search_fill_devices(const struct search *search, enum rank rank,
                               struct net_device *devices, int capacity)
{
    bool named = search_names_interfaces(search);
    int found = 0;

    for (int pass = 0; pass < (named ? 1 : 2); pass++)
        for (int i = 0; i < search->count; i++) {
            const struct interface *interface = &search->interfaces[i];

            if (interface->rank != rank || (!named && interface->is_virtual != (pass == 1)))
                continue;
            if (found < capacity)
                device_fill(search, interface, interface->kind, &devices[found]);
            else
                log_warn("network interface %s is left out: there is room for %d", interface->name,
                         capacity);
            found++;
        }
    return found < capacity ? found : capacity;
}

/* Behind the devices. */
struct spares {
    struct net_device *devices;
    int capacity;
    int all; /* with the devices */
};

/* Adds the address of this kind, if there is one, and room. */
static void search_add_spare(const struct search *search, const struct interface *interface,
                             enum address_kind kind, struct spares *spares)
{
    if (interface->addresses[kind] != NULL && spares->all < spares->capacity)
        device_fill(search, interface, kind, &spares->devices[spares->all++]);
}

/*
 * The IPv6 addresses of the devices, then interfaces of other ranks, the best first. Those for
 * containers have the same addresses on every host.
 */
static void search_fill_spares(const struct search *search, enum rank lowest, struct spares *spares)
{
    for (int rank = (int)lowest; rank <= RANK_VIRTUAL; rank++)
        for (int i = 0; i < search->count; i++) {
            const struct interface *interface = &search->interfaces[i];

            if ((int)interface->rank != rank || (interface->flags & IFF_LOOPBACK) != 0)
                continue;
            if (rank != (int)lowest)
                search_add_spare(search, interface, interface->kind, spares);
            if (interface->kind != ADDRESS_IPV6)
                search_add_spare(search, interface, ADDRESS_IPV6, spares);
        }
}

static void device_log_spare(const struct net_device *device)
{
    char name[SOCKET_NAME_BYTES];

    socket_host_name(&device->address, name);
    log_tcpx("network interface %s, %s: only for peers that no network device reaches",
             device->name, name);
}

static void device_log_all(const struct net_device *devices, int count)
{
    for (int i = 0; i < count; i++)
        log_tcpx("network device %d: %s, %d Mbit/s, mtu %d, numa node %d, %s", i, devices[i].name,
                 devices[i].speed_mbps, devices[i].mtu, devices[i].numa_node,
                 devices[i].pci_path[0] != '\0' ? devices[i].pci_path
                 : devices[i].is_loopback       ? "loopback"
                 : devices[i].is_virtual        ? "virtual"
                                                : "not on a PCI bus");
}

static bool device_is_set(const char *text)
{
    return text != NULL && *text != '\0';
}

static int search_choose_filter(struct search *search)
{
    const struct net_device_options *options = search->options;
    int result;

    if (device_is_set(options->data_ifname)) {
        search->variable = "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME";
        search->text = options->data_ifname;
    } else if (device_is_set(options->socket_ifname)) {
        search->variable = "NCCL_SOCKET_IFNAME";
        search->text = options->socket_ifname;
    } else {
        return TCPX_SUCCESS;
    }
    result = ifname_filter_parse(search->text, &search->filter);
    if (result != TCPX_SUCCESS)
        return error_set(result, "%s=%.200s is not valid: %s", search->variable, search->text,
                         error_text());
    return TCPX_SUCCESS;
}

static int device_check_options(const struct net_device_options *options, int capacity)
{
    if (options->family != 0 && options->family != AF_INET && options->family != AF_INET6)
        return error_set(TCPX_INVALID_ARGUMENT, "address family %d is neither IPv4 nor IPv6",
                         options->family);
    if (options->speed_mbps < 0)
        return error_set(TCPX_INVALID_ARGUMENT, "a speed of %d Mbit/s", options->speed_mbps);
    if (capacity < 1)
        return error_set(TCPX_INVALID_ARGUMENT, "room for %d network devices", capacity);
    return TCPX_SUCCESS;
}

/* `all` as in net_devices_find_all(); NULL: only devices. */
static int search_run(const struct net_device_options *options, struct net_device *devices,
                      int capacity, int *count, int *all)
{
    struct search search = {.options = options, .root = options->root != NULL ? options->root : ""};
    struct spares spares = {.devices = devices, .capacity = capacity};
    enum rank lowest;
    int result = device_check_options(options, capacity);

    if (result == TCPX_SUCCESS)
        result = search_choose_filter(&search);
    if (result != TCPX_SUCCESS)
        return result;
    if (getifaddrs(&search.list) != 0)
        return error_system(errno, "cannot list the network interfaces");
    result = search_find_interfaces(&search, &lowest);
    if (result == TCPX_SUCCESS && lowest == RANK_NONE)
        result = search_refuse(&search);
    if (result == TCPX_SUCCESS) {
        *count = search_fill_devices(&search, lowest, devices, capacity);
        device_log_all(devices, *count);
        spares.all = *count;
        if (all != NULL)
            search_fill_spares(&search, lowest, &spares);
        for (int i = *count; i < spares.all; i++)
            device_log_spare(&devices[i]);
        if (all != NULL)
            *all = spares.all;
    }
    free(search.interfaces);
    freeifaddrs(search.list);
    return result;
}

int net_devices_find(const struct net_device_options *options, struct net_device *devices,
                     int capacity, int *count)
{
    return search_run(options, devices, capacity, count, NULL);
}

int net_devices_find_all(const struct net_device_options *options, struct net_device *devices,
                         int capacity, int *count, int *all)
{
    return search_run(options, devices, capacity, count, all);
}

static int device_configured_options(struct net_device_options *options)
{
    static const int families[] = {
        [CONFIG_FAMILY_ANY] = 0,
        [CONFIG_FAMILY_INET] = AF_INET,
        [CONFIG_FAMILY_INET6] = AF_INET6,
    };
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        *options = (struct net_device_options){.data_ifname = config->data_ifname,
                                               .socket_ifname = config->socket_ifname,
                                               .family = families[config->socket_family],
                                               .speed_mbps = (int)config->speed};
    return result;
}

int net_devices_find_configured(struct net_device *devices, int capacity, int *count)
{
    struct net_device_options options;
    int result = device_configured_options(&options);

    return result == TCPX_SUCCESS ? net_devices_find(&options, devices, capacity, count) : result;
}

int net_devices_find_all_configured(struct net_device *devices, int capacity, int *count, int *all)
{
    struct net_device_options options;
    int result = device_configured_options(&options);

    return result == TCPX_SUCCESS ? search_run(&options, devices, capacity, count, all) : result;
}
