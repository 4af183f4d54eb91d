/* Unpacking for callers who post their receives themselves. */
#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "plugin_host/plugin_host.h"
#include "unpack/unpack.h"

#include <errno.h>
#include <stdlib.h>

struct tcpx_unpack {
    struct gpu *gpu;
    struct unpack_engine *engine;
    uint64_t last; /* ticket */
};

int tcpx_unpack_create(int gpu, struct tcpx_unpack **out)
{
    struct tcpx_unpack *unpack;
    int result;

    if (out == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_unpack_create: unpack is NULL");
    unpack = calloc(1, sizeof *unpack);
    if (unpack == NULL)
        return error_system(ENOMEM, "an unpack engine");
    result = gpu_open(gpu, &unpack->gpu);
    if (result == TCPX_SUCCESS)
        result = unpack_create(unpack->gpu, &unpack->engine);
    if (result != TCPX_SUCCESS) {
        gpu_close(unpack->gpu);
        free(unpack);
        return result;
    }
    *out = unpack;
    return TCPX_SUCCESS;
}

void tcpx_unpack_destroy(struct tcpx_unpack *unpack)
{
    if (unpack == NULL || fork_check() != TCPX_SUCCESS)
        return;
    if (unpack->last != 0 && tcpx_unpack_wait(unpack, unpack->last, TCPX_DEFAULT_TIMEOUT))
        log_warn("unpack work was not done when its engine was closed: %s", error_text());
    unpack_destroy(unpack->engine);
    gpu_close(unpack->gpu);
    free(unpack);
}

int tcpx_unpack_submit(struct tcpx_unpack *unpack, void *const *requests, size_t request_count,
                       uint64_t *ticket)
{
    struct unpack_list lists[GPU_UNPACK_LISTS];
    uint32_t used = 0;
    bool written_by_nic = false;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (unpack == NULL || requests == NULL || ticket == NULL || request_count > GPU_UNPACK_LISTS)
        return error_set(
            TCPX_INVALID_ARGUMENT,
            "tcpx_unpack_submit: expected an engine, up to %d requests and a place for the ticket",
            GPU_UNPACK_LISTS);
    for (size_t i = 0; i < request_count && result == TCPX_SUCCESS; i++) {
        struct unpack_list *list = &lists[used];

        if (requests[i] == NULL)
            return error_set(TCPX_INVALID_ARGUMENT, "tcpx_unpack_submit: request %zu is NULL", i);
        result = import_request_received(requests[i], list);
        if (result != TCPX_SUCCESS || list->count == 0)
            continue;
        written_by_nic |= list->bounce_host == NULL;
        used++;
    }
    if (result == TCPX_SUCCESS)
        result = unpack_submit(unpack->engine, lists, used, written_by_nic, &unpack->last);
    if (result == TCPX_SUCCESS)
        *ticket = unpack->last;
    return result;
}

int tcpx_unpack_poll(struct tcpx_unpack *unpack, uint64_t ticket, int *done)
{
    bool ended = false;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (unpack == NULL || done == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_unpack_poll: an argument is NULL");
    result = unpack_poll(unpack->engine, ticket, &ended);
    if (result == TCPX_SUCCESS)
        *done = ended;
    return result;
}

int tcpx_unpack_wait(struct tcpx_unpack *unpack, uint64_t ticket, int timeout_ms)
{
    uint64_t deadline;
    int result = fork_check();

    if (result == TCPX_SUCCESS)
        result = config_deadline(timeout_ms, &deadline);
    if (unpack == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_unpack_wait: unpack is NULL");
    if (result == TCPX_SUCCESS)
        result = unpack_wait(unpack->engine, ticket, deadline);
    return result;
}
