/* This process in the registry, and the variables of launchers. */
#include "net/io/processes.h"

#include "base/fork.h"
#include "base/log.h"
#include "base/parse.h"
#include "net/io/process_registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * Guards the two below. It is taken after the lock of the I/O threads, and never in a forked child,
 * where a thread that does not exist may hold it.
 */
static pthread_mutex_t processes_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned joins;
static int joined_registry = -1; /* holds the locks of this process; -1: not registered */

/* --- the registry -------------------------------------------------------------------------- */

static int open_registry(bool make)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int registry = process_registry_open("/dev/shm", make);

    if (registry < 0 && runtime != NULL && *runtime == '/')
        registry = process_registry_open(runtime, make);
    return registry;
}

/* The CPUs of the calling thread; all of them where the kernel has more than fit. */
static cpu_set_t thread_cpus(void)
{
    cpu_set_t cpus;

    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        memset(&cpus, 0xff, sizeof cpus);
    return cpus;
}

static void join_registry(void)
{
    cpu_set_t cpus = thread_cpus();
    int registry = open_registry(true);

    if (registry >= 0 && !process_registry_enter(registry, &cpus)) {
        log_debug("other processes do not count this one: it cannot be registered");
        fork_close(registry);
        registry = -1;
    }
    joined_registry = registry;
}

/* The same for the join and the leave of a process. */
static bool can_register(void)
{
    return fork_watch() == TCPX_SUCCESS && fork_check() == TCPX_SUCCESS;
}

void processes_join(void)
{
    if (!can_register())
        return;
    pthread_mutex_lock(&processes_lock);
    if (joins++ == 0)
        join_registry();
    pthread_mutex_unlock(&processes_lock);
}

void processes_leave(void)
{
    if (!can_register())
        return;
    pthread_mutex_lock(&processes_lock);
    if (--joins == 0 && joined_registry >= 0) {
        fork_close(joined_registry);
        joined_registry = -1;
    }
    pthread_mutex_unlock(&processes_lock);
}

/* A descriptor does not find its own locks, so that this process is counted once, joined or not. */
static unsigned count_registered(void)
{
    cpu_set_t cpus = thread_cpus();
    unsigned others = 0;
    int registry;

    if (fork_check() != TCPX_SUCCESS)
        return 1;
    pthread_mutex_lock(&processes_lock);
    registry = joined_registry >= 0 ? joined_registry : open_registry(false);
    if (registry >= 0)
        others = process_registry_count(registry, &cpus);
    if (registry >= 0 && registry != joined_registry)
        fork_close(registry);
    pthread_mutex_unlock(&processes_lock);
    return 1 + others;
}

/* --- launchers ----------------------------------------------------------------------------- */

/* How many processes a launcher says that it starts on this node; 1: none says so. */
static unsigned launched;

static void read_launchers(void)
{
    enum { MOST = 4096 };
    /* torchrun, Open MPI, Slurm, MPICH and Intel MPI */
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS"};

    launched = 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        uint64_t number;

        if (value == NULL)
            continue;
        if (!parse_number(value, &number) || number > MOST)
            log_debug("%s=%.40s is no number of processes up to %d", names[i], value, MOST);
        else if (number > launched)
            launched = (unsigned)number;
    }
}

/*
 * A launcher that binds processes to CPUs has divided them already. Of all its processes, a part
 * shares the CPUs of this one: the part of all CPUs that this one may use.
 */
static unsigned count_launched(const struct topology *topology)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t all = (uint64_t)topology->group_cpus;
    uint64_t mine = (uint64_t)topology->mask_cpus;

    pthread_once(&once, read_launchers);
    if (mine >= all)
        return launched;
    return (unsigned)((launched * mine + all - 1) / all);
}

unsigned processes_count(const struct topology *topology)
{
    unsigned registered = count_registered();
    unsigned expected = count_launched(topology);

    return registered > expected ? registered : expected;
}
