/* Unpacks fragments to where they belong. */
#include "net/gpu/devmem_part.h"

#include "base/log.h"
#include "net/gpu/gpu_mover.h"
#include "net/gpu/rx_staged.h"

#include <string.h>

/* --- what a slot holds ----------------------------------------------------------------------- */

uint32_t devmem_part_fragments(const struct net_comm *comm)
{
    uint64_t room = comm->gpu->share.pool->slot_bytes / 4 / sizeof(struct unpack_descriptor);

    return room < DEVMEM_PART_FRAGMENTS ? (uint32_t)room : DEVMEM_PART_FRAGMENTS;
}

/* Behind the descriptors. */
static uint64_t part_host_start(const struct net_comm *comm)
{
    return devmem_part_fragments(comm) * sizeof(struct unpack_descriptor);
}

uint64_t devmem_part_host_room(const struct net_comm *comm)
{
    return comm->gpu->share.pool->slot_bytes - part_host_start(comm);
}

uint64_t devmem_part_host_used(const struct devmem_part *part)
{
    return part->scatter.linear_bytes + part->scatter.plain_bytes;
}

uint8_t *devmem_part_host_place(const struct net_comm *comm, const struct devmem_part *part)
{
    return part->slot->host + part_host_start(comm) + devmem_part_host_used(part);
}

bool devmem_part_is_full(const struct net_comm *comm, const struct devmem_part *part)
{
    return part->scatter.count == devmem_part_fragments(comm) ||
           devmem_part_host_used(part) == devmem_part_host_room(comm);
}

bool devmem_part_begin(struct net_comm *comm, const struct rx_payload *payload,
                       const struct gpu_memory *pool, struct devmem_part *part)
{
    COMM_LOCKED(comm);
    part->slot = pinned_take(&comm->gpu->share);
    if (part->slot == NULL)
        return false;
    part->pool = pool;
    part->lost = false;
    part->discarded = false;
    part->gathered = false;
    part->kept = false;
    part->not_before = 0;
    part->request = payload->request;
    part->offset = payload->at;
    part->bytes = 0;
    scatter_list_init(&part->scatter, part->fragments, devmem_part_fragments(comm));
    token_list_init(&part->tokens, part->ranges, devmem_part_fragments(comm));
    return true;
}

/* --- unpacking ----------------------------------------------------------------------------- */

/* To memory that the GPU writes: bytes without a page by a copy each, others by the engine. */
static int part_unpack_to(struct net_comm *comm, struct unpack_engine *engine,
                          struct devmem_part *part, uint32_t count, gpu_address to)
{
    const struct unpack_list list = {.bounce = part->pool->address,
                                     .destination = to,
                                     .descriptors = (struct unpack_descriptor *)part->slot->host,
                                     .descriptors_device = part->slot->device,
                                     .count = count};
    const struct scatter_fragment *fragment;
    uint32_t cursor = 0;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS &&
           (fragment = scatter_list_next_host(&part->scatter, &cursor)) != NULL)
        result = gpu_copy_to_device(
            unpack_stream(engine), to + fragment->destination_offset,
            part->slot->host + part_host_start(comm) + fragment->source_offset, fragment->length);
    part->by_ticket = true;
    if (result == TCPX_SUCCESS)
        result = unpack_submit(engine, &list, 1, true, &part->ticket);
    return result;
}

/* Where host memory or bounce memory takes the next of the part's bytes. */
static uint8_t *part_host_place(const struct net_comm *comm, const struct devmem_part *part,
                                uint64_t at, uint64_t *most)
{
    *most = part->bytes - at;
    return part->request->sink == &sink_bounce
               ? unpack_queue_where(comm, part->request, part->offset + at, most)
               : parts_at(part->request, part->offset + at, most);
}

/* Copies adjacent pages, as far as their destination is contiguous. */
static int part_copy_run_to_host(struct net_comm *comm, struct unpack_engine *engine,
                                 const struct devmem_part *part,
                                 const struct unpack_descriptor *run)
{
    int result = TCPX_SUCCESS;

    for (uint64_t at = 0, most; at < run->length && result == TCPX_SUCCESS; at += most) {
        uint8_t *place = part_host_place(comm, part, run->destination_offset + at, &most);

        most = most < run->length - at ? most : run->length - at;
        result = gpu_copy_to_host(unpack_stream(engine), place,
                                  part->pool->address + run->source_offset + at, most);
    }
    return result;
}

static int part_copy_to_host(struct net_comm *comm, struct unpack_engine *engine,
                             struct devmem_part *part, uint32_t count)
{
    const struct unpack_descriptor *descriptors = (struct unpack_descriptor *)part->slot->host;
    const struct scatter_fragment *fragment;
    uint32_t cursor = 0;
    int result = gpu_flush_inbound_writes(comm->gpu->share.pool->gpu);

    while ((fragment = scatter_list_next_host(&part->scatter, &cursor)) != NULL)
        for (uint64_t at = 0, most; at < fragment->length; at += most) {
            uint8_t *place = part_host_place(comm, part, fragment->destination_offset + at, &most);

            most = most < fragment->length - at ? most : fragment->length - at;
            memcpy(place, part->slot->host + part_host_start(comm) + fragment->source_offset + at,
                   most);
        }
    for (uint32_t i = 0; i < count && result == TCPX_SUCCESS; i++)
        result = part_copy_run_to_host(comm, engine, part, &descriptors[i]);
    part->by_ticket = false;
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(part->slot->event, unpack_stream(engine));
    return result;
}

