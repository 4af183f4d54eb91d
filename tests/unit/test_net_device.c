/*
 * Shows which interfaces become network devices, in which order and with which properties: NCCL's
 * filters, its order without one, the choice of an address, and what is understood of sysfs, from
 * lists of interfaces and trees made for each case. The list is this program's own getifaddrs();
 * the real one is asked only where a test says so.
 */
#include "net/device/device.h"
#include "net/device/ifname.h"
#include "net/socket/socket.h"
#include "tests/unit/tree.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <netpacket/packet.h>

/* --- a stand-in for the kernel's list of interfaces --- */

enum { MOST_ENTRIES = 128, UP = IFF_UP | IFF_RUNNING, LOOPBACK = UP | IFF_LOOPBACK };

static struct ifaddrs entries[MOST_ENTRIES];
static struct sockaddr_storage addresses[MOST_ENTRIES];
static int entry_count;
static int fake_errno;
static bool ask_kernel;
static int lists_held;

/* These two take the place of the C library's functions in this program. */
int getifaddrs(struct ifaddrs **ifap)
{
    int (*real)(struct ifaddrs **);

    if (fake_errno != 0) {
        errno = fake_errno;
        return -1;
    }
    lists_held++;
    if (!ask_kernel) {
        *ifap = entry_count > 0 ? entries : NULL;
        return 0;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getifaddrs");
    return real(ifap);
}

void freeifaddrs(struct ifaddrs *ifa)
{
    void (*real)(struct ifaddrs *);

    lists_held--;
    if (!ask_kernel)
        return;
    *(void **)&real = dlsym(RTLD_NEXT, "freeifaddrs");
    real(ifa);
}

static struct sockaddr_storage *add_entry(const char *name, unsigned flags)
{
    struct ifaddrs *entry = &entries[entry_count];
    struct sockaddr_storage *address = &addresses[entry_count];

    assert_true(entry_count < MOST_ENTRIES);
    memset(address, 0, sizeof *address);
    *entry = (struct ifaddrs){
        .ifa_name = (char *)name, .ifa_flags = flags, .ifa_addr = (struct sockaddr *)address};
    if (entry_count > 0)
        entries[entry_count - 1].ifa_next = entry;
    entry_count++;
    return address;
}

static void add_link(const char *name, unsigned flags, int ifindex, const char mac[6])
{
    struct sockaddr_ll *link = (struct sockaddr_ll *)add_entry(name, flags);

    link->sll_family = AF_PACKET;
    link->sll_ifindex = ifindex;
    link->sll_halen = 6;
    memcpy(link->sll_addr, mac, 6);
}

/* IPv4 or IPv6. */
static void put_address(const char *text, unsigned scope, struct sockaddr_storage *address)
{
    struct sockaddr_in *ipv4 = (struct sockaddr_in *)address;
    struct sockaddr_in6 *ipv6 = (struct sockaddr_in6 *)address;

    address->ss_family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
    if (address->ss_family == AF_INET6)
        ipv6->sin6_scope_id = scope;
    assert_int_equal(inet_pton(address->ss_family, text,
                               address->ss_family == AF_INET6 ? (void *)&ipv6->sin6_addr
                                                              : (void *)&ipv4->sin_addr),
                     1);
}

/* With a port and a flow that have no place in a device's address. */
static void add_address(const char *name, unsigned flags, const char *text, unsigned scope)
{
    struct sockaddr_storage *address = add_entry(name, flags);

    put_address(text, scope, address);
    ((struct sockaddr_in *)address)->sin_port = htons(7); /* at the same place in both */
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_flowinfo = 7;
}

/* Interfaces that are up, each NAME or NAME=ADDRESS or NAME=ADDRESS%SCOPE, with blanks between. */
static void add(const char *interfaces)
{
    static char names[MOST_ENTRIES][IFNAMSIZ];
    int length;

    for (const char *at = interfaces; *at != '\0'; at += length + (at[length] == ' ')) {
        char *name = names[entry_count];
        char address[INET6_ADDRSTRLEN];
        unsigned scope = 0;

        length = (int)strcspn(at, " ");
        snprintf(address, sizeof address, "10.0.0.%d", entry_count + 1);
        assert_true(sscanf(at, "%15[^ =]=%45[^ %%]%%%u", name, address, &scope) >= 1);
        add_address(name, strcmp(name, "lo") == 0 ? LOOPBACK : UP, address, scope);
    }
}

/* --- trees --- */

static int make_root(void **state)
{
    (void)state;
    entry_count = 0;
    fake_errno = 0;
    ask_kernel = false;
    lists_held = 0;
    return tree_make();
}

/* Every test also shows that no list is kept or given back twice. */
static int remove_root(void **state)
{
    (void)state;
    return tree_remove() != 0 || lists_held != 0 ? -1 : 0;
}

static void put(const char *name, const char *file, const char *text)
{
    tree_put(tree_path("/sys/class/net/%s/%s", name, file), text);
}

#define BUS "/sys/devices/pci0000:3a"

/* A link of /sys to what is at `below` under the bus. */
static void put_link(const char *from, const char *name, const char *below)
{
    char target[256];

    snprintf(target, sizeof target, "../../../devices/pci0000:3a/%s", below);
    assert_int_equal(symlink(target, tree_path("/sys/%s/%s", from, name)), 0);
}

/* A PCI device, its NUMA node, and what finds it by its address. */
static void put_pci(const char *address, const char *numa_node)
{
    tree_put(tree_path(BUS "/%s/numa_node", address), numa_node);
    put_link("bus/pci/devices", address, address);
}

/* The interface's own device is at `below` under the bus. */
static void put_device(const char *name, const char *below)
{
    char path[32];

    (void)mkdir(tree_path(BUS "/%s", below), 0755);
    snprintf(path, sizeof path, "%s/device", name);
    put_link("class/net", path, below);
}

static void make_physical(const char *name)
{
    put_device(name, name);
}

/* --- finding --- */

static struct net_device devices[NET_DEVICES_MOST];
static int device_count;

static int find(const struct net_device_options *options)
{
    struct net_device_options with_root = *options;

    with_root.root = tree_root;
    memset(devices, 0x5a, sizeof devices);
    device_count = -1;
    return net_devices_find(&with_root, devices, NET_DEVICES_MOST, &device_count);
}

/* The names of the devices that are found, as one text. */
static void expect_found(const struct net_device_options *options, const char *expected)
{
    char names[NET_DEVICES_MOST * (IFNAMSIZ + 1)] = "";
    size_t used = 0;

    if (find(options) != TCPX_SUCCESS)
        fail_msg("instead of '%s': %s", expected, error_text());
    for (int i = 0; i < device_count; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? " " : "",
                                 devices[i].name);
    assert_string_equal(names, expected);
}

/* With NCCL_SOCKET_IFNAME. */
static void expect_names(const char *ifname, const char *expected)
{
    expect_found(&(struct net_device_options){.socket_ifname = ifname}, expected);
}

static void expect_failure(const struct net_device_options *options, int result, const char *text)
{
    assert_int_equal(find(options), result);
    assert_string_equal(error_text(), text);
    assert_int_equal(device_count, -1);
    expect_untouched(devices, sizeof devices);
}

static void expect_address(const struct net_device *device, const char *expected, unsigned scope)
{
    struct sockaddr_storage address = {0};

    put_address(expected, scope, &address);
    /* all of it: no port, no flow, nothing behind */
    assert_memory_equal(&device->address, &address, sizeof address);
}

/* --- filters --- */

TEST(test_filters)
{
    static const struct {
        const char *filter;
        const char *matches;
        const char *others;
    } cases[] = {
        {"eth", "eth eth0 eth1 ethernet", "et lo veth0 Eth0"},
        {"e", "eth0 e enp1s0", "lo"},
        {"eth0", "eth0 eth01 eth0.100", "eth eth1"},
        {"eth0,ib", "eth0 ib0 ibp1", "eth1 lo"},
        {"=eth0", "eth0", "eth01 eth lo"},
        {"=eth0,eth1", "eth0 eth1", "eth2 eth10 eth"},
        {"^docker,lo", "eth0 virbr0", "docker0 lo lo0 docker"},
        {"^=eth0", "eth01 eth1 lo", "eth0"},
        {"^=eth0,lo", "eth1 lo0", "eth0 lo"},
        {"eth0:1", "eth0 eth01", "eth1"},
        {"=eth0:0,eth1:65535", "eth0 eth1", "eth2"},
        {"^mlx5_0:1,mlx5_1", "mlx5_2 eth0", "mlx5_0 mlx5_1"},
        {"eth0,", "eth0", "lo"},
        {",,eth0,,lo,", "eth0 lo", "ib0"},
        {"eth0,eth0", "eth0", "lo"},
        {"enp193s0f0np0v1", "enp193s0f0np0v1", "enp193s0f0np0v"},
        {"br-1f_2.3@x", "br-1f_2.3@x", "br"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ifname_filter filter;

        if (ifname_filter_parse(cases[i].filter, &filter) != TCPX_SUCCESS)
            fail_msg("'%s' was refused: %s", cases[i].filter, error_text());
        for (int wanted = 0; wanted < 2; wanted++) {
            char names[64];
            char *rest = names;
            char *name;

            snprintf(names, sizeof names, "%s", wanted ? cases[i].matches : cases[i].others);
            while ((name = strsep(&rest, " ")) != NULL)
                if (ifname_filter_matches(&filter, name) != wanted)
                    fail_msg("'%s' and '%s'", cases[i].filter, name);
        }
    }
}

TEST(test_filters_refused)
{
    static const struct {
        const char *filter;
        const char *text;
    } cases[] = {
        {"", "no interface is named"},
        {"^", "no interface is named"},
        {"=", "no interface is named"},
        {"^=", "no interface is named"},
        {",", "no interface is named"},
        {"^,,", "no interface is named"},
        {"^^eth0", "'^' in '^eth0'"},
        {"==eth0", "'=' in '=eth0'"},
        {"=^eth0", "'^' in '^eth0'"},
        {"^eth0,^lo", "'^' in '^lo'"},
        {"eth0,=lo", "'=' in '=lo'"},
        {"eth0=", "'=' in 'eth0='"},
        {"eth0, lo", "a blank or control character in ' lo'"},
        {"eth0 lo", "a blank or control character in 'eth0 lo'"},
        {"eth0\n", "a blank or control character"},
        {"eth0\x7f", "a blank or control character"},
        {"/sys", "'/sys' is not an interface name"},
        {"enp193s0f0np0v12", "'enp193s0f0np0v12' is longer"},
        {":1", "':' without a name"},
        {"eth0,:1", "':' without a name"},
        {"eth0:", "':' is not a port"},
        {"eth0:x", "':x' is not a port"},
        {"eth0:1x", "':1x' is not a port"},
        {"eth0:-1", "':-1' is not a port"},
        {"eth0:1:2", "':1:2' is not a port"},
        {"eth0:65536", "':65536' is not a port"},
        {"eth0:18446744073709551617", "is not a port"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ifname_filter filter;

        memset(&filter, 0x5a, sizeof filter);
        if (ifname_filter_parse(cases[i].filter, &filter) != TCPX_INVALID_ARGUMENT)
            fail_msg("'%s' was taken", cases[i].filter);
        if (strstr(error_text(), cases[i].text) == NULL)
            fail_msg("'%s' was refused with '%s'", cases[i].filter, error_text());
        expect_untouched(&filter, sizeof filter);
    }
}

TEST(test_filter_of_many_names)
{
    char text[(IFNAME_FILTER_NAMES + 1) * 16] = "";
    struct ifname_filter filter;
    size_t used = 0;

    for (int i = 0; i < IFNAME_FILTER_NAMES; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "interface%05d,", i);
    assert_int_equal(ifname_filter_parse(text, &filter), TCPX_SUCCESS);
    assert_int_equal(filter.count, IFNAME_FILTER_NAMES);
    assert_true(ifname_filter_matches(&filter, "interface00063"));
    snprintf(text + used, sizeof text - used, "one");
    assert_int_equal(ifname_filter_parse(text, &filter), TCPX_INVALID_ARGUMENT);
    assert_string_equal(error_text(), "more than 64 names");
}

/* --- which interfaces, in which order --- */

/* The machine that most of the tests below look at; the order is not the one that is wanted. */
static void add_machine(void)
{
    add("lo=127.0.0.1 docker0 br-7 eth1 bond0 virbr0 eth0");
    make_physical("eth0");
    make_physical("eth1");
}

#define TREE_TEST(name) TEST_WITH(name, make_root, remove_root)

TREE_TEST(test_order_without_a_filter)
{
    add_machine();
    expect_names(NULL, "eth1 eth0");
    put("bond0", "lower_eth1/mtu", "1500");
    expect_names(NULL, "eth1 eth0 bond0");
    expect_names("", "eth1 eth0 bond0");
    assert_false(devices[0].is_virtual);
    assert_true(devices[2].is_virtual);
    add("ib1 ib0");
    make_physical("ib0");
    expect_names(NULL, "ib0 ib1");
}

/* A bridge is the host's own if a physical interface is below, at any depth. */
TREE_TEST(test_bridges)
{
    add("docker0 br-7 cni0 flannel.1 lxcbr0 cilium_host cali7a tunl0 podman0 kube-bridge");
    add("br0");
    put("br0", "lower_veth7/mtu", "1500");
    put("cni0", "lower_veth8/mtu", "1500");
    add("eth0");
    expect_names(NULL, "br0 eth0"); /* in a container */
    make_physical("eth0");
    expect_names(NULL, "eth0");
    add("vlan5");
    put("vlan5", "lower_bond0/mtu", "1500");
    put("bond0", "lower_eth0/mtu", "1500");
    put("br0", "lower_vlan5/mtu", "1500");
    expect_names(NULL, "eth0 br0 vlan5");
    /* No end below. */
    add("loop1");
    put("loop1", "lower_loop2/mtu", "1500");
    put("loop2", "lower_loop1/mtu", "1500");
    expect_names(NULL, "eth0 br0 vlan5");
}

TREE_TEST(test_kinds_without_a_filter)
{
    add("virbr0");
    expect_names(NULL, "virbr0");
    add("lo=127.0.0.1");
    expect_names(NULL, "lo");
    assert_true(devices[0].is_loopback);
    add("veth7=fe80::7%7 virbr1=fe80::8%8");
    expect_names(NULL, "veth7");
    add("docker0");
    expect_names(NULL, "docker0");
    /* it begins with "lo" only */
    add("lowland0");
    expect_names(NULL, "lowland0");
    assert_false(devices[0].is_loopback);
    add("ib0=fe80::9%9");
    expect_names(NULL, "lowland0");
    add("ib1");
    expect_names(NULL, "ib1");
}

/* On a host of Kubernetes, Docker, LXC or libvirt, and in a container on it. */
TREE_TEST(test_interfaces_of_containers)
{
    static const char *const names[] = {
        "cni0",           "flannel.1", "cilium_host", "cilium_net",   "cali12345", "docker0",
        "br-1a2b3c",      "virbr0",    "kube-ipvs0",  "nodelocaldns", "tunl0",     "vxlan.calico",
        "vxlan_sys_4789", "weave",     "lxcbr0",      "lxc_health",   "lxdbr0",    "podman1",
        "nerdctl0",       "genev_sys", "antrea-gw0"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add(names[i]);
    add("eth0");
    expect_names(NULL, "eth0");
    /* any name, if it is a bridge without hardware */
    add("mybridge");
    put("mybridge", "bridge/bridge_id", "8000.000000000000\n");
    expect_names(NULL, "eth0");
    make_physical("eth0");
    add("wg0");
    expect_names(NULL, "eth0");
}

/* --- spare ones --- */

/* Names and addresses of the spare devices, as one text. */
static void expect_spares(const char *ifname, int family, const char *expected)
{
    const struct net_device_options with_root = {
        .socket_ifname = ifname, .family = family, .root = tree_root};
    char spares[NET_DEVICES_MOST * 64] = "";
    size_t used = 0;
    int all = -1;

    assert_int_equal(
        net_devices_find_all(&with_root, devices, NET_DEVICES_MOST, &device_count, &all),
        TCPX_SUCCESS);
    for (int i = device_count; i < all; i++) {
        char name[SOCKET_NAME_BYTES];

        socket_host_name(&devices[i].address, name);
        used += (size_t)snprintf(spares + used, sizeof spares - used, "%s%s=%s",
                                 used > 0 ? " " : "", devices[i].name, name);
    }
    assert_string_equal(spares, expected);
}

TREE_TEST(test_spare_devices)
{
    add("lo=127.0.0.1 lo=::1 eth0=10.0.0.1 eth0=2001:db8::1 eth0=fe80::1%2 docker0=172.17.0.1 "
        "docker0=2001:db8:9::1 virbr0=192.168.122.1 wg0=10.9.0.1 cali1=fe80::2%3");
    make_physical("eth0");
    expect_spares(NULL, 0, "eth0=2001:db8::1 wg0=10.9.0.1");
    expect_spares(NULL, AF_INET, "wg0=10.9.0.1");
    expect_spares(NULL, AF_INET6, "");
    /* what a user names is all there is */
    expect_spares("=eth0", 0, "eth0=2001:db8::1");
    expect_spares("wg", 0, "");
    expect_spares("lo", 0, "");
    add("ib0=10.5.0.1");
    expect_names(NULL, "ib0");
    expect_spares(NULL, 0, "eth0=10.0.0.1 eth0=2001:db8::1 wg0=10.9.0.1");
}

TREE_TEST(test_subnets)
{
    struct sockaddr_storage masks[2] = {0};

    add("eth0=10.0.0.1 eth1=2001:db8::1 eth2=10.0.0.3");
    put_address("255.255.254.0", 0, &masks[0]);
    put_address("ffff:ffff:ffff:ffff::", 0, &masks[1]);
    entries[0].ifa_netmask = (struct sockaddr *)&masks[0];
    entries[1].ifa_netmask = (struct sockaddr *)&masks[1];
    expect_names(NULL, "eth0 eth1 eth2");
    assert_int_equal(devices[0].prefix_bits, 23);
    assert_int_equal(devices[1].prefix_bits, 64);
    assert_int_equal(devices[2].prefix_bits, 0);
}

TREE_TEST(test_named_ones_keep_the_order_of_the_kernel)
{
    add_machine();
    expect_names("eth", "eth1 eth0");
    expect_names("eth0,docker0,lo", "lo docker0 eth0");
    expect_names("lo", "lo");
    expect_names("=bond0,eth0,bond", "bond0 eth0");
    expect_names("virbr,br", "br-7 virbr0");
}

TREE_TEST(test_named_link_local_ones_count)
{
    add("eth0 eth1=fe80::1%3");
    expect_names("eth", "eth0 eth1");
}

TREE_TEST(test_excluding)
{
    add_machine();
    add("ib0 veth7=fe80::7%7");
    expect_names("^br-,bond,virbr", "eth1 eth0 docker0 ib0");
    expect_names("^=eth1", "eth0 docker0 br-7 bond0 virbr0 ib0");
    expect_names("^br-,bond,virbr,eth,docker,ib", "veth7");
    expect_names("^br-,bond,virbr,eth,docker,ib,veth", "lo");
}

TREE_TEST(test_data_filter_goes_first)
{
    add_machine();
    expect_found(&(struct net_device_options){.data_ifname = "eth0", .socket_ifname = "eth1"},
                 "eth0");
    expect_found(&(struct net_device_options){.data_ifname = "", .socket_ifname = "eth1"}, "eth1");
}

TREE_TEST(test_only_running_ones)
{
    add_address("eth0", IFF_UP, "10.0.0.1", 0);
    add_address("eth1", IFF_RUNNING, "10.0.0.2", 0);
    add_address("eth2", 0, "10.0.0.3", 0);
    add("eth3");
    expect_names(NULL, "eth3");
    expect_names("eth", "eth3");
}

TREE_TEST(test_more_than_there_is_room_for)
{
    struct net_device two[3];
    int count = 0;

    memset(two, 0x5a, sizeof two);
    add_machine();
    assert_int_equal(
        net_devices_find(&(struct net_device_options){.root = tree_root}, two, 2, &count),
        TCPX_SUCCESS);
    assert_int_equal(count, 2);
    assert_string_equal(two[0].name, "eth1");
    assert_string_equal(two[1].name, "eth0");
    assert_int_equal(two[2].name[0], 0x5a);
}

/* --- addresses --- */

TREE_TEST(test_one_address_per_device)
{
    add("eth0=fe80::1%2 eth0=fd00::1 eth0=fd00::2");
    add("eth1=fe80::3%3 eth1=fe80::4%3");
    add("eth2=10.0.0.1 eth2=10.0.0.2 eth2=fd00::3");
    add("eth3=fd00::4 eth3=10.0.0.3");
    expect_names("eth", "eth0 eth1 eth2 eth3");
    expect_address(&devices[0], "fd00::1", 0);
    expect_address(&devices[1], "fe80::3", 3);
    expect_address(&devices[2], "10.0.0.1", 0);
    expect_address(&devices[3], "10.0.0.3", 0);
    expect_names(NULL, "eth0 eth2 eth3");
}

TREE_TEST(test_family)
{
    add("eth0=10.0.0.1 eth0=fd00::1 eth1=10.0.0.2 eth2=fd00::2");
    expect_found(&(struct net_device_options){.family = AF_INET}, "eth0 eth1");
    expect_address(&devices[0], "10.0.0.1", 0);
    expect_address(&devices[1], "10.0.0.2", 0);
    expect_found(&(struct net_device_options){.family = AF_INET6}, "eth0 eth2");
    expect_address(&devices[0], "fd00::1", 0);
    expect_address(&devices[1], "fd00::2", 0);
}

TREE_TEST(test_addresses_that_do_not_count)
{
    add("eth0=fe80::1");
    add_link("eth1", UP, 3, "\0\0\0\0\0");
    add_entry("eth2", UP);
    entries[entry_count - 1].ifa_addr = NULL;
    add_entry("eth3", UP)->ss_family = AF_UNIX;
    add("eth4");
    expect_names(NULL, "eth4");
    expect_names("eth", "eth4");
}

TREE_TEST(test_an_alias_is_no_device_of_its_own)
{
    add("eth0=10.0.0.1 eth0:1=10.0.0.2 eth1:1=10.0.0.3");
    expect_names(NULL, "eth0 eth1");
    expect_address(&devices[0], "10.0.0.1", 0);
    expect_address(&devices[1], "10.0.0.3", 0);
    expect_names("=eth1", "eth1");
    expect_names("=eth0:1", "eth0");
}

/* --- properties --- */

static int find_speed(int configured)
{
    assert_int_equal(find(&(struct net_device_options){.speed_mbps = configured}), TCPX_SUCCESS);
    assert_int_equal(device_count, 1);
    return devices[0].speed_mbps;
}

TREE_TEST(test_speed)
{
    static const char *const unknown[] = {"-1\n",   "",           "\n",         "0\n",
                                          "fast\n", "1e5\n",      " 100\n",     "100 \n",
                                          "0x7\n",  "4294967295", "4294967301", "1 2\n"};

    add("eth0");
    assert_int_equal(find_speed(0), NET_DEVICE_DEFAULT_MBPS);
    assert_int_equal(find_speed(40000), 40000);
    /* a virtual interface's speed is made up: a configured one is better */
    put("eth0", "speed", "25000\n");
    assert_int_equal(find_speed(0), 25000);
    assert_int_equal(find_speed(40000), 40000);
    make_physical("eth0");
    assert_int_equal(find_speed(0), 25000);
    assert_int_equal(find_speed(40000), 25000);
    put("eth0", "speed", "2147483647");
    assert_int_equal(find_speed(0), INT_MAX);
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        put("eth0", "speed", unknown[i]);
        assert_int_equal(find_speed(0), NET_DEVICE_DEFAULT_MBPS);
        assert_int_equal(find_speed(40000), 40000);
    }
}

TREE_TEST(test_speed_of_loopback)
{
    add("lo=127.0.0.1");
    assert_int_equal(find_speed(0), NET_DEVICE_DEFAULT_MBPS);
    assert_int_equal(find_speed(1000), 1000);
}

TREE_TEST(test_mtu)
{
    static const struct {
        const char *text; /* NULL: no file */
        int mtu;
    } cases[] = {{NULL, 0}, {"8896\n", 8896}, {"-5\n", 0}};

    add("eth0");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (cases[i].text != NULL)
            put("eth0", "mtu", cases[i].text);
        expect_names(NULL, "eth0");
        assert_int_equal(devices[0].mtu, cases[i].mtu);
    }
}

static void expect_pci(int index, const char *path, int numa_node, bool is_virtual)
{
    assert_string_equal(devices[index].pci_path, path);
    assert_int_equal(devices[index].numa_node, numa_node);
    assert_int_equal(net_device_numa_node(tree_root, devices[index].name), numa_node);
    assert_int_equal(devices[index].is_virtual, is_virtual);
}

TREE_TEST(test_pci_path)
{
    put_pci("0000:3a:01.0", "1\n");
    put_pci("0000:3a:02.0", "-1\n");
    add("eth0 eth1 eth2 veth0");
    put_device("eth0", "0000:3a:01.0");
    put_device("eth1", "0000:3a:02.0/virtio2");
    /* the second port of the first card, which has no folder of its own on the bus */
    put_device("eth2", "0000:3a:01.1");
    expect_names("eth,veth", "eth0 eth1 eth2 veth0");
    expect_pci(0, BUS "/0000:3a:01.0", 1, false);
    expect_pci(1, BUS "/0000:3a:02.0", -1, false);
    expect_pci(2, "", -1, false);
    expect_pci(3, "", -1, true);
}

TREE_TEST(test_ports_of_one_card_stay_apart)
{
    put_pci("0000:3a:01.0", "0\n");
    put_pci("0000:3a:01.1", "0\n");
    add("eth0 eth1");
    put_device("eth0", "0000:3a:01.0");
    put_device("eth1", "0000:3a:01.1");
    expect_names(NULL, "eth0 eth1");
    expect_pci(0, BUS "/0000:3a:01.0", 0, false);
    expect_pci(1, BUS "/0000:3a:01.1", 0, false);
}

TREE_TEST(test_guid)
{
    add_link("eth0", UP, 2, "\x02\xfc\x00\x00\x00\x01");
    add_link("eth0.5", UP, 65538, "\x02\xfc\x00\x00\x00\x01");
    add_link("tun0", UP, 4, "\0\0\0\0\0");
    add_link("tun1", UP, 5, "\0\0\0\0\0");
    add("eth0 eth0.5 tun0 tun1");
    expect_names(NULL, "eth0 eth0.5 tun0 tun1");
    assert_true(devices[0].guid == 0x02fc000000010002);
    assert_int_equal(devices[0].ifindex, 2);
    assert_int_equal(devices[1].ifindex, 65538);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_true(devices[i].guid != devices[j].guid);
}

/* --- failures --- */

TREE_TEST(test_a_filter_that_matches_nothing)
{
    add_link("lo", LOOPBACK, 1, "\0\0\0\0\0");
    add_link("eth0", IFF_UP, 2, "\0\0\0\0\0");
    add_link("eth1", UP, 3, "\0\0\0\0\0");
    add_link("eth2", UP, 4, "\0\0\0\0\0");
    add_address("eth0", IFF_UP, "10.0.0.1", 0);
    add("lo=127.0.0.1 eth2:1=10.0.0.2");
    expect_failure(&(struct net_device_options){.socket_ifname = "=eth9,ib"}, TCPX_INVALID_ARGUMENT,
                   "NCCL_SOCKET_IFNAME==eth9,ib matches no interface that is up and has an "
                   "address; there are: lo, eth0 (down), eth1 (no address), eth2");
    expect_failure(&(struct net_device_options){.data_ifname = "eth0", .socket_ifname = "lo"},
                   TCPX_INVALID_ARGUMENT,
                   "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth0 matches no interface that is up and has "
                   "an address; there are: lo, eth0 (down), eth1 (no address), eth2");
    expect_failure(&(struct net_device_options){.socket_ifname = "eth2", .family = AF_INET6},
                   TCPX_INVALID_ARGUMENT,
                   "NCCL_SOCKET_IFNAME=eth2 matches no interface that is up and has an address; "
                   "there are: lo (no IPv6 address), eth0 (down), eth1 (no IPv6 address), eth2 "
                   "(no IPv6 address)");
}

TREE_TEST(test_more_interfaces_than_a_text_can_name)
{
    static char names[100][IFNAMSIZ];

    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "interface%05d", i);
        add_link(names[i], IFF_UP, i + 1, "\0\0\0\0\0");
    }
    assert_int_equal(find(&(struct net_device_options){.socket_ifname = "eth"}),
                     TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text(), "interface00000 (down), interface00001 (down)"));
    assert_true(strlen(error_text()) < 700);
}

