/*
 * Either end of one comm, for what only sends by reference can get wrong: the NIC reads a message
 * where it lies until the peer has it, and the kernel tells that later. Each scenario is a pair of
 * functions, one for each end; the program fails when its end saw what must not be. The handle
 * travels through a file, and no end lives longer than LIMIT_SECONDS.
 */
#include "base/clock.h"
#include "gpu/gpu.h"
#include "tests/net/handle_file.h"
#include "tests/support/comm_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

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

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE, STATUS_LIMIT };

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

static void nap(unsigned milliseconds)
{
    const struct timespec span = {.tv_sec = milliseconds / 1000,
                                  .tv_nsec = (long)(milliseconds % 1000) * 1000000};

    nanosleep(&span, NULL);
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

static int accept_one(struct receiver *receiver)
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    struct net_link link;
    bool accepted = false;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && !accepted) {
        if (deadline_passed(deadline))
            return error_set(TCPX_INTERNAL_ERROR, "nobody connected within %d ms", STEP_MS);
        result = net_accept(receiver->listener, &link, &accepted);
        nap(1);
    }
    return result == TCPX_SUCCESS ? net_comm_create(&link, NET_RECEIVER, &receiver->comm) : result;
}

static int check_bytes(const uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != SENT)
            return error_set(TCPX_INTERNAL_ERROR, "done, but byte %llu of %llu is %#x, not %#x",
                             (unsigned long long)i, (unsigned long long)bytes, data[i], SENT);
    return TCPX_SUCCESS;
}

/* Says that it is there for a message, and takes nothing of it during the pause. */
static int receive_late(struct net_comm *comm, uint8_t *data, uint64_t bytes, unsigned pause_ms)
{
    struct net_request *request = NULL;
    int result = net_irecv(comm, data, bytes, 0, &request);

    if (result != TCPX_SUCCESS)
        return result;
    nap(pause_ms);
    return wait_for(request);
}

/* `may_fail`: an error is right, too, but never wrong bytes. */
static int receive_checked(struct receiver *receiver, uint64_t bytes, unsigned pause_ms,
                           bool may_fail)
{
    uint8_t *data = calloc(1, bytes);
    int result;

    if (data == NULL)
        return error_system(ENOMEM, "a buffer");
    result = receive_late(receiver->comm, data, bytes, pause_ms);
    if (result == TCPX_SUCCESS) {
        result = check_bytes(data, bytes);
    } else if (may_fail) {
        printf("the receive failed: %s\n", error_text());
        result = TCPX_SUCCESS;
    }
    free(data);
    return result;
}

/* Behind the empty ones comes a message that tells when each of them was sent. */
static int receive_empty(struct receiver *receiver)
{
    struct net_request *requests[EMPTY_MESSAGES + 1] = {NULL};
    uint64_t arrived[EMPTY_MESSAGES + 1];
    uint64_t sent[EMPTY_MESSAGES];
    int late = 0;
    int result = TCPX_SUCCESS;

    for (int i = 0; i <= EMPTY_MESSAGES && result == TCPX_SUCCESS; i++)
        result = net_irecv(receiver->comm, sent, sizeof sent, 0, &requests[i]);
    for (int i = 0; i <= EMPTY_MESSAGES && result == TCPX_SUCCESS; i++) {
        result = wait_for(requests[i]);
        arrived[i] = clock_now();
    }
    if (result != TCPX_SUCCESS)
        return result;
    for (int i = 0; i < EMPTY_MESSAGES; i++) {
        double span_ms = (double)(arrived[i] - sent[i]) / 1e6;

        printf("message %d arrived after %.1f ms\n", i, span_ms);
        late += span_ms > EMPTY_MS;
    }
    return late == 0 ? TCPX_SUCCESS
                     : error_set(TCPX_INTERNAL_ERROR, "%d of %d messages took more than %d ms",
                                 late, EMPTY_MESSAGES, EMPTY_MS);
}

static int receive_part_or_fail(struct receiver *receiver)
{
    return receive_checked(receiver, PART, PAUSE_MS, true);
}

static int receive_part_soon(struct receiver *receiver)
{
    return receive_checked(receiver, PART, SOON_MS, false);
}

