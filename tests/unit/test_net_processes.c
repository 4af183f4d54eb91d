/*
 * Shows how the processes that share CPUs are counted: those that are registered, until they leave,
 * die or are killed, and not those on other CPUs; what launchers say; and that a file of somebody
 * else in the registry's place means that nobody else is there.
 */
#include "base/fork.h"
#include "net/io/process_registry.h"
#include "net/io/processes.h"
#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/support/check.h"
#include "tests/unit/tree.h"

#include <fcntl.h>
#include <sys/resource.h>

static const char *check_detail(void)
{
    return error_text();
}

/* --- a registry of the tests' own, in place of that in /dev/shm --- */

static char folder[CHILD_BYTES];
static bool without_shm;

int __real_process_registry_open(const char *where, bool make);
int __wrap_process_registry_open(const char *where, bool make);

int __wrap_process_registry_open(const char *where, bool make)
{
    bool is_shm = strcmp(where, "/dev/shm") == 0;

    if (is_shm && without_shm)
        return -1;
    return __real_process_registry_open(is_shm ? folder : where, make);
}

static int make_folder(void **state)
{
    int status = tree_make();

    (void)state;
    snprintf(folder, sizeof folder, "%.*s", (int)sizeof folder - 1, tree_root);
    without_shm = false;
    unsetenv("XDG_RUNTIME_DIR");
    return status;
}

static int remove_folder(void **state)
{
    (void)state;
    return tree_remove();
}

#define FOLDER_TEST(name) TEST_WITH(name, make_folder, remove_folder)

static const struct topology whole = {.mask_cpus = 8, .group_cpus = 8};

static void expect_count(unsigned count)
{
    assert_int_equal(processes_count(&whole), count);
}

/* --- the registry --- */

static int open_own(void)
{
    int registry = process_registry_open("/dev/shm", true);

    assert_true(registry >= 0);
    return registry;
}

static int enter(cpu_set_t cpus)
{
    int registry = open_own();

    assert_true(process_registry_enter(registry, &cpus));
    return registry;
}

static void expect_others(int registry, cpu_set_t cpus, unsigned count)
{
    assert_int_equal(process_registry_count(registry, &cpus), count);
}

/* Descriptors are registered, so those of one process do as well as those of many. */
FOLDER_TEST(test_who_shares_cpus)
{
    cpu_set_t odd = cpus_from(0, 0);
    cpu_set_t even = cpus_from(0, 0);
    int registry = open_own();
    int left = enter(cpus_from(0, 8));
    int right = enter(cpus_from(8, 8));
    int last = enter(cpus_from(CPU_SETSIZE - 1, 1));

    for (int cpu = 0; cpu < 16; cpu++)
        CPU_SET(cpu, cpu % 2 == 0 ? &even : &odd);
    expect_others(registry, cpus_from(0, 16), 2);
    expect_others(registry, cpus_from(0, CPU_SETSIZE), 3);
    expect_others(registry, cpus_from(7, 1), 1);
    expect_others(registry, cpus_from(7, 2), 2);
    expect_others(registry, cpus_from(16, CPU_SETSIZE - 16), 1);
    expect_others(registry, cpus_from(16, CPU_SETSIZE - 17), 0);
    expect_others(left, cpus_from(0, 16), 1);
    fork_close(right);
    right = enter(odd);
    expect_others(registry, even, 1);
    expect_others(registry, odd, 2);
    expect_others(registry, cpus_from(8, 1), 0);
    fork_close(left);
    fork_close(right);
    fork_close(last);
    fork_close(registry);
}

/* The kernel keeps locks in an order of its own: whichever of them are there, all are found. */
FOLDER_TEST(test_many)
{
    enum { MANY = 200 };
    int registry = open_own();
    cpu_set_t cpus = cpus_from(0, 4);
    uint64_t random = 4711;
    int entered[MANY];
    unsigned left = MANY;

    for (int i = 0; i < MANY; i++) {
        entered[i] = enter(cpus);
        expect_others(registry, cpus, (unsigned)i + 1);
    }
    while (left > 0) {
        uint64_t one = random_below(&random, left);

        fork_close(entered[one]);
        entered[one] = entered[--left];
        expect_others(registry, cpus, left);
    }
    fork_close(registry);
}

