/*
 * Receives that the GPU unpacks itself. What comes is left in bounce memory, in pages that were set
 * aside when the receive was posted; when all is there, descriptors are published in the receive's
 * slot of NCCL's unpack queue, and the pages are free again when the receive has been consumed.
 */
#include "net/comm/comm_state.h"

#include "base/config.h"
#include "base/fork.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, MOST_BYTES = UNPACK_MAX_MESSAGE, MOST_PAGES = MOST_BYTES / PAGE };

struct run {
    uint32_t page; /* of the comm's own */
    uint32_t count;
};

/* Where a receive's bytes are, in order. */
struct place {
    bool used;
    uint32_t run_count;
    struct run runs[MOST_PAGES];
};

struct publisher {
    struct bounce_region region; /* pages for payload; behind them the queue and the handle */
    struct unpack_queue *queue;
    uint32_t largest; /* bytes in one descriptor; 0: as many as there are */
    uint32_t page_count;
    uint32_t pages_left;
    struct place places[UNPACK_QUEUE_DEPTH];
    bool is_taken[]; /* pages */
};

/* --- opening ------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static int open_publisher(struct net_comm *comm, int device, uint32_t largest,
                          struct net_device_handle *out)
{
    const uint64_t behind =
        whole_pages(sizeof(struct unpack_queue) + sizeof(struct unpack_device_handle));
    struct unpack_device_handle *handle;
    const struct config *config;
    struct publisher *publisher;
    uint64_t pages;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    pages = config->unpack_bytes / PAGE;
    publisher = calloc(1, sizeof *publisher + pages * sizeof *publisher->is_taken);
    if (publisher == NULL)
        return error_system(ENOMEM, "an unpack queue");
    result = bounce_take(device, pages * PAGE + behind, &publisher->region);
    if (result != TCPX_SUCCESS) {
        free(publisher);
        return result;
    }
    publisher->largest = largest;
    publisher->page_count = (uint32_t)pages;
    publisher->pages_left = (uint32_t)pages;
    publisher->queue = (struct unpack_queue *)(publisher->region.host + pages * PAGE);
    memset(publisher->queue->counts, 0, sizeof publisher->queue->counts);
    handle = (struct unpack_device_handle *)(publisher->queue + 1);
    *handle = (struct unpack_device_handle){
        .queue = (struct unpack_queue *)(uintptr_t)(publisher->region.device + pages * PAGE),
        .bounce = (void *)(uintptr_t)bounce_base(&publisher->region),
        .head = UNPACK_HEAD_START};
    *out = (struct net_device_handle){.type = NET_DEVICE_UNPACK,
                                      .version = UNPACK_VERSION,
                                      .handle = (void *)(uintptr_t)(publisher->region.device +
                                                                    pages * PAGE +
                                                                    sizeof(struct unpack_queue)),
                                      .size = sizeof *handle,
                                      .needs_proxy_progress = 1};
    comm->publisher = publisher;
    return TCPX_SUCCESS;
}

int net_unpack_open(struct net_comm *comm, int device, uint32_t largest,
                    struct net_device_handle *handle)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (comm->side != NET_RECEIVER || comm->link.match != WIRE_MATCH_FIFO ||
        comm->next_sequence != 0 || comm->publisher != NULL)
        result =
            error_set(TCPX_INVALID_USAGE, "an unpack queue is for the receiver of a FIFO comm, "
                                          "before its first receive, and once");
    else
        result = open_publisher(comm, device, largest, handle);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

void publish_close(struct net_comm *comm)
{
    if (comm->publisher == NULL)
        return;
    bounce_give(&comm->publisher->region);
    free(comm->publisher);
}

/* --- places -------------------------------------------------------------------------------- */

static struct place *next_place(const struct net_comm *comm)
{
    return &comm->publisher->places[comm->next_sequence % UNPACK_QUEUE_DEPTH];
}

static uint32_t pages_for(const struct net_buffer *buffer)
{
    return memory_is_in_gpu(buffer->memory) ? (uint32_t)(whole_pages(buffer->bytes) / PAGE) : 0;
}

bool publish_has_room(const struct net_comm *comm, const struct net_buffer *buffer)
{
    if (comm->publisher == NULL)
        return true;
    /* A receive that could never be is refused when it begins. */
    return buffer->bytes > MOST_BYTES ||
           (!next_place(comm)->used && pages_for(buffer) <= comm->publisher->pages_left);
}

