/*
 * Shows how many I/O threads a process plans, and when callers move the data, from CPUs, quota,
 * processes and settings; and which CPUs an I/O thread keeps to: those of its NUMA node, never one
 * outside of the affinity mask, and all of the mask where the node's are too few.
 */
#include "base/config.h"
#include "net/io/placement.h"
#include "tests/unit/tree.h"

/* --- a stand-in for the kernel's affinity masks --- */

static cpu_set_t mask;
static int mask_error;
static cpu_set_t placed; /* empty: the mask was not set */
static int place_error;

/* These take the place of the C library's functions in this program. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    assert_int_equal(pid, 0);
    assert_true(size >= sizeof mask);
    if (mask_error != 0) {
        errno = mask_error;
        return -1;
    }
    memset(set, 0, size);
    memcpy(set, &mask, sizeof mask);
    return 0;
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    assert_int_equal(pid, 0);
    assert_int_equal(size, sizeof placed);
    if (place_error != 0) {
        errno = place_error;
        return -1;
    }
    placed = *set;
    return 0;
}

static int make_machine(void **state)
{
    (void)state;
    mask = cpus_from(0, 16);
    mask_error = place_error = 0;
    CPU_ZERO(&placed);
    return tree_make();
}

static int remove_machine(void **state)
{
    (void)state;
    return tree_remove();
}

#define MACHINE_TEST(name) TEST_WITH(name, make_machine, remove_machine)

/* --- the number of threads --- */

#define AUTO CONFIG_AUTO

static const struct {
    const char *name;
    int cpus;
    unsigned processes;
    uint64_t setting;
    unsigned threads;
    bool scarce;
    bool plenty;
} plan_cases[] = {
    {"test_alone", 1, 1, AUTO, 1, true, false},
    {"test_alone", 2, 1, AUTO, 1, true, false},
    {"test_alone", 3, 1, AUTO, 1, true, false},
    {"test_alone", 4, 1, AUTO, 2, false, true},
    {"test_alone", 5, 1, AUTO, 2, false, true},
    {"test_alone", 16, 1, AUTO, 8, false, true},
    {"test_alone", 32, 1, AUTO, 16, false, true},
    {"test_alone", 1000, 1, AUTO, 16, false, true},
    {"test_among_others", 16, 2, AUTO, 4, false, true},
    {"test_among_others", 16, 3, AUTO, 2, false, true},
    {"test_among_others", 16, 8, AUTO, 1, false, true},
    {"test_among_others", 192, 8, AUTO, 12, false, true},
    {"test_among_others", 17, 9, AUTO, 1, true, false},
    {"test_among_others", 16, 4096, AUTO, 1, true, false},
    {"test_among_others", 4, 2, AUTO, 1, false, true},
    {"test_among_others", 4, 3, AUTO, 1, true, false},
    /* a setting decides how many, not whether they may stay awake */
    {"test_threads_that_are_set", 16, 8, 5, 5, false, true},
    {"test_threads_that_are_set", 16, 16, 5, 5, false, false},
    {"test_threads_that_are_set", 2, 1, 64, 64, false, false},
    {"test_threads_that_are_set", 16, 1, 0, 0, false, true},
};

TABLE_TEST(plan_cases)
{
    struct topology topology = {.usable_cpus = row->cpus, .numa_nodes = 3};
    struct io_plan plan = io_plan_for(&topology, row->setting, row->processes);

    if (plan.threads != row->threads || plan.cpus_are_scarce != row->scarce ||
        plan.cpus_are_plenty != row->plenty)
        fail_msg("%d CPUs, %u processes: %u threads, scarce %d, plenty %d", row->cpus,
                 row->processes, plan.threads, plan.cpus_are_scarce, plan.cpus_are_plenty);
    assert_int_equal(plan.is_automatic, row->setting == AUTO);
    assert_int_equal(plan.processes, row->processes);
    assert_int_equal(plan.topology.numa_nodes, 3);
}

static struct io_plan plan_below_tree(void)
{
    struct io_plan plan;

    assert_int_equal(io_plan_below(tree_root, &plan), TCPX_SUCCESS);
    return plan;
}

