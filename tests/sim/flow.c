#include "flow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5 };

struct flow_faults flow_faults;
static struct flow *planned[MOST_FLOWS];
static unsigned planned_count;

const struct sim_library *flow_library(const struct flow_end *end)
{
    return &sim_libraries[end->process];
}

bool flow_went_wrong(void)
{
    return flow_faults.begin_at <= sim_now() || sim_liar != NULL;
}

static const char *verb_of(const struct flow_end *end)
{
    return end->sends ? "send" : "receive";
}

static struct flow_end *other_end(const struct flow_end *end)
{
    return end->sends ? &end->flow->receiver : &end->flow->sender;
}

static const struct flow_operation *partner_of(const struct flow_end *end, unsigned index)
{
    int partner = end->operations[index].partner;

    return partner < 0 ? NULL : &other_end(end)->operations[partner];
}

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t word_of(uint64_t key, uint64_t number)
{
    return (key + number) * UINT64_C(0x9e3779b97f4a7c15);
}

static void fill(uint8_t *memory, uint64_t bytes, uint64_t key)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = word_of(key, at);

        memcpy(memory + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

/* bytes: all of them are right. */
static uint64_t first_wrong(const uint8_t *memory, uint64_t bytes, uint64_t key)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = word_of(key, at);

        if (memcmp(memory + at, &word, bytes - at < 8 ? bytes - at : 8) != 0)
            return at;
    }
    return bytes;
}

static bool is_poison(const uint8_t *memory, uint64_t bytes)
{
    return bytes == 0 || (memory[0] == POISON && memcmp(memory, memory + 1, bytes - 1) == 0);
}

static uint64_t key_of(const struct flow *flow, unsigned index)
{
    return flow->salt + index * UINT64_C(0x100000001);
}

uint8_t *flow_data(const struct flow_operation *operation)
{
    return operation->memory + FLOW_GUARD;
}

void *flow_memory(const struct flow_operation *operation)
{
    return operation->device != NULL ? operation->device : operation->memory;
}

static uint64_t whole_bytes(const struct flow_operation *operation)
{
    return operation->bytes + 2 * (uint64_t)FLOW_GUARD;
}

static void must(const struct flow_end *end, int result)
{
    if (result != TCPX_SUCCESS)
        sim_found("%s: emulated GPU: %s", end->flow->name, flow_library(end)->error_text());
}

/* What is in GPU memory is looked at, and changed, in a copy. */
static void push(const struct flow_end *end, const struct flow_operation *operation)
{
    if (operation->device != NULL)
        must(end, flow_library(end)->tcpx_gpu_write(operation->device, operation->memory,
                                                    whole_bytes(operation)));
}

static void pull(const struct flow_end *end, const struct flow_operation *operation)
{
    if (operation->device != NULL)
        must(end, flow_library(end)->tcpx_gpu_read(operation->memory, operation->device,
                                                   whole_bytes(operation)));
}

static void take_memory(struct flow_end *end, unsigned index)
{
    struct flow_operation *operation = &end->operations[index];
    uint64_t bytes = whole_bytes(operation);

    operation->memory = malloc(bytes);
    if (operation->memory == NULL)
        abort();
    memset(operation->memory, POISON, bytes);
    if (end->sends)
        fill(flow_data(operation), operation->bytes, key_of(end->flow, index));
    if (!end->flow->in_gpu || sim_one_in(3))
        return;
    must(end, flow_library(end)->tcpx_gpu_alloc(0, bytes, &operation->device));
    push(end, operation);
}

static void poison(const struct flow_end *end, struct flow_operation *operation)
{
    memset(flow_data(operation), POISON, operation->bytes);
    push(end, operation);
}

/* --- what must hold --------------------------------------------------------------------------- */

#define WHO "%s: %s %u (%llu bytes, tag %llu)"
#define WHO_OF(end, index)                                                                         \
    (end)->flow->name, verb_of(end), (index), (unsigned long long)(end)->operations[index].bytes,  \
        (unsigned long long)(end)->operations[index].tag

