/*
 * From the sockets to GPU memory: what a socket has put into a staging slot is copied to its place
 * as soon as the slot is full or the slice is at its end, and the slot is free again when the copy
 * has ended. A receive is done when all of its copies are.
 */
#include "net/comm/comm_state.h"

#include <stdlib.h>
#include <string.h>

static bool start_copy(struct net_comm *comm, struct net_request *request,
                       struct staging_slot *slot, uint64_t offset, uint64_t bytes)
{
    const struct copy copy = {
        .slot = slot,
        .request = request,
        .offset = offset,
        .bytes = bytes,
        .not_before = stages_slow_until(&comm->throttle, CONFIG_THROTTLE_UNPACK, bytes)};

    request->landing += bytes;
    return copies_start(comm, &copy,
                        gpu_copy_to_device(comm->gpu.stream,
                                           (gpu_address)(uintptr_t)request->data + offset,
                                           slot->host, bytes));
}

bool land_has_room(struct net_comm *comm, struct incoming *incoming)
{
    int result;

    if (incoming->slot != NULL)
        return true;
    copies_poll(comm);
    if (comm->result != TCPX_SUCCESS)
        return false;
    result = staging_take(&comm->gpu.share, &incoming->slot);
    if (result != TCPX_SUCCESS)
        comm_fail_gpu(comm, result);
    incoming->slot_bytes = 0;
    incoming->slot_room = piece_bytes(incoming->payload_left, staging_slot_bytes(&comm->gpu.share));
    return incoming->slot != NULL;
}

void land_if_full(struct net_comm *comm, struct incoming *incoming)
{
    struct staging_slot *slot = incoming->slot;

    if (slot == NULL || incoming->slot_bytes < incoming->slot_room)
        return;
    incoming->slot = NULL;
    if (start_copy(comm, incoming->request, slot, incoming->landing_at, incoming->slot_bytes))
        incoming->landing_at += incoming->slot_bytes;
}

void land_ended(struct net_comm *comm, const struct copy *copy)
{
    if (copy->request == NULL) /* a stream waits for it now */
        return;
    copy->request->landed += copy->bytes;
    if (copy->request->state == REQUEST_MOVING)
        receiver_done_if_all_here(comm, copy->request);
}

/* A message that had been put aside when its receive came, as far as there are slots now. */
static void land_put_aside(struct net_comm *comm, struct net_request *request)
{
    struct eager_message *message = request->aside;
    uint64_t most = staging_slot_bytes(&comm->gpu.share);

    while (request->moved < message->bytes) {
        uint64_t bytes = piece_bytes(message->bytes - request->moved, most);
        struct staging_slot *slot = NULL;
        int result = staging_take(&comm->gpu.share, &slot);

        if (result != TCPX_SUCCESS)
            comm_fail_gpu(comm, result);
        if (slot == NULL)
            return;
        memcpy(slot->host, message->data + request->moved, bytes);
        if (!start_copy(comm, request, slot, request->moved, bytes))
            return;
        request->moved += bytes;
    }
    request->aside = NULL;
    ahead_free(comm, message);
}

void land_all_put_aside(struct net_comm *comm)
{
    if (comm->gpu.stream == NULL)
        return;
    copies_poll(comm);
    for (unsigned i = 0; i < comm->used_requests && !comm->gpu.failed; i++)
        if (comm->requests[i].aside != NULL)
            land_put_aside(comm, &comm->requests[i]);
}

/* Nobody has to be told of these copies any more. */
static unsigned disown(struct net_comm *comm, const struct net_request *request)
{
    unsigned count = 0;

    for (size_t i = 0; i < queue_length(&comm->gpu.copies); i++) {
        struct copy *copy = queue_at(&comm->gpu.copies, i);

        if (copy->request == request) {
            copy->request = NULL;
            count++;
        }
    }
    return count;
}

int land_on_stream(struct net_comm *comm, struct net_request *request, void *stream,
                   bool *handed_over)
{
    struct gate *gate = &comm->gpu.gates[request - comm->requests];
    int result = TCPX_SUCCESS;

    /* Parts of a devmem socket are on streams of their own: those are waited for. */
    if (comm->side != NET_RECEIVER || !request_lands(request) || comm->devmem != NULL ||
        !request->matched || request->aside != NULL || request->moved < request->bytes ||
        comm->throttle.stage == CONFIG_THROTTLE_UNPACK)
        return TCPX_SUCCESS;
    if (gate->event == NULL)
        result = gpu_event_create(staging_gpu(&comm->gpu.share), GPU_EVENT_PLAIN, &gate->event);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(gate->event, comm->gpu.stream);
    if (result == TCPX_SUCCESS)
        result = gpu_caller_stream_wait(stream, gate->event);
    if (result != TCPX_SUCCESS)
        return result;
    request->users -= disown(comm, request);
    request->landed = request->landing;
    *handed_over = true;
    return TCPX_SUCCESS;
}
