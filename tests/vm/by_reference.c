/*
 * Either end of one comm, for what only sends by reference can get wrong: the NIC reads a message
 * where it lies until the peer has it, and the kernel tells that later. Each scenario is a pair of
 * functions, one for each end; the program fails when its end saw what must not be. The handle
 * travels through a file, and no end lives longer than LIMIT_SECONDS.
 */
#include "base/clock.h"
#include "gpu/gpu.h"
#include "tests/limit.h"
#include "tests/net/comm_ends.h"
#include "tests/support/basics.h"
#include "tests/support/comm_inside.h"
#include "tests/support/gpu_native.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

static const char usage[] =
    "usage: by_reference receive|send SCENARIO SOCKETS HANDLE_FILE\n"
    "  empty       messages without a byte arrive at once\n"
    "  close       the sender closes before a message has arrived, and overwrites it\n"
    "  soon        the same, and the receiver takes it soon: it arrives\n"
    "  behind      the same with a part of a message, behind one in host memory that was done\n"
    "  fail        the sender's comm fails instead\n"
    "  arrivals    a sender that waits for notices of arrival uses little CPU time\n"
    "  gate        sends that wait for the GPU go out when it gets there\n"
    "  deregister  memory is deregistered in the middle of a send\n";

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE }; /* or LIMIT_STATUS */

enum {
    LIMIT_SECONDS = 40,
    STEP_MS = 20000,  /* that anything may take which has to happen */
    PAUSE_MS = 4000,  /* in which a receiver takes nothing */
    SOON_MS = 500,    /* less than a close waits for */
    SETTLE_MS = 500,  /* until the sockets are full */
    MEASURE_MS = 2000 /* of that pause */
};

enum {
    ROOM = 32 << 20, /* of the GPU memory */
    PART = 1 << 20,  /* less than a socket can be made to hold */
    SENT = 0x11,
    OVERWRITTEN = 0xee
};

enum {
    EMPTY_MESSAGES = 8,
    EMPTY_MS = 150,       /* in which one arrives; the kernel would keep it back for 200 */
    EMPTY_APART_MS = 400, /* so that the next one does not push it */
    GATED_MESSAGES = 10,
    GATED_BYTES = 64 << 10,
    GATED_WORK = 4 << 20, /* bytes that the GPU writes meanwhile */
    GATED_MS = 20,        /* from the gate's opening until the message is with the sockets */
    GATED_APART_MS = 50
};

static const char *const *arguments; /* of the program */

/* What has to succeed: if it does not, the program ends with its reason. */
static void must(int result)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "by_reference %s %s: %s\n", arguments[1], arguments[2], error_text());
    exit(STATUS_FAILED);
}

#define fail(...) must(error_set(TCPX_INTERNAL_ERROR, __VA_ARGS__))

static void *allocate(size_t bytes)
{
    void *data = calloc(1, bytes);

    if (data == NULL)
        fail("no memory for a buffer");
    return data;
}

static int wait_for(struct net_request *request)
{
    bool done = false;
    int result = net_wait(request, deadline_after_ms(STEP_MS), &done, NULL);

    if (result == TCPX_SUCCESS && !done)
        return error_set(TCPX_INTERNAL_ERROR, "a message did not move within %d ms", STEP_MS);
    return result;
}

/* --- the receiving end --------------------------------------------------------------------- */

struct receiver {
    struct net_listener *listener;
    struct net_comm *comm;
};

static void check_bytes(const uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != SENT)
            fail("done, but byte %llu of %llu is %#x, not %#x", (unsigned long long)i,
                 (unsigned long long)bytes, data[i], SENT);
}

static struct net_request *begin_receive(struct receiver *receiver, void *data, uint64_t bytes)
{
    struct net_request *request = NULL;

    must(net_irecv(receiver->comm, data, bytes, 0, &request));
    return request;
}

/*
 * Says that it is there for a message, and takes nothing of it during the pause. `may_fail`: an
 * error is right, too, but never wrong bytes.
 */