static void check_received(const struct flow_end *end, unsigned index, uint64_t bytes)
{
    const struct flow_operation *operation = &end->operations[index];
    const struct flow_operation *partner = partner_of(end, index);
    const uint8_t *data = flow_data(operation);
    uint64_t right;

    if (partner == NULL || partner->state == FLOW_NOT_BEGUN)
        sim_found(WHO " is done, but nothing was sent to it", WHO_OF(end, index));
    if (bytes != partner->bytes)
        sim_found(WHO " has %llu bytes instead of %llu", WHO_OF(end, index),
                  (unsigned long long)bytes, (unsigned long long)partner->bytes);
    right = first_wrong(data, bytes, key_of(end->flow, (unsigned)operation->partner));
    if (right != bytes)
        sim_found(WHO " is done, but its bytes are wrong from %llu on", WHO_OF(end, index),
                  (unsigned long long)right);
    if (!is_poison(data + bytes, operation->bytes - bytes))
        sim_found(WHO ": written behind the message", WHO_OF(end, index));
}

static bool is_misfit(const struct flow_end *end, unsigned index)
{
    const struct flow_operation *partner = partner_of(end, index);
    const struct flow_operation *own = &end->operations[index];

    if (partner == NULL)
        return false;
    if (end->flow->exact)
        return own->bytes != partner->bytes;
    return end->sends ? own->bytes > partner->bytes : partner->bytes > own->bytes;
}

/*
 * In order, a receive cannot pass over a message that was still under way when its sender closed,
 * and so those behind it are lost with it.
 */
static bool is_promised(const struct flow *flow, int send)
{
    if (send < 0 || flow->sender.operations[send].state != FLOW_DONE)
        return false;
    for (int i = 0; i < send && !flow->tagged; i++)
        if (flow->sender.operations[i].state == FLOW_ABANDONED ||
            flow->sender.operations[i].state == FLOW_ACTIVE)
            return false;
    return true;
}

/* Whether this failure is allowed by what has happened. */
static void check_failure(struct flow_end *end, unsigned index, int result)
{
    struct flow_operation *operation = &end->operations[index];
    const struct flow_end *other = other_end(end);
    const char *text = flow_library(end)->error_text();

    sim_trace(WHO " fails: %s", WHO_OF(end, index), text);
    if (text[0] == '\0')
        sim_found(WHO " fails without a text", WHO_OF(end, index));
    if (result == TCPX_INVALID_USAGE && is_misfit(end, index)) {
        if (!end->sends && !end->flow->exact && !is_poison(flow_data(operation), operation->bytes))
            sim_found(WHO ": written to although the message is too long", WHO_OF(end, index));
        return;
    }
    end->failed = true;
    if (result != TCPX_REMOTE_ERROR && result != TCPX_SYSTEM_ERROR && sim_liar == NULL)
        sim_found(WHO " fails with result %d: %s", WHO_OF(end, index), result, text);
    if (flow_went_wrong())
        return;
    if (!end->sends && is_promised(end->flow, operation->partner))
        sim_found(WHO " fails although its send was done: %s", WHO_OF(end, index), text);
    if (!other->closed && !other->failed)
        sim_found(WHO " fails although its peer is well: %s", WHO_OF(end, index), text);
}

/* The transport has forgotten it: nobody may touch its memory any more. */
static void operation_ended(struct flow_end *end, unsigned index, int result, uint64_t bytes)
{
    struct flow_operation *operation = &end->operations[index];

    operation->request = NULL;
    if (!end->sends)
        pull(end, operation);
    if (result == TCPX_SUCCESS) {
        sim_trace(WHO " is done", WHO_OF(end, index));
        operation->state = FLOW_DONE;
        if (!end->sends)
            check_received(end, index, bytes);
    } else {
        operation->state = FLOW_FAILED;
        check_failure(end, index, result);
    }
    if (result == TCPX_SUCCESS || !end->flow->calls->fails_late)
        poison(end, operation);
}