/* The first message was done, and arrives; of the second only a part went out. */
static int receive_done_and_part(struct receiver *receiver)
{
    struct net_request *requests[2] = {NULL, NULL};
    uint8_t *data = calloc(1, PART + ROOM);
    int result;

    if (data == NULL)
        return error_system(ENOMEM, "a buffer");
    result = net_irecv(receiver->comm, data, PART, 0, &requests[0]);
    if (result == TCPX_SUCCESS)
        result = net_irecv(receiver->comm, data + PART, ROOM, 0, &requests[1]);
    nap(PAUSE_MS);
    if (result == TCPX_SUCCESS)
        result = wait_for(requests[0]);
    if (result == TCPX_SUCCESS)
        result = check_bytes(data, PART);
    if (result == TCPX_SUCCESS && wait_for(requests[1]) == TCPX_SUCCESS)
        result = error_set(TCPX_INTERNAL_ERROR, "a message of which only a part was sent is done");
    free(data);
    return result;
}

static int receive_all_late(struct receiver *receiver)
{
    return receive_checked(receiver, ROOM, PAUSE_MS, false);
}

/* All at once, so that nothing but the gate holds the sends up. */
static int receive_gated(struct receiver *receiver)
{
    struct net_request *requests[GATED_MESSAGES] = {NULL};
    uint8_t *data = calloc(GATED_MESSAGES, GATED_BYTES);
    int result = TCPX_SUCCESS;

    if (data == NULL)
        return error_system(ENOMEM, "a buffer");
    for (int i = 0; i < GATED_MESSAGES && result == TCPX_SUCCESS; i++)
        result =
            net_irecv(receiver->comm, data + (size_t)i * GATED_BYTES, GATED_BYTES, 0, &requests[i]);
    for (int i = 0; i < GATED_MESSAGES && result == TCPX_SUCCESS; i++)
        result = wait_for(requests[i]);
    if (result == TCPX_SUCCESS)
        result = check_bytes(data, (uint64_t)GATED_MESSAGES * GATED_BYTES);
    free(data);
    return result;
}

/* And then from another comm, which has to work. */
static int receive_and_once_more(struct receiver *receiver)
{
    int result = receive_checked(receiver, ROOM, PAUSE_MS, true);

    net_comm_close(receiver->comm);
    receiver->comm = NULL;
    if (result == TCPX_SUCCESS)
        result = accept_one(receiver);
    return result == TCPX_SUCCESS ? receive_checked(receiver, PART, 0, false) : result;
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

static int read_handle(const char *path, uint8_t handle[NET_HANDLE_BYTES])
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    ssize_t got;
    int fd;

    while ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 && !deadline_passed(deadline))
        nap(10);
    if (fd < 0)
        return error_system(errno, "cannot read %s", path);
    got = read(fd, handle, NET_HANDLE_BYTES);
    close(fd);
    return got == NET_HANDLE_BYTES
               ? TCPX_SUCCESS
               : error_set(TCPX_INVALID_ARGUMENT, "%s does not hold a handle", path);
}

/* A comm that the memory is registered with, and sends from there by reference. */
static int connect_one(struct sender *sender)
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_link link;
    bool connected = false;
    int result = read_handle(sender->file, handle);

    while (result == TCPX_SUCCESS && !connected) {
        if (deadline_passed(deadline))
            return error_set(TCPX_INTERNAL_ERROR, "no connection within %d ms", STEP_MS);
        result = net_connect(sender->device, sender->options, handle, &link, &connected);
        nap(1);
    }
    if (result == TCPX_SUCCESS)
        result = net_comm_create(&link, NET_SENDER, &sender->comm);
    if (result == TCPX_SUCCESS)
        result = net_register(sender->comm, (void *)(uintptr_t)sender->memory.address, ROOM,
                              &sender->registered);
    if (result == TCPX_SUCCESS && !inside_sends_by_reference(sender->comm))
        return error_set(TCPX_INTERNAL_ERROR, "the comm does not send by reference");
    return result;
}

/* And waits until it is done. */
static int set_memory(struct sender *sender, uint8_t value)
{
    int result = gpu_set(sender->stream, sender->memory.address, value, ROOM);

    if (result == TCPX_SUCCESS)
        result = gpu_event_record(sender->event, sender->stream);
    return result == TCPX_SUCCESS ? gpu_event_wait(sender->event, deadline_after_ms(STEP_MS))
                                  : result;
}

static struct net_buffer buffer_of(const struct sender *sender, uint64_t bytes)
{
    return (struct net_buffer){.data = (void *)(uintptr_t)sender->memory.address,
                               .bytes = bytes,
                               .memory = sender->registered};
}

