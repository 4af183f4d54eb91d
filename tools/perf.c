/*
 * tcpx perf --loopback: moves bytes between two processes on this machine through the built-in
 * transport, from GPU memory to GPU memory or between host memories, checks every one of them, and
 * says how fast that was. The child receives.
 */
#include "base/clock.h"
#include "base/config.h"
#include "base/parse.h"
#include "net/comm.h"
#include "tools/buffer.h"
#include "tools/command.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK_BYTES = 64 << 20, WINDOW = 4, LIMIT_MS = 120000, SEED = 1 };

static const char greeting[] = "Hello from TCPX client!";

struct perf {
    uint64_t bytes;
    int gpu; /* -1: host memory */
    struct net_link_options options;
};

/* What the receiving process tells the other in the end. */
struct report {
    uint64_t first_ns; /* from the post of the greeting to its arrival */
    uint64_t span_ns;  /* from then to the last byte */
    uint64_t wrong;    /* bytes */
};

static int wait_for(struct net_request *request, uint64_t deadline)
{
    bool done;
    int result = net_wait(request, deadline, &done, NULL);

    if (result == TCPX_SUCCESS && !done)
        return error_set(TCPX_IN_PROGRESS, "nothing came in %d s", LIMIT_MS / 1000);
    return result;
}

static void show_progress(uint64_t moved, uint64_t bytes)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%3llu %%%s",
                (unsigned long long)(bytes != 0 ? moved * 100 / bytes : 100),
                moved == bytes ? "\r     \r" : "");
}

/* The buffer in chunks, several in flight; sends or receives. */
static int move_chunks(struct net_comm *comm, const struct buffer *buffer,
                       struct net_memory *memory, bool sending, uint64_t deadline)
{
    struct net_request *window[WINDOW] = {NULL};
    uint64_t bytes = buffer->bytes;
    uint64_t started = 0;
    uint64_t moved = 0;
    unsigned first = 0;
    unsigned used = 0;

    while (moved < bytes) {
        int result = TCPX_SUCCESS;

        while (used < WINDOW && started < bytes && result == TCPX_SUCCESS) {
            uint64_t chunk = bytes - started < CHUNK_BYTES ? bytes - started : CHUNK_BYTES;
            struct net_request **request = &window[(first + used) % WINDOW];
            const struct net_buffer part = {
                .data = (uint8_t *)buffer->data + started, .bytes = chunk, .memory = memory};

            result = sending ? net_isend_buffer(comm, &part, 1, request)
                             : net_irecv_buffer(comm, &part, 1, request);
            if (result == TCPX_SUCCESS && *request == NULL)
                break;
            started += chunk;
            used++;
        }
        if (result == TCPX_SUCCESS)
            result = wait_for(window[first], deadline);
        if (result != TCPX_SUCCESS)
            return result;
        first = (first + 1) % WINDOW;
        used--;
        moved = bytes - moved < CHUNK_BYTES ? bytes : moved + CHUNK_BYTES;
        if (!sending)
            show_progress(moved, bytes);
    }
    return TCPX_SUCCESS;
}

static int move(struct net_comm *comm, const struct buffer *buffer, bool sending, uint64_t deadline)
{
    struct net_memory *memory;
    int result = net_register(comm, buffer->data, buffer->bytes, &memory);

    if (result != TCPX_SUCCESS)
        return result;
    result = move_chunks(comm, buffer, memory, sending, deadline);
    net_deregister(comm, memory);
    return result;
}

/* --- the receiving process ----------------------------------------------------------------- */

static int accept_one(struct net_listener *listener, struct net_comm **comm, uint64_t deadline)
{
    struct net_link link;
    bool accepted = false;

    while (!accepted) {
        int result = net_accept(listener, &link, &accepted);

        if (result != TCPX_SUCCESS)
            return result;
        if (deadline_passed(deadline))
            return error_set(TCPX_IN_PROGRESS, "nobody connected");
        sched_yield();
    }
    return net_comm_create(&link, NET_RECEIVER, comm);
}

