/*
 * Shows what is understood of a machine's /proc and /sys: affinity masks of any size, quotas and
 * cpusets of both cgroup versions at every level, NUMA nodes and PCI devices, from trees made for
 * each case; and that garbage in them is unknown and no crash.
 */
#include "base/topology.h"
#include "tests/unit/tree.h"

#include <sched.h>
#include <sys/syscall.h>

/* --- a stand-in for the kernel's affinity mask --- */

static int fake_cpus;           /* 0: ask the kernel */
static size_t fake_kernel_size; /* the kernel's mask in bytes: a smaller one is refused */
static int fake_errno;

/* Takes the place of the C library's function in this program. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    long written;

    if (fake_errno != 0) {
        errno = fake_errno;
        return -1;
    }
    if (fake_cpus == 0) {
        written = syscall(SYS_sched_getaffinity, pid, size, set);
        if (written < 0)
            return -1;
        memset((char *)set + written, 0, size - (size_t)written);
        return 0;
    }
    if (size < fake_kernel_size) {
        errno = EINVAL;
        return -1;
    }
    CPU_ZERO_S(size, set);
    /* the last ones the kernel has, so that a mask cut short loses them */
    for (int i = 0; i < fake_cpus; i++)
        CPU_SET_S(fake_kernel_size * CHAR_BIT - 1 - (size_t)i, size, set);
    return 0;
}

/* --- trees --- */

static int make_root(void **state)
{
    (void)state;
    fake_cpus = 64;
    fake_kernel_size = 128;
    fake_errno = 0;
    return tree_make();
}

static int remove_root(void **state)
{
    (void)state;
    return tree_remove();
}

static void put(const char *path, const char *text)
{
    tree_put(tree_path("%s", path), text);
}

static void put_bytes(const char *path, const void *bytes, size_t length)
{
    tree_put_bytes(tree_path("%s", path), bytes, length);
}

static void put_link(const char *path, const char *target)
{
    assert_int_equal(symlink(target, tree_path("%s", path)), 0);
}

static struct topology read_topology(void)
{
    struct topology topology;

    if (topology_read(tree_root, &topology) != TCPX_SUCCESS)
        fail_msg("%s", error_text());
    return topology;
}

static void expect_quota(int cpus)
{
    assert_int_equal(read_topology().quota_cpus, cpus);
}

/* With this file as well. */
static void expect_quota_with(const char *path, const char *text, int cpus)
{
    put(path, text);
    expect_quota(cpus);
}

#define TREE_TEST(name) TEST_WITH(name, make_root, remove_root)

/* --- the affinity mask --- */

TREE_TEST(test_real_machine)
{
    struct topology topology;
    cpu_set_t set;

    fake_cpus = 0;
    CPU_ZERO(&set);
    assert_int_equal(topology_read("", &topology), TCPX_SUCCESS);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        assert_int_equal(topology.mask_cpus, CPU_COUNT(&set));
    assert_true(topology.usable_cpus >= 1 && topology.usable_cpus <= topology.mask_cpus);
    assert_true(topology.numa_nodes >= 1);
}

TREE_TEST(test_mask_of_any_size)
{
    for (size_t size = 8; size <= 65536; size *= 4) {
        fake_cpus = 5;
        fake_kernel_size = size;
        assert_int_equal(read_topology().mask_cpus, 5);
        assert_int_equal(read_topology().usable_cpus, 5);
    }
}

TREE_TEST(test_mask_that_cannot_be_read)
{
    struct topology topology = {.mask_cpus = 4711};

    fake_errno = EPERM;
    assert_int_equal(topology_read(tree_root, &topology), TCPX_SYSTEM_ERROR);
    assert_string_equal(error_text(), "cannot read the affinity mask: Operation not permitted");
    fake_errno = EINVAL;
    assert_int_equal(topology_read(tree_root, &topology), TCPX_SYSTEM_ERROR);
    assert_non_null(strstr(error_text(), "more than"));
    assert_int_equal(topology.mask_cpus, 4711);
}