/* Not for ever: neither while all is well, nor after something went wrong. */
static void check_time(const struct flow_end *end, unsigned index)
{
    const struct flow_end *other = other_end(end);
    uint64_t since = end->operations[index].begun_at;
    uint64_t bound = 3 * flow_faults.timeout_ns + 10 * SIM_S;
    bool goes_on =
        !other->failed || (end->flow->outlives_failure && !end->operations[index].in_pieces);

    if (since < end->awake_at)
        since = end->awake_at;
    if (flow_went_wrong() && since < flow_faults.end_at)
        since = flow_faults.end_at;
    if (other->closed && since < other->closed_at)
        since = other->closed_at;
    /* Its other half may come late, as often as there are operations left. */
    if (!other->closed && goes_on && sim_is_alive(other->process) && !flow_faults.cut_for_ever)
        bound += (uint64_t)FLOW_OPERATIONS * 4 * flow_faults.timeout_ns;
    if (sim_now() > since && sim_now() - since > bound)
        sim_found(WHO " has not ended %.1f s after it could have", WHO_OF(end, index),
                  (double)(sim_now() - since) / 1e9);
}

void flow_never_met(struct flow_end *end, const char *what)
{
    const char *text = flow_library(end)->error_text();
    bool other_left = other_end(end)->closed;

    sim_trace("%s: %s: %s", end->flow->name, what, text);
    flow_closes(end);
    if (!flow_went_wrong() && !other_left)
        sim_found("%s: the %s's end was not opened: %s: %s", end->flow->name,
                  end->sends ? "sender" : "receiver", what, text);
}

static void check_end(const struct flow_end *end)
{
    for (unsigned i = 0; i < end->begun; i++) {
        const struct flow_operation *operation = &end->operations[i];

        if (operation->memory == NULL || operation->state == FLOW_ACTIVE)
            continue; /* its process died */
        if (!is_poison(operation->memory, FLOW_GUARD) ||
            !is_poison(flow_data(operation) + operation->bytes, FLOW_GUARD))
            sim_found(WHO ": written beside its memory", WHO_OF(end, i));
        if (end->closed && !is_poison(flow_data(operation), operation->bytes))
            sim_found(WHO ": written to after it had ended", WHO_OF(end, i));
    }
}

/* --- programs --------------------------------------------------------------------------------- */

static unsigned active_count(const struct flow_end *end)
{
    unsigned count = 0;

    for (unsigned i = 0; i < end->begun; i++)
        count += end->operations[i].state == FLOW_ACTIVE;
    return count;
}

static int some_active(const struct flow_end *end)
{
    uint64_t which = sim_below(active_count(end));

    for (unsigned i = 0; i < end->begun; i++)
        if (end->operations[i].state == FLOW_ACTIVE && which-- == 0)
            return (int)i;
    return -1;
}

static void begin_operation(struct flow_end *end)
{
    unsigned index = end->begun;
    struct flow_operation *operation = &end->operations[index];
    int result;

    if (operation->memory == NULL)
        take_memory(end, index);
    operation->begun_at = sim_now();
    operation->state = FLOW_ACTIVE; /* the peer may have it before the call returns */
    result = end->flow->calls->begin(end, operation);
    if (result == TCPX_SUCCESS && operation->request == NULL) {
        operation->state = FLOW_NOT_BEGUN;
        return;
    }
    sim_trace(WHO " has begun", WHO_OF(end, index));
    end->begun++;
    if (result != TCPX_SUCCESS)
        operation_ended(end, index, result, 0);
}

static void look_at(struct flow_end *end, unsigned index, bool wait)
{
    struct flow_operation *operation = &end->operations[index];
    uint64_t patience = sim_one_in(3) ? flow_faults.timeout_ns : sim_below(20 * SIM_MS);
    uint64_t bytes = 0;
    bool done = false;
    int result = wait ? end->flow->calls->wait(end, operation, sim_now() + patience, &done, &bytes)
                      : end->flow->calls->test(end, operation, &done, &bytes);

    if (result != TCPX_SUCCESS || done)
        operation_ended(end, index, result, bytes);
    else
        check_time(end, index);
}

