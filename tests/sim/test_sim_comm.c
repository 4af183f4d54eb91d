/*
 * Both ends of comms over the simulated kernel: programs by chance that send, receive, test, wait,
 * come late and close, in worlds with small buffers, short writes, cuts, stops and deaths. What
 * must hold is in flow.h.
 */
#include "flow.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ACTIVE = 24 /* fewer than a comm has */ };

struct comm_case {
    struct flow flow;
    struct net_link_options options;
    uint8_t handle[NET_HANDLE_BYTES];
    bool is_listening;
};

static struct comm_case cases[MOST_FLOWS];

static struct comm_case *case_of(const struct flow_end *end)
{
    return (struct comm_case *)end->flow; /* its first member */
}

/* --- operations ------------------------------------------------------------------------------- */

static int begin_request(struct flow_end *end, struct flow_operation *operation)
{
    const struct sim_library *library = flow_library(end);
    struct net_request *request = NULL;
    struct net_memory *memory = operation->registered;
    struct net_buffer buffer = {.bytes = operation->bytes};
    int result = TCPX_SUCCESS;

    if (operation->device != NULL && memory == NULL)
        result = library->net_register(end->transport, operation->device,
                                       operation->bytes + 2 * FLOW_GUARD, &memory);
    if (result != TCPX_SUCCESS)
        return result;
    operation->registered = memory;
    buffer.data = (uint8_t *)flow_memory(operation) + FLOW_GUARD;
    buffer.memory = memory;
    result = end->sends
                 ? library->net_isend_buffer(end->transport, &buffer, operation->tag, &request)
                 : library->net_irecv_buffer(end->transport, &buffer, operation->tag, &request);
    operation->request = request;
    return result;
}

static int test_request(struct flow_end *end, struct flow_operation *operation, bool *done,
                        uint64_t *bytes)
{
    return flow_library(end)->net_test(operation->request, done, bytes);
}

static int wait_for_request(struct flow_end *end, struct flow_operation *operation, uint64_t until,
                            bool *done, uint64_t *bytes)
{
    return flow_library(end)->net_wait(operation->request, until, done, bytes);
}

static const struct flow_calls calls = {
    .begin = begin_request, .test = test_request, .wait = wait_for_request};

/* --- programs --------------------------------------------------------------------------------- */

static struct net_device simulated_device(void)
{
    struct net_device device = {.name = "sim0", .speed_mbps = 10000, .numa_node = -1};
    struct sockaddr_in *address = (struct sockaddr_in *)&device.address;

    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(0x0a000001);
    return device;
}

static void create(struct flow_end *end, const struct net_link *link)
{
    struct net_comm *comm;
    int result =
        flow_library(end)->net_comm_create(link, end->sends ? NET_SENDER : NET_RECEIVER, &comm);

    if (result != TCPX_SUCCESS)
        sim_found("%s cannot be created: %s", end->flow->name, flow_library(end)->error_text());
    end->transport = comm;
}

static void run_and_close(struct flow_end *end)
{
    flow_run(end);
    flow_closes(end);
    flow_library(end)->net_comm_close(end->transport);
    flow_closed(end);
}

/* The receiver listens; both try to meet, and then run. */
static void program(void *argument)
{
    struct flow_end *end = argument;
    const struct sim_library *library = flow_library(end);
    struct comm_case *of = case_of(end);
    struct net_device device = simulated_device();
    struct net_listener *listener = NULL;
    struct net_link link;
    bool met = false;
    uint64_t until;
    int result = TCPX_SUCCESS;

    if (!end->sends) {
        result = library->net_listen(&device, &of->options, of->handle, &listener);
        if (result != TCPX_SUCCESS)
            sim_found("%s cannot listen: %s", end->flow->name, library->error_text());
        of->is_listening = true;
    }
    until = sim_now() + 20 * SIM_S;
    while (!of->is_listening && sim_now() < until)
        sim_sleep(SIM_MS);
    while (of->is_listening && result == TCPX_SUCCESS && !met && sim_now() < until) {
        result = end->sends ? library->net_connect(&device, &of->options, of->handle, &link, &met)
                            : library->net_accept(listener, &link, &met);
        if (!met && result == TCPX_SUCCESS)
            sim_sleep(sim_below(SIM_MS));
    }
    if (met)
        create(end, &link);
    if (listener != NULL)
        library->net_listener_close(listener);
    if (met)
        run_and_close(end);
    else
        flow_never_met(end, end->sends ? "not connected" : "not accepted");
}

