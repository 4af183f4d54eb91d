/* The affinity mask of an I/O thread. */
#include "net/io/placement.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>

bool io_thread_cpus(const char *root, int numa_node, cpu_set_t *cpus)
{
    cpu_set_t mask;
    cpu_set_t node;

    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        return false;
    *cpus = mask;
    if (!topology_node_cpus(root, numa_node, &node))
        return true;
    CPU_AND(&node, &node, &mask);
    if (CPU_COUNT(&node) > 0)
        *cpus = node;
    return true;
}

bool io_thread_stay_near(const char *root, int numa_node, const struct io_plan *plan)
{
    cpu_set_t cpus;

    if (plan->topology.numa_nodes < 2 || numa_node < 0 || !io_thread_cpus(root, numa_node, &cpus) ||
        (unsigned)CPU_COUNT(&cpus) < plan->threads)
        return false;
    if (sched_setaffinity(0, sizeof cpus, &cpus) == 0)
        return true;
    log_debug("an I/O thread does not stay on NUMA node %d: %s", numa_node, strerror(errno));
    return false;
}
