/*
 * The GPU of a comm: memory that was registered, and the copies between it and staging slots, which
 * run on one stream in order. stage.c starts those of a sender, land.c those of a receiver; here
 * they are seen to end. A failure of the GPU is a failure of the comm.
 */
#include "net/comm/comm_state.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

struct net_memory {
    struct net_memory *next; /* of this comm */
    struct net_memory **here;
    bool in_gpu;
    struct devmem_source *source;
};

/* --- opening ------------------------------------------------------------------------------- */

static void undo_open(struct net_comm *comm)
{
    queue_destroy(&comm->gpu.copies);
    queue_destroy(&comm->gpu.ready);
    gpu_stream_destroy(comm->gpu.stream);
    comm->gpu.stream = NULL;
    staging_leave(&comm->gpu.share);
}

/* With the lock. Some slots for each socket: what it is at, what is ahead of it or behind it. */
static int open_gpu(struct net_comm *comm, int device)
{
    unsigned most = 4u * comm->link.sockets + 2;
    int result = staging_join(device, most, &comm->gpu.share);

    if (result != TCPX_SUCCESS)
        return result;
    comm->gpu.device = device;
    result = gpu_stream_create(staging_gpu(&comm->gpu.share), &comm->gpu.stream);
    if (result == TCPX_SUCCESS)
        result = queue_init(&comm->gpu.copies, most, sizeof(struct copy));
    if (result == TCPX_SUCCESS)
        result = queue_init(&comm->gpu.ready, most, sizeof(struct copy));
    if (result == TCPX_SUCCESS)
        result = devmem_open(comm);
    if (result != TCPX_SUCCESS)
        undo_open(comm);
    return result;
}

int comm_use_gpu(struct net_comm *comm, int device)
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&comm->lock);
    if (comm->gpu.stream == NULL)
        result = open_gpu(comm, device);
    else if (comm->gpu.device != device)
        result = error_set(TCPX_INVALID_USAGE,
                           "memory of GPU %d on a comm that has memory of GPU %d: one comm for "
                           "each GPU%s",
                           device, comm->gpu.device,
                           comm->link.devmem != NULL
                               ? ", which has to be current where it is listened for (or "
                                 "UCCL_TCPX_DEVMEM=off)"
                               : "");
    pthread_mutex_unlock(&comm->lock);
    return result;
}

int net_register(struct net_comm *comm, void *address, uint64_t bytes, struct net_memory **out)
{
    struct gpu_pointer pointer = {.kind = GPU_POINTER_HOST};
    struct net_memory *memory;
    int result = fork_check();

    if (result == TCPX_SUCCESS && bytes > 0)
        result = gpu_classify(address, bytes, &pointer);
    if (result != TCPX_SUCCESS)
        return result;
    memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return error_system(ENOMEM, "a registration");
    memory->in_gpu = pointer.kind == GPU_POINTER_DEVICE || pointer.kind == GPU_POINTER_MANAGED;
    if (memory->in_gpu)
        result = comm_use_gpu(comm, pointer.device);
    if (result == TCPX_SUCCESS && pointer.kind == GPU_POINTER_DEVICE)
        result =
            devmem_send_register(comm, (gpu_address)(uintptr_t)address, bytes, &memory->source);
    if (result != TCPX_SUCCESS) {
        free(memory);
        return result;
    }
    pthread_mutex_lock(&comm->lock);
    memory->next = comm->memories;
    memory->here = &comm->memories;
    if (memory->next != NULL)
        memory->next->here = &memory->next;
    comm->memories = memory;
    pthread_mutex_unlock(&comm->lock);
    *out = memory;
    return TCPX_SUCCESS;
}

/* The last part waits for the kernel, and needs no lock. */
static void forget_memory(struct net_comm *comm, struct net_memory *memory)
{
    pthread_mutex_lock(&comm->lock);
    *memory->here = memory->next;
    if (memory->next != NULL)
        memory->next->here = memory->here;
    pthread_mutex_unlock(&comm->lock);
    devmem_source_give(memory->source);
    free(memory);
}

void net_deregister(struct net_comm *comm, struct net_memory *memory)
{
    if (memory == NULL || fork_check() != TCPX_SUCCESS)
        return;
    forget_memory(comm, memory);
}

bool memory_is_in_gpu(const struct net_memory *memory)
{
    return memory != NULL && memory->in_gpu;
}

void memory_refer(const struct net_memory *memory, const void *data, struct net_request *request)
{
    if (memory == NULL || memory->source == NULL)
        return;
    request->source_id = devmem_source_id(memory->source);
    request->source_at = devmem_source_offset(memory->source, (gpu_address)(uintptr_t)data);
}

/* --- gates --------------------------------------------------------------------------------- */

/* A stream of its own for each, so that one which is late does not hold up the others. */
int gate_close(struct net_comm *comm, struct net_request *request, enum net_after after, void *what)
{
    struct gate *gate = &comm->gpu.gates[request - comm->requests];
    struct gpu *gpu = staging_gpu(&comm->gpu.share);
    int result = TCPX_SUCCESS;

    if (gate->stream == NULL)
        result = gpu_stream_create(gpu, &gate->stream);
    if (result == TCPX_SUCCESS && gate->event == NULL)
        result = gpu_event_create(gpu, GPU_EVENT_PLAIN, &gate->event);
    if (result == TCPX_SUCCESS)
        result = after == NET_AFTER_STREAM ? gpu_stream_wait_caller_stream(gate->stream, what)
                                           : gpu_stream_wait_caller_event(gate->stream, what);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(gate->event, gate->stream);
    request->gated = result == TCPX_SUCCESS;
    return result;
}