static void receive_checked(struct receiver *receiver, uint64_t bytes, unsigned pause_ms,
                            bool may_fail)
{
    uint8_t *data = allocate(bytes);
    struct net_request *request = begin_receive(receiver, data, bytes);
    int result;

    nap_ms(pause_ms);
    result = wait_for(request);
    if (result == TCPX_SUCCESS)
        check_bytes(data, bytes);
    else if (may_fail)
        printf("the receive failed: %s\n", error_text());
    else
        must(result);
    free(data);
}

/* Behind the empty ones comes a message that tells when each of them was sent. */
static void receive_empty(struct receiver *receiver)
{
    struct net_request *requests[EMPTY_MESSAGES + 1] = {NULL};
    uint64_t arrived[EMPTY_MESSAGES + 1];
    uint64_t sent[EMPTY_MESSAGES];
    int late = 0;

    for (int i = 0; i <= EMPTY_MESSAGES; i++)
        requests[i] = begin_receive(receiver, sent, sizeof sent);
    for (int i = 0; i <= EMPTY_MESSAGES; i++) {
        must(wait_for(requests[i]));
        arrived[i] = clock_now();
    }
    for (int i = 0; i < EMPTY_MESSAGES; i++) {
        double span_ms = (double)(arrived[i] - sent[i]) / 1e6;

        printf("message %d arrived after %.1f ms\n", i, span_ms);
        late += span_ms > EMPTY_MS;
    }
    if (late > 0)
        fail("%d of %d messages took more than %d ms", late, EMPTY_MESSAGES, EMPTY_MS);
}

/* The first message was done, and arrives; of the second only a part went out. */
static void receive_done_and_part(struct receiver *receiver)
{
    uint8_t *data = allocate(PART + ROOM);
    struct net_request *whole = begin_receive(receiver, data, PART);
    struct net_request *part = begin_receive(receiver, data + PART, ROOM);

    nap_ms(PAUSE_MS);
    must(wait_for(whole));
    check_bytes(data, PART);
    if (wait_for(part) == TCPX_SUCCESS)
        fail("a message of which only a part was sent is done");
    free(data);
}

/* All at once, so that nothing but the gate holds the sends up. */
static void receive_gated(struct receiver *receiver)
{
    struct net_request *requests[GATED_MESSAGES] = {NULL};
    uint8_t *data = allocate((size_t)GATED_MESSAGES * GATED_BYTES);

    for (int i = 0; i < GATED_MESSAGES; i++)
        requests[i] = begin_receive(receiver, data + (size_t)i * GATED_BYTES, GATED_BYTES);
    for (int i = 0; i < GATED_MESSAGES; i++)
        must(wait_for(requests[i]));
    check_bytes(data, (uint64_t)GATED_MESSAGES * GATED_BYTES);
    free(data);
}

/* And then from another comm, which has to work. */
static void receive_and_once_more(struct receiver *receiver)
{
    receive_checked(receiver, ROOM, PAUSE_MS, true);
    net_comm_close(receiver->comm);
    receiver->comm = NULL;
    must(accept_comm(receiver->listener, &receiver->comm));
    receive_checked(receiver, PART, 0, false);
}

/* --- the sending end ----------------------------------------------------------------------- */

struct sender {
    const struct net_device *device;
    const struct net_link_options *options;
    const char *file;
    struct net_comm *comm;
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_memory memory;
    struct net_memory *registered;
};

/* A comm that the memory is registered with, and sends from there by reference. */
static void connect_one(struct sender *sender)
{
    must(connect_comm(sender->device, sender->options, sender->file, &sender->comm));
    must(net_register(sender->comm, (void *)(uintptr_t)sender->memory.address, ROOM,
                      &sender->registered));
    if (!inside_sends_by_reference(sender->comm))
        fail("the comm does not send by reference");
}

static void close_comm(struct sender *sender)
{
    net_comm_close(sender->comm);
    sender->comm = NULL;
}

/* And waits until it is done. */
static void set_memory(struct sender *sender, uint8_t value)
{
    must(gpu_set(sender->stream, sender->memory.address, value, ROOM));
    must(gpu_event_record(sender->event, sender->stream));
    must(gpu_event_wait(sender->event, deadline_after_ms(STEP_MS)));
}