TREE_TEST(test_bare_machine)
{
    struct topology topology = read_topology();

    assert_int_equal(topology.mask_cpus, 64);
    assert_int_equal(topology.quota_cpus, 0);
    assert_int_equal(topology.usable_cpus, 64);
    assert_int_equal(topology.numa_nodes, 1);
}

/* --- quotas --- */

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
#define V1_MOUNT                                                                                   \
    "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:1 - cgroup cgroup "                \
    "rw,cpu,cpuacct\n"

static void put_group(const char *group)
{
    char text[512];

    snprintf(text, sizeof text, "0::%s\n", group);
    put("/proc/self/cgroup", text);
}

static void put_v2(const char *group)
{
    put_group(group);
    put("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" V2_MOUNT);
}

TREE_TEST(test_v2_quota)
{
    static const struct {
        const char *text;
        int cpus;
    } cases[] = {
        {"200000 100000\n", 2},
        {"200001 100000\n", 3},
        {"1 100000\n", 1},
        {"max 100000\n", 0},
        {"max\n", 0},
        {"150000 50000", 3},
        {"", 0},
        {"\n", 0},
        {"200000\n", 0},
        {"0 100000\n", 0},
        {"200000 0\n", 0},
        {"-1 100000\n", 0},
        {"x y\n", 0},
        {"1 2 3\n", 0},
        {"200000  100000\n", 0},
        {"200000 100000\n7 7\n", 0},
        {"18446744073709551615 1\n", INT_MAX},
        {"18446744073709551616 1\n", 0},
    };

    put_v2("/a");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        put("/sys/fs/cgroup/a/cpu.max", cases[i].text);
        if (read_topology().quota_cpus != cases[i].cpus)
            fail_msg("'%s' is a quota of %d", cases[i].text, read_topology().quota_cpus);
    }
}