void flow_be_late(struct flow_end *end)
{
    bool has_threads = flow_faults.may_be_late[end->process];
    uint64_t most = has_threads ? 3 * flow_faults.timeout_ns : flow_faults.timeout_ns / 3;
    uint64_t time = sim_one_in(2) ? sim_below(most) : most;

    /* Otherwise a peer's bytes may have to wait for several of these pauses. */
    if (!has_threads && sim_now() < end->awake_at + flow_faults.timeout_ns)
        return;
    sim_trace("%s: the %s makes no call for %.3f s", end->flow->name,
              end->sends ? "sender" : "receiver", (double)time / 1e9);
    sim_sleep(time);
    end->awake_at = sim_now();
}

static void act(struct flow_end *end)
{
    int active = some_active(end);
    bool may_begin = end->begun < end->count && active_count(end) < end->flow->most_active;

    if (may_begin && (active < 0 || sim_one_in(2)))
        begin_operation(end);
    else if (active >= 0)
        look_at(end, (unsigned)active, sim_one_in(3));
    if (sim_one_in(8))
        sim_sleep(sim_below(2 * SIM_MS));
    if (sim_one_in(100))
        flow_be_late(end);
}

/* All that is active are receives that nothing will be sent to. */
static bool is_satisfied(const struct flow_end *end)
{
    if (end->begun < end->count)
        return false;
    for (unsigned i = 0; i < end->begun; i++)
        if (end->operations[i].state == FLOW_ACTIVE && end->operations[i].partner >= 0)
            return false;
    return true;
}

/* Two programs that close together must not wait for each other's peers for ever. */
static void agree_with_sibling(struct flow_end *end)
{
    bool both = is_satisfied(end) && is_satisfied(end->sibling);

    end->hurries = end->hurries || both;
    end->sibling->hurries = end->sibling->hurries || both;
}

void flow_run(struct flow_end *end)
{
    while (!end->hurries && (end->begun < end->close_after ||
                             (end->close_after == end->count && active_count(end) > 0))) {
        act(end);
        if (end->sibling != NULL)
            agree_with_sibling(end);
    }
    if (end->sibling != NULL && end->close_after < end->count)
        end->sibling->hurries = true;
    if (sim_one_in(4))
        flow_be_late(end);
}

void flow_closes(struct flow_end *end)
{
    sim_trace("%s: the %s closes", end->flow->name, end->sends ? "sender" : "receiver");
    end->closed = true;
    end->closed_at = sim_now();
}

void flow_closed(struct flow_end *end)
{
    for (unsigned i = 0; i < end->begun; i++) {
        struct flow_operation *operation = &end->operations[i];

        if (operation->state == FLOW_ACTIVE)
            operation->state = FLOW_ABANDONED;
        if (operation->state == FLOW_ABANDONED || operation->state == FLOW_FAILED)
            poison(end, operation);
    }
    if (end->flow->in_gpu)
        sim_sleep(sim_below(10 * SIM_MS));
    for (unsigned i = 0; i < end->begun; i++)
        pull(end, &end->operations[i]);
}

/* --- plans ------------------------------------------------------------------------------------ */

/* The k-th message of a tag goes into the k-th receive of that tag. */
static void find_partners(struct flow *flow)
{
    struct flow_end *sender = &flow->sender;
    struct flow_end *receiver = &flow->receiver;

    for (unsigned i = 0; i < receiver->count; i++)
        for (unsigned k = 0; k < sender->count; k++)
            if (sender->operations[k].partner < 0 &&
                sender->operations[k].tag == receiver->operations[i].tag) {
                sender->operations[k].partner = (int)i;
                receiver->operations[i].partner = (int)k;
                break;
            }
}