static int begin_send(struct sender *sender, uint64_t bytes, struct net_request **request)
{
    const struct net_buffer buffer = buffer_of(sender, bytes);

    return net_isend_buffer(sender->comm, &buffer, 0, request);
}

/* Until the sockets have that much of a message that cannot have arrived. */
static int hand_out(struct sender *sender, struct net_request *request, uint64_t bytes)
{
    uint64_t deadline = deadline_after_ms(STEP_MS);
    bool done = false;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && inside_handed_out(sender->comm, request) < bytes) {
        if (deadline_passed(deadline))
            return error_set(TCPX_INTERNAL_ERROR, "%llu of %llu bytes are with the sockets",
                             (unsigned long long)inside_handed_out(sender->comm, request),
                             (unsigned long long)bytes);
        result = net_test(request, &done, NULL);
        if (result == TCPX_SUCCESS && done)
            return error_set(TCPX_INTERNAL_ERROR, "the receiver had it all, in its pause");
        nap(1);
    }
    return result;
}

static int send_empty(struct sender *sender)
{
    uint64_t sent[EMPTY_MESSAGES];
    struct net_request *request;
    int result = TCPX_SUCCESS;

    for (int i = 0; i < EMPTY_MESSAGES && result == TCPX_SUCCESS; i++) {
        nap(EMPTY_APART_MS);
        sent[i] = clock_now();
        result = begin_send(sender, 0, &request);
        if (result == TCPX_SUCCESS)
            result = wait_for(request);
    }
    nap(EMPTY_APART_MS);
    if (result == TCPX_SUCCESS)
        result = net_isend(sender->comm, sent, sizeof sent, 0, &request);
    return result == TCPX_SUCCESS ? wait_for(request) : result;
}

static int widen_sockets(struct sender *sender)
{
    const int room = 8 * PART;

    for (int i = 0; i < inside_link(sender->comm)->sockets; i++)
        if (setsockopt(inside_link(sender->comm)->forward[i], SOL_SOCKET, SO_SNDBUFFORCE, &room,
                       sizeof room) != 0)
            return error_system(errno, "a larger send buffer");
    return TCPX_SUCCESS;
}

/* The sockets have a whole message, of which the peer has next to nothing. */
static int fill_sockets(struct sender *sender, struct net_request **request)
{
    int result = widen_sockets(sender);

    if (result == TCPX_SUCCESS)
        result = begin_send(sender, PART, request);
    return result == TCPX_SUCCESS ? hand_out(sender, *request, PART) : result;
}

/* The receiver may not notice before its pause is over. */
static int overwrite(struct sender *sender)
{
    int result = set_memory(sender, OVERWRITTEN);

    nap(PAUSE_MS);
    return result;
}

static int send_and_close(struct sender *sender)
{
    struct net_request *request;
    int result = fill_sockets(sender, &request);

    if (result != TCPX_SUCCESS)
        return result;
    net_comm_close(sender->comm);
    sender->comm = NULL;
    return overwrite(sender);
}

static int send_done_and_part(struct sender *sender)
{
    struct net_request *request = NULL;
    uint8_t *data = malloc(PART);
    int result = TCPX_SUCCESS;

    if (data == NULL)
        return error_system(ENOMEM, "a buffer");
    memset(data, SENT, PART);
    result = widen_sockets(sender);
    if (result == TCPX_SUCCESS)
        result = net_isend(sender->comm, data, PART, 0, &request);
    if (result == TCPX_SUCCESS)
        result = wait_for(request);
    free(data);
    if (result == TCPX_SUCCESS)
        result = begin_send(sender, ROOM, &request);
    if (result == TCPX_SUCCESS)
        result = hand_out(sender, request, 1);
    if (result != TCPX_SUCCESS)
        return result;
    net_comm_close(sender->comm);
    sender->comm = NULL;
    return overwrite(sender);
}

/* As it fails when the receiver's process ends, of which the other sockets know nothing. */
static int send_and_fail(struct sender *sender)
{
    struct net_request *request;
    int result = fill_sockets(sender, &request);

    if (result != TCPX_SUCCESS)
        return result;
    if (shutdown(inside_link(sender->comm)->reverse, SHUT_RD) != 0)
        return error_system(errno, "the end of the reverse connection");
    if (wait_for(request) == TCPX_SUCCESS)
        return error_set(TCPX_INTERNAL_ERROR, "a send of a comm that had failed was done");
    printf("the send failed: %s\n", error_text());
    return overwrite(sender);
}