TREE_TEST(test_nothing_at_all)
{
    expect_failure(&(struct net_device_options){0}, TCPX_SYSTEM_ERROR,
                   "no network interface is up and has an address; there are: none");
    expect_failure(&(struct net_device_options){.socket_ifname = "^eth0"}, TCPX_INVALID_ARGUMENT,
                   "NCCL_SOCKET_IFNAME=^eth0 matches no interface that is up and has an address; "
                   "there are: none");
}

TREE_TEST(test_a_filter_that_is_not_understood)
{
    add("eth0");
    expect_failure(&(struct net_device_options){.socket_ifname = "^"}, TCPX_INVALID_ARGUMENT,
                   "NCCL_SOCKET_IFNAME=^ is not valid: no interface is named");
    expect_failure(&(struct net_device_options){.data_ifname = "eth0, eth1"}, TCPX_INVALID_ARGUMENT,
                   "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth0, eth1 is not valid: a blank or control "
                   "character in ' eth1'");
}

TREE_TEST(test_options_that_make_no_sense)
{
    add("eth0");
    expect_failure(&(struct net_device_options){.family = AF_UNIX}, TCPX_INVALID_ARGUMENT,
                   "address family 1 is neither IPv4 nor IPv6");
    expect_failure(&(struct net_device_options){.speed_mbps = -1}, TCPX_INVALID_ARGUMENT,
                   "a speed of -1 Mbit/s");
    assert_int_equal(net_devices_find(&(struct net_device_options){0}, devices, 0, &device_count),
                     TCPX_INVALID_ARGUMENT);
    assert_string_equal(error_text(), "room for 0 network devices");
}