/* Far back if it has a tag of its own: then it is posted long before its message is sent. */
static void reorder_receives(struct flow_end *receiver)
{
    unsigned most = flow_places > 16 ? 4 : 2;

    for (unsigned i = 0; i < receiver->count; i++) {
        struct flow_operation moved = receiver->operations[i];
        unsigned back = receiver->operations[i].tag >= 100
                            ? (i < 60 ? i : 60)
                            : (unsigned)sim_below(i < most ? i + 1 : most);
        struct flow_operation *first = &receiver->operations[i - back];

        memmove(first + 1, first, back * sizeof *first);
        *first = moved;
    }
}

static void choose_room(const struct flow *flow, struct flow_operation *operation)
{
    if (operation->partner >= 0) {
        operation->bytes = flow->sender.operations[operation->partner].bytes;
        operation->in_pieces = flow->sender.operations[operation->partner].in_pieces;
    }
    if (!flow->exact && sim_one_in(4))
        operation->bytes += sim_below(1000);
    else if (sim_one_in(30))
        operation->bytes /= 2;
}

/*
 * The receives come in another order than the sends, but not so far that the two programs wait for
 * each other.
 */
void flow_plan(struct flow *flow, unsigned most, uint64_t (*some_size)(const void *),
               const void *of)
{
    struct flow_end *sender = &flow->sender;
    struct flow_end *receiver = &flow->receiver;
    unsigned tags = flow->tagged ? (unsigned)sim_between(1, 4) : 1;
    unsigned early = 0;
    unsigned most_early = flow_places > 16 ? 3 : 1;
    bool mixed = flow_places > 16;
    bool in_pieces = sim_one_in(2);

    planned[planned_count++] = flow;
    sender->flow = receiver->flow = flow;
    sender->sends = true;
    flow->in_gpu = sim_one_in(3);
    flow->salt = sim_random();
    sender->count = (unsigned)sim_between(1, most);
    for (unsigned i = 0; i < sender->count; i++) {
        struct flow_operation *operation = &sender->operations[i];
        bool own_tag = flow->tagged && early < most_early && sim_one_in(20);

        operation->bytes = some_size(of);
        operation->in_pieces = mixed ? sim_one_in(3) : in_pieces;
        operation->tag = own_tag ? 100 + i : sim_below(tags);
        operation->partner = -1;
        early += own_tag;
        receiver->operations[i] = *operation;
    }
    receiver->count = sender->count;
    if (flow->tagged)
        reorder_receives(receiver);
    /* Further receives than messages: they fail when the sender has closed. */
    for (uint64_t more = sim_one_in(4) ? sim_below(4) : 0; more > 0; more--)
        receiver->operations[receiver->count++] = (struct flow_operation){.bytes = sim_below(1000),
                                                                          .tag = sim_below(tags),
                                                                          .in_pieces = in_pieces,
                                                                          .partner = -1};
    find_partners(flow);
    for (unsigned i = 0; i < receiver->count; i++)
        choose_room(flow, &receiver->operations[i]);
    sender->close_after = sim_one_in(4) ? (unsigned)sim_below(sender->count + 1) : sender->count;
    receiver->close_after =
        sim_one_in(8) ? (unsigned)sim_below(receiver->count + 1) : receiver->count;
}

/*
 * All that can lie in front of a record arrives in a fraction of the timeout: a network that needs
 * longer is not to be told from one that is cut. A connection's buffers have at least half of the
 * world's, and what fits into them arrives at once.
 */
static void keep_up_with_timeout(void)
{
    enum { MOST_IN_FRONT = 400000, FRACTION = 2 };
    uint64_t at_once = sim_world.segment_bytes;
    uint64_t most;

    if (at_once > sim_world.send_buffer / 2)
        at_once = sim_world.send_buffer / 2;
    if (at_once > sim_world.receive_buffer / 2)
        at_once = sim_world.receive_buffer / 2;
    most = flow_faults.timeout_ns / FRACTION * at_once / (uint64_t)MOST_IN_FRONT;
    if (sim_world.latency_ns > most)
        sim_world.latency_ns = most;
    sim_trace("a round of %llu bytes takes up to %llu ns", (unsigned long long)at_once,
              (unsigned long long)sim_world.latency_ns);
}

