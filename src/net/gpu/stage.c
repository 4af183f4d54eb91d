/*
 * From GPU memory to the sockets: slices are copied to staging slots ahead of the sockets that will
 * take them, several at a time, the oldest send first.
 */
#include "net/comm/comm_state.h"

/*
 * The oldest opened send in GPU memory that has bytes which were not copied yet, and could be. Also
 * sees for those that need no copy whether the GPU has got to where they are complete.
 */
static struct net_request *next_to_stage(struct net_comm *comm)
{
    struct net_request *oldest = NULL;

    comm->gpu.waiting = 0;
    for (unsigned i = 0; i < comm->used_requests; i++) {
        struct net_request *request = &comm->requests[i];

        if (!request->in_gpu || request->state != REQUEST_MOVING ||
            request->bytes == (request_is_staged(request) ? request->staged : request->handed_out))
            continue;
        if (!gate_is_open(comm, request))
            comm->gpu.waiting++;
        else if (request_is_staged(request) && (oldest == NULL || request->order < oldest->order))
            oldest = request;
    }
    return comm->result == TCPX_SUCCESS ? oldest : NULL; /* a gate may have failed it */
}

/* A copy costs the driver as much as some 100 KiB: smaller ones do not pay. */
enum { LEAST_COPY = 256 << 10 };

static uint64_t copy_bytes(const struct net_comm *comm, uint64_t left)
{
    uint64_t bytes = sender_slice_bytes(comm, left, comm->link.largest_slice);
    uint64_t most = staging_slot_bytes(&comm->gpu.share);

    if (bytes < LEAST_COPY && comm->link.largest_slice >= LEAST_COPY)
        bytes = LEAST_COPY;
    return piece_bytes(left, bytes < most ? bytes : most);
}

static bool stage_one(struct net_comm *comm, struct net_request *request)
{
    struct copy copy = {.request = request, .offset = request->staged};
    int result = staging_take(&comm->gpu.share, &copy.slot);

    if (result != TCPX_SUCCESS) {
        comm_fail_gpu(comm, result);
        return false;
    }
    if (copy.slot == NULL)
        return false;
    copy.bytes = copy_bytes(comm, request->bytes - request->staged);
    copy.not_before = stages_slow_until(&comm->throttle, CONFIG_THROTTLE_D2H, copy.bytes);
    result = gpu_copy_to_host(comm->gpu.stream, copy.slot->host,
                              (gpu_address)(uintptr_t)request->data + copy.offset, copy.bytes);
    request->staged += copy.bytes;
    return copies_start(comm, &copy, result);
}

void stage_ahead(struct net_comm *comm)
{
    struct net_request *request;

    if (comm->gpu.stream == NULL)
        return;
    copies_poll(comm);
    do
        request = comm->result == TCPX_SUCCESS ? next_to_stage(comm) : NULL;
    while (request != NULL && stage_one(comm, request));
}

const struct copy *stage_peek(struct net_comm *comm)
{
    return comm->gpu.stream != NULL ? queue_peek(&comm->gpu.ready) : NULL;
}

void stage_take(struct net_comm *comm, struct copy *copy)
{
    if (!queue_pop(&comm->gpu.ready, copy))
        *copy = (struct copy){0};
}