static int receive(struct net_comm *comm, struct buffer *buffer, struct report *report,
                   uint64_t deadline)
{
    char greeted[sizeof greeting];
    struct net_request *request;
    uint64_t start = clock_now();
    int result = net_irecv(comm, greeted, sizeof greeted, 42, &request);

    if (result == TCPX_SUCCESS)
        result = wait_for(request, deadline);
    if (result != TCPX_SUCCESS)
        return result;
    report->first_ns = clock_now() - start;
    start = clock_now();
    result = move(comm, buffer, false, deadline);
    report->span_ns = clock_now() - start;
    if (result == TCPX_SUCCESS)
        result = buffer_count_wrong(buffer, SEED, &report->wrong);
    report->wrong += memcmp(greeted, greeting, sizeof greeting) != 0 ? sizeof greeting : 0;
    return result;
}

/* Writes the handle and the report to `out`; its exit status is that of the process. */
static int receiving_process(const struct net_device *device, const struct perf *perf, int out)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_listener *listener;
    struct net_comm *comm = NULL;
    struct buffer buffer = {0};
    struct report report = {0};
    int result = net_listen(device, &perf->options, handle, &listener);

    if (result != TCPX_SUCCESS)
        return command_failed();
    if (write(out, handle, sizeof handle) != (ssize_t)sizeof handle)
        result = error_system(errno, "cannot pass the handle on");
    if (result == TCPX_SUCCESS)
        result = accept_one(listener, &comm, deadline);
    net_listener_close(listener);
    if (result == TCPX_SUCCESS)
        result = buffer_create(perf->gpu, perf->bytes, &buffer);
    if (result == TCPX_SUCCESS)
        result = buffer_poison(&buffer);
    if (result == TCPX_SUCCESS)
        result = receive(comm, &buffer, &report, deadline);
    net_comm_close(comm);
    buffer_destroy(&buffer);
    if (result == TCPX_SUCCESS && write(out, &report, sizeof report) != (ssize_t)sizeof report)
        result = error_system(errno, "cannot report");
    return result == TCPX_SUCCESS ? EXIT_OK : command_failed();
}

/* --- the sending process ------------------------------------------------------------------- */

static int connect_one(const struct perf *perf, uint8_t handle[NET_HANDLE_BYTES],
                       struct net_comm **comm, uint64_t deadline)
{
    struct net_link link;
    bool connected = false;

    while (!connected) {
        int result = net_connect(NULL, &perf->options, handle, &link, &connected);

        if (result != TCPX_SUCCESS)
            return result;
        if (deadline_passed(deadline)) {
            net_connect_cancel(handle);
            return error_set(TCPX_IN_PROGRESS, "the listener did not answer");
        }
        sched_yield();
    }
    return net_comm_create(&link, NET_SENDER, comm);
}

static int send_all(const struct perf *perf, int in)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_comm *comm = NULL;
    struct net_request *request;
    struct buffer buffer;
    int result = buffer_create(perf->gpu, perf->bytes, &buffer);

    if (result == TCPX_SUCCESS)
        result = buffer_fill(&buffer, SEED);
    if (result == TCPX_SUCCESS && read(in, handle, sizeof handle) != (ssize_t)sizeof handle)
        result = error_set(TCPX_REMOTE_ERROR, "the receiving process did not start");
    if (result == TCPX_SUCCESS)
        result = connect_one(perf, handle, &comm, deadline);
    if (result == TCPX_SUCCESS)
        result = net_isend(comm, greeting, sizeof greeting, 42, &request);
    if (result == TCPX_SUCCESS)
        result = wait_for(request, deadline);
    if (result == TCPX_SUCCESS)
        result = move(comm, &buffer, true, deadline);
    net_comm_close(comm);
    buffer_destroy(&buffer);
    return result;
}

