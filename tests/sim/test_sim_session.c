/*
 * Both ends of a session over the simulated kernel: transfers in both directions, whole and in
 * pieces, over one or several channels of the built-in transport. What must hold is in flow.h. One
 * scenario has a peer that lies: it sends a chunk of zero bytes where another one is expected.
 */
#include "flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 12345, OPEN_MS = 5000, MOST_PIECES = 4, FLOWS = 2 };

/* A process's end of the session; each of the two flows has a thread of its own. */
struct session_end {
    int process;
    struct tcpx_session *session;
    struct flow_end *ends[FLOWS];
    unsigned running; /* threads that use the session */
};

static struct flow flows[FLOWS];
static struct session_end session_ends[SIM_PROCESSES];
static int channels;
static uint64_t chunk_bytes;

static struct session_end *session_of(const struct flow_end *end)
{
    return &session_ends[end->process];
}

/* --- operations ------------------------------------------------------------------------------- */

/* The same bytes, cut anywhere. */
static size_t cut(uint64_t bytes, struct tcpx_piece pieces[MOST_PIECES])
{
    size_t count = (size_t)sim_between(1, MOST_PIECES);
    uint64_t at = FLOW_GUARD;

    for (size_t i = 0; i < count; i++) {
        uint64_t part = i == count - 1 ? bytes : sim_below(bytes + 1);

        pieces[i] = (struct tcpx_piece){.offset = at, .bytes = part};
        at += part;
        bytes -= part;
    }
    return count;
}

static int begin_transfer(struct flow_end *end, struct flow_operation *operation)
{
    const struct sim_library *library = flow_library(end);
    struct tcpx_session *session = session_of(end)->session;
    struct tcpx_piece pieces[MOST_PIECES];
    struct tcpx_transfer *transfer = NULL;
    struct tcpx_memory *memory = NULL;
    struct tcpx_move move = {
        .offset = FLOW_GUARD, .bytes = operation->bytes, .tag = operation->tag};
    int result = library->tcpx_session_register(session, flow_memory(operation),
                                                operation->bytes + 2 * FLOW_GUARD, &memory);

    if (result != TCPX_SUCCESS)
        return result;
    operation->registered = memory;
    move.memory = memory;
    if (operation->in_pieces) {
        move.piece_count = cut(operation->bytes, pieces);
        move.pieces = pieces;
        move.offset = 0;
        move.bytes = 0;
    }
    result = end->sends ? library->tcpx_send(session, &move, &transfer)
                        : library->tcpx_receive(session, &move, &transfer);
    operation->request = transfer;
    return result;
}

/* What is done has let its memory go; once the session has failed, the network may have it. */
static void deregister(const struct flow_end *end, const struct flow_operation *operation)
{
    int result =
        flow_library(end)->tcpx_session_deregister(session_of(end)->session, operation->registered);

    if (result != TCPX_SUCCESS && !flow_went_wrong())
        sim_found("%s: the memory of a transfer that is done cannot be deregistered: %s",
                  end->flow->name, flow_library(end)->error_text());
}

static int test_transfer(struct flow_end *end, struct flow_operation *operation, bool *done,
                         uint64_t *bytes)
{
    int ended = 0;
    int result = flow_library(end)->tcpx_transfer_test(operation->request, &ended);

    *done = ended != 0;
    *bytes = operation->bytes;
    if (result == TCPX_SUCCESS && *done)
        deregister(end, operation);
    return result;
}

static int wait_for_transfer(struct flow_end *end, struct flow_operation *operation, uint64_t until,
                             bool *done, uint64_t *bytes)
{
    int result = flow_library(end)->tcpx_transfer_wait(operation->request,
                                                       (int)((until - sim_now()) / SIM_MS));

    *done = result == TCPX_SUCCESS;
    *bytes = operation->bytes;
    if (*done)
        deregister(end, operation);
    return result == TCPX_IN_PROGRESS ? TCPX_SUCCESS : result;
}

static const struct flow_calls calls = {
    .begin = begin_transfer, .test = test_transfer, .wait = wait_for_transfer, .fails_late = true};

/* --- programs --------------------------------------------------------------------------------- */

/* The last thread of a process closes the session, for both flows. */
static void run_and_close(struct flow_end *end)
{
    struct session_end *own = session_of(end);

    flow_run(end);
    if (--own->running > 0)
        return;
    for (int i = 0; i < FLOWS; i++)
        flow_closes(own->ends[i]);
    flow_library(end)->tcpx_session_close(own->session);
    for (int i = 0; i < FLOWS; i++)
        flow_closed(own->ends[i]);
}

static void second_program(void *argument)
{
    run_and_close(argument);
}

static void program(struct session_end *own, int result)
{
    if (result != TCPX_SUCCESS) {
        for (int i = 0; i < FLOWS; i++)
            flow_never_met(own->ends[i], "tcpx_session_connect or accept");
        return;
    }
    sim_trace("process %d has a session", own->process);
    own->running = FLOWS;
    sim_spawn(own->process, "second", second_program, own->ends[1]);
    run_and_close(own->ends[0]);
}

