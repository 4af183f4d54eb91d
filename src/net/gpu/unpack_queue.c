/*
 * Bounce memory of receives, and the descriptors of its pages: for all that does not stay in the
 * pages of a NIC (in_place.h).
 */
#include "net/gpu/gpu_mover.h"

#include "base/config.h"
#include "base/log.h"
#include "net/gpu/in_place.h"
#include "net/gpu/pinned_pool.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, MOST_BYTES = UNPACK_MAX_MESSAGE, MOST_PAGES = MOST_BYTES / PAGE };

struct page_run {
    uint32_t page; /* of the comm's own */
    uint32_t count;
};

/* Where a receive's bytes are, in order. */
struct unpack_place {
    bool used;
    uint32_t run_count;
    struct page_run runs[MOST_PAGES];
};

struct unpack_queue_state {
    struct pinned_share share;
    struct pinned_slot *memory; /* pages for payload; behind them the queue and the handle */
    struct unpack_queue *queue;
    uint32_t largest; /* bytes in one descriptor; 0: as many as there are */
    uint32_t page_count;
    uint32_t pages_left;
    struct unpack_place places[UNPACK_QUEUE_DEPTH];
    bool is_taken[]; /* pages */
};

static const struct unpack_ops unpack_queue_ops;

/* --- opening ------------------------------------------------------------------------------- */

static uint64_t unpack_whole_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Without the lock, since the driver may let it wait for kernels. */
static int unpack_queue_create(int device, uint32_t largest, struct devmem_pool *pool,
                               struct unpack_queue_state **out)
{
    const uint64_t behind =
        unpack_whole_pages(sizeof(struct unpack_queue) + sizeof(struct unpack_device_handle));
    const struct config *config;
    struct unpack_queue_state *state;
    uint64_t pages;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    pages = config->unpack_bytes / PAGE;
    state = calloc(1, sizeof *state + pages * sizeof *state->is_taken);
    if (state == NULL)
        return error_system(ENOMEM, "an unpack queue");
    result = pinned_join(PINNED_BOUNCE, device, pages * PAGE + behind, 1,
                         pool != NULL ? &pool->memory.memory : NULL, &state->share);
    if (result != TCPX_SUCCESS) {
        free(state);
        return result;
    }
    state->memory = pinned_take(&state->share);
    state->largest = largest;
    state->page_count = (uint32_t)pages;
    state->pages_left = (uint32_t)pages;
    state->queue = (struct unpack_queue *)(state->memory->host + pages * PAGE);
    memset(state->queue->counts, 0, sizeof state->queue->counts);
    *out = state;
    return TCPX_SUCCESS;
}

static void unpack_queue_destroy(struct unpack_queue_state *state)
{
    pinned_give(&state->share, state->memory);
    pinned_leave(&state->share);
    free(state);
}

/* What a kernel reads, behind the queue; and what the caller gives to kernels. */
static struct net_device_handle unpack_queue_handle(const struct unpack_queue_state *state)
{
    struct unpack_device_handle *handle = (struct unpack_device_handle *)(state->queue + 1);
    gpu_address queue = state->memory->device + (uint64_t)state->page_count * PAGE;

    *handle = (struct unpack_device_handle){.queue = (struct unpack_queue *)(uintptr_t)queue,
                                            .bounce = (void *)(uintptr_t)pinned_base(&state->share),
                                            .head = UNPACK_HEAD_START};
    return (struct net_device_handle){.type = NET_DEVICE_UNPACK,
                                      .version = UNPACK_VERSION,
                                      .handle = (void *)(uintptr_t)(queue + sizeof *state->queue),
                                      .size = sizeof *handle,
                                      .needs_proxy_progress = 1};
}

/*
 * Payload can stay in the pool only if kernels reach it from the base of all comms of the GPU. A
 * comm whose pool is too far from it copies instead: *in_place is NULL.
 */
