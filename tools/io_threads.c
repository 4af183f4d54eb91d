/* An I/O plan in words. */
#include "tools/io_threads.h"

#include <stdio.h>

static const char *plural(unsigned count, const char *one, const char *many)
{
    return count == 1 ? one : many;
}

void io_threads_describe(const struct io_plan *plan, char text[IO_THREADS_TEXT_BYTES])
{
    const struct topology *topology = &plan->topology;
    char quota[48] = "no quota";
    char threads[48] = "none";

    if (topology->quota_cpus != 0)
        snprintf(quota, sizeof quota, "a quota of %d", topology->quota_cpus);
    if (plan->cpus_are_scarce)
        snprintf(threads, sizeof threads, "%u, and calls move the data", plan->threads);
    else if (plan->threads > 0)
        snprintf(threads, sizeof threads, "up to %u", plan->threads);
    snprintf(text, IO_THREADS_TEXT_BYTES,
             "%s (%s: %d CPU%s in the affinity mask, %s, %u process%s)", threads,
             plan->is_automatic ? "auto" : "UCCL_TCPX_THREADS", topology->mask_cpus,
             plural((unsigned)topology->mask_cpus, "", "s"), quota, plan->processes,
             plural(plan->processes, "", "es"));
}

void io_threads_print_json(const struct io_plan *plan)
{
    printf("\"most\": %u, \"automatic\": %s, \"mask_cpus\": %d, \"quota_cpus\": ", plan->threads,
           plan->is_automatic ? "true" : "false", plan->topology.mask_cpus);
    if (plan->topology.quota_cpus != 0)
        printf("%d", plan->topology.quota_cpus);
    else
        printf("null");
    printf(", \"processes\": %u, \"calls_move_data\": %s", plan->processes,
           plan->cpus_are_scarce ? "true" : "false");
}