/* Eight processes, as the suite has set it: 16 CPUs are enough for them, a quota of 4 is not. */
MACHINE_TEST(test_mask_and_quota)
{
    struct io_plan plan = plan_below_tree();

    assert_int_equal(plan.processes, 8);
    assert_int_equal(plan.threads, 1);
    assert_false(plan.cpus_are_scarce);
    mask = cpus_from(0, 64);
    assert_int_equal(plan_below_tree().threads, 4);
    tree_put(tree_path("/proc/self/cgroup"), "0::/a\n");
    tree_put(tree_path("/proc/self/mountinfo"),
             "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    tree_put(tree_path("/sys/fs/cgroup/a/cpu.max"), "400000 100000\n");
    plan = plan_below_tree();
    assert_int_equal(plan.threads, 1);
    assert_true(plan.cpus_are_scarce);
    assert_false(plan.cpus_are_plenty);
    assert_int_equal(plan.topology.mask_cpus, 64);
    assert_int_equal(plan.topology.quota_cpus, 4);
}

MACHINE_TEST(test_mask_that_cannot_be_read)
{
    struct io_plan plan = {.threads = 4711};

    mask_error = EPERM;
    assert_int_equal(io_plan_below(tree_root, &plan), TCPX_SYSTEM_ERROR);
    assert_int_equal(plan.threads, 4711);
}

/* --- where a thread runs --- */

static void put_two_nodes(void)
{
    tree_put(tree_path("/sys/devices/system/node/online"), "0-1\n");
    tree_put(tree_path("/sys/devices/system/node/node0/cpulist"), "0-3,8-11\n");
    tree_put(tree_path("/sys/devices/system/node/node1/cpulist"), "4-7,12-15\n");
}

static void expect_cpus(const cpu_set_t *cpus, int first, int count)
{
    cpu_set_t expected = cpus_from(first, count);

    assert_true(CPU_EQUAL(cpus, &expected));
}

MACHINE_TEST(test_cpus_of_a_node_in_the_mask)
{
    cpu_set_t cpus;

    put_two_nodes();
    mask = cpus_from(0, 6);
    assert_true(io_thread_cpus(tree_root, 0, &cpus));
    expect_cpus(&cpus, 0, 4);
    assert_true(io_thread_cpus(tree_root, 1, &cpus));
    expect_cpus(&cpus, 4, 2);
}

MACHINE_TEST(test_the_whole_mask_without_a_node)
{
    cpu_set_t cpus;

    put_two_nodes();
    mask = cpus_from(0, 4);
    for (int node = -1; node <= 2; node++) {
        assert_true(io_thread_cpus(tree_root, node, &cpus));
        expect_cpus(&cpus, 0, 4);
    }
}

MACHINE_TEST(test_more_cpus_than_fit)
{
    struct io_plan plan = {.threads = 1, .topology.numa_nodes = 2};
    cpu_set_t cpus;

    put_two_nodes();
    mask_error = EINVAL;
    memset(&cpus, 0x5a, sizeof cpus);
    assert_false(io_thread_cpus(tree_root, 0, &cpus));
    expect_untouched(&cpus, sizeof cpus);
    assert_false(io_thread_stay_near(tree_root, 0, &plan));
}

MACHINE_TEST(test_a_thread_stays_on_its_node)
{
    struct io_plan plan = {.threads = 2};

    put_two_nodes();
    plan.topology = plan_below_tree().topology;
    mask = cpus_from(0, 6);
    assert_true(io_thread_stay_near(tree_root, 1, &plan));
    expect_cpus(&placed, 4, 2);
    assert_true(io_thread_stay_near(tree_root, 0, &plan));
    expect_cpus(&placed, 0, 4);
}

MACHINE_TEST(test_a_thread_goes_anywhere)
{
    struct io_plan plan = {.threads = 3, .topology.numa_nodes = 2};

    put_two_nodes();
    mask = cpus_from(0, 6);
    assert_false(io_thread_stay_near(tree_root, 1, &plan)); /* 2 CPUs for 3 threads */
    assert_false(io_thread_stay_near(tree_root, -1, &plan));
    plan.threads = 2;
    plan.topology.numa_nodes = 1;
    assert_false(io_thread_stay_near(tree_root, 1, &plan));
    expect_cpus(&placed, 0, 0);
    plan.topology.numa_nodes = 2;
    place_error = EPERM;
    assert_false(io_thread_stay_near(tree_root, 1, &plan));
}

static int begin_suite(void)
{
    unsetenv("UCCL_TCPX_THREADS");
    return setenv("UCCL_TCPX_PROCESSES", "8", 1);
}

SUITE(.name = "plan", .begin = begin_suite);