static struct net_buffer buffer_of(const struct sender *sender, uint64_t bytes)
{
    return (struct net_buffer){.data = (void *)(uintptr_t)sender->memory.address,
                               .bytes = bytes,
                               .memory = sender->registered};
}

static struct net_request *begin_send(struct sender *sender, uint64_t bytes)
{
    const struct net_buffer buffer = buffer_of(sender, bytes);
    struct net_request *request;

    must(net_isend_buffer(sender->comm, &buffer, 0, &request));
    return request;
}

/* Until the sockets have that much of a message that cannot have arrived. */
static void hand_out(struct sender *sender, struct net_request *request, uint64_t bytes)
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    bool done = false;

    while (inside_handed_out(sender->comm, request) < bytes) {
        if (deadline_passed(deadline))
            fail("%llu of %llu bytes are with the sockets",
                 (unsigned long long)inside_handed_out(sender->comm, request),
                 (unsigned long long)bytes);
        must(net_test(request, &done, NULL));
        if (done)
            fail("the receiver had it all, in its pause");
        nap_ms(1);
    }
}

/* From host memory, until it is done. */
static void send_copy(struct sender *sender, const void *data, uint64_t bytes)
{
    struct net_request *request;

    must(net_isend(sender->comm, data, bytes, 0, &request));
    must(wait_for(request));
}

static void send_empty(struct sender *sender)
{
    uint64_t sent[EMPTY_MESSAGES];

    for (int i = 0; i < EMPTY_MESSAGES; i++) {
        nap_ms(EMPTY_APART_MS);
        sent[i] = clock_now();
        must(wait_for(begin_send(sender, 0)));
    }
    nap_ms(EMPTY_APART_MS);
    send_copy(sender, sent, sizeof sent);
}

static void widen_sockets(struct sender *sender)
{
    const int room = 8 * PART;

    for (int i = 0; i < inside_link(sender->comm)->sockets; i++)
        if (setsockopt(inside_link(sender->comm)->forward[i], SOL_SOCKET, SO_SNDBUFFORCE, &room,
                       sizeof room) != 0)
            must(error_system(errno, "a larger send buffer"));
}

/* The sockets have a whole message, of which the peer has next to nothing. */
static struct net_request *fill_sockets(struct sender *sender)
{
    struct net_request *request;

    widen_sockets(sender);
    request = begin_send(sender, PART);
    hand_out(sender, request, PART);
    return request;
}

/* The receiver may not notice before its pause is over. */
static void overwrite(struct sender *sender)
{
    set_memory(sender, OVERWRITTEN);
    nap_ms(PAUSE_MS);
}

static void send_and_close(struct sender *sender)
{
    fill_sockets(sender);
    close_comm(sender);
    overwrite(sender);
}

static void send_done_and_part(struct sender *sender)
{
    uint8_t *data = allocate(PART);

    memset(data, SENT, PART);
    widen_sockets(sender);
    send_copy(sender, data, PART);
    free(data);
    hand_out(sender, begin_send(sender, ROOM), 1);
    close_comm(sender);
    overwrite(sender);
}

/* As it fails when the receiver's process ends, of which the other sockets know nothing. */
static void send_and_fail(struct sender *sender)
{
    struct net_request *request = fill_sockets(sender);

    if (shutdown(inside_link(sender->comm)->reverse, SHUT_RD) != 0)
        must(error_system(errno, "the end of the reverse connection"));
    if (wait_for(request) == TCPX_SUCCESS)
        fail("a send of a comm that had failed was done");
    printf("the send failed: %s\n", error_text());
    overwrite(sender);
}

static double cpu_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* While nothing can be sent and nothing arrives. */
static void measure_wait(struct net_request *request)
{
    uint64_t start = clock_now();
    double cpu = cpu_seconds();
    bool done = false;
    double span;

    must(net_wait(request, deadline_after_ms(MEASURE_MS), &done, NULL));
    span = (double)(clock_now() - start) / 1e9;
    cpu = cpu_seconds() - cpu;
    if (done)
        fail("the receiver had it all, in its pause");
    printf("%.2f s of CPU time in %.2f s of waiting\n", cpu, span);
    if (cpu >= span / 2)
        fail("%.2f s of CPU time in %.2f s of waiting for arrivals", cpu, span);
}

