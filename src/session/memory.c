/* Registration of a session's memory. */
#include "session/session.h"

#include "base/fork.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

/* Tables before version 8 have an int for the length of a region. */
static uint64_t longest_region(const struct tcpx_session *session)
{
    return session->plugin != NULL && session->plugin->table.version < 8 ? (uint64_t)1 << 30
                                                                         : UINT64_MAX;
}

struct channel_memory memory_at(const struct tcpx_memory *memory, bool sending, unsigned channel,
                                uint64_t offset)
{
    return memory->registered[sending][channel * memory->regions + offset / memory->stride];
}

static void memory_release_regions(struct tcpx_memory *memory)
{
    struct tcpx_session *session = memory->session;

    for (int sending = 0; sending < 2; sending++) {
        struct channel_memory *registered = memory->registered[sending];

        for (size_t i = 0; i < session->channels * memory->regions && registered != NULL; i++)
            channel_deregister(session_channel(session, sending, (unsigned)(i / memory->regions)),
                               &registered[i]);
        free(registered);
        memory->registered[sending] = NULL;
    }
    memory->regions = 0;
}

static void memory_release(struct tcpx_memory *memory)
{
    memory_release_regions(memory);
    free(memory);
}

/*
 * GPU memory is exported in whole pages: the region grows to their bounds where its allocation
 * reaches that far.
 */
static void widen_to_pages(const struct gpu_pointer *pointer, uint8_t **address, uint64_t *bytes)
{
    const uint64_t page = 4096;
    uint64_t from = (uintptr_t)*address & ~(page - 1);
    uint64_t to = ((uintptr_t)*address + *bytes + page - 1) & ~(page - 1);

    if (from >= pointer->base) {
        *bytes += (uintptr_t)*address - from;
        *address = (uint8_t *)(uintptr_t)from;
    }
    if (to <= pointer->base + pointer->bytes)
        *bytes = to - (uintptr_t)*address;
}

static int memory_register_region(struct tcpx_memory *memory, const struct gpu_pointer *pointer,
                                  size_t region)
{
    struct tcpx_session *session = memory->session;
    uint64_t offset = region * memory->stride;
    uint64_t bytes = memory->bytes - offset;
    uint8_t *address = memory->address + offset;
    int result = TCPX_SUCCESS;

    if (bytes > memory->stride && bytes - memory->stride > session->chunk_bytes)
        bytes = memory->stride + session->chunk_bytes;
    if (memory->on_gpu && session->plugin != NULL)
        widen_to_pages(pointer, &address, &bytes);
    for (unsigned i = 0; i < 2 * session->channels && result == TCPX_SUCCESS; i++)
        result =
            channel_register(session_channel(session, i % 2, i / 2), address, bytes, memory->on_gpu,
                             &memory->registered[i % 2][i / 2 * memory->regions + region]);
    return result;
}

static int memory_register_regions(struct tcpx_memory *memory, const struct gpu_pointer *pointer)
{
    const struct tcpx_session *session = memory->session;
    uint64_t longest = longest_region(session);
    int result = TCPX_SUCCESS;

    memory->stride = longest < memory->bytes ? longest : memory->bytes;
    memory->regions = (size_t)((memory->bytes + memory->stride - 1) / memory->stride);
    for (int i = 0; i < 2; i++)
        memory->registered[i] =
            calloc(session->channels * memory->regions, sizeof *memory->registered[i]);
    if (memory->registered[SENDING] == NULL || memory->registered[RECEIVING] == NULL)
        return error_system(ENOMEM, "registrations for %u channels", session->channels);
    for (size_t i = 0; i < memory->regions && result == TCPX_SUCCESS; i++)
        result = memory_register_region(memory, pointer, i);
    if (result == TCPX_SUCCESS || !memory->on_gpu || session->plugin == NULL)
        return result;
    /* A plugin may want whole pages, or memory of one kind of allocation. */
    log_tcpx("%llu bytes of GPU memory at %p are staged: %s", (unsigned long long)memory->bytes,
             (void *)memory->address, error_text());
    memory_release_regions(memory);
    memory->staged = true;
    return TCPX_SUCCESS;
}

static int memory_classify(const struct tcpx_session *session, void *address, uint64_t bytes,
                           struct gpu_pointer *pointer, bool *on_gpu)
{
    int result = TCPX_SUCCESS;

    *on_gpu = false;
    if (session->gpu_number < 0)
        return TCPX_SUCCESS;
    result = gpu_classify(address, bytes, pointer);
    if (result != TCPX_SUCCESS)
        return result;
    *on_gpu = pointer->kind == GPU_POINTER_DEVICE || pointer->kind == GPU_POINTER_MANAGED;
    if (*on_gpu && pointer->device != session->gpu_number)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%llu bytes at %p are memory of GPU %d, and the session is for GPU %d",
                         (unsigned long long)bytes, address, pointer->device, session->gpu_number);
    return TCPX_SUCCESS;
}

int tcpx_session_register(struct tcpx_session *session, void *address, uint64_t bytes,
                          struct tcpx_memory **out)
{
    struct gpu_scope scope;
    struct gpu_pointer pointer = {0};
    struct tcpx_memory *memory;
    bool on_gpu;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL || out == NULL || address == NULL || bytes == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "tcpx_session_register: %llu bytes at %p are not a range of memory",
                         (unsigned long long)bytes, address);
    result = memory_classify(session, address, bytes, &pointer, &on_gpu);
    if (result != TCPX_SUCCESS)
        return result;
    memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return error_system(ENOMEM, "a memory");
    *memory = (struct tcpx_memory){.session = session,
                                   .address = address,
                                   .bytes = bytes,
                                   .on_gpu = on_gpu,
                                   .staged = on_gpu && !session->takes_gpu_memory};
    session_lock(session);
    if (!memory->staged && session->gpu != NULL)
        result = gpu_enter(session->gpu, &scope);
    if (!memory->staged && result == TCPX_SUCCESS) {
        result = memory_register_regions(memory, &pointer);
        if (session->gpu != NULL)
            gpu_leave(session->gpu, &scope);
    }
    if (result == TCPX_SUCCESS) {
        memory->next = session->memories;
        session->memories = memory;
        *out = memory;
    } else {
        memory_release(memory);
    }
    session_unlock(session);
    return result;
}

int tcpx_session_deregister(struct tcpx_session *session, struct tcpx_memory *memory)
{
    struct tcpx_memory **at;
    int result = fork_check();

    if (result != TCPX_SUCCESS || memory == NULL)
        return result;
    if (session == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_session_deregister: session is NULL");
    session_lock(session);
    at = &session->memories;
    while (*at != NULL && *at != memory)
        at = &(*at)->next;
    if (*at == NULL) {
        result =
            error_set(TCPX_INVALID_ARGUMENT, "%p is not a memory of this session", (void *)memory);
    } else if (memory->users != 0) {
        result = error_set(TCPX_INVALID_USAGE,
                           "the memory is used by %u transfer%s whose end was not reported yet: "
                           "wait for each first",
                           memory->users, memory->users == 1 ? "" : "s");
    } else if (memory->is_lost) {
        result = error_set(TCPX_INVALID_USAGE, "a transfer of this memory has failed: the network "
                                               "may use it until the session is closed");
    } else {
        *at = memory->next;
        memory_release(memory);
    }
    session_unlock(session);
    return result;
}

void memory_free_all(struct tcpx_session *session)
{
    while (session->memories != NULL) {
        struct tcpx_memory *memory = session->memories;

        session->memories = memory->next;
        memory_release(memory);
    }
}