/* In as few runs as the free pages allow from the start; there are enough. */
static void take_pages(struct publisher *publisher, struct place *place, uint32_t count)
{
    publisher->pages_left -= count;
    for (uint32_t page = 0; count > 0; page++) {
        struct run *last = place->run_count > 0 ? &place->runs[place->run_count - 1] : NULL;

        if (publisher->is_taken[page])
            continue;
        publisher->is_taken[page] = true;
        count--;
        if (last != NULL && last->page + last->count == page)
            last->count++;
        else
            place->runs[place->run_count++] = (struct run){.page = page, .count = 1};
    }
}

static void give_pages(struct publisher *publisher, struct place *place)
{
    for (uint32_t i = 0; i < place->run_count; i++)
        for (uint32_t k = 0; k < place->runs[i].count; k++)
            publisher->is_taken[place->runs[i].page + k] = false;
    for (uint32_t i = 0; i < place->run_count; i++)
        publisher->pages_left += place->runs[i].count;
    place->used = false;
    place->run_count = 0;
}

int publish_begin(struct net_comm *comm, const struct net_buffer *buffer,
                  struct net_request *request)
{
    struct place *place;

    if (comm->publisher == NULL)
        return TCPX_SUCCESS;
    if (buffer->bytes > MOST_BYTES)
        return error_set(TCPX_INVALID_USAGE,
                         "a receive of %llu bytes, and %d are the most that an unpack queue takes",
                         (unsigned long long)buffer->bytes, MOST_BYTES);
    place = next_place(comm);
    place->used = true;
    take_pages(comm->publisher, place, pages_for(buffer));
    request->bounced = memory_is_in_gpu(buffer->memory);
    return TCPX_SUCCESS;
}

static struct place *place_of(const struct net_comm *comm, const struct net_request *request)
{
    return &comm->publisher->places[request->sequence % UNPACK_QUEUE_DEPTH];
}

uint8_t *publish_where(const struct net_comm *comm, const struct net_request *request,
                       uint64_t offset, uint64_t *most)
{
    const struct place *place = place_of(comm, request);
    uint32_t i = 0;

    while (offset >= (uint64_t)place->runs[i].count * PAGE)
        offset -= (uint64_t)place->runs[i++].count * PAGE;
    *most = (uint64_t)place->runs[i].count * PAGE - offset;
    return comm->publisher->region.host + (uint64_t)place->runs[i].page * PAGE + offset;
}

gpu_address publish_where_on_gpu(const struct net_comm *comm, const struct net_request *request,
                                 uint64_t offset, uint64_t bytes)
{
    uint64_t most;
    const uint8_t *place = publish_where(comm, request, offset, &most);

    return most >= bytes
               ? comm->publisher->region.device + (uint64_t)(place - comm->publisher->region.host)
               : 0;
}

/* --- publishing ---------------------------------------------------------------------------- */

static uint32_t describe(const struct publisher *publisher, const struct place *place,
                         uint64_t bytes, struct unpack_descriptor *descriptors)
{
    uint64_t at = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; at < bytes; i++) {
        uint64_t source = publisher->region.offset + (uint64_t)place->runs[i].page * PAGE;
        uint64_t left = (uint64_t)place->runs[i].count * PAGE;

        left = left < bytes - at ? left : bytes - at;
        while (left > 0) {
            uint64_t piece =
                publisher->largest != 0 && left > publisher->largest ? publisher->largest : left;

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

/* The count last: whoever sees it sees the descriptors. */
void publish(struct net_comm *comm, const struct net_request *request)
{
    struct publisher *publisher = comm->publisher;
    unsigned slot = request->sequence % UNPACK_QUEUE_DEPTH;
    uint64_t count;

    if (publisher == NULL)
        return;
    count = request->bounced ? describe(publisher, &publisher->places[slot], request->bytes,
                                        publisher->queue->descriptors[slot])
                             : 0;
    atomic_thread_fence(memory_order_seq_cst);
    __atomic_store_n(&publisher->queue->counts[slot], count, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_seq_cst);
}

/*
 * A slot that nothing is published in counts 0: NCCL's kernels look at the one they wait for when
 * their communicator is aborted, too, and would never come to the end of a list that is left there.
 */
void publish_release(struct net_comm *comm, struct net_request *request)
{
    if (comm->publisher == NULL)
        return;
    __atomic_store_n(&comm->publisher->queue->counts[request->sequence % UNPACK_QUEUE_DEPTH], 0,
                     __ATOMIC_RELEASE);
    give_pages(comm->publisher, place_of(comm, request));
}

int net_consumed(struct net_request *request)
{
    struct net_comm *comm = request->comm;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&comm->lock);
    if (comm->publisher == NULL || request->state != REQUEST_TOLD) {
        result = error_set(TCPX_INVALID_USAGE,
                           "a receive can be consumed once, when it is done, on a comm with an "
                           "unpack queue");
    } else {
        publish_release(comm, request);
        request_free(request);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}