static int unpack_queue_open_in_place(const struct unpack_queue_state *state,
                                      struct devmem_pool *pool, struct in_place **in_place)
{
    const struct gpu_memory *memory;

    *in_place = NULL;
    if (pool == NULL)
        return TCPX_SUCCESS;
    memory = &pool->memory.memory;
    if (!pinned_base_reaches(&state->share, memory)) {
        log_tcpx("%s: what is received into GPU %d is copied to pinned memory, which kernels do "
                 "not reach from one base together with the NIC's pool",
                 pool->memory.interface, pool->gpu);
        return TCPX_SUCCESS;
    }
    return in_place_create(pool, state->queue, memory->address - pinned_base(&state->share),
                           state->largest, in_place);
}

/* Gives the queue to the comm; NULL: only checks whether the comm can have one. */
static int unpack_queue_attach(struct net_comm *comm, struct unpack_queue_state *state,
                               struct in_place *in_place)
{
    bool allowed;

    comm_lock_take(&comm->lock);
    allowed = comm->side == NET_RECEIVER && comm_is_in_order(comm) && comm->next_sequence == 0 &&
              comm->unpack == NULL;
    if (allowed && state != NULL) {
        comm->unpack_queue = state;
        comm->unpack = &unpack_queue_ops;
        if (in_place != NULL)
            comm->gpu->in_place = in_place;
    }
    comm_lock_release(&comm->lock);
    return allowed ? TCPX_SUCCESS
                   : error_set(TCPX_INVALID_USAGE,
                               "an unpack queue is for the receiver of a FIFO comm, before its "
                               "first receive, and once");
}

/* NULL: the comm does not receive into device memory. */
static struct devmem_pool *unpack_queue_pool(struct net_comm *comm)
{
    struct devmem_pool *pool;

    comm_lock_take(&comm->lock);
    pool = comm->mover != NULL ? comm->gpu->rx_pool : NULL;
    comm_lock_release(&comm->lock);
    return pool;
}

/* Checked first, before anything is pinned, and again with the lock under which it is attached. */
int unpack_queue_open(struct net_comm *comm, int device, uint32_t largest,
                      struct net_device_handle *out)
{
    struct devmem_pool *pool = unpack_queue_pool(comm);
    struct unpack_queue_state *state = NULL;
    struct in_place *in_place = NULL;
    struct net_device_handle handle;
    int result = unpack_queue_attach(comm, NULL, NULL);

    if (result == TCPX_SUCCESS)
        result = unpack_queue_create(device, largest, pool, &state);
    if (result != TCPX_SUCCESS)
        return result;
    result = unpack_queue_open_in_place(state, pool, &in_place);
    handle = unpack_queue_handle(state);
    if (result == TCPX_SUCCESS)
        result = unpack_queue_attach(comm, state, in_place);
    if (result == TCPX_SUCCESS) {
        *out = handle;
    } else {
        in_place_destroy(in_place);
        unpack_queue_destroy(state);
    }
    return result;
}

static void unpack_queue_close(struct net_comm *comm)
{
    unpack_queue_destroy(comm->unpack_queue);
}

/* --- places -------------------------------------------------------------------------------- */

static struct unpack_place *unpack_next_place(const struct net_comm *comm)
{
    return &comm->unpack_queue->places[comm->next_sequence % UNPACK_QUEUE_DEPTH];
}

static bool unpack_is_in_gpu(const struct net_buffer *buffer)
{
    return buffer->memory != NULL && !buffer->memory->sink->in_host;
}

static uint32_t unpack_pages_for(const struct net_buffer *buffer)
{
    return unpack_is_in_gpu(buffer) ? (uint32_t)(unpack_whole_pages(buffer->bytes) / PAGE) : 0;
}

static bool unpack_has_room(const struct net_comm *comm, const struct net_buffer *buffer)
{
    /* A receive that could never be is refused when it begins. */
    return buffer->bytes > MOST_BYTES ||
           (!unpack_next_place(comm)->used &&
            unpack_pages_for(buffer) <= comm->unpack_queue->pages_left);
}

