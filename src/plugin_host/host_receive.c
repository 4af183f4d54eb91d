/* Receives into host memory through other memory: host_receive.h has the reason. */
#include "plugin_host/host_receive.h"

#include "base/clock.h"
#include "base/log.h"
#include "plugin_host/memory.h"
#include "plugin_host/quirks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct host_receive {
    size_t stride;
    struct import_memory *memory; /* as the plugin knows it */

    /* Over a plugin that steers. */
    struct gpu_memory landing; /* it wants an address of GPU memory, and writes nothing there */
    struct gpu_pinned pinned;  /* a slot of `stride` bytes for each request */
    struct unpack_engine *engine;
    uint64_t tickets[IMPORT_REQUESTS]; /* 0: not submitted yet */

    /* Over one that overruns: as many slots, each with a guard page behind. */
    uint8_t *guarded;
    size_t guarded_bytes;
};

bool host_receive_applies(const struct import_comm *comm, const struct import_memory *memory)
{
    return !comm->sends && memory != NULL && memory->type == NET_POINTER_HOST &&
           (comm->steered || comm->plugin->quirks->overruns);
}

/* --- making -------------------------------------------------------------------------------- */

static int register_landing_memory(struct import_comm *comm, struct host_receive *host)
{
    struct gpu_scope scope;
    int result = gpu_enter(comm->gpu, &scope);

    if (result != TCPX_SUCCESS)
        return result;
    result = import_comm_register_locked(comm, (void *)(uintptr_t)host->landing.address,
                                         host->stride, NET_POINTER_CUDA, &host->memory);
    gpu_leave(comm->gpu, &scope);
    return result;
}

static int make_steered(struct import_comm *comm, struct host_receive *host)
{
    int result = gpu_memory_alloc(comm->gpu, host->stride, PAGE, &host->landing);

    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(comm->gpu, host->stride * IMPORT_REQUESTS, &host->pinned);
    if (result == TCPX_SUCCESS)
        result = unpack_create(comm->gpu, &host->engine);
    if (result == TCPX_SUCCESS)
        result = register_landing_memory(comm, host);
    return result;
}