TREE_TEST(test_usable_is_the_smaller)
{
    put_v2("/a");
    put("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_int_equal(read_topology().usable_cpus, 3);
    fake_cpus = 2;
    assert_int_equal(read_topology().usable_cpus, 2);
    put("/sys/fs/cgroup/a/cpu.max", "1000 100000\n");
    assert_int_equal(read_topology().usable_cpus, 1);
}

TREE_TEST(test_least_quota_of_the_chain)
{
    put_v2("/a/b/c");
    expect_quota_with("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n", 0);
    expect_quota_with("/sys/fs/cgroup/cpu.max", "900000 100000\n", 9);
    expect_quota_with("/sys/fs/cgroup/a/cpu.max", "400000 100000\n", 4);
    expect_quota_with("/sys/fs/cgroup/a/b/cpu.max", "600000 100000\n", 4);
    expect_quota_with("/sys/fs/cgroup/a/b/c/cpu.max", "300000 100000\n", 3);
    put("/sys/fs/cgroup/a/b/other/cpu.max", "100000 100000\n");
    expect_quota_with("/sys/fs/cpu.max", "100000 100000\n", 3);
}

TREE_TEST(test_v1_quota)
{
    put("/proc/self/cgroup", "12:cpuset:/x\n4:cpu,cpuacct:/a/b\n1:name=systemd:/y\n");
    put("/proc/self/mountinfo",
        "31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" V1_MOUNT);
    put("/sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpuset/x/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
    expect_quota_with("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n", 0);
    expect_quota_with("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "350000\n", 0);
    expect_quota_with("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n", 4);
    expect_quota_with("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "50000\n", 1);
}

/* --- memory --- */

static void expect_mebibytes(uint64_t mebibytes)
{
    assert_int_equal(topology_available_memory(tree_root), mebibytes << 20);
}

TREE_TEST(test_available_memory)
{
    expect_mebibytes(0);
    put("/proc/meminfo",
        "MemTotal:       8388608 kB\nMemFree:  1024 kB\nMemAvailable:    4194304 kB\n");
    expect_mebibytes(4096);
    put_v2("/a/b");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "1048576\n");
    expect_mebibytes(4096);
    put("/sys/fs/cgroup/a/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/a/memory.current", "536870912\n");
    expect_mebibytes(512);
    /* what files have in the cache goes before anything is refused */
    put("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 268435456\n");
    expect_mebibytes(768);
    put("/sys/fs/cgroup/a/memory.current", "4294967296\n");
    expect_mebibytes(1);
    put("/sys/fs/cgroup/a/memory.max", "x\n");
    expect_mebibytes(4096);
}

TREE_TEST(test_available_memory_v1)
{
    put("/proc/meminfo", "MemAvailable:    4194304 kB\n");
    put("/proc/self/cgroup", "7:memory:/a\n");
    put("/proc/self/mountinfo",
        "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    expect_mebibytes(4096);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "805306368\n");
    expect_mebibytes(256);
    put("/sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 268435456\n");
    expect_mebibytes(512);
}

/* --- both versions --- */

TREE_TEST(test_both_versions)
{
    put("/proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/u\n");
    put("/proc/self/mountinfo",
        V1_MOUNT "42 25 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "700000\n");
    expect_quota_with("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n", 7);
    expect_quota_with("/sys/fs/cgroup/unified/u/cpu.max", "500000 100000\n", 5);
    expect_quota_with("/sys/fs/cgroup/unified/u/cpu.max", "800000 100000\n", 7);
}

TREE_TEST(test_group_of_a_container)
{
    put("/proc/self/cgroup", "0::/docker/abc/inner\n");
    put("/proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect_quota_with("/sys/fs/cgroup/inner/cpu.max", "600000 100000\n", 6);
    expect_quota_with("/sys/fs/cgroup/cpu.max", "200000 100000\n", 2);
    expect_quota_with("/sys/fs/cgroup/docker/abc/inner/cpu.max", "100000 100000\n", 2);
}

TREE_TEST(test_group_outside_the_namespace)
{
    static const char *const groups[] = {"/../other", "/..", "/a/../b", "/elsewhere",
                                         "/docker/abcd"};

    put("/proc/self/mountinfo", "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    put("/sys/fs/other/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/b/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroupd/cpu.max", "100000 100000\n");
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        put_group(groups[i]);
        if (read_topology().quota_cpus != 2)
            fail_msg("%s is not taken for the mount's root", groups[i]);
    }
    put("/proc/self/cgroup", "0::/../other\n");
    expect_quota_with("/proc/self/mountinfo",
                      "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", 2);
    expect_quota_with("/proc/self/mountinfo", V2_MOUNT, 2);
    /* of several mounts that do not show it, the first */
    expect_quota_with("/proc/self/mountinfo",
                      V2_MOUNT "31 23 0:26 / /sys/fs/other rw - cgroup2 cgroup2 rw\n", 2);
}

TREE_TEST(test_mount_that_shows_the_group_is_preferred)
{
    put("/proc/self/cgroup", "0::/mine/inner\n");
    put("/proc/self/mountinfo", "50 23 0:26 /theirs /mnt/theirs rw - cgroup2 cgroup2 rw\n"
                                "51 23 0:26 /mine /mnt/with\\040blank rw - cgroup2 cgroup2 rw\n"
                                "52 23 0:26 /mine /mnt/later rw - cgroup2 cgroup2 rw\n");
    put("/mnt/theirs/cpu.max", "100000 100000\n");
    put("/mnt/later/cpu.max", "200000 100000\n");
    expect_quota_with("/mnt/with blank/inner/cpu.max", "300000 100000\n", 3);
}

TREE_TEST(test_garbage_around_quotas)
{
    static const char *const groups[] = {"",        "\n",    "0::\n",  "0:\n",          "0\n",
                                         ":::::\n", "1::/a", "0::a\n", "4:cpuset:/a\n", "cpu:/a\n"};
    static const char *const mounts[] = {"",
                                         "\n",
                                         " - cgroup2",
                                         " - cgroup2 x y\n",
                                         "a - cgroup2 cgroup2 rw\n",
                                         "1 2 3 / - cgroup2 cgroup2 rw\n",
                                         "1 2 3 / /sys/fs/cgroup rw cgroup2 cgroup2 rw\n",
                                         "1 2 3 / /sys/fs/cgroup rw - cgroup2\n",
                                         "1 2 3 / /sys/fs/cgroup rw - cgroup3 cgroup2 rw\n"};
    static char zeros[8192];

    put_v2("/a");
    expect_quota_with("/sys/fs/cgroup/a/cpu.max", "200000 100000\n", 2);
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        expect_quota_with("/proc/self/cgroup", groups[i], 0);
    put_v2("/a");
    for (size_t i = 0; i < COUNT_OF(mounts); i++)
        expect_quota_with("/proc/self/mountinfo", mounts[i], 0);
    put_v2("/a");
    put_bytes("/sys/fs/cgroup/a/cpu.max", zeros, sizeof zeros);
    expect_quota(0);
    put_bytes("/sys/fs/cgroup/a/cpu.max", "200000 100000\0\n", 15);
    expect_quota(0);
    put_bytes("/proc/self/cgroup", zeros, sizeof zeros);
    put_bytes("/proc/self/mountinfo", zeros, sizeof zeros);
    expect_quota(0);
    remove(tree_path("/proc/self/cgroup"));
    assert_int_equal(mkdir(tree_path("/proc/self/cgroup"), 0755), 0);
    expect_quota(0);
}

TREE_TEST(test_very_long_paths)
{
    static char text[3 * PATH_MAX];

    put_v2("/a");
    memset(text, 'x', sizeof text - 2);
    memcpy(text, "0::/", 4);
    text[sizeof text - 2] = '\n';
    expect_quota_with("/proc/self/cgroup", text, 0);
    /* It fits, but the file below it does not: the mount's root still counts. */
    memcpy(text + PATH_MAX - 2, "\n", 2);
    put("/proc/self/cgroup", text);
    expect_quota_with("/sys/fs/cgroup/cpu.max", "400000 100000\n", 4);
}

/* --- cpusets --- */

#define V1_CPUSET_MOUNT "34 25 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"

static void expect_group(int cpus)
{
    assert_int_equal(read_topology().group_cpus, cpus);
}

TREE_TEST(test_cpuset_of_the_group)
{
    expect_group(0);
    put("/sys/devices/system/cpu/online", "0-127\n");
    expect_group(128);
    put_v2("/a/b");
    expect_group(128);
    put("/sys/fs/cgroup/cpuset.cpus.effective", "0-95\n");
    expect_group(96);
    put("/sys/fs/cgroup/a/cpuset.cpus.effective", "0-7,64-71\n");
    expect_group(16);
    put("/sys/fs/cgroup/a/b/cpuset.cpus.effective", "\n");
    expect_group(16);
    put("/sys/fs/cgroup/a/b/cpuset.cpus.effective", "0-1048576\n");
    expect_group(16);
    assert_int_equal(read_topology().usable_cpus, 64);
}

TREE_TEST(test_cpuset_of_version_1)
{
    put("/sys/devices/system/cpu/online", "0-127\n");
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:cpuset:/a\n");
    put("/proc/self/mountinfo", V1_MOUNT V1_CPUSET_MOUNT);
    put("/sys/fs/cgroup/cpuset/x/cpuset.effective_cpus", "0\n");
    expect_group(128);
    put("/sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "4-7\n");
    expect_group(4);
}

/* --- CPU lists and NUMA nodes --- */

static void expect_nodes(const char *online, int nodes)
{
    put("/sys/devices/system/node/online", online);
    if (read_topology().numa_nodes != nodes)
        fail_msg("'%s' are %d nodes", online, read_topology().numa_nodes);
}

TREE_TEST(test_cpu_lists)
{
    expect_nodes("0-3,8,10-11", 7);
    expect_nodes("0-3,8,10-11\n", 7);
    expect_nodes("0", 1);
    expect_nodes("5-5,6", 2);
    expect_nodes("14,15", 2);
    expect_nodes("0,1-2,3", 4);
    expect_nodes("", 1);
    expect_nodes("\n", 1);
}

TREE_TEST(test_not_cpu_lists)
{
    static const char *const texts[] = {",",
                                        "0-4,",
                                        ",0-4",
                                        "0-4,,5",
                                        "-",
                                        "0-4,5-",
                                        "-1",
                                        "1-0",
                                        "0-1-2",
                                        "0-4,0",
                                        "0-4,4",
                                        "0-3,3",
                                        "a",
                                        "none\n",
                                        "0-4,0x5",
                                        "0-4 5",
                                        " 0-4",
                                        "0-4 ",
                                        "0-4\n\n",
                                        "\n0-4",
                                        "0-4,\n",
                                        "0-4,5-\n",
                                        "0-4,1024",
                                        "0-1024",
                                        "0-4,4294967296",
                                        "0-4,18446744073709551616",
                                        "0-18446744073709551615",
                                        "0-15:2/4",
                                        "0-4,99999999999999999999999999"};

    for (size_t i = 0; i < COUNT_OF(texts); i++)
        expect_nodes(texts[i], 1);
}

TREE_TEST(test_cpu_list_beyond_1024)
{
    expect_nodes("0-1023", 1024);
    expect_nodes("0,512-1023", 513);
    expect_nodes("0-4,1024-1535,4095", 1);
}

TREE_TEST(test_cpus_of_a_node)
{
    char list[32];
    cpu_set_t cpus;

    snprintf(list, sizeof list, "2-3,%d\n", CPU_SETSIZE - 1);
    put("/sys/devices/system/node/node1/cpulist", list);
    assert_true(topology_node_cpus(tree_root, 1, &cpus));
    assert_int_equal(CPU_COUNT(&cpus), 3);
    assert_true(CPU_ISSET(2, &cpus) && CPU_ISSET(3, &cpus) && CPU_ISSET(CPU_SETSIZE - 1, &cpus));
}

/* A node without CPUs has an empty list. */
TREE_TEST(test_nodes_without_known_cpus)
{
    static const char *const lists[] = {"\n", "", "x\n", "0-3,\n", "0,1024\n"};
    cpu_set_t cpus;

    memset(&cpus, 0x5a, sizeof cpus);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        put("/sys/devices/system/node/node0/cpulist", lists[i]);
        assert_false(topology_node_cpus(tree_root, 0, &cpus));
    }
    put("/sys/devices/system/node/node-1/cpulist", "0\n");
    assert_false(topology_node_cpus(tree_root, -1, &cpus));
    assert_false(topology_node_cpus(tree_root, 7, &cpus));
    expect_untouched(&cpus, sizeof cpus);
}

/* --- PCI devices --- */

#define BRIDGE "/sys/devices/pci0000:3a/0000:3a:00.0"
#define DEVICE BRIDGE "/0000:3b:00.0"

static void put_device(void)
{
    put(DEVICE "/numa_node", "1\n");
    put_link("/sys/bus/pci/devices/0000:3b:00.0",
             "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
}

TREE_TEST(test_pci_path)
{
    static const char *const addresses[] = {"0000:3b:00.0", "0000:3B:00.0", "00000000:3B:00.0"};
    char path[256];

    put_device();
    for (size_t i = 0; i < COUNT_OF(addresses); i++) {
        path[0] = '\0';
        assert_true(topology_pci_path(tree_root, addresses[i], path, sizeof path));
        assert_string_equal(path, DEVICE);
    }
    assert_true(topology_pci_path(tree_root, "0000:3b:00.0", path, sizeof DEVICE));
}

TREE_TEST(test_no_pci_path)
{
    static const char *const addresses[] = {"",
                                            "0000:3c:00.0",
                                            "0000:3b:00",
                                            "0000:3b:00.0 ",
                                            "0000:3b:00.00",
                                            "3b:00.0",
                                            "000:3b:00.0",
                                            "000g:3b:00.0",
                                            "0000:3b:0.0",
                                            "0000:3b:00.0/",
                                            "0000-3b:00.0",
                                            "000000000:3b:00.0",
                                            "..",
                                            "../devices",
                                            "0000:3b:00,0"};
    char path[256] = "untouched";

    put_device();
    for (size_t i = 0; i < COUNT_OF(addresses); i++)
        if (topology_pci_path(tree_root, addresses[i], path, sizeof path))
            fail_msg("'%s' has a path", addresses[i]);
    /* one byte too small */
    assert_false(topology_pci_path(tree_root, "0000:3b:00.0", path, sizeof DEVICE - 1));
    /* a link that breaks, one that leads out of /sys/devices, one in a circle */
    put_link("/sys/bus/pci/devices/0000:00:01.0", "../../../devices/none");
    put_link("/sys/bus/pci/devices/0000:00:02.0", "/etc");
    put_link("/sys/bus/pci/devices/0000:00:03.0", "0000:00:03.0");
    put_link("/sys/bus/pci/devices/0000:00:04.0", "..");
    assert_false(topology_pci_path(tree_root, "0000:00:01.0", path, sizeof path));
    assert_false(topology_pci_path(tree_root, "0000:00:02.0", path, sizeof path));
    assert_false(topology_pci_path(tree_root, "0000:00:03.0", path, sizeof path));
    assert_false(topology_pci_path(tree_root, "0000:00:04.0", path, sizeof path));
    assert_false(topology_pci_path("/no/such/root", "0000:3b:00.0", path, sizeof path));
    assert_string_equal(path, "untouched");
}

TREE_TEST(test_numa_node)
{
    static const char *const garbage[] = {
        "-1\n", "", "\n", "x\n", "1 2\n", "4294967296\n", "99999999999999999999\n"};

    put_device();
    assert_int_equal(topology_numa_node(tree_root, DEVICE), 1);
    put(DEVICE "/numa_node", "0\n");
    assert_int_equal(topology_numa_node(tree_root, DEVICE), 0);
    for (size_t i = 0; i < COUNT_OF(garbage); i++) {
        put(DEVICE "/numa_node", garbage[i]);
        assert_int_equal(topology_numa_node(tree_root, DEVICE), -1);
    }
    put(DEVICE "/numa_node", "1\n");
    put("/elsewhere/numa_node", "1\n");
    assert_int_equal(topology_numa_node(tree_root, ""), -1);
    assert_int_equal(topology_numa_node(tree_root, BRIDGE), -1);
    assert_int_equal(topology_numa_node(tree_root, "/elsewhere"), -1);
    assert_int_equal(topology_numa_node(tree_root, "/sys/devices/../../elsewhere"), -1);
}

TREE_TEST(test_pci_distance)
{
    assert_int_equal(topology_pci_distance(DEVICE, DEVICE), 0);
    assert_int_equal(topology_pci_distance(DEVICE, BRIDGE "/0000:3b:00.1"), 2);
    assert_int_equal(topology_pci_distance(DEVICE, BRIDGE), 1);
    assert_int_equal(topology_pci_distance(BRIDGE, DEVICE), 1);
    assert_int_equal(
        topology_pci_distance(DEVICE, "/sys/devices/pci0000:3a/0000:3a:00.1/0000:3c:00.0"), 4);
    assert_int_equal(topology_pci_distance(DEVICE, "/sys/devices/pci0000:80/0000:80:00.0"), 5);
    assert_int_equal(topology_pci_distance(DEVICE, ""), INT_MAX);
    assert_int_equal(topology_pci_distance("", ""), INT_MAX);
    assert_int_equal(topology_pci_distance("/etc", DEVICE), INT_MAX);
}

SUITE(.name = "topology");
