/* Attaches a GPU to a comm, and registers its memory. */
#include "net/gpu/gpu_mover.h"

#include "net/comm/for_movers.h"
#include "net/gpu/copy_queue.h"
#include "net/gpu/rx_devmem.h"
#include "net/gpu/rx_staged.h"
#include "net/gpu/send_gate.h"
#include "net/gpu/tx_dmabuf.h"
#include "net/gpu/tx_staged.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* --- operations ---------------------------------------------------------------------------- */

static void gpu_mover_poll(struct net_comm *comm)
{
    rx_devmem_poll(comm);
    copy_queue_poll(comm);
    if (comm->result != TCPX_SUCCESS)
        tx_staged_drop_pieces(comm);
}

static bool gpu_mover_has_copies(const struct net_comm *comm)
{
    return queue_length(&comm->gpu->copies) > 0 || rx_devmem_is_under_way(comm);
}

static bool gpu_mover_has_gated_sends(const struct net_comm *comm)
{
    return comm->gpu->gated_sends > 0;
}

struct gpu_registration {
    struct net_memory memory;
    struct devmem_source *dmabuf; /* that the NIC reads it from; NULL: it is staged */
};

/* A message of no bytes is not read from anywhere. */
static int gpu_mover_begin_send(struct net_comm *comm, const struct net_buffer *buffer,
                                struct net_request *request)
{
    const struct gpu_registration *memory = (const struct gpu_registration *)buffer->memory;

    if (memory->dmabuf != NULL && buffer->bytes > 0 && buffer->parts == NULL) {
        request->source = &source_dmabuf;
        request->gpu.source_id = memory->dmabuf->id;
        request->gpu.source_at = (gpu_address)(uintptr_t)buffer->data - memory->dmabuf->start;
    }
    return buffer->after == NET_AFTER_NOTHING
               ? TCPX_SUCCESS
               : send_gate_close(comm, request, buffer->after, buffer->after_what);
}

static void gpu_mover_free(struct net_comm *comm)
{
    struct comm_gpu *gpu = comm->gpu;

    queue_destroy(&gpu->copies);
    queue_destroy(&gpu->ready);
    gpu_stream_destroy(gpu->stream);
    send_gates_destroy(comm);
    pinned_leave(&gpu->share);
    free(gpu);
    comm->gpu = NULL;
}

static void gpu_mover_close(struct net_comm *comm)
{
    rx_devmem_close(comm);
    copy_queue_close(comm);
    tx_staged_close(comm);
    rx_staged_close(comm);
    tx_dmabuf_close(comm);
    gpu_mover_free(comm);
    comm->mover = NULL;
}

static const struct mover_ops gpu_mover = {
    .poll = gpu_mover_poll,
    .has_copies = gpu_mover_has_copies,
    .has_gated_sends = gpu_mover_has_gated_sends,
    .close = gpu_mover_close,
    .begin_send = gpu_mover_begin_send,
    .prepare = tx_staged_prepare,
    .count_pieces = tx_staged_count_pieces,
    .next_piece = tx_staged_next_piece,
    .take_piece = tx_staged_take_piece,
    .piece_sent = tx_staged_piece_sent,
    .forget_send = tx_staged_forget,
    .poll_socket = tx_dmabuf_poll,
    .has_zero_copy = tx_dmabuf_is_in_flight,
    .abort_sends = tx_dmabuf_abort,
    .close_sends = tx_dmabuf_close_sends,
    .deliver_unexpected = rx_staged_deliver_unexpected,
    .watch = rx_devmem_watch,
    .finish_on_stream = rx_staged_finish_on_stream,
};

/* --- attaching ----------------------------------------------------------------------------- */

/* A thread that attaches a GPU to a comm. Others that want to do so for this comm wait for it. */
struct attach {
    const struct net_comm *comm;
    struct attach *next;
};

/* Guards the list. Not held while a GPU is attached. */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t attach_ended = PTHREAD_COND_INITIALIZER;
static struct attach *attaches;

/* With the lock. */
static bool attach_is_under_way(const struct net_comm *comm)
{
    const struct attach *attach = attaches;

    while (attach != NULL && attach->comm != comm)
        attach = attach->next;
    return attach != NULL;
}

static void attach_begin(struct attach *self)
{
    pthread_mutex_lock(&attach_lock);
    while (attach_is_under_way(self->comm))
        pthread_cond_wait(&attach_ended, &attach_lock);
    self->next = attaches;
    attaches = self;
    pthread_mutex_unlock(&attach_lock);
}

