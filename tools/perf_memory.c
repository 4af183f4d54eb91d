/*
 * Whether what a measurement needs is there before it begins: memory of the host, which emulated
 * GPUs have, too, within what the system and the cgroup leave, and memory of the GPU.
 */
#include "base/topology.h"
#include "tools/perf_side.h"

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
                     "%u buffer%s of %s need%s %s of %s memory, %s are available; choose a smaller "
                     "--size, or --sweep",
                     count, count == 1 ? "" : "s",
                     perf_amount_name((double)largest_of(plan), text[0]), count == 1 ? "s" : "",
                     perf_amount_name((double)needed, text[1]), what,
                     perf_amount_name((double)available, text[2]));
}

/* Of this process; emulated memory is the host's, too. */
static int check_gpu(const struct perf_plan *plan, int index, unsigned count, bool *is_emulated)
{
    struct tcpx_gpu_properties properties;
    struct gpu *gpu = NULL;
    uint64_t needed = count * largest_of(plan);
    uint64_t available;
    int result = gpu_properties(index, &properties);

    if (result == TCPX_SUCCESS)
        result = gpu_open(index, &gpu);
    if (result == TCPX_SUCCESS)
        result = gpu_memory_available(gpu, &available);
    gpu_close(gpu);
    if (result != TCPX_SUCCESS)
        return result;
    *is_emulated = strcmp(properties.backend, "host") == 0;
    return needed > available ? too_little("GPU", plan, count, needed, available) : TCPX_SUCCESS;
}

int perf_check_memory(const struct perf_end *end, const struct perf_plan *plan, bool is_server)
{
    unsigned own = buffers_of(plan, is_server);
    unsigned count = end->is_alone ? own : own + buffers_of(plan, !is_server);
    uint64_t needed = count * largest_of(plan);
    uint64_t available;
    bool in_host = true;
    int result = TCPX_SUCCESS;

    /* An emulated GPU is that of one process, a real one that of both ends on this machine. */
    if (end->gpu >= 0)
        result = check_gpu(plan, end->gpu, own, &in_host);
    if (result == TCPX_SUCCESS && !in_host && count > own)
        result = check_gpu(plan, end->gpu, count, &in_host);
    if (result != TCPX_SUCCESS || !in_host)
        return result;
    available = topology_available_memory("");
    return available != 0 && needed + ROOM > available
               ? too_little("host", plan, count, needed + ROOM, available)
               : TCPX_SUCCESS;
}