static int make_guarded(struct import_comm *comm, struct host_receive *host)
{
    const size_t step = host->stride + PAGE;
    void *mapped;

    host->guarded_bytes = step * IMPORT_REQUESTS;
    mapped = mmap(NULL, host->guarded_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return error_system(errno, "%zu bytes for receives", host->guarded_bytes);
    host->guarded = mapped;
    for (size_t i = 0; i < IMPORT_REQUESTS; i++)
        if (mprotect(host->guarded + i * step, host->stride, PROT_READ | PROT_WRITE) != 0)
            return error_system(errno, "%zu bytes for receives", host->guarded_bytes);
    return import_comm_register_locked(comm, host->guarded, host->guarded_bytes, NET_POINTER_HOST,
                                       &host->memory);
}

/* Its registration has ended with the others of the comm, or was never made. */
void host_receive_end(struct import_comm *comm)
{
    struct host_receive *host = comm->host_receive;

    if (host == NULL)
        return;
    unpack_destroy(host->engine);
    if (comm->gpu != NULL) {
        gpu_pinned_free(comm->gpu, &host->pinned);
        gpu_memory_free(comm->gpu, &host->landing);
    }
    if (host->guarded != NULL)
        munmap(host->guarded, host->guarded_bytes);
    free(host);
    comm->host_receive = NULL;
}

static int prepare_host_receive(struct import_comm *comm)
{
    struct host_receive *host;
    int result;

    if (comm->host_receive != NULL)
        return TCPX_SUCCESS;
    host = calloc(1, sizeof *host);
    if (host == NULL)
        return error_system(ENOMEM, "memory for receives");
    host->stride = (comm->longest + PAGE - 1) / PAGE * PAGE;
    comm->host_receive = host;
    result = comm->steered ? make_steered(comm, host) : make_guarded(comm, host);
    if (result != TCPX_SUCCESS && !comm->is_lost) /* else the plugin still works with it */
        host_receive_end(comm);
    return result;
}

void host_receive_drain(struct import_comm *comm)
{
    enum { LIMIT_MS = 10000 };
    const struct host_receive *host = comm->host_receive;
    uint64_t last = 0;

    for (size_t i = 0; host != NULL && i < IMPORT_REQUESTS; i++)
        last = host->tickets[i] > last ? host->tickets[i] : last;
    if (last != 0 && unpack_wait(host->engine, last, deadline_after_ms(LIMIT_MS)) != TCPX_SUCCESS)
        log_warn("copies on the GPU were not finished: %s", error_text());
}

/* --- using --------------------------------------------------------------------------------- */

static size_t slot_of(uint64_t number)
{
    return (size_t)(number % IMPORT_REQUESTS);
}

static uint8_t *guarded_slot(const struct host_receive *host, uint64_t number)
{
    return host->guarded + slot_of(number) * (host->stride + PAGE);
}

/* Bytes that a message does not have by chance. */
static uint8_t canary_at(uint64_t number, size_t i)
{
    uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15u + i * 0xD1B54A32D192ED03u;

    return (uint8_t)(mixed >> 56);
}

int host_receive_place(struct import_comm *comm, uint64_t number, const void *data, size_t room,
                       struct host_place *place)
{
    struct host_receive *host;
    uint8_t *slot;
    int result = prepare_host_receive(comm);

    if (result != TCPX_SUCCESS)
        return result;
    host = comm->host_receive;
    if (comm->steered) {
        host->tickets[slot_of(number)] = 0;
        *place = (struct host_place){.data = (void *)(uintptr_t)host->landing.address,
                                     .bytes = room,
                                     .memory = host->memory};
        return TCPX_SUCCESS;
    }
    /* The plugin may not report how much came: bytes that did not come must stay as they are. */
    slot = guarded_slot(host, number);
    if (room > 0)
        memcpy(slot, data, room);
    for (size_t i = room; i < host->stride; i++)
        slot[i] = canary_at(number, i);
    *place = (struct host_place){.data = slot, .bytes = comm->longest, .memory = host->memory};
    return TCPX_SUCCESS;
}

static int finish_guarded(const struct import_request *request)
{
    const struct host_receive *host = request->comm->host_receive;
    const uint8_t *slot = guarded_slot(host, request->number);
    bool is_said = request->bytes != IMPORT_BYTES_UNSAID;
    size_t i = request->room;

    while (i < host->stride && slot[i] == canary_at(request->number, i))
        i++;
    if (i < host->stride || (is_said && request->bytes > request->room))
        return error_set(TCPX_REMOTE_ERROR, "%s: a message that is longer than its receive of %zu",
                         request->comm->plugin->table.name, request->room);
    if (request->room > 0)
        memcpy(request->data, slot, request->room);
    return TCPX_SUCCESS;
}

int host_receive_start(struct import_request *request)
{
    const struct import_comm *comm = request->comm;
    struct host_receive *host = comm->host_receive;
    size_t slot = slot_of(request->number);
    struct unpack_list list;
    int result;

    if (!comm->steered || request->fragments == 0)
        return TCPX_SUCCESS;
    list = import_request_list(request, host->pinned.device + slot * host->stride);
    result = unpack_submit(host->engine, &list, 1, list.bounce_host == NULL, &host->tickets[slot]);
    return result == TCPX_IN_PROGRESS ? TCPX_SUCCESS : result; /* finish tries again */
}

static int finish_steered(struct import_request *request, bool *done)
{
    const struct host_receive *host = request->comm->host_receive;
    size_t slot = slot_of(request->number);
    int result = TCPX_SUCCESS;

    *done = request->fragments == 0;
    if (*done)
        return TCPX_SUCCESS;
    if (host->tickets[slot] == 0)
        result = host_receive_start(request);
    if (result == TCPX_SUCCESS && host->tickets[slot] != 0)
        result = unpack_poll(host->engine, host->tickets[slot], done);
    if (result == TCPX_SUCCESS && *done)
        memcpy(request->data, (const uint8_t *)host->pinned.host + slot * host->stride,
               request->bytes);
    return result;
}

int host_receive_finish(struct import_request *request, bool *done)
{
    if (request->comm->steered)
        return finish_steered(request, done);
    *done = true;
    return finish_guarded(request);
}