/* In as few runs as the free pages allow from the start; there are enough. */
static void unpack_take_pages(struct unpack_queue_state *state, struct unpack_place *place,
                              uint32_t count)
{
    state->pages_left -= count;
    for (uint32_t page = 0; count > 0; page++) {
        struct page_run *last = place->run_count > 0 ? &place->runs[place->run_count - 1] : NULL;

        if (state->is_taken[page])
            continue;
        state->is_taken[page] = true;
        count--;
        if (last != NULL && last->page + last->count == page)
            last->count++;
        else
            place->runs[place->run_count++] = (struct page_run){.page = page, .count = 1};
    }
}

static void unpack_give_pages(struct unpack_queue_state *state, struct unpack_place *place)
{
    for (uint32_t i = 0; i < place->run_count; i++) {
        memset(&state->is_taken[place->runs[i].page], false, place->runs[i].count);
        state->pages_left += place->runs[i].count;
    }
    place->used = false;
    place->run_count = 0;
}

static int unpack_begin(struct net_comm *comm, const struct net_buffer *buffer,
                        struct net_request *request)
{
    struct unpack_place *place;

    if (buffer->bytes > MOST_BYTES)
        return error_set(TCPX_INVALID_USAGE,
                         "a receive of %llu bytes, and %d are the most that an unpack queue takes",
                         (unsigned long long)buffer->bytes, MOST_BYTES);
    place = unpack_next_place(comm);
    place->used = true;
    unpack_take_pages(comm->unpack_queue, place, unpack_pages_for(buffer));
    if (unpack_is_in_gpu(buffer))
        request->sink = &sink_bounce;
    return TCPX_SUCCESS;
}

static struct unpack_place *unpack_place_of(const struct net_comm *comm,
                                            const struct net_request *request)
{
    return &comm->unpack_queue->places[request->sequence % UNPACK_QUEUE_DEPTH];
}

uint8_t *unpack_queue_where(const struct net_comm *comm, const struct net_request *request,
                            uint64_t offset, uint64_t *most)
{
    const struct unpack_place *place = unpack_place_of(comm, request);
    uint32_t i = 0;

    while (offset >= (uint64_t)place->runs[i].count * PAGE)
        offset -= (uint64_t)place->runs[i++].count * PAGE;
    *most = (uint64_t)place->runs[i].count * PAGE - offset;
    return comm->unpack_queue->memory->host + (uint64_t)place->runs[i].page * PAGE + offset;
}

gpu_address unpack_queue_where_on_gpu(const struct net_comm *comm,
                                      const struct net_request *request, uint64_t offset,
                                      uint64_t bytes)
{
    uint64_t most;
    const uint8_t *place = unpack_queue_where(comm, request, offset, &most);

    return most >= bytes ? comm->unpack_queue->memory->device +
                               (uint64_t)(place - comm->unpack_queue->memory->host)
                         : 0;
}

/* --- bounce memory as a sink --------------------------------------------------------------- */

static struct iovec bounce_next(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                uint64_t room)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    uint64_t most;
    uint8_t *place = unpack_queue_where(comm, payload->request, payload->at, &most);

    (void)scratch;
    return (struct iovec){.iov_base = place, .iov_len = room < most ? room : most};
}

static void bounce_filled(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    comm->rx.incoming[socket].payload.at += bytes;
}

static void bounce_copy_in(const struct net_comm *comm, const struct net_request *request,
                           const uint8_t *data, uint64_t bytes)
{
    for (uint64_t at = 0, most; at < bytes; at += most) {
        uint8_t *place = unpack_queue_where(comm, request, at, &most);

        most = most < bytes - at ? most : bytes - at;
        memcpy(place, data + at, most);
    }
}

