/*
 * What measurements between two processes on this machine have in common: the second process and
 * where both meet, connections over loopback, the span that is measured, and numbers of it. A
 * failure ends the program: the receiver is a child that dies with the sender, and a receiver that
 * fails takes the sender along.
 */
#ifndef TCPX_BENCH_BENCH_H
#define TCPX_BENCH_BENCH_H

#include "base/clock.h"
#include "bench/numbers.h"
#include "gpu/gpu.h"
#include "net/link/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

enum { MOST_STREAMS = WIRE_MOST_SOCKETS, LIMIT_MS = 60000 };

enum side { SIDE_SENDER, SIDE_RECEIVER, SIDES };

/* What both processes see. */
struct pair_shared {
    pthread_barrier_t both;                     /* the two processes */
    pthread_barrier_t movers[1 + MOST_STREAMS]; /* so many threads of each process */
    uint8_t handles[SIDES][NET_HANDLE_BYTES];
    in_port_t port;
    _Atomic uint64_t from;
    _Atomic uint64_t to;
    double cpu_seconds[SIDES];
};

/* One of the two processes. */
struct pair {
    enum side side;
    struct pair_shared *shared;
    pid_t child;
    int streams[MOST_STREAMS];
};

/* --- failures ------------------------------------------------------------------------------ */

static inline void die_at(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    _exit(1);
}

static inline void must_at(int result, const char *file, int line)
{
    if (result != TCPX_SUCCESS)
        die_at(tcpx_last_error(), file, line);
}

static inline void must_be_at(bool fine, const char *what, const char *file, int line)
{
    if (fine)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, strerror(errno));
    _exit(1);
}

#define die(what)          die_at((what), __FILE__, __LINE__)
#define must(call)         must_at((call), __FILE__, __LINE__)
#define must_be(condition) must_be_at((condition), #condition, __FILE__, __LINE__)

/* --- numbers ------------------------------------------------------------------------------- */

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* --- the GPU --------------------------------------------------------------------------------- */

/* Waits for all work of the stream so far. */
static inline void drain(struct gpu *gpu, struct gpu_stream *stream)
{
    struct gpu_event *event;

    must(gpu_event_create(gpu, &event));
    must(gpu_event_record(event, stream));
    must(gpu_event_wait(event, deadline_after_ms(LIMIT_MS)));
    gpu_event_destroy(event);
}

/* --- two processes ------------------------------------------------------------------------- */

static inline void pair_meet(const struct pair *pair)
{
    pthread_barrier_wait(&pair->shared->both);
}

/* A receiver that has failed has said why, and will not come to where we meet. */
static inline void pair_child_ended(int signal_number)
{
    int status;

    (void)signal_number;
    if (wait(&status) > 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        _exit(1);
}

/* Comes before anything that does not survive fork(): CUDA, threads, the transport. */
static inline void pair_fork(struct pair *pair)
{
    struct pair_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pid_t parent = getpid();

    must_be(shared != MAP_FAILED);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->both, &attributes, SIDES);
    for (unsigned i = 1; i <= MOST_STREAMS; i++)
        pthread_barrier_init(&shared->movers[i], &attributes, SIDES * i);
    fflush(stdout);
    signal(SIGCHLD, pair_child_ended);
    pair->shared = shared;
    pair->child = fork();
    must_be(pair->child >= 0);
    pair->side = pair->child == 0 ? SIDE_RECEIVER : SIDE_SENDER;
    if (pair->side == SIDE_SENDER)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

/* The sender ends after the receiver, so that how that one ended is known. */
static inline void pair_join(const struct pair *pair)
{
    int status;

    if (pair->side == SIDE_RECEIVER)
        return;
    signal(SIGCHLD, SIG_DFL);
    if (waitpid(pair->child, &status, 0) == pair->child &&
        (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        _exit(1);
}

/* --- the span: from when both sides are ready to when the last thread is finished ---------- */

static inline void pair_reset_span(const struct pair *pair)
{
    if (pair->side == SIDE_RECEIVER)
        return;
    atomic_store(&pair->shared->from, 0);
    atomic_store(&pair->shared->to, 0);
}

/* By each of as many threads of either process. */
static inline void pair_begin_span(const struct pair *pair, unsigned movers)
{
    uint64_t expected = 0;

    pthread_barrier_wait(&pair->shared->movers[movers]);
    atomic_compare_exchange_strong(&pair->shared->from, &expected, clock_now());
}

static inline void pair_end_span(const struct pair *pair)
{
    uint64_t now = clock_now();
    uint64_t last = atomic_load(&pair->shared->to);

    while (last < now && !atomic_compare_exchange_weak(&pair->shared->to, &last, now))
        ;
}

/* --- connections --------------------------------------------------------------------------- */

static inline struct sockaddr_in loopback(in_port_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Raw sockets; each connects when the one before it is there, so that both sides agree on order. */
static inline void pair_open_streams(struct pair *pair, unsigned count)
{
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    int listener = -1;
    int one = 1;

    if (pair->side == SIDE_RECEIVER) {
        listener = socket(AF_INET, SOCK_STREAM, 0);
        must_be(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 &&
                listen(listener, MOST_STREAMS) == 0 &&
                getsockname(listener, (struct sockaddr *)&address, &length) == 0);
        pair->shared->port = address.sin_port;
    }
    pair_meet(pair);
    address = loopback(pair->shared->port);
    for (unsigned i = 0; i < count; i++) {
        int *fd = &pair->streams[i];

        if (pair->side == SIDE_RECEIVER) {
            *fd = accept(listener, NULL, NULL);
        } else {
            *fd = socket(AF_INET, SOCK_STREAM, 0);
            must_be(*fd >= 0 && connect(*fd, (struct sockaddr *)&address, length) == 0);
        }
        must_be(*fd >= 0 && setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    }
    if (listener >= 0)
        close(listener);
    pair_meet(pair);
}

static inline void pair_close_streams(const struct pair *pair, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        close(pair->streams[i]);
}

/* A link in the direction of `to`. */
static inline void pair_link(const struct pair *pair, const struct net_link_options *options,
                             enum side to, struct net_link *link)
{
    union socket_address address = {.ipv4 = loopback(0)};
    const struct net_device device = {
        .name = "lo", .address = address.storage, .is_loopback = true};
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint8_t *handle = pair->shared->handles[to];
    struct net_listener *listener = NULL;
    bool ready = false;

    if (pair->side == to)
        must(net_listen(&device, options, handle, &listener));
    pair_meet(pair);
    while (!ready) {
        if (pair->side == to)
            must(net_accept(listener, link, &ready));
        else
            must(net_connect(NULL, options, handle, link, &ready));
        if (deadline_passed(deadline))
            die("no connection");
        sched_yield();
    }
    net_listener_close(listener);
}

#endif
