/* Memory, sends and receives of NCCL's threads. */
#include "nccl_plugin/nccl_plugin.h"

#include <limits.h>

/* NCCL has this limit too; a negative length of an older table is beyond it. */
static int check_bytes(uint64_t bytes)
{
    const uint64_t most = (uint64_t)1 << 40;

    if (bytes > most)
        return error_set(TCPX_INVALID_ARGUMENT, "a message of %lld bytes: expected 0 to %llu",
                         (long long)bytes, (unsigned long long)most);
    return TCPX_SUCCESS;
}

int plugin_register(void *raw_comm, void *data, size_t bytes, int type, void **out)
{
    const struct plugin_comm *comm = raw_comm;
    struct net_memory *memory = NULL;
    int result = check_bytes(bytes);

    *out = NULL;
    if (result != TCPX_SUCCESS)
        return plugin_answer("regMr", result);
    if (type == NET_POINTER_CUDA && plugin_mode() == CONFIG_PLUGIN_HOST)
        result = error_set(TCPX_INVALID_USAGE, "cannot register GPU memory: UCCL_TCPX_PLUGIN_MODE "
                                               "is host, and only cuda and unpack take it");
    else if (type == NET_POINTER_CUDA)
        result = net_register(comm->comm, data, bytes, &memory);
    else if (type != NET_POINTER_HOST)
        result = error_set(TCPX_INVALID_ARGUMENT,
                           "memory of type %d: expected 1 (host) or 2 (CUDA)", type);
    if (result == TCPX_SUCCESS)
        *out = memory; /* host memory needs no registration */
    return plugin_answer("regMr", result);
}

int plugin_deregister(void *raw_comm, void *memory)
{
    const struct plugin_comm *comm = raw_comm;

    net_deregister(comm->comm, memory);
    return TCPX_SUCCESS;
}

int plugin_isend(void *raw_comm, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **out)
{
    const struct plugin_comm *comm = raw_comm;
    const struct net_buffer buffer = {.data = data, .bytes = bytes, .memory = memory};
    struct net_request *request = NULL;
    int result = check_bytes(bytes);

    (void)tag;
    (void)profile;
    if (result == TCPX_SUCCESS)
        result = net_isend_buffer(comm->comm, &buffer, 0, &request);
    *out = result == TCPX_SUCCESS ? request : NULL;
    return plugin_answer("isend", result);
}

int plugin_irecv(void *raw_comm, int count, void **data, size_t *room, int *tags, void **memory,
                 void **profiles, void **out)
{
    const struct plugin_comm *comm = raw_comm;
    const struct net_buffer buffer = {
        .data = data[0], .bytes = room[0], .memory = memory != NULL ? memory[0] : NULL};
    struct net_request *request = NULL;
    int result = check_bytes(buffer.bytes);

    (void)tags;
    (void)profiles;
    if (count != 1)
        result = error_set(TCPX_INVALID_ARGUMENT,
                           "%d receives in one call: expected 1, as maxRecvs says", count);
    if (result == TCPX_SUCCESS)
        result = net_irecv_buffer(comm->comm, &buffer, 0, &request);
    *out = result == TCPX_SUCCESS ? request : NULL;
    return plugin_answer("irecv", result);
}

int plugin_test(void *request, int *done, int *bytes)
{
    uint64_t moved = 0;
    bool ended = false;
    int result = net_test(request, &ended, &moved);

    *done = result == TCPX_SUCCESS && ended;
    if (*done && bytes != NULL)
        *bytes = moved < INT_MAX ? (int)moved : INT_MAX;
    return plugin_answer("test", result);
}

int plugin_consumed(void *raw_comm, int count, void *request)
{
    const struct plugin_comm *comm = raw_comm;

    (void)count;
    /* NCCL calls it for every receive, but only a receive that was unpacked still lives. */
    return plugin_answer("irecvConsumed", comm->unpacks ? net_consumed(request) : TCPX_SUCCESS);
}