/* 0: the CPU copies it. */
static gpu_address part_gpu_place(const struct net_comm *comm, const struct devmem_part *part)
{
    const struct net_request *request = part->request;
    uint64_t bytes = part->bytes;

    if (request->sink == &sink_staged)
        return (gpu_address)(uintptr_t)parts_at(request, part->offset, &bytes);
    if (request->sink == &sink_bounce && !comm->link.no_kernels)
        return unpack_queue_where_on_gpu(comm, request, part->offset, part->bytes);
    /* Host memory is written through the slot: one copy per fragment would take much longer. */
    return part->gathered ? part->slot->device + part_host_start(comm) : 0;
}

/* Some of its work may run: the event of the slot shows when it has ended. */
static void part_see_end_of_failed(struct unpack_engine *engine, struct devmem_part *part)
{
    int result = gpu_event_record(part->slot->event, unpack_stream(engine));

    if (result != TCPX_SUCCESS)
        result = gpu_event_record(part->slot->event, unpack_stream(engine));
    part->by_ticket = false;
    part->lost = result != TCPX_SUCCESS;
}

/* The request lives until the part is finished. */
static void part_hold(struct net_comm *comm, struct devmem_part *part)
{
    stages_copy_began(&comm->copying);
    request_hold(part->request);
}

void devmem_part_keep(struct net_comm *comm, struct devmem_part *part)
{
    COMM_LOCKED(comm);
    part->kept = true;
    part_hold(comm, part);
}

/* Starts the work. If that fails, the comm fails; what has begun is still waited for. */
void devmem_part_unpack(struct net_comm *comm, struct unpack_engine *engine,
                        struct devmem_part *part)
{
    const struct scatter_sizes sizes = {
        .message = part->bytes, .pool = part->pool->bytes, .host = devmem_part_host_room(comm)};
    gpu_address to;
    uint32_t count = 0;
    int result =
        descriptors_build(&part->scatter, &sizes, (struct unpack_descriptor *)part->slot->host,
                          devmem_part_fragments(comm), &count);

    COMM_LOCKED(comm);
    part->discarded = part->request->cancelled;
    part->gathered = part->request->sink->in_host && devmem_part_host_used(part) == 0 &&
                     part->bytes <= devmem_part_host_room(comm) && !comm->link.no_kernels;
    to = part->discarded ? 0 : part_gpu_place(comm, part);
    part->not_before = stages_slow_until(&comm->throttle, CONFIG_THROTTLE_UNPACK, part->bytes);
    part_hold(comm, part);
    if (result == TCPX_SUCCESS && !part->discarded)
        result = to != 0 ? part_unpack_to(comm, engine, part, count, to)
                         : part_copy_to_host(comm, engine, part, count);
    if (result != TCPX_SUCCESS) {
        comm_fail_copies(comm, result);
        part_see_end_of_failed(engine, part);
    }
}

/* --- its end ------------------------------------------------------------------------------- */

static int part_query(struct unpack_engine *engine, const struct devmem_part *part, bool *done)
{
    return part->by_ticket ? unpack_poll(engine, part->ticket, done)
                           : gpu_event_query(part->slot->event, done);
}

/* If the second query fails, the GPU is lost, and the part with it. */
bool devmem_part_has_ended(struct net_comm *comm, struct unpack_engine *engine,
                           struct devmem_part *part)
{
    bool done = false;
    int result;

    if (part->not_before != 0 && !deadline_passed(part->not_before))
        return false;
    if (part->lost || part->discarded || part->kept)
        return true;
    result = part_query(engine, part, &done);
    if (result != TCPX_SUCCESS) {
        comm_fail_copies(comm, result);
        part->lost = part_query(engine, part, &done) != TCPX_SUCCESS;
    }
    return part->lost || done;
}

static int part_wait_once(struct unpack_engine *engine, const struct devmem_part *part,
                          uint64_t deadline)
{
    return part->by_ticket ? unpack_wait(engine, part->ticket, deadline)
                           : gpu_event_wait(part->slot->event, deadline);
}

void devmem_part_wait(struct unpack_engine *engine, struct devmem_part *part, uint64_t deadline)
{
    int result =
        part->discarded || part->kept ? TCPX_SUCCESS : part_wait_once(engine, part, deadline);

    if (result != TCPX_SUCCESS) /* once more: a single query may fail */
        result = part_wait_once(engine, part, deadline);
    part->lost = result != TCPX_SUCCESS;
    if (part->lost)
        log_warn("an unpack did not end when its comm was closed: %s", error_text());
}

/* A slot that the GPU may still use is retired. */
void devmem_part_give_slot(struct net_comm *comm, struct devmem_part *part)
{
    if (part->lost)
        pinned_retire(&comm->gpu->share, part->slot);
    else
        pinned_give(&comm->gpu->share, part->slot);
    part->slot = NULL;
}

void devmem_part_finish(struct net_comm *comm, struct devmem_part *part)
{
    struct net_request *request = part->request;
    uint64_t bytes = part->bytes;

    COMM_LOCKED(comm);
    if (part->gathered && !comm->copies_failed && !request->cancelled)
        memcpy(parts_at(request, part->offset, &bytes), part->slot->host + part_host_start(comm),
               part->bytes);
    devmem_part_give_slot(comm, part);
    stages_copy_ended(&comm->copying);
    request_let_go(request);
    if (!comm->copies_failed)
        rx_copied(comm, request, part->bytes);
}
