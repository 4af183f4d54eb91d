/*
 * Collects the interfaces from the list of getifaddrs(), ranks them in NCCL's order, and reads the
 * details of those of the best rank from sysfs.
 */
#include "net/device/device.h"

#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/topology.h"
#include "net/device/ifname.h"
#include "net/socket/socket.h"

#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    const struct sockaddr_ll *link; /* NULL: unknown */
    const struct sockaddr *address; /* the best one */
    enum address_kind kind;
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

/* --- sysfs --- */

static bool device_sysfs_path(const char *root, const char *name, const char *file, char *path,
                              size_t size)
{
    return (size_t)snprintf(path, size, "%s/sys/class/net/%s/%s", root, name, file) < size;
}

/* A number above 0 that fits an int; 0 for anything else: no file, -1, garbage. */
static int device_sysfs_number(const char *root, const char *name, const char *file)
{
    char path[PATH_MAX];
    char line[32];
    uint64_t number;
    FILE *stream;
    char *read;

    if (!device_sysfs_path(root, name, file, path, sizeof path))
        return 0;
    stream = fopen(path, "re");
    if (stream == NULL)
        return 0;
    read = fgets(line, sizeof line, stream);
    fclose(stream);
    if (read == NULL)
        return 0;
    line[strcspn(line, "\n")] = '\0';
    return parse_number(line, &number) && number <= INT_MAX ? (int)number : 0;
}

static bool device_is_physical(const char *root, const char *name)
{
    char path[PATH_MAX];

    return device_sysfs_path(root, name, "device", path, sizeof path) && access(path, F_OK) == 0;
}

/* Whether it is physical, or made of one that is: a bond, a VLAN, a bridge with such a port. */
static bool device_has_hardware(const char *root, const char *name, int depth)
{
    enum { DEEPEST = 8 };
    static const char lower[] = "lower_";
    char path[PATH_MAX];
    struct dirent *entry;
    bool found = device_is_physical(root, name);
    DIR *folder;

    if (found || depth == DEEPEST || !device_sysfs_path(root, name, "", path, sizeof path))
        return found;
    folder = opendir(path);
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found = device_name_begins_with(entry->d_name, lower) &&
                device_has_hardware(root, entry->d_name + sizeof lower - 1, depth + 1);
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* The nearest PCI device at or above the interface's own; "" if there is none. */
static void device_find_pci_path(const char *root, const char *name, char *pci_path, size_t size)
{
    char link[PATH_MAX];
    char real[PATH_MAX];
    char *slash;

    pci_path[0] = '\0';
    if (!device_sysfs_path(root, name, "device", link, sizeof link) || realpath(link, real) == NULL)
        return;
    while ((slash = strrchr(real, '/')) != NULL) {
        if (topology_pci_path(root, slash + 1, pci_path, size))
            return;
        *slash = '\0';
    }
}

static int device_speed(const struct search *search, const struct interface *interface)
{
    int own = device_sysfs_number(search->root, interface->name, "speed");

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
    if (kind < interface->kind) {
        interface->address = entry->ifa_addr;
        interface->kind = kind;
    }
}

/* Whether a filter names interfaces, and does not only exclude some. */
static bool search_names_interfaces(const struct search *search)
{
    return search->variable != NULL && !search->filter.excludes;
}

static bool device_is_for_containers(const char *name)
{
    static const char *const beginnings[] = {"docker", "br-",  "cni",   "flannel", "cilium",
                                             "cali",   "tunl", "kube-", "lxc",     "podman"};

    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (device_name_begins_with(name, beginnings[i]))
            return true;
    return false;
}

/* Without a filter. */
static enum rank interface_rank_by_kind(const struct search *search,
                                        const struct interface *interface)
{
    if (device_name_begins_with(interface->name, "ib"))
        return RANK_INFINIBAND;
    if (device_has_hardware(search->root, interface->name, 0))
        return RANK_ORDINARY;
    return device_is_for_containers(interface->name) ? RANK_CONTAINERS : RANK_VIRTUAL;
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

        interface->is_virtual = !device_is_physical(search->root, interface->name);
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

static void device_fill(const struct search *search, const struct interface *interface,
                        struct net_device *device)
{
    const struct sockaddr_ll *link = interface->link;

    *device = (struct net_device){
        .address = device_address(interface->address),
        .ifindex = link != NULL ? link->sll_ifindex : (int)if_nametoindex(interface->name),
        .is_loopback = (interface->flags & IFF_LOOPBACK) != 0,
        .is_virtual = interface->is_virtual,
        .speed_mbps = device_speed(search, interface),
        .mtu = device_sysfs_number(search->root, interface->name, "mtu"),
    };
    memcpy(device->name, interface->name, sizeof device->name);
    /* VLANs and bonds share a MAC, tunnels have none: the index keeps them apart */
    device->guid = (link != NULL ? device_short_mac(link) : 0) << 16 ^ (uint64_t)device->ifindex;
    device_find_pci_path(search->root, device->name, device->pci_path, sizeof device->pci_path);
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
                device_fill(search, interface, &devices[found]);
            else
                log_warn("network interface %s is left out: there is room for %d", interface->name,
                         capacity);
            found++;
        }
    return found < capacity ? found : capacity;
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

int net_devices_find(const struct net_device_options *options, struct net_device *devices,
                     int capacity, int *count)
{
    struct search search = {.options = options, .root = options->root != NULL ? options->root : ""};
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
    }
    free(search.interfaces);
    freeifaddrs(search.list);
    return result;
}

int net_devices_find_configured(struct net_device *devices, int capacity, int *count)
{
    static const int families[] = {
        [CONFIG_FAMILY_ANY] = 0,
        [CONFIG_FAMILY_INET] = AF_INET,
        [CONFIG_FAMILY_INET6] = AF_INET6,
    };
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    return net_devices_find(&(struct net_device_options){.data_ifname = config->data_ifname,
                                                         .socket_ifname = config->socket_ifname,
                                                         .family = families[config->socket_family],
                                                         .speed_mbps = (int)config->speed},
                            devices, capacity, count);
}