static void send_and_wait(struct sender *sender)
{
    struct net_request *request = begin_send(sender, ROOM);
    bool done = false;

    must(net_wait(request, deadline_after_ms(SETTLE_MS), &done, NULL));
    if (done)
        fail("the receiver had it all, in its pause");
    measure_wait(request);
    must(wait_for(request));
}

/* Looks from aside when a gate opens, and when its message is with the sockets. */
struct watch {
    struct sender *sender;
    struct net_request *request;
    uint64_t opened; /* 0: never */
    uint64_t out;
};

static void *watch_gate(void *context)
{
    static const struct timespec span = {.tv_nsec = 200000};
    struct watch *watch = context;
    uint64_t deadline = deadline_after_ms(STEP_MS);
    bool open = false;

    while (watch->out == 0 && !deadline_passed(deadline)) {
        /* First this: what is out now must have a gate that is open now. */
        bool out = inside_handed_out(watch->sender->comm, watch->request) == GATED_BYTES;

        if (watch->opened == 0 && gpu_event_query(watch->sender->event, &open) == TCPX_SUCCESS &&
            open)
            watch->opened = clock_now();
        if (out)
            watch->out = clock_now();
        nanosleep(&span, NULL);
    }
    return NULL;
}

/* Behind the message, and the GPU takes a few milliseconds for it: less than any sleep. */
static struct net_request *begin_gated(struct sender *sender)
{
    struct net_buffer buffer = buffer_of(sender, GATED_BYTES);
    struct net_request *request;

    must(gpu_set(sender->stream, sender->memory.address + PART, OVERWRITTEN, GATED_WORK));
    must(gpu_event_record(sender->event, sender->stream));
    buffer.after = NET_AFTER_STREAM;
    buffer.after_what = gpu_stream_native(sender->stream);
    must(net_isend_buffer(sender->comm, &buffer, 0, &request));
    return request;
}

/* Whether it had to wait at all, and was out in time then. */
static bool send_one_gated(struct sender *sender)
{
    struct watch watch = {.sender = sender, .request = begin_gated(sender)};
    bool open = false;
    double span_ms;
    pthread_t thread;

    must(gpu_event_query(sender->event, &open));
    if (pthread_create(&thread, NULL, watch_gate, &watch) != 0)
        fail("cannot start a thread");
    must(wait_for(watch.request));
    pthread_join(thread, NULL);
    if (watch.opened == 0 || watch.out < watch.opened)
        fail("a message went out before its gate was open");
    span_ms = (double)(watch.out - watch.opened) / 1e6;
    printf("out %.1f ms after its gate had opened%s\n", span_ms, open ? ", which was at once" : "");
    return !open && span_ms <= GATED_MS;
}

/* A busy machine may be late now and then, or early. */
static void send_gated(struct sender *sender)
{
    int in_time_count = 0;

    if (inside_link(sender->comm)->framing != WIRE_SEPARATE)
        fail("the comm does not have separate framing");
    for (int i = 0; i < GATED_MESSAGES; i++) {
        nap_ms(GATED_APART_MS);
        in_time_count += send_one_gated(sender);
    }
    if (in_time_count < GATED_MESSAGES / 2)
        fail("only %d of %d messages were out within %d ms", in_time_count, GATED_MESSAGES,
             GATED_MS);
}

/* The memory itself stays as it is. However that send ends, the next comm has to work. */
static void send_and_deregister(struct sender *sender)
{
    struct net_request *request = begin_send(sender, ROOM);
    int result;

    hand_out(sender, request, 1);
    net_deregister(sender->comm, sender->registered);
    sender->registered = NULL;
    result = wait_for(request);
    printf("the send %s%s\n", result == TCPX_SUCCESS ? "was done" : "failed: ",
           result == TCPX_SUCCESS ? "" : error_text());
    if (result == TCPX_INTERNAL_ERROR)
        must(result);
    close_comm(sender);
    connect_one(sender);
    must(wait_for(begin_send(sender, PART)));
}