static void attach_end(struct attach *self)
{
    struct attach **at = &attaches;

    pthread_mutex_lock(&attach_lock);
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    pthread_cond_broadcast(&attach_ended);
    pthread_mutex_unlock(&attach_lock);
}

/* Some slots for each socket: what it is at, and what is ahead of it or behind it. */
static int gpu_mover_open(struct net_comm *comm)
{
    unsigned most = 4u * comm->link.sockets + 2;
    struct comm_gpu *gpu = comm->gpu;
    int result = pinned_join(PINNED_STAGING, gpu->device, 0, most, NULL, &gpu->share);

    if (result == TCPX_SUCCESS)
        result = send_gates_create(comm);
    if (result == TCPX_SUCCESS)
        result = gpu_stream_create(gpu->share.pool->gpu, &gpu->stream);
    if (result == TCPX_SUCCESS)
        result = queue_init(&gpu->copies, most, sizeof(struct copy));
    if (result == TCPX_SUCCESS)
        result = queue_init(&gpu->ready, most, sizeof(struct copy));
    if (result == TCPX_SUCCESS)
        result = rx_devmem_open(comm);
    return result;
}

/*
 * Without the lock, since the driver may let it wait for kernels. Until comm->mover is set, no
 * other thread looks at comm->gpu.
 */
static int gpu_mover_create(struct net_comm *comm, int device)
{
    int result;

    rx_devmem_reserve_lanes(comm);
    comm->gpu = calloc(1, sizeof *comm->gpu);
    if (comm->gpu == NULL)
        return error_system(ENOMEM, "the GPU memory of a comm");
    comm->gpu->device = device;
    result = gpu_mover_open(comm);
    if (result != TCPX_SUCCESS) {
        gpu_mover_free(comm);
        return result;
    }
    comm_lock_take(&comm->lock);
    rx_devmem_start(comm);
    comm->mover = &gpu_mover;
    comm_lock_release(&comm->lock);
    return TCPX_SUCCESS;
}

static bool gpu_mover_is_attached(struct net_comm *comm)
{
    bool attached;

    comm_lock_take(&comm->lock);
    attached = comm->mover != NULL;
    comm_lock_release(&comm->lock);
    return attached;
}

static int gpu_mover_refuse(const struct net_comm *comm, int device)
{
    return error_set(TCPX_INVALID_USAGE,
                     "memory of GPU %d on a comm that has memory of GPU %d: one comm for each "
                     "GPU%s",
                     device, comm->gpu->device,
                     comm->link.devmem != NULL
                         ? ", which has to be current where it is listened for (or "
                           "UCCL_TCPX_DEVMEM=off)"
                         : "");
}

int gpu_mover_attach(struct net_comm *comm, int device)
{
    struct attach self = {.comm = comm};
    int result = TCPX_SUCCESS;

    attach_begin(&self);
    if (!gpu_mover_is_attached(comm))
        result = gpu_mover_create(comm, device);
    else if (comm->gpu->device != device)
        result = gpu_mover_refuse(comm, device);
    attach_end(&self);
    return result;
}

int gpu_mover_attach_for_unpack(struct net_comm *comm, int device)
{
    bool needed = false;
    int result = rx_devmem_applies(comm, &needed);

    return result == TCPX_SUCCESS && needed ? gpu_mover_attach(comm, device) : result;
}

/* --- registering --------------------------------------------------------------------------- */

static void gpu_registration_release(struct net_memory *base)
{
    struct gpu_registration *memory = (struct gpu_registration *)base;

    devmem_source_give(memory->dmabuf);
    free(memory);
}

int gpu_mover_register(struct net_comm *comm, void *address, uint64_t bytes, bool is_staged,
                       struct net_memory **out)
{
    struct gpu_registration *memory = calloc(1, sizeof *memory);
    int result = TCPX_SUCCESS;

    if (memory == NULL)
        return error_system(ENOMEM, "a registration");
    memory->memory = (struct net_memory){
        .source = &source_staged, .sink = &sink_staged, .release = gpu_registration_release};
    if (!is_staged)
        result = tx_dmabuf_register(comm, (gpu_address)(uintptr_t)address, bytes, &memory->dmabuf);
    if (result != TCPX_SUCCESS) {
        free(memory);
        return result;
    }
    memory_add(comm, &memory->memory);
    *out = &memory->memory;
    return TCPX_SUCCESS;
}
