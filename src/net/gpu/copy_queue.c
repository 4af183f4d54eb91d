/* Copies in flight. */
#include "net/gpu/copy_queue.h"

#include "base/log.h"
#include "net/comm/for_movers.h"

bool copy_queue_add(struct net_comm *comm, const struct copy *copy, int result)
{
    struct comm_gpu *gpu = comm->gpu;
    int recorded;

    COMM_LOCKED(comm);
    /* Recorded also for a copy that failed: a part of it may run. */
    if (result != TCPX_SUCCESS)
        comm_fail_copies(comm, result);
    recorded = gpu_event_record(copy->slot->event, gpu->stream);
    if (recorded != TCPX_SUCCESS) {
        comm_fail_copies(comm, recorded);
        result = recorded;
        /* Once more: without an event the end of the copy could not be seen. */
        recorded = gpu_event_record(copy->slot->event, gpu->stream);
    }
    if (recorded != TCPX_SUCCESS) {
        pinned_retire(&gpu->share, copy->slot);
        return false;
    }
    request_hold(copy->request);
    stages_copy_began(&comm->copying);
    /* There is a place for each slot that the comm can have. */
    if (!queue_push(&gpu->copies, copy))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "more copies than slots"));
    return result == TCPX_SUCCESS;
}

static bool copy_is_held_up(const struct copy *copy)
{
    return copy->not_before != 0 && !deadline_passed(copy->not_before);
}

static void copy_end(struct net_comm *comm, const struct copy *copy, bool lost)
{
    stages_copy_ended(&comm->copying);
    request_let_go(copy->request);
    if (lost)
        pinned_retire(&comm->gpu->share, copy->slot);
    else
        copy->ended(comm, copy);
}

void copy_queue_poll(struct net_comm *comm)
{
    struct queue *copies = &comm->gpu->copies;
    struct copy *oldest;
    struct copy copy;

    COMM_LOCKED(comm);
    while ((oldest = queue_peek(copies)) != NULL && !copy_is_held_up(oldest)) {
        bool done = false;
        int result = gpu_event_query(oldest->slot->event, &done);

        /* If the second query fails too, the GPU is lost, and the copy with it. */
        if (result != TCPX_SUCCESS) {
            comm_fail_copies(comm, result);
            result = gpu_event_query(oldest->slot->event, &done);
        }
        if (result == TCPX_SUCCESS && !done)
            break;
        if (queue_pop(copies, &copy))
            copy_end(comm, &copy, result != TCPX_SUCCESS);
    }
}

unsigned copy_queue_disown(struct net_comm *comm, const struct net_request *request)
{
    unsigned count = 0;

    COMM_LOCKED(comm);
    for (size_t i = 0; i < queue_length(&comm->gpu->copies); i++) {
        struct copy *copy = queue_at(&comm->gpu->copies, i);

        if (copy->request == request) {
            copy->request = NULL;
            count++;
        }
    }
    return count;
}

void copy_queue_close(struct net_comm *comm)
{
    enum { PATIENCE_MS = 10000 };
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    struct copy copy;

    COMM_LOCKED(comm);
    while (queue_pop(&comm->gpu->copies, &copy)) {
        int result = gpu_event_wait(copy.slot->event, deadline);

        if (result != TCPX_SUCCESS) /* once more: a single query may fail */
            result = gpu_event_wait(copy.slot->event, deadline);
        if (result == TCPX_SUCCESS) {
            pinned_give(&comm->gpu->share, copy.slot);
        } else {
            log_warn("a copy did not end when its comm was closed: %s", error_text());
            pinned_retire(&comm->gpu->share, copy.slot);
        }
    }
}