/* A process of this user that locks the whole file: others end, and are not registered. */
FOLDER_TEST(test_no_row_is_free)
{
    struct flock everything = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    cpu_set_t cpus = cpus_from(0, 4);
    int greedy = open_own();
    int registry = open_own();

    assert_int_equal(fcntl(greedy, F_OFD_SETLK, &everything), 0);
    assert_false(process_registry_enter(registry, &cpus));
    assert_true(process_registry_count(registry, &cpus) >= 1);
    processes_join();
    processes_leave();
    fork_close(greedy);
    expect_others(registry, cpus, 0);
    fork_close(registry);
}

/* --- processes --- */

/* Registers, as every process with I/O threads does, and waits to be killed. */
static void stay_registered(const uint8_t *argument)
{
    memcpy(folder, argument, sizeof folder);
    processes_join();
    atomic_fetch_add(&child_shared->flag, 1);
    for (;;)
        pause();
}

/* Children that are ready have raised the flag to that. */
static void await_flag(int ready)
{
    uint64_t since = now_ms();

    while (atomic_load(&child_shared->flag) < ready) {
        assert_string_equal(child_shared->failure, "");
        assert_true(now_ms() - since < limit_ms(10000));
        nap_us(200);
    }
}

static void start_registered(pid_t *children, int count)
{
    atomic_store(&child_shared->flag, 0);
    for (int i = 0; i < count; i++)
        children[i] = child_fork(stay_registered, folder, sizeof folder);
    await_flag(count);
}

FOLDER_TEST(test_killed_processes_are_gone)
{
    enum { CHILDREN = 5 };
    pid_t children[CHILDREN];
    int descriptors = open_descriptors();

    expect_count(1);
    start_registered(children, CHILDREN);
    expect_count(1 + CHILDREN);
    processes_join();
    expect_count(1 + CHILDREN);
    for (unsigned left = CHILDREN; left > 0; left--) {
        assert_true(WIFSIGNALED(child_kill(children[left - 1])));
        expect_count(left);
    }
    processes_leave();
    expect_count(1);
    assert_int_equal(open_descriptors(), descriptors);
}

/* As another process sees it. */
static unsigned others_seen(void)
{
    cpu_set_t all = cpus_from(0, CPU_SETSIZE);
    int registry = process_registry_open("/dev/shm", false);
    unsigned count = registry >= 0 ? process_registry_count(registry, &all) : 0;

    if (registry >= 0)
        fork_close(registry);
    return count;
}

/* Threads that start while the last ones end: the registration lasts. */
FOLDER_TEST(test_joined_twice)
{
    assert_int_equal(others_seen(), 0);
    processes_join();
    processes_join();
    assert_int_equal(others_seen(), 1);
    processes_leave();
    assert_int_equal(others_seen(), 1);
    processes_leave();
    assert_int_equal(others_seen(), 0);
    processes_join();
    assert_int_equal(others_seen(), 1);
    processes_leave();
    assert_int_equal(others_seen(), 0);
}

/* Counting alone leaves no file behind. */
FOLDER_TEST(test_counting_makes_no_file)
{
    int entries = count_entries(folder);

    expect_count(1);
    assert_int_equal(count_entries(folder), entries);
}

/* A forked child does not hold the registration of its parent, and cannot end it. */
static void live_on(const uint8_t *ignored)
{
    int reused = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the number of the registry's */

    (void)ignored;
    CHECK(reused >= 0);
    CHECK(processes_count(&whole) == 1);
    processes_join();
    processes_leave();
    processes_leave();
    CHECK(fcntl(reused, F_GETFD) >= 0);
    atomic_store(&child_shared->flag, 1);
    for (;;)
        pause();
}