static double cpu_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* While nothing can be sent and nothing arrives. */
static int measure_wait(struct net_request *request)
{
    uint64_t start = clock_now();
    double cpu = cpu_seconds();
    bool done = false;
    int result = net_wait(request, deadline_after_ms(MEASURE_MS), &done, NULL);
    double span = (double)(clock_now() - start) / 1e9;

    cpu = cpu_seconds() - cpu;
    if (result != TCPX_SUCCESS)
        return result;
    if (done)
        return error_set(TCPX_INTERNAL_ERROR, "the receiver had it all, in its pause");
    printf("%.2f s of CPU time in %.2f s of waiting\n", cpu, span);
    return cpu < span / 2
               ? TCPX_SUCCESS
               : error_set(TCPX_INTERNAL_ERROR,
                           "%.2f s of CPU time in %.2f s of waiting for arrivals", cpu, span);
}

static int send_and_wait(struct sender *sender)
{
    struct net_request *request;
    bool done = false;
    int result = begin_send(sender, ROOM, &request);

    if (result == TCPX_SUCCESS)
        result = net_wait(request, deadline_after_ms(SETTLE_MS), &done, NULL);
    if (result == TCPX_SUCCESS && done)
        return error_set(TCPX_INTERNAL_ERROR, "the receiver had it all, in its pause");
    if (result == TCPX_SUCCESS)
        result = measure_wait(request);
    return result == TCPX_SUCCESS ? wait_for(request) : result;
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
static int begin_gated(struct sender *sender, struct net_request **request)
{
    struct net_buffer buffer = buffer_of(sender, GATED_BYTES);
    int result = gpu_set(sender->stream, sender->memory.address + PART, OVERWRITTEN, GATED_WORK);

    if (result == TCPX_SUCCESS)
        result = gpu_event_record(sender->event, sender->stream);
    buffer.after = NET_AFTER_STREAM;
    buffer.after_what = gpu_stream_native(sender->stream);
    return result == TCPX_SUCCESS ? net_isend_buffer(sender->comm, &buffer, 0, request) : result;
}

/* Whether it had to wait at all, and was out in time then. */
static int send_one_gated(struct sender *sender, bool *in_time)
{
    struct watch watch = {.sender = sender};
    bool open = false;
    double span_ms;
    pthread_t thread;
    int result = begin_gated(sender, &watch.request);

    if (result == TCPX_SUCCESS)
        result = gpu_event_query(sender->event, &open);
    if (result != TCPX_SUCCESS)
        return result;
    if (pthread_create(&thread, NULL, watch_gate, &watch) != 0)
        return error_set(TCPX_SYSTEM_ERROR, "cannot start a thread");
    result = wait_for(watch.request);
    pthread_join(thread, NULL);
    if (result != TCPX_SUCCESS)
        return result;
    if (watch.opened == 0 || watch.out < watch.opened)
        return error_set(TCPX_INTERNAL_ERROR, "a message went out before its gate was open");
    span_ms = (double)(watch.out - watch.opened) / 1e6;
    printf("out %.1f ms after its gate had opened%s\n", span_ms, open ? ", which was at once" : "");
    *in_time = !open && span_ms <= GATED_MS;
    return TCPX_SUCCESS;
}

/* A busy machine may be late now and then, or early. */
static int send_gated(struct sender *sender)
{
    int in_time_count = 0;

    if (inside_link(sender->comm)->framing != WIRE_SEPARATE)
        return error_set(TCPX_INTERNAL_ERROR, "the comm does not have separate framing");
    for (int i = 0; i < GATED_MESSAGES; i++) {
        bool in_time = false;
        int result;

        nap(GATED_APART_MS);
        result = send_one_gated(sender, &in_time);
        if (result != TCPX_SUCCESS)
            return result;
        in_time_count += in_time;
    }
    return in_time_count >= GATED_MESSAGES / 2
               ? TCPX_SUCCESS
               : error_set(TCPX_INTERNAL_ERROR, "only %d of %d messages were out within %d ms",
                           in_time_count, GATED_MESSAGES, GATED_MS);
}

/* The memory itself stays as it is. However that send ends, the next comm has to work. */
static int send_and_deregister(struct sender *sender)
{
    struct net_request *request;
    int result = begin_send(sender, ROOM, &request);

    if (result == TCPX_SUCCESS)
        result = hand_out(sender, request, 1);
    if (result != TCPX_SUCCESS)
        return result;
    net_deregister(sender->comm, sender->registered);
    sender->registered = NULL;
    result = wait_for(request);
    printf("the send %s%s\n", result == TCPX_SUCCESS ? "was done" : "failed: ",
           result == TCPX_SUCCESS ? "" : error_text());
    if (result == TCPX_INTERNAL_ERROR)
        return result;
    net_comm_close(sender->comm);
    sender->comm = NULL;
    result = connect_one(sender);
    if (result == TCPX_SUCCESS)
        result = begin_send(sender, PART, &request);
    return result == TCPX_SUCCESS ? wait_for(request) : result;
}

/* --- both ---------------------------------------------------------------------------------- */

struct scenario {
    const char *name;
    int (*receive)(struct receiver *receiver);
    int (*send)(struct sender *sender);
    bool by_devmem; /* it is received by devmem TCP, too, and so the framing is separate */
};

static const struct scenario scenarios[] = {
    {"empty", receive_empty, send_empty, false},
    {"close", receive_part_or_fail, send_and_close, false},
    {"soon", receive_part_soon, send_and_close, false},
    {"behind", receive_done_and_part, send_done_and_part, false},
    {"fail", receive_part_or_fail, send_and_fail, false},
    {"arrivals", receive_all_late, send_and_wait, false},
    {"gate", receive_gated, send_gated, true},
    {"deregister", receive_and_once_more, send_and_deregister, false},
};

static const struct scenario *find_scenario(const char *name)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

static int receive(const struct scenario *scenario, const struct net_device *device,
                   const struct net_link_options *options, const char *file)
{
    struct receiver receiver = {.comm = NULL};
    uint8_t handle[NET_HANDLE_BYTES];
    int result = net_listen(device, options, handle, &receiver.listener);

    if (result != TCPX_SUCCESS)
        return result;
    result = write_handle(file, handle);
    if (result == TCPX_SUCCESS)
        result = accept_one(&receiver);
    if (result == TCPX_SUCCESS)
        result = scenario->receive(&receiver);
    net_comm_close(receiver.comm);
    net_listener_close(receiver.listener);
    return result;
}

static int prepare(struct sender *sender)
{
    int result = gpu_open(0, &sender->gpu);

    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(sender->gpu, ROOM, 2 << 20, &sender->memory);
    if (result == TCPX_SUCCESS)
        result = gpu_stream_create(sender->gpu, &sender->stream);
    if (result == TCPX_SUCCESS)
        result = gpu_event_create(sender->gpu, GPU_EVENT_PLAIN, &sender->event);
    return result == TCPX_SUCCESS ? set_memory(sender, SENT) : result;
}

/* All before the connection, so that the receiver's pause is long enough for the rest. */
static int send_all(const struct scenario *scenario, const struct net_device *device,
                    const struct net_link_options *options, const char *file)
{
    struct sender sender = {.device = device, .options = options, .file = file};
    int result = prepare(&sender);

    if (result == TCPX_SUCCESS)
        result = connect_one(&sender);
    if (result == TCPX_SUCCESS)
        result = scenario->send(&sender);
    net_comm_close(sender.comm);
    gpu_event_destroy(sender.event);
    gpu_stream_destroy(sender.stream);
    gpu_memory_free(sender.gpu, &sender.memory);
    gpu_close(sender.gpu);
    return result;
}

static int run(bool receives, const struct scenario *scenario, uint8_t sockets, const char *file)
{
    struct net_device devices[NET_DEVICES_MOST];
    struct net_link_options options;
    int count;
    int result = net_devices_find_configured(devices, NET_DEVICES_MOST, &count);

    if (result == TCPX_SUCCESS)
        result = net_link_defaults(WIRE_MATCH_FIFO, &options);
    if (result != TCPX_SUCCESS)
        return result;
    options.sockets = sockets;
    options.gpu = receives && scenario->by_devmem ? 0 : -1;
    return receives ? receive(scenario, &devices[0], &options, file)
                    : send_all(scenario, &devices[0], &options, file);
}

static void limit_reached(int signal)
{
    static const char text[] = "by_reference: it took too long\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);

    (void)signal;
    (void)ignored;
    _exit(STATUS_LIMIT);
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
    signal(SIGALRM, limit_reached);
    alarm(LIMIT_SECONDS);
    if (run(receives, scenario, (uint8_t)sockets, argv[4]) != TCPX_SUCCESS) {
        fprintf(stderr, "by_reference %s %s: %s\n", argv[1], argv[2], error_text());
        return STATUS_FAILED;
    }
    return STATUS_OK;
}