/* --- worlds ----------------------------------------------------------------------------------- */

static uint64_t some_size(const void *of)
{
    const struct net_link_options *options = of;

    switch (sim_below(8)) {
    case 0:
        return 0;
    case 1:
        return sim_between(1, 64);
    case 2:
        return options->eager_limit + sim_below(3);
    case 3:
        return sim_below(options->eager_limit + 1);
    case 4:
        return options->largest_slice + sim_below(3);
    case 5:
        return sim_below(200 << 10);
    default:
        return sim_below(16 << 10);
    }
}

static void choose_options(struct net_link_options *options)
{
    static const uint64_t slices[] = {64, 1000, 4096, 16384, 65536, 1 << 20};

    *options = (struct net_link_options){
        .sockets = (uint8_t)sim_between(1, 5),
        .match = sim_one_in(2) ? WIRE_MATCH_TAG : WIRE_MATCH_FIFO,
        .framing = sim_one_in(4) ? WIRE_SEPARATE : WIRE_INLINE,
        .gpu = -1,
        .eager_limit = sim_one_in(4) ? 0 : sim_below(16 << 10),
        .largest_slice = slices[sim_below(6)],
        .requests = sim_one_in(2) ? 0 : 100,
        .timeout_ms = flow_faults.timeout_ns / SIM_MS,
        .handshake_ms = 5000,
    };
    options->eager_credit =
        sim_one_in(8) ? options->eager_limit : 8 * options->eager_limit + sim_below(256 << 10);
    if (options->framing == WIRE_SEPARATE && options->sockets < 2)
        options->sockets = 2;
}

static void plan_comm(struct comm_case *of, unsigned number)
{
    struct net_link_options *options = &of->options;

    choose_options(options);
    of->flow.calls = &calls;
    of->flow.tagged = options->match == WIRE_MATCH_TAG;
    of->flow.most_active = MOST_ACTIVE;
    of->flow.sender.process = (int)sim_below(2);
    of->flow.receiver.process = 1 - of->flow.sender.process;
    flow_plan(&of->flow, sim_one_in(4) ? FLOW_OPERATIONS - 4 : 30, some_size, options);
    snprintf(of->flow.name, sizeof of->flow.name, "comm %u (%s, %s, %u sockets, timeout %u ms%s)",
             number, of->flow.tagged ? "tags" : "fifo",
             options->framing == WIRE_INLINE ? "inline" : "separate", options->sockets,
             (unsigned)options->timeout_ms, of->flow.in_gpu ? ", GPU" : "");
}

static void run_comms(const struct sim_scenario *scenario)
{
    unsigned count;

    flow_plan_world();
    count = (unsigned)sim_between(1, MOST_FLOWS);
    for (unsigned i = 0; i < count; i++)
        plan_comm(&cases[i], i);
    for (unsigned i = 0; i < count; i++) {
        struct flow *flow = &cases[i].flow;

        sim_spawn(flow->sender.process, "sender", program, &flow->sender);
        sim_spawn(flow->receiver.process, "receiver", program, &flow->receiver);
    }
    flow_run_world(scenario);
}

int main(void)
{
    static const struct sim_scenario scenarios[] = {
        {"comm", run_comms, NULL},
        {"comm-faults", run_comms, flow_some_fault},
    };

    return sim_main(scenarios, sizeof scenarios / sizeof *scenarios);
}