const struct sink_ops sink_bounce = {.next = bounce_next,
                                     .filled = bounce_filled,
                                     .complete = sink_complete_receive,
                                     .copy_in = bounce_copy_in};

/* --- publishing ---------------------------------------------------------------------------- */

/* Those of a range of the message. */
static uint32_t unpack_describe(const struct net_comm *comm, const struct net_request *request,
                                const struct byte_range *range,
                                struct unpack_descriptor *descriptors)
{
    const struct unpack_queue_state *state = comm->unpack_queue;
    uint64_t at = range->start;
    uint32_t count = 0;

    while (at < range->end) {
        uint64_t left;
        const uint8_t *place = unpack_queue_where(comm, request, at, &left);
        uint64_t source = state->memory->device - pinned_base(&state->share) +
                          (uint64_t)(place - state->memory->host);

        left = left < range->end - at ? left : range->end - at;
        while (left > 0) {
            uint64_t piece = state->largest != 0 && left > state->largest ? state->largest : left;

            descriptors[count++] = (struct unpack_descriptor){.source_offset = (uint32_t)source,
                                                              .length = (uint32_t)piece,
                                                              .destination_offset = at};
            source += piece;
            at += piece;
            left -= piece;
        }
    }
    return count;
}

static const struct in_place *unpack_in_place(const struct net_comm *comm)
{
    return comm->mover != NULL ? comm->gpu->in_place : NULL;
}

/* Those of pages in the pool are there already. */
static uint32_t unpack_describe_all(const struct net_comm *comm, const struct net_request *request,
                                    struct unpack_descriptor *descriptors)
{
    const struct in_place *in_place = unpack_in_place(comm);
    uint32_t count = in_place_descriptors(in_place, request);
    struct byte_range gap = {.end = 0};

    while (in_place_next_gap(in_place, request, &gap))
        count += unpack_describe(comm, request, &gap, descriptors + count);
    return count;
}

static void unpack_account(struct net_comm *comm, const struct net_request *request)
{
    struct unpack_counts *counts = &comm->unpack_counts;
    uint64_t in_place = in_place_bytes(unpack_in_place(comm), request);

    if (comm->mover == NULL || comm->gpu->rx_pool == NULL || request->bytes == 0)
        return;
    counts->in_place += in_place == request->bytes;
    counts->copied += in_place < request->bytes;
    counts->in_place_bytes += in_place;
    counts->copied_bytes += request->bytes - in_place;
}

/* The count last, with release order: a kernel that sees it sees the descriptors. */
static void unpack_publish(struct net_comm *comm, const struct net_request *request)
{
    struct unpack_queue *queue = comm->unpack_queue->queue;
    unsigned slot = request->sequence % UNPACK_QUEUE_DEPTH;
    uint64_t count = 0;

    if (request->sink == &sink_bounce) {
        count = unpack_describe_all(comm, request, queue->descriptors[slot]);
        unpack_account(comm, request);
    }
    atomic_thread_fence(memory_order_seq_cst);
    __atomic_store_n(&queue->counts[slot], count, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_seq_cst);
}

/*
 * Slots without a published receive count 0: when their communicator is aborted, NCCL's kernels
 * read the slot that they wait for, and would never finish a list that is left there.
 */
static void unpack_release(struct net_comm *comm, const struct net_request *request)
{
    __atomic_store_n(&comm->unpack_queue->queue->counts[request->sequence % UNPACK_QUEUE_DEPTH], 0,
                     __ATOMIC_RELEASE);
    unpack_give_pages(comm->unpack_queue, unpack_place_of(comm, request));
    if (comm->mover != NULL && !in_place_release(comm->gpu->in_place, request))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "tokens that the socket does not know"));
}

static const struct unpack_ops unpack_queue_ops = {.has_room = unpack_has_room,
                                                   .begin = unpack_begin,
                                                   .publish = unpack_publish,
                                                   .release = unpack_release,
                                                   .close = unpack_queue_close};