void flow_plan_world(void)
{
    static const char *const threads[] = {"0", "1", "3", "auto"};

    sim_world = (struct sim_world){
        .step_ns = sim_one_in(4) ? 1000 : sim_between(2000, 30000),
        .switch_one_in = sim_between(2, 60),
        .short_one_in = sim_one_in(4) ? 0 : sim_between(2, 50),
        .again_one_in = sim_one_in(4) ? 0 : sim_between(5, 100),
        .interrupt_one_in = sim_one_in(4) ? sim_between(20, 200) : 0,
        .latency_ns = sim_one_in(4) ? 20 * SIM_MS : sim_between(1000, 200000),
        .segment_bytes = sim_one_in(4) ? sim_between(100, 1500) : sim_between(1500, 100000),
        .send_buffer = sim_one_in(3) ? sim_between(256, 4096) : sim_between(4096, 200000),
        .receive_buffer = sim_one_in(3) ? sim_between(256, 4096) : sim_between(4096, 200000),
        .cpus = sim_one_in(2) ? 2 : 8,
    };
    flow_faults =
        (struct flow_faults){.timeout_ns = sim_between(1, 4) * SIM_S, .begin_at = SIM_NEVER};
    keep_up_with_timeout();
    for (int process = 0; process < SIM_PROCESSES; process++) {
        const char *chosen = threads[sim_below(4)];
        char timeout[32];

        sim_setenv(process, "UCCL_TCPX_THREADS", chosen);
        sim_setenv(process, "UCCL_TCPX_SOCKET_BUDGET", "64");
        sim_setenv(process, "UCCL_TCPX_GPU", "host");
        sim_setenv(process, "UCCL_TCPX_STAGING_BYTES", sim_one_in(2) ? "65536" : "1M");
        if (sim_one_in(2))
            sim_setenv(process, "UCCL_TCPX_HOST_GPU_DELAY_US", sim_one_in(2) ? "20" : "100");
        snprintf(timeout, sizeof timeout, "%llu",
                 (unsigned long long)(flow_faults.timeout_ns / SIM_MS));
        sim_setenv(process, "UCCL_TCPX_TIMEOUT_MS", timeout);
        /* Without I/O threads nobody reads while no call comes. */
        flow_faults.may_be_late[process] = chosen[0] != '0';
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

void flow_some_fault(void *ignored)
{
    struct flow_faults *faults = &flow_faults;
    int process = 1 - sim_process(); /* not that of this thread */

    (void)ignored;
    sim_sleep(sim_one_in(2) ? sim_below(50 * SIM_MS) : sim_below(5 * SIM_S));
    faults->begin_at = faults->end_at = sim_now();
    switch (sim_below(5)) {
    case 0:
        sim_kill(process);
        break;
    case 1:
        faults->cut_for_ever = true;
        sim_cut();
        break;
    case 2:
        sim_cut();
        sim_sleep(sim_below(3 * faults->timeout_ns));
        sim_mend();
        faults->end_at = sim_now();
        break;
    case 3:
        faults->end_at = sim_now() + sim_below(4 * faults->timeout_ns);
        sim_stop(process, faults->end_at);
        break;
    default:
        while (!sim_reset_one() && sim_now() < faults->begin_at + SIM_S)
            sim_sleep(SIM_MS);
        break;
    }
}

void flow_run_world(const struct sim_scenario *scenario)
{
    if (scenario->fault != NULL)
        sim_spawn((int)sim_below(2), "faults", scenario->fault, NULL);
    sim_run();
    for (unsigned i = 0; i < planned_count; i++) {
        check_end(&planned[i]->sender);
        check_end(&planned[i]->receiver);
    }
}
