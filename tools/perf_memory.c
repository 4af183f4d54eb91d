/*
 * Whether what a measurement needs is there before it begins: memory of the host, which emulated
 * GPUs have, too, within what the system and the cgroup leave, and memory of the GPU.
 */
#include "base/topology.h"
#include "tools/perf_side.h"

#include <inttypes.h>
#include <string.h>

/* What it takes besides its buffers: staging memory, sockets, the program. */
#define ROOM ((uint64_t)64 << 20)

static uint64_t largest_of(const struct perf_plan *plan)
{
    uint64_t largest = 0;

    for (unsigned i = 0; i < plan->size_count; i++)
        if (plan->sizes[i] > largest)
            largest = plan->sizes[i];
    return largest;
}

static unsigned buffers_of(const struct perf_plan *plan, bool is_server)
{
    return (unsigned)perf_has_out(plan, is_server) + (unsigned)perf_has_in(plan, is_server);
}

static int too_little(const char *what, const struct perf_plan *plan, unsigned count,
                      uint64_t needed, uint64_t available)
{
    char text[3][PERF_NAME];

    return error_set(TCPX_SYSTEM_ERROR,
                     "%u buffer%s of %s need %s of %s memory, %s are available; choose a smaller "
                     "--size, or --sweep",
                     count, count == 1 ? "" : "s",
                     perf_amount_name((double)largest_of(plan), text[0]),
                     perf_amount_name((double)needed, text[1]), what,
                     perf_amount_name((double)available, text[2]));
}

int perf_check_memory(const struct perf_end *end, const struct perf_plan *plan, bool is_server)
{
    struct tcpx_gpu_properties gpu = {.backend = "host"};
    unsigned count = buffers_of(plan, is_server);
    unsigned both = end->is_alone ? count : count + buffers_of(plan, !is_server);
    uint64_t largest = largest_of(plan);
    uint64_t available;
    int result = end->gpu >= 0 ? tcpx_gpu_get_properties(end->gpu, &gpu) : TCPX_SUCCESS;

    if (result != TCPX_SUCCESS)
        return result;
    if (strcmp(gpu.backend, "host") != 0)
        return both * largest > gpu.memory_bytes
                   ? too_little(gpu.name, plan, both, both * largest, gpu.memory_bytes)
                   : TCPX_SUCCESS;
    if (end->gpu >= 0 && count * largest > gpu.memory_bytes)
        return too_little("the emulated GPU's", plan, count, count * largest, gpu.memory_bytes);
    available = topology_available_memory("");
    return available != 0 && both * largest + ROOM > available
               ? too_little("host", plan, both, both * largest + ROOM, available)
               : TCPX_SUCCESS;
}