bool gate_is_open(struct net_comm *comm, struct net_request *request)
{
    bool done = true;

    if (request->gated) {
        int result = gpu_event_query(comm->gpu.gates[request - comm->requests].event, &done);

        if (result != TCPX_SUCCESS) {
            comm_fail_gpu(comm, result);
            return false;
        }
        request->gated = !done;
    }
    return done;
}

/* --- copies -------------------------------------------------------------------------------- */

bool copies_are_under_way(const struct net_comm *comm)
{
    if (comm->gpu.stream == NULL)
        return false;
    if (queue_length(&comm->gpu.copies) > 0 || devmem_is_under_way(comm))
        return true;
    /* A comm that has failed begins no more. */
    if (comm->result != TCPX_SUCCESS)
        return false;
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->lanes[lane].wait == LANE_SOON)
            return true;
    return comm->gpu.waiting > 0;
}

bool copies_start(struct net_comm *comm, const struct copy *copy, int result)
{
    int recorded;

    /* Also of one that failed: its first part may run. */
    if (result != TCPX_SUCCESS)
        comm_fail_gpu(comm, result);
    recorded = gpu_event_record(copy->slot->event, comm->gpu.stream);
    if (recorded != TCPX_SUCCESS) {
        comm_fail_gpu(comm, recorded);
        result = recorded;
        /* The end of a copy that runs has to be seen: once more. */
        recorded = gpu_event_record(copy->slot->event, comm->gpu.stream);
    }
    if (recorded != TCPX_SUCCESS) {
        staging_retire(&comm->gpu.share, copy->slot);
        return false;
    }
    request_hold(copy->request);
    stages_copy_began(&comm->copying);
    /* There is a place for each slot that the comm can have. */
    if (!queue_push(&comm->gpu.copies, copy))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "more copies than slots"));
    return result == TCPX_SUCCESS;
}

static void end_copy(struct net_comm *comm, const struct copy *copy, bool lost)
{
    stages_copy_ended(&comm->copying);
    request_let_go(copy->request);
    if (lost) {
        staging_retire(&comm->gpu.share, copy->slot);
        return;
    }
    if (comm->side == NET_SENDER && comm->result == TCPX_SUCCESS) {
        if (!queue_push(&comm->gpu.ready, copy))
            comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "more copies than slots"));
        return;
    }
    staging_give(&comm->gpu.share, copy->slot);
    if (comm->side == NET_RECEIVER && !comm->gpu.failed)
        land_ended(comm, copy);
}

static void drop_ready(struct net_comm *comm)
{
    struct copy copy;

    while (queue_pop(&comm->gpu.ready, &copy))
        staging_give(&comm->gpu.share, copy.slot);
}

static bool is_held_back(const struct copy *copy)
{
    return copy->not_before != 0 && !deadline_passed(copy->not_before);
}

void copies_poll(struct net_comm *comm)
{
    struct copy *oldest;
    struct copy copy;

    if (comm->gpu.stream == NULL)
        return;
    devmem_poll(comm);
    while ((oldest = queue_peek(&comm->gpu.copies)) != NULL && !is_held_back(oldest)) {
        bool done = false;
        int result = gpu_event_query(oldest->slot->event, &done);

        /* What cannot be asked twice has ended: the GPU is lost. */
        if (result != TCPX_SUCCESS) {
            comm_fail_gpu(comm, result);
            result = gpu_event_query(oldest->slot->event, &done);
        }
        if (result == TCPX_SUCCESS && !done)
            break;
        if (queue_pop(&comm->gpu.copies, &copy))
            end_copy(comm, &copy, result != TCPX_SUCCESS);
    }
    if (comm->result != TCPX_SUCCESS)
        drop_ready(comm);
}

/* --- the end ------------------------------------------------------------------------------- */

/* Copies that have begun are waited for: their buffers are the caller's again afterwards. */
static void wait_for_copies(struct net_comm *comm)
{
    enum { PATIENCE_MS = 10000 };
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    struct copy copy;

    while (queue_pop(&comm->gpu.copies, &copy)) {
        int result = gpu_event_wait(copy.slot->event, deadline);

        if (result != TCPX_SUCCESS) /* once more: a single question may fail */
            result = gpu_event_wait(copy.slot->event, deadline);
        if (result == TCPX_SUCCESS) {
            staging_give(&comm->gpu.share, copy.slot);
        } else {
            log_warn("a copy did not end when its comm was closed: %s", error_text());
            staging_retire(&comm->gpu.share, copy.slot);
        }
    }
}

void copies_close(struct net_comm *comm)
{
    for (struct net_memory *memory = comm->memories, *next; memory != NULL; memory = next) {
        next = memory->next;
        devmem_source_give(memory->source);
        free(memory);
    }
    comm->memories = NULL;
    if (comm->gpu.stream == NULL)
        return;
    devmem_close(comm);
    wait_for_copies(comm);
    drop_ready(comm);
    for (int i = 0; i < WIRE_MOST_SOCKETS; i++) {
        if (comm->outgoing[i].slot != NULL)
            staging_give(&comm->gpu.share, comm->outgoing[i].slot);
        if (comm->incoming[i].slot != NULL)
            staging_give(&comm->gpu.share, comm->incoming[i].slot);
    }
    for (unsigned i = 0; i < comm->most_requests; i++) {
        gpu_event_destroy(comm->gpu.gates[i].event);
        gpu_stream_destroy(comm->gpu.gates[i].stream);
    }
    undo_open(comm);
}
