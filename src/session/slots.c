/* The memory of slots, and which of them are free. */
#include "session/session.h"

#include <errno.h>
#include <stdlib.h>

enum { PAGE = 4096, MOST_BYTES = 64 << 20 };

/* As many as can be in flight, within a limit of memory; one is enough to make progress. */
static unsigned slots_wanted(const struct tcpx_session *session, uint64_t slot_bytes)
{
    uint64_t most = (uint64_t)session->channels * LANE_CHUNKS;
    uint64_t fit = MOST_BYTES / slot_bytes;

    if (fit < session->channels)
        fit = session->channels;
    return (unsigned)(fit < most ? fit : most);
}

static int slots_allocate(struct tcpx_session *session, struct slots *slots, uint64_t slot_bytes)
{
    const uint64_t list_bytes = SLOT_DESCRIPTORS * sizeof(struct unpack_descriptor);
    int result;

    /* Pinning may wait for kernels; lists of GPU memory are refused with no_kernels. */
    if (session->gpu == NULL || session->no_kernels) {
        slots->plain = aligned_alloc(PAGE, slot_bytes * slots->count);
        return slots->plain != NULL ? TCPX_SUCCESS
                                    : error_system(ENOMEM, "%llu bytes of staging memory",
                                                   (unsigned long long)(slot_bytes * slots->count));
    }
    result = gpu_pinned_alloc(session->gpu, slot_bytes * slots->count, &slots->pinned);
    if (result == TCPX_SUCCESS)
        result = gpu_pinned_alloc(session->gpu, list_bytes * slots->count, &slots->descriptors);
    return result;
}

static void slots_divide(struct slots *slots, uint64_t slot_bytes)
{
    uint8_t *host = slots->plain != NULL ? slots->plain : slots->pinned.host;

    for (size_t i = 0; i < slots->count; i++) {
        struct slot *slot = &slots->all[i];

        slot->host = host + i * slot_bytes;
        slot->device = slots->pinned.device + i * slot_bytes;
        if (slots->landing.address != 0)
            slot->landing = slots->landing.address + i * slot_bytes;
        if (slots->plain == NULL) {
            slot->descriptors =
                (struct unpack_descriptor *)slots->descriptors.host + i * SLOT_DESCRIPTORS;
            slot->descriptors_device =
                slots->descriptors.device + i * SLOT_DESCRIPTORS * sizeof(struct unpack_descriptor);
        }
        slots_give(slots, slot);
    }
}

/* Plugins register the memory of the GPU that is current. */
static int slots_make_landing(struct tcpx_session *session, struct slots *slots,
                              uint64_t slot_bytes)
{
    enum { ALIGNMENT = 65536 };
    struct gpu_scope scope;
    int result =
        gpu_memory_alloc(session->gpu, slot_bytes * slots->count, ALIGNMENT, &slots->landing);

    if (result == TCPX_SUCCESS)
        result = gpu_enter(session->gpu, &scope);
    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++)
        result = channel_register(session_channel(session, false, i),
                                  (void *)(uintptr_t)slots->landing.address, slots->landing.bytes,
                                  true, &slots->landing_memory[i]);
    gpu_leave(session->gpu, &scope);
    return result;
}

int slots_prepare(struct tcpx_session *session, bool sending)
{
    struct slots *slots = &session->directions[sending].slots;
    uint64_t slot_bytes = (session->chunk_bytes + PAGE - 1) / PAGE * PAGE;
    int result;

    if (slots->count != 0)
        return TCPX_SUCCESS;
    slots->count = slots_wanted(session, slot_bytes);
    slots->all = calloc(slots->count, sizeof *slots->all);
    result = slots->all != NULL ? slots_allocate(session, slots, slot_bytes)
                                : error_system(ENOMEM, "staging memory");
    if (result != TCPX_SUCCESS) {
        slots_free(session, slots);
        return result;
    }
    if (!sending && session->gpu != NULL && session->takes_gpu_memory && session->plugin != NULL &&
        import_comm_facts(session_channel(session, sending, 0)->plugin).steered)
        result = slots_make_landing(session, slots, slot_bytes);
    if (result != TCPX_SUCCESS)
        return result;
    slots_divide(slots, slot_bytes);
    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++)
        result = channel_register(session_channel(session, sending, i), slots->all[0].host,
                                  slot_bytes * slots->count, false, &slots->memory[i]);
    return result;
}

struct slot *slots_take(struct slots *slots)
{
    struct slot *slot = slots->free;

    if (slot != NULL)
        slots->free = slot->next;
    return slot;
}

void slots_give(struct slots *slots, struct slot *slot)
{
    slot->next = slots->free;
    slots->free = slot;
}

/* Its registrations end with their channels. */
void slots_free(struct tcpx_session *session, struct slots *slots)
{
    if (session->gpu != NULL) {
        gpu_pinned_free(session->gpu, &slots->pinned);
        gpu_pinned_free(session->gpu, &slots->descriptors);
        gpu_memory_free(session->gpu, &slots->landing);
    }
    free(slots->plain);
    free(slots->all);
    *slots = (struct slots){0};
}