/* --- both ---------------------------------------------------------------------------------- */

struct scenario {
    const char *name;
    void (*send)(struct sender *sender);
    void (*receive)(struct receiver *receiver); /* NULL: receive_checked(), with these: */
    uint64_t bytes;
    unsigned pause_ms;
    bool may_fail;
    bool by_devmem; /* it is received by devmem TCP, too, and so the framing is separate */
};

static const struct scenario scenarios[] = {
    {"empty", send_empty, .receive = receive_empty},
    {"close", send_and_close, .bytes = PART, .pause_ms = PAUSE_MS, .may_fail = true},
    {"soon", send_and_close, .bytes = PART, .pause_ms = SOON_MS},
    {"behind", send_done_and_part, .receive = receive_done_and_part},
    {"fail", send_and_fail, .bytes = PART, .pause_ms = PAUSE_MS, .may_fail = true},
    {"arrivals", send_and_wait, .bytes = ROOM, .pause_ms = PAUSE_MS},
    {"gate", send_gated, .receive = receive_gated, .by_devmem = true},
    {"deregister", send_and_deregister, .receive = receive_and_once_more},
};

static const struct scenario *find_scenario(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

static void receive(const struct scenario *scenario, const struct net_device *device,
                    const struct net_link_options *options, const char *file)
{
    struct receiver receiver = {.comm = NULL};
    uint8_t handle[NET_HANDLE_BYTES];

    must(net_listen(device, options, handle, &receiver.listener));
    must(write_handle(file, handle));
    must(accept_comm(receiver.listener, &receiver.comm));
    if (scenario->receive != NULL)
        scenario->receive(&receiver);
    else
        receive_checked(&receiver, scenario->bytes, scenario->pause_ms, scenario->may_fail);
    net_comm_close(receiver.comm);
    net_listener_close(receiver.listener);
}

/* All before the connection, so that the receiver's pause is long enough for the rest. */
static void send_all(const struct scenario *scenario, const struct net_device *device,
                     const struct net_link_options *options, const char *file)
{
    struct sender sender = {.device = device, .options = options, .file = file};

    must(gpu_open(0, &sender.gpu));
    must(gpu_memory_alloc(sender.gpu, ROOM, 2 << 20, &sender.memory));
    must(gpu_stream_create(sender.gpu, &sender.stream));
    must(gpu_event_create(sender.gpu, &sender.event));
    set_memory(&sender, SENT);
    connect_one(&sender);
    scenario->send(&sender);
    net_comm_close(sender.comm);
    gpu_event_destroy(sender.event);
    gpu_stream_destroy(sender.stream);
    gpu_memory_free(sender.gpu, &sender.memory);
    gpu_close(sender.gpu);
}

static void run(bool receives, const struct scenario *scenario, uint8_t sockets, const char *file)
{
    struct net_device devices[NET_DEVICES_MOST];
    struct net_link_options options;
    int count;

    must(net_devices_find_configured(devices, NET_DEVICES_MOST, &count));
    must(net_link_defaults(WIRE_MATCH_FIFO, &options));
    options.sockets = sockets;
    options.gpu = receives && scenario->by_devmem ? 0 : -1;
    (receives ? receive : send_all)(scenario, &devices[0], &options, file);
}

int main(int argc, char **argv)
{
    const struct scenario *scenario = argc == 5 ? find_scenario(argv[2]) : NULL;
    bool receives = argc == 5 && strcmp(argv[1], "receive") == 0;
    long sockets = argc == 5 ? strtol(argv[3], NULL, 10) : 0;

    if (scenario == NULL || (!receives && strcmp(argv[1], "send") != 0) || sockets < 1 ||
        sockets > WIRE_MOST_SOCKETS) {
        fputs(usage, stderr);
        return STATUS_USAGE;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    limit_process(LIMIT_SECONDS);
    arguments = (const char *const *)argv;
    run(receives, scenario, (uint8_t)sockets, argv[4]);
    return STATUS_OK;
}