static void choose_options(struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    options->gpu = flows[0].in_gpu || flows[1].in_gpu ? 0 : -1;
    options->channels = channels;
    options->chunk_bytes = chunk_bytes;
    options->plugin_path = "builtin";
}

static void listening_program(void *argument)
{
    struct session_end *own = argument;
    const struct sim_library *library = &sim_libraries[own->process];
    struct tcpx_session_listener *listener;
    struct tcpx_session_options options;
    int result;

    choose_options(&options);
    if (library->tcpx_session_listen(NULL, PORT, &options, &listener) != TCPX_SUCCESS)
        sim_found("the session cannot listen: %s", library->error_text());
    result = library->tcpx_session_accept(listener, OPEN_MS, &own->session);
    if (result == TCPX_SUCCESS)
        library->tcpx_session_stop_listening(listener);
    program(own, result);
}

static void connecting_program(void *argument)
{
    struct session_end *own = argument;
    struct tcpx_session_options options;

    choose_options(&options);
    program(own, sim_libraries[own->process].tcpx_session_connect("10.0.0.1", PORT, &options,
                                                                  OPEN_MS, &own->session));
}

/* --- worlds ----------------------------------------------------------------------------------- */

static uint64_t some_size(const void *ignored)
{
    (void)ignored;
    switch (sim_below(6)) {
    case 0:
        return 0;
    case 1:
        return sim_between(1, 64);
    case 2:
        return chunk_bytes + sim_below(3) - (chunk_bytes > 1);
    case 3:
        return sim_below(200 << 10);
    default:
        return sim_below(16 << 10);
    }
}

static void set_size(const char *name, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    for (int process = 0; process < SIM_PROCESSES; process++)
        sim_setenv(process, name, text);
}

static void plan_session(void)
{
    channels = (int)sim_between(1, 3);
    chunk_bytes = sim_one_in(2) ? sim_between(500, 5000) : sim_between(5000, 100000);
    set_size("UCCL_TCPX_SOCKETS", sim_between(1, 3));
    set_size("UCCL_TCPX_SLICE_BYTES", sim_between(4096, 40000));
    set_size("UCCL_TCPX_EAGER_BYTES", sim_one_in(4) ? 0 : sim_below(10000));
    for (int i = 0; i < FLOWS; i++) {
        struct flow *flow = &flows[i];

        flow->calls = &calls;
        flow->tagged = true;
        flow->exact = true;
        flow->outlives_failure = channels == 1;
        flow->most_active = (unsigned)sim_between(12, 40);
        flow->sender.process = i;
        flow->receiver.process = 1 - i;
        flow_plan(flow, sim_one_in(4) ? FLOW_OPERATIONS - 4 : 20, some_size, NULL);
        snprintf(flow->name, sizeof flow->name, "session (%d channels, timeout %u ms%s), %d to %d",
                 channels, (unsigned)(flow_faults.timeout_ns / SIM_MS), flow->in_gpu ? ", GPU" : "",
                 i, 1 - i);
    }
    for (int i = 0; i < SIM_PROCESSES; i++) {
        session_ends[i] =
            (struct session_end){.process = i, .ends = {&flows[i].sender, &flows[1 - i].receiver}};
        flows[i].sender.sibling = &flows[1 - i].receiver;
        flows[1 - i].receiver.sibling = &flows[i].sender;
    }
}

/*
 * Process 0 lies: the first record that it sends on a forward socket 0 follows one that it should
 * not send, an eager message of no bytes with the tag of chunks (docs/protocol.md).
 */
static size_t lie(int process, const uint8_t hello[64], uint8_t record[32])
{
    enum { ROLE_AT = 6, FORWARD = 1, INDEX_AT = 7, EAGER = 17, TAG_END = 31 };

    if (process != 0 || memcmp(hello, "TCPX", 4) != 0 || hello[ROLE_AT] != FORWARD ||
        hello[INDEX_AT] != 0)
        return 0;
    memset(record, 0, 32);
    record[0] = EAGER;
    record[TAG_END] = 0x80;
    sim_trace("process 0 sends a chunk of no bytes");
    return 32;
}

static void run_session(const struct sim_scenario *scenario)
{
    flow_plan_world();
    plan_session();
    sim_spawn(0, "listening", listening_program, &session_ends[0]);
    sim_spawn(1, "connecting", connecting_program, &session_ends[1]);
    flow_run_world(scenario);
}

static void run_with_liar(const struct sim_scenario *scenario)
{
    sim_liar = lie;
    run_session(scenario);
}

int main(void)
{
    static const struct sim_scenario scenarios[] = {
        {"session", run_session, NULL},
        {"session-faults", run_session, flow_some_fault},
        {"session-liar", run_with_liar, NULL},
    };

    return sim_main(scenarios, sizeof scenarios / sizeof *scenarios);
}
