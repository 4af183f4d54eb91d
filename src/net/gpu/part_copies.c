/* Copies of parts, and when a kernel does them. */
#include "net/gpu/part_copies.h"

#include "net/comm/for_movers.h"

/* Of one slot. */
enum { MOST_PARTS = 4 * GPU_COPY_RUNS };

uint64_t part_copies_bytes(const struct net_request *request, uint64_t offset, uint64_t most)
{
    struct iovec list[MOST_PARTS];

    if (request->parts != NULL)
        parts_list(request, offset, most, list, MOST_PARTS, &most);
    return most;
}

/*
 * The driver takes about 2 us to start a copy, and 5 us to start a kernel. A copy of 32 KiB takes
 * as long as its start.
 */
static bool parts_are_small(const struct net_comm *comm, unsigned count, uint64_t bytes)
{
    return count > 4 && bytes / count < 32768 && !comm->link.no_kernels;
}

static int part_copies_by_kernel(const struct net_comm *comm, const struct iovec *list,
                                 unsigned count, gpu_address slot, bool to_slot)
{
    struct gpu_run runs[GPU_COPY_RUNS];
    unsigned collected = 0;
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < count && result == TCPX_SUCCESS; i++) {
        gpu_address part = (gpu_address)(uintptr_t)list[i].iov_base;

        runs[collected++] = (struct gpu_run){
            .from = to_slot ? part : slot, .to = to_slot ? slot : part, .bytes = list[i].iov_len};
        slot += list[i].iov_len;
        if (collected < GPU_COPY_RUNS && i + 1 < count)
            continue;
        result = gpu_copy_runs(comm->gpu->stream, runs, collected);
        collected = 0;
    }
    return result;
}

int part_copies_out(const struct net_comm *comm, const struct net_request *request, uint64_t offset,
                    uint64_t bytes, const struct pinned_slot *slot)
{
    struct iovec list[MOST_PARTS];
    unsigned count = parts_list(request, offset, bytes, list, MOST_PARTS, &bytes);
    uint8_t *to = slot->host;
    int result = TCPX_SUCCESS;

    COMM_LOCKED(comm);
    if (parts_are_small(comm, count, bytes))
        return part_copies_by_kernel(comm, list, count, slot->device, true);
    for (unsigned i = 0; i < count && result == TCPX_SUCCESS; i++) {
        result = gpu_copy_to_host(comm->gpu->stream, to, (gpu_address)(uintptr_t)list[i].iov_base,
                                  list[i].iov_len);
        to += list[i].iov_len;
    }
    return result;
}

int part_copies_in(const struct net_comm *comm, const struct net_request *request, uint64_t offset,
                   uint64_t bytes, const struct pinned_slot *slot)
{
    struct iovec list[MOST_PARTS];
    unsigned count = parts_list(request, offset, bytes, list, MOST_PARTS, &bytes);
    const uint8_t *from = slot->host;
    int result = TCPX_SUCCESS;

    COMM_LOCKED(comm);
    if (parts_are_small(comm, count, bytes))
        return part_copies_by_kernel(comm, list, count, slot->device, false);
    for (unsigned i = 0; i < count && result == TCPX_SUCCESS; i++) {
        result = gpu_copy_to_device(comm->gpu->stream, (gpu_address)(uintptr_t)list[i].iov_base,
                                    from, list[i].iov_len);
        from += list[i].iov_len;
    }
    return result;
}
