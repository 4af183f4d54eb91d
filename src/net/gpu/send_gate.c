/* Gates of sends: a stream and an event for each request that needs them. */
#include "net/gpu/send_gate.h"

#include "net/comm/for_movers.h"

#include <errno.h>
#include <stdlib.h>

int send_gates_create(struct net_comm *comm)
{
    comm->gpu->gates = calloc(comm->most_requests, sizeof *comm->gpu->gates);
    return comm->gpu->gates != NULL
               ? TCPX_SUCCESS
               : error_system(ENOMEM, "a comm of %u requests", comm->most_requests);
}

void send_gates_destroy(struct net_comm *comm)
{
    for (unsigned i = 0; comm->gpu->gates != NULL && i < comm->most_requests; i++) {
        gpu_event_destroy(comm->gpu->gates[i].event);
        gpu_stream_destroy(comm->gpu->gates[i].stream);
    }
    free(comm->gpu->gates);
}

static struct send_gate *send_gate_of(const struct net_comm *comm,
                                      const struct net_request *request)
{
    return &comm->gpu->gates[request - comm->requests];
}

int send_gate_event(struct net_comm *comm, const struct net_request *request,
                    struct gpu_event **event)
{
    struct send_gate *gate = send_gate_of(comm, request);
    int result = TCPX_SUCCESS;

    COMM_LOCKED(comm);
    if (gate->event == NULL)
        result = gpu_event_create(comm->gpu->share.pool->gpu, &gate->event);
    *event = gate->event;
    return result;
}

int send_gate_close(struct net_comm *comm, struct net_request *request, enum net_after after,
                    void *what)
{
    struct send_gate *gate = send_gate_of(comm, request);
    struct gpu_event *event;
    int result = TCPX_SUCCESS;

    COMM_LOCKED(comm);
    if (gate->stream == NULL)
        result = gpu_stream_create(comm->gpu->share.pool->gpu, &gate->stream);
    if (result == TCPX_SUCCESS)
        result = send_gate_event(comm, request, &event);
    if (result == TCPX_SUCCESS)
        result = after == NET_AFTER_STREAM ? gpu_stream_wait_caller_stream(gate->stream, what)
                                           : gpu_stream_wait_caller_event(gate->stream, what);
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(event, gate->stream);
    request->gpu.gated = result == TCPX_SUCCESS;
    return result;
}

bool send_gate_is_open(struct net_comm *comm, struct net_request *request)
{
    bool done = true;

    COMM_LOCKED(comm);
    if (request->gpu.gated) {
        int result = gpu_event_query(send_gate_of(comm, request)->event, &done);

        if (result != TCPX_SUCCESS) {
            comm_fail_copies(comm, result);
            return false;
        }
        request->gpu.gated = !done;
    }
    return done;
}
