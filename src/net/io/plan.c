/* The number of I/O threads. */
#include "net/io/plan.h"

#include "base/config.h"
#include "net/io/processes.h"

enum { MOST_AUTOMATIC = 16, FEW_CPUS = 4, LEAST_CPUS_EACH = 2 };

/* Half of a process's share of the CPUs: the other half is for its calling threads. */
static unsigned automatic_threads(unsigned usable_cpus, unsigned processes)
{
    unsigned threads = usable_cpus / 2 / processes;

    if (threads == 0)
        return 1;
    return threads < MOST_AUTOMATIC ? threads : MOST_AUTOMATIC;
}

struct io_plan io_plan_for(const struct topology *topology, uint64_t threads, unsigned processes)
{
    unsigned usable_cpus = (unsigned)topology->usable_cpus;
    bool few = usable_cpus < FEW_CPUS || usable_cpus / processes < LEAST_CPUS_EACH;
    bool automatic = threads == CONFIG_AUTO;

    return (struct io_plan){.threads = automatic ? automatic_threads(usable_cpus, processes)
                                                 : (unsigned)threads,
                            .is_automatic = automatic,
                            .cpus_are_scarce = few && automatic,
                            .cpus_are_plenty = !few,
                            .processes = processes,
                            .topology = *topology};
}

int io_plan_below(const char *root, struct io_plan *plan)
{
    const struct config *config;
    struct topology topology;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    result = topology_read(root, &topology);
    if (result == TCPX_SUCCESS)
        *plan = io_plan_for(&topology, config->threads,
                            config->processes != CONFIG_AUTO ? (unsigned)config->processes
                                                             : processes_count(&topology));
    return result;
}

int io_plan(struct io_plan *plan)
{
    return io_plan_below("", plan);
}