FOLDER_TEST(test_forked_child)
{
    pid_t child;

    processes_join();
    atomic_store(&child_shared->flag, 0);
    child = child_fork_here(live_on, NULL);
    await_flag(1);
    assert_int_equal(others_seen(), 1);
    processes_leave();
    assert_int_equal(others_seen(), 0);
    child_kill(child);
}

/* --- a registry that is not there, or not ours --- */

static const char *registry_path(void)
{
    return tree_path("/tcpx-processes-%u", geteuid());
}

/* Such a registry is not used, and nothing fails. */
static void expect_nobody(void)
{
    assert_int_equal(process_registry_open("/dev/shm", true), -1);
    expect_count(1);
    processes_join();
    expect_count(1);
    processes_leave();
    expect_count(1);
}

FOLDER_TEST(test_symbolic_link)
{
    char target[PATH_MAX];

    snprintf(target, sizeof target, "%s", tree_path("/target"));
    assert_int_equal(symlink(target, registry_path()), 0);
    expect_nobody();
    assert_int_not_equal(access(target, F_OK), 0);
    tree_put(target, "");
    assert_int_equal(chmod(target, 0600), 0);
    expect_nobody();
}

FOLDER_TEST(test_folder_of_that_name)
{
    assert_int_equal(mkdir(registry_path(), 0700), 0);
    expect_nobody();
}

FOLDER_TEST(test_pipe_of_that_name)
{
    assert_int_equal(mkfifo(registry_path(), 0600), 0);
    expect_nobody();
}

/* Others could lock it, and be counted. */
FOLDER_TEST(test_file_that_others_can_open)
{
    tree_put(registry_path(), "");
    assert_int_equal(chmod(registry_path(), 0604), 0);
    expect_nobody();
    assert_int_equal(chmod(registry_path(), 0600), 0);
    processes_join();
    assert_int_equal(others_seen(), 1);
    processes_leave();
}

FOLDER_TEST(test_file_of_another_user)
{
    if (geteuid() != 0)
        skip_because("only root can give a file to another user");
    tree_put(registry_path(), "");
    assert_int_equal(chmod(registry_path(), 0600), 0);
    assert_int_equal(chown(registry_path(), 65534, 65534), 0);
    expect_nobody();
}

static void check_nobody(void)
{
    CHECK(processes_count(&whole) == 1);
    processes_join();
    CHECK(processes_count(&whole) == 1);
    processes_leave();
}

static void meet_closed_doors(const uint8_t *argument)
{
    memcpy(folder, argument, sizeof folder);
    CHECK(geteuid() != 0 || seteuid(65534) == 0);
    check_nobody();
}

/* The folder, and then the file, cannot be written to. */
FOLDER_TEST(test_without_permission)
{
    assert_int_equal(chmod(folder, 0555), 0);
    child_succeeds(meet_closed_doors, folder, sizeof folder);
    assert_int_equal(chmod(folder, 0755), 0);
    tree_put(tree_path("/tcpx-processes-%u", geteuid() != 0 ? geteuid() : 65534), "");
    assert_int_equal(chmod(tree_path("/tcpx-processes-%u", geteuid() != 0 ? geteuid() : 65534),
                           geteuid() != 0 ? 0400 : 0600),
                     0);
    child_succeeds(meet_closed_doors, folder, sizeof folder);
}

static void lack_descriptors(const uint8_t *argument)
{
    struct rlimit none = {0, 0};

    memcpy(folder, argument, sizeof folder);
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    check_nobody();
}

FOLDER_TEST(test_without_descriptors)
{
    child_succeeds(lack_descriptors, folder, sizeof folder);
}