TREE_TEST(test_the_kernel_refuses)
{
    fake_errno = ENOBUFS;
    expect_failure(&(struct net_device_options){0}, TCPX_SYSTEM_ERROR,
                   "cannot list the network interfaces: No buffer space available");
}

/* --- this machine --- */

TREE_TEST(test_loopback_of_this_machine)
{
    const struct net_device_options options = {.socket_ifname = "=lo", .family = AF_INET};
    int listener;

    ask_kernel = true;
    if (net_devices_find(&options, devices, NET_DEVICES_MOST, &device_count) != TCPX_SUCCESS)
        fail_msg("%s", error_text());
    assert_int_equal(device_count, 1);
    assert_string_equal(devices[0].name, "lo");
    expect_address(&devices[0], "127.0.0.1", 0);
    assert_true(devices[0].is_loopback);
    assert_true(devices[0].is_virtual);
    assert_int_equal(devices[0].ifindex, if_nametoindex("lo"));
    assert_int_equal(devices[0].guid, devices[0].ifindex);
    assert_string_equal(devices[0].pci_path, "");
    assert_int_equal(devices[0].numa_node, -1);
    if (access("/sys/class/net/lo/mtu", R_OK) == 0)
        assert_true(devices[0].mtu > 0);
    /* the address is one that a socket can have */
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    assert_int_equal(
        bind(listener, (const struct sockaddr *)&devices[0].address, sizeof devices[0].address), 0);
    close(listener);
}

TREE_TEST(test_devices_of_this_machine)
{
    ask_kernel = true;
    if (net_devices_find(&(struct net_device_options){0}, devices, NET_DEVICES_MOST,
                         &device_count) != TCPX_SUCCESS)
        fail_msg("%s", error_text());
    assert_true(device_count >= 1);
    for (int i = 0; i < device_count; i++) {
        assert_true(devices[i].speed_mbps > 0);
        assert_int_equal(devices[i].ifindex, if_nametoindex(devices[i].name));
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(devices[i].name, devices[j].name);
            assert_true(devices[i].guid != devices[j].guid);
        }
    }
}

SUITE(.name = "net_device");