static int print_report(const struct perf *perf, const struct report *report)
{
    printf("first message: %zu bytes in %.0f us\n", sizeof greeting,
           (double)report->first_ns * 1e-3);
    printf("%llu bytes in %.3f s: %.2f GB/s\n", (unsigned long long)perf->bytes,
           (double)report->span_ns * 1e-9, (double)perf->bytes / (double)report->span_ns);
    if (report->wrong != 0) {
        fprintf(stderr, "tcpx: %llu bytes arrived wrong\n", (unsigned long long)report->wrong);
        return EXIT_FAILED;
    }
    printf("verified: every byte is right\n");
    return command_finish();
}

static int run_loopback(const struct perf *perf)
{
    union socket_address any = {
        .ipv4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    const struct net_device device = {.name = "lo", .address = any.storage, .is_loopback = true};
    struct report report;
    pid_t parent = getpid();
    pid_t child;
    ssize_t got;
    int pipes[2];
    int status;
    int result;

    printf("%llu bytes of %s memory between two processes over 127.0.0.1, %u socket%s\n",
           (unsigned long long)perf->bytes, perf->gpu >= 0 ? "GPU" : "host", perf->options.sockets,
           perf->options.sockets == 1 ? "" : "s");
    fflush(stdout);
    if (pipe(pipes) != 0) {
        error_keep_system(errno, "pipe");
        return command_failed();
    }
    child = fork();
    if (child < 0) {
        error_keep_system(errno, "fork");
        return command_failed();
    }
    if (child == 0) {
        close(pipes[0]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() == parent ? receiving_process(&device, perf, pipes[1]) : EXIT_FAILED);
    }
    close(pipes[1]);
    result = send_all(perf, pipes[0]);
    if (result != TCPX_SUCCESS) {
        status = command_failed();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(pipes[0]);
        return status;
    }
    got = read(pipes[0], &report, sizeof report);
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (got != (ssize_t)sizeof report) {
        fprintf(stderr, "tcpx: the receiving process failed\n");
        return EXIT_FAILED;
    }
    return print_report(perf, &report);
}

static int run(int argument_count, char **arguments)
{
    struct perf perf = {.bytes = (uint64_t)1 << 30};
    uint64_t sockets = 0;
    bool loopback = false;

    for (int i = 0; i < argument_count; i++) {
        const char *value = i + 1 < argument_count ? arguments[i + 1] : "";

        if (strcmp(arguments[i], "--loopback") == 0) {
            loopback = true;
            continue;
        }
        if (strcmp(arguments[i], "--host") == 0) {
            perf.gpu = -1;
            continue;
        }
        if (strcmp(arguments[i], "--size") == 0) {
            if (!parse_size(value, &perf.bytes) || perf.bytes == 0)
                return command_usage(&command_perf, "not a size, such as 512K or 1G:", value);
        } else if (strcmp(arguments[i], "--sockets") == 0) {
            if (!parse_number(value, &sockets) || sockets < 1 || sockets > WIRE_MOST_SOCKETS)
                return command_usage(&command_perf, "not a number from 1 to 64:", value);
        } else {
            return command_usage(&command_perf, "unknown argument", arguments[i]);
        }
        i++;
    }
    if (!loopback)
        return command_usage(&command_perf, "so far it needs the argument", "--loopback");
    if (net_link_defaults(WIRE_MATCH_TAG, &perf.options) != TCPX_SUCCESS)
        return command_failed();
    if (sockets != 0)
        perf.options.sockets = (uint8_t)sockets;
    return run_loopback(&perf);
}

const struct command command_perf = {
    .name = "perf",
    .arguments = "--loopback [--host] [--size BYTES] [--sockets N]",
    .summary = "Move bytes between two processes, verify them and print the rate.",
    .help =
        "\n"
        "  --loopback    both processes on this machine\n"
        "  --host        host memory; without it, memory of the first GPU, emulated where there\n"
        "                is none\n"
        "  --size BYTES  how much, with K, M, G or T behind the number; 1G\n"
        "  --sockets N   how many connections carry it, 1 to 64; UCCL_TCPX_SOCKETS\n",
    .run = run,
};