FOLDER_TEST(test_runtime_folder_instead)
{
    without_shm = true;
    expect_nobody();
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(setenv("XDG_RUNTIME_DIR", ".", 1), 0);
    expect_nobody();
    assert_int_not_equal(access(registry_path(), F_OK), 0);
    assert_int_equal(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
    processes_join();
    assert_int_equal(access(registry_path(), F_OK), 0);
    without_shm = false; /* where the same file is */
    assert_int_equal(others_seen(), 1);
    processes_leave();
}

/* --- launchers --- */

struct launch {
    const char *name;
    const char *variables[3]; /* NAME=VALUE */
    int mask_cpus;
    int group_cpus;
    unsigned processes;
};

static const struct launch launches[] = {
    {"test_launchers", {"LOCAL_WORLD_SIZE=8"}, 128, 128, 8},
    {"test_launchers", {"OMPI_COMM_WORLD_LOCAL_SIZE=4"}, 128, 128, 4},
    {"test_launchers", {"SLURM_NTASKS_PER_NODE=2"}, 128, 128, 2},
    {"test_launchers", {"MPI_LOCALNRANKS=4096"}, 128, 128, 4096},
    {"test_launchers", {"SLURM_NTASKS_PER_NODE=1", "LOCAL_WORLD_SIZE=8"}, 128, 128, 8},
    {"test_launchers", {"LOCAL_WORLD_SIZE=8", "MPI_LOCALNRANKS=x"}, 128, 128, 8},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 16, 128, 1},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 17, 128, 2},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 64, 128, 4},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 1, 128, 1},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 16, 0, 8},
    {"test_launchers_that_bind", {"LOCAL_WORLD_SIZE=8"}, 16, 12, 8},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE="}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE=0"}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE=-1"}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE= 8"}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE=8x"}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE=4097"}, 128, 128, 1},
    {"test_no_numbers", {"LOCAL_WORLD_SIZE=18446744073709551617"}, 128, 128, 1},
    {"test_no_numbers", {"SLURM_NTASKS_PER_NODE=4(x2),3"}, 128, 128, 1},
};

static void be_launched(const uint8_t *argument)
{
    const struct launch *launch = *(const struct launch *const *)argument;
    struct topology topology = {.mask_cpus = launch->mask_cpus, .group_cpus = launch->group_cpus};

    snprintf(folder, sizeof folder, "/nonexistent");
    CHECK(clearenv() == 0);
    for (size_t i = 0; launch->variables[i] != NULL; i++)
        CHECK(putenv((char *)(uintptr_t)launch->variables[i]) == 0);
    CHECK(processes_count(&topology) == launch->processes);
}

TABLE_TEST(launches)
{
    child_judge(child_wait(child_fork(be_launched, &row, sizeof row)), row->variables[0]);
}

/* A launcher says 3: the others that are registered may be more. */
static void count_both(const uint8_t *argument)
{
    memcpy(folder, argument, sizeof folder);
    CHECK(setenv("LOCAL_WORLD_SIZE", "3", 1) == 0);
    CHECK(processes_count(&whole) == (unsigned)atomic_load(&child_shared->flag));
}

static void expect_both(unsigned count)
{
    atomic_store(&child_shared->flag, (int)count);
    child_succeeds(count_both, folder, sizeof folder);
}

FOLDER_TEST(test_the_larger_number)
{
    pid_t children[4];

    start_registered(children, 4);
    expect_both(5);
    child_kill(children[0]);
    child_kill(children[1]);
    child_kill(children[2]);
    expect_both(3);
    child_kill(children[3]);
}

/* Nobody has launched this process. */
static int begin_suite(void)
{
    for (size_t i = 0; i < COUNT_OF(launches); i++)
        for (size_t k = 0; launches[i].variables[k] != NULL; k++) {
            char name[64];

            snprintf(name, sizeof name, "%.*s", (int)strcspn(launches[i].variables[k], "="),
                     launches[i].variables[k]);
            unsetenv(name);
        }
    return child_begin();
}

SUITE(.name = "processes that share CPUs", .begin = begin_suite);
