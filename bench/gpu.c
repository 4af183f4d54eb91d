/*
 * The transport between two processes on this machine, from GPU memory to GPU memory, beside the
 * same without a protocol and beside raw sockets, in the same run. Raw: host memory, blocking
 * sockets, on each side one thread per stream, calls of 512 KiB. Pipeline: the same threads and
 * sockets, but each sender's bytes come from the GPU through a ring of pinned slices, with copies
 * issued ahead, and each receiver's go to the GPU through one. tcpx: one comm with as many sockets,
 * one thread on each side that keeps a window of messages going and waits for the oldest.
 *
 * They go round by round, by turns first, over the same buffers and over connections that live as
 * long as the row's number of sockets; rates are medians over rounds. Before each round the
 * sender's buffer gets that round's pattern and the receiver's is poisoned; after it every byte is
 * compared: a wrong one ends the program. The span is from when both sides are ready to when the
 * last of them is finished. CPU seconds are those of both processes in it; the emulated GPU's are
 * among them.
 *
 * Rows by number have the slice that is measured; those of "default" have what the environment says
 * for sockets and slices, and raw and pipeline as many streams as that gives.
 *
 * Then the latency of 4 KiB: half of a ping-pong over two comms of one socket, one each way, both
 * sides testing all the time; from GPU memory to GPU memory and from host memory to host memory in
 * blocks by turns. The receiver sends back what came, from where it came; every message has bytes
 * and a place of its own, and all are compared when their block is over.
 *
 * --rounds N, of each row, and --bytes N, in a round, are 3 and 512M; a row of larger messages than
 * a round is left out. --slice N and --ring N, the pipeline's slices and how many of them each
 * stream has, are 512K and 8; the former is the largest slice of tcpx, too. --threads N is
 * UCCL_TCPX_THREADS. --row TEXT measures only the rows whose size and sockets, "1 MiB x 4", contain
 * it. --quick is one round of 64M, and fewer ping-pongs.
 */
#include "gpu/gpu.h"
#include "base/parse.h"
#include "bench/bench.h"
#include "gpu/kernels.h"
#include "net/transport.h"

enum {
    MOST_ROUNDS = 1000,
    MOST_RING = 64,
    PAGE = 4096,
    RAW_CALL_BYTES = 512 << 10,
    WINDOW = 8,
    POISON = 0xee,
    DEFAULT_SOCKETS = 0,
    /* Latency. Both boxes fit into the smallest buffer, 1 MiB. */
    SMALL = 4096,
    BLOCK = 100, /* ping-pongs */
    BOX = BLOCK * SMALL,
    OUTBOX = 0,
    INBOX = 512 << 10,
};

enum way { WAY_RAW, WAY_PIPELINE, WAY_TCPX, WAYS };
enum place { PLACE_GPU, PLACE_HOST, PLACES };

static const char *const way_names[WAYS] = {"raw", "pipeline", "tcpx"};
static const uint64_t message_sizes[] = {MIB, 16 * MIB, 64 * MIB, 256 * MIB};
static const unsigned socket_counts[] = {1, 2, 4, 8, 16, DEFAULT_SOCKETS};

/* What one stream of the pipeline has beside its socket. */
struct pipe {
    struct gpu_stream *stream;
    struct gpu_pinned ring;
    struct gpu_event *events[MOST_RING]; /* the copy from or to this slice is done */
};

struct bench {
    struct pair pair;
    struct gpu *gpu;
    struct gpu_stream *stream; /* for patterns */
    struct gpu_memory data;
    uint8_t *host_data;
    struct gpu_memory answer;
    struct gpu_pinned answer_host;
    uint64_t bytes; /* of the data, and of a round */
    uint64_t slice;
    unsigned ring;
    int rounds;
    int ping_pongs;
    const char *row;
    uint64_t seed; /* of this round */

    struct pipe pipes[MOST_STREAMS];
    struct net_comm *comm;
    struct net_memory *memory; /* the data, as the comm knows it */
};

/* --- data ---------------------------------------------------------------------------------- */

static void drain(struct bench *bench)
{
    struct gpu_event *event;

    must(gpu_event_create(bench->gpu, &event));
    must(gpu_event_record(event, bench->stream));
    must(gpu_event_wait(event, deadline_after_ms(LIMIT_MS)));
    gpu_event_destroy(event);
}

static void fill(struct bench *bench, enum place place, uint64_t at, uint64_t bytes)
{
    if (place == PLACE_GPU) {
        must(gpu_fill_pattern(bench->stream, bench->data.address + at, bytes, bench->seed, 0));
        drain(bench);
        return;
    }
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word = pattern_word(bench->seed, i);

        memcpy(bench->host_data + at + 8 * i, &word, 8);
    }
}

static void poison(struct bench *bench, enum place place, uint64_t at, uint64_t bytes)
{
    if (place == PLACE_HOST) {
        memset(bench->host_data + at, POISON, bytes);
        return;
    }
    must(gpu_set(bench->stream, bench->data.address + at, POISON, bytes));
    drain(bench);
}

static uint64_t find_wrong_word(const struct bench *bench, uint64_t at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word = pattern_word(bench->seed, i);

        if (memcmp(bench->host_data + at + 8 * i, &word, 8) != 0)
            return 8 * i;
    }
    return UINT64_MAX;
}

static uint64_t find_wrong_byte(struct bench *bench, uint64_t at, uint64_t bytes)
{
    struct gpu_verify_result *result = bench->answer_host.host;

    *result = (struct gpu_verify_result){0}; /* "wrong", if nothing comes */
    must(gpu_verify_pattern(bench->stream, bench->data.address + at, bytes, bench->seed, 0,
                            bench->answer.address));
    must(gpu_copy_to_host(bench->stream, result, bench->answer.address, sizeof *result));
    drain(bench);
    return result->first;
}

static void verify(struct bench *bench, enum place place, uint64_t at, uint64_t bytes,
                   const char *what)
{
    uint64_t wrong =
        place == PLACE_GPU ? find_wrong_byte(bench, at, bytes) : find_wrong_word(bench, at, bytes);

    if (wrong == UINT64_MAX)
        return;
    fprintf(stderr, "%s: wrong from byte %llu of %llu on\n", what, (unsigned long long)wrong,
            (unsigned long long)bytes);
    _exit(1);
}

/* --- connections --------------------------------------------------------------------------- */

static void open_pipes(struct bench *bench, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct pipe *pipe = &bench->pipes[i];

        must(gpu_stream_create(bench->gpu, &pipe->stream));
        must(gpu_pinned_alloc(bench->gpu, bench->ring * bench->slice, &pipe->ring));
        memset(pipe->ring.host, POISON, pipe->ring.bytes); /* no page is new in a round */
        for (unsigned k = 0; k < bench->ring; k++)
            must(gpu_event_create(bench->gpu, &pipe->events[k]));
    }
}

static void close_pipes(struct bench *bench, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct pipe *pipe = &bench->pipes[i];

        for (unsigned k = 0; k < bench->ring; k++)
            gpu_event_destroy(pipe->events[k]);
        gpu_stream_destroy(pipe->stream);
        gpu_pinned_free(bench->gpu, &pipe->ring);
    }
}

/* A comm in the direction of `to`, and how many sockets it got. */
static unsigned open_comm(struct bench *bench, unsigned sockets, enum side to,
                          struct net_comm **comm, struct net_memory **memory)
{
    void *data = (void *)(uintptr_t)bench->data.address;
    struct net_link_options options;
    struct net_link link;

    must(net_link_defaults(WIRE_MATCH_TAG, &options));
    if (sockets != DEFAULT_SOCKETS) {
        options.sockets = (uint8_t)sockets;
        options.largest_slice = NET_HOST_SHARE * bench->slice;
    }
    pair_link(&bench->pair, &options, to, &link);
    must(net_comm_create(&link, bench->pair.side == to ? NET_RECEIVER : NET_SENDER, comm));
    must(net_register(*comm, data, bench->data.bytes, memory));
    pair_meet(&bench->pair);
    return link.sockets;
}

static void close_comm(struct net_comm *comm, struct net_memory *memory)
{
    net_deregister(comm, memory);
    net_comm_close(comm);
}

/* --- bandwidth ----------------------------------------------------------------------------- */

/* One of the threads that move a round's bytes: its share of them, [at, at + share). */
struct mover {
    struct bench *bench;
    enum way way;
    unsigned movers;
    unsigned number;
    uint64_t at;
    uint64_t share;
    uint64_t message;
    pthread_t thread;
};

/* Where the share of this mover begins; behind the last one: all bytes. */
static uint64_t share_begins(uint64_t bytes, unsigned number, unsigned movers)
{
    return bytes / PAGE * number / movers * PAGE;
}

/* All of [at, at + bytes) of host memory, through the mover's socket. */
static void pass(const struct mover *mover, uint8_t *at, uint64_t bytes)
{
    const struct pair *pair = &mover->bench->pair;
    int fd = pair->streams[mover->number];

    while (bytes > 0) {
        ssize_t did =
            pair->side == SIDE_SENDER ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);

        must_be(did > 0);
        at += did;
        bytes -= (uint64_t)did;
    }
}

static void move_raw(const struct mover *mover)
{
    for (uint64_t done = 0; done < mover->share; done += RAW_CALL_BYTES)
        pass(mover, mover->bench->host_data + mover->at + done,
             least(RAW_CALL_BYTES, mover->share - done));
}

/* A slice of the mover's share, and the place in the ring that it goes through. */
struct step {
    gpu_address device;
    uint8_t *host;
    uint64_t bytes;
    struct gpu_event *event;
};

static struct step step_of(const struct mover *mover, uint64_t number)
{
    const struct bench *bench = mover->bench;
    const struct pipe *pipe = &bench->pipes[mover->number];
    uint64_t place = number % bench->ring;
    uint64_t offset = number * bench->slice;

    return (struct step){.device = bench->data.address + mover->at + offset,
                         .host = (uint8_t *)pipe->ring.host + place * bench->slice,
                         .bytes = least(bench->slice, mover->share - offset),
                         .event = pipe->events[place]};
}

static uint64_t steps_of(const struct mover *mover)
{
    return (mover->share + mover->bench->slice - 1) / mover->bench->slice;
}

static void send_from_gpu(const struct mover *mover, uint64_t deadline)
{
    struct gpu_stream *stream = mover->bench->pipes[mover->number].stream;
    uint64_t ahead = mover->bench->ring - 1; /* copies that are issued before their turn */
    uint64_t steps = steps_of(mover);
    uint64_t issued = 0;

    for (uint64_t i = 0; i < steps; i++) {
        struct step step;

        for (; issued < steps && issued <= i + ahead; issued++) {
            step = step_of(mover, issued);
            must(gpu_copy_to_host(stream, step.host, step.device, step.bytes));
            must(gpu_event_record(step.event, stream));
        }
        step = step_of(mover, i);
        must(gpu_event_wait(step.event, deadline));
        pass(mover, step.host, step.bytes);
    }
}

static void receive_to_gpu(const struct mover *mover, uint64_t deadline)
{
    const struct pipe *pipe = &mover->bench->pipes[mover->number];
    uint64_t steps = steps_of(mover);

    for (uint64_t i = 0; i < steps; i++) {
        struct step step = step_of(mover, i);

        must(gpu_event_wait(step.event, deadline));
        pass(mover, step.host, step.bytes);
        must(gpu_copy_to_device(pipe->stream, step.device, step.host, step.bytes));
        must(gpu_event_record(step.event, pipe->stream));
    }
    for (unsigned k = 0; k < mover->bench->ring; k++)
        must(gpu_event_wait(pipe->events[k], deadline));
}

static bool start_one(const struct mover *mover, uint64_t at, struct net_request **request)
{
    const struct bench *bench = mover->bench;
    const struct net_buffer buffer = {.data = (void *)(uintptr_t)(bench->data.address + at),
                                      .bytes = least(mover->message, mover->share - at),
                                      .memory = bench->memory};

    must(bench->pair.side == SIDE_SENDER ? net_isend_buffer(bench->comm, &buffer, 1, request)
                                         : net_irecv_buffer(bench->comm, &buffer, 1, request));
    return *request != NULL;
}

static void move_tcpx(const struct mover *mover, uint64_t deadline)
{
    struct net_request *window[WINDOW] = {NULL};
    uint64_t started = 0;
    uint64_t finished = 0;
    unsigned first = 0;
    unsigned used = 0;

    while (finished < mover->share) {
        uint64_t expected = least(mover->message, mover->share - finished);
        uint64_t bytes = 0;
        bool done = false;

        while (used < WINDOW && started < mover->share &&
               start_one(mover, started, &window[(first + used) % WINDOW])) {
            started += least(mover->message, mover->share - started);
            used++;
        }
        must(net_wait(window[first], deadline, &done, &bytes));
        if (!done)
            die("nothing moves any more");
        if (bytes != expected)
            die("tcpx: a message of another length");
        finished += expected;
        first = (first + 1) % WINDOW;
        used--;
    }
}

static void *run_mover(void *argument)
{
    const struct mover *mover = argument;
    const struct pair *pair = &mover->bench->pair;
    uint64_t deadline = deadline_after_ms(LIMIT_MS);

    pair_begin_span(pair, mover->movers);
    if (mover->way == WAY_RAW)
        move_raw(mover);
    else if (mover->way == WAY_TCPX)
        move_tcpx(mover, deadline);
    else if (pair->side == SIDE_SENDER)
        send_from_gpu(mover, deadline);
    else
        receive_to_gpu(mover, deadline);
    pair_end_span(pair);
    return NULL;
}

/* One way of one round; both results per second and per GB are of 10^9 bytes. */
static void run_round(struct bench *bench, enum way way, unsigned streams, uint64_t message,
                      uint64_t bytes, double *rate, double *cpu)
{
    struct mover movers[MOST_STREAMS];
    const struct pair *pair = &bench->pair;
    struct pair_shared *shared = pair->shared;
    enum place place = way == WAY_RAW ? PLACE_HOST : PLACE_GPU;
    unsigned count = way == WAY_TCPX ? 1 : streams;
    double before;

    bench->seed++;
    if (pair->side == SIDE_SENDER)
        fill(bench, place, 0, bytes);
    else
        poison(bench, place, 0, bytes);
    pair_reset_span(pair);
    pair_meet(pair);
    before = cpu_seconds();
    for (unsigned i = 0; i < count; i++) {
        uint64_t at = share_begins(bytes, i, count);

        movers[i] = (struct mover){.bench = bench,
                                   .way = way,
                                   .movers = count,
                                   .number = i,
                                   .at = at,
                                   .share = share_begins(bytes, i + 1, count) - at,
                                   .message = message};
        must_be(pthread_create(&movers[i].thread, NULL, run_mover, &movers[i]) == 0);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(movers[i].thread, NULL);
    shared->cpu_seconds[pair->side] = cpu_seconds() - before;
    pair_meet(pair);
    if (pair->side == SIDE_RECEIVER)
        verify(bench, place, 0, bytes, way_names[way]);
    *rate = (double)bytes / (double)(shared->to - shared->from);
    *cpu = (shared->cpu_seconds[SIDE_SENDER] + shared->cpu_seconds[SIDE_RECEIVER]) * 1e9 /
           (double)bytes;
}

static void name_of_row(uint64_t message, unsigned sockets, char name[32])
{
    if (sockets == DEFAULT_SOCKETS)
        snprintf(name, 32, "%llu MiB x default", (unsigned long long)(message / MIB));
    else
        snprintf(name, 32, "%llu MiB x %u", (unsigned long long)(message / MIB), sockets);
}

static bool is_wanted(const struct bench *bench, uint64_t message, unsigned sockets)
{
    char name[32];

    name_of_row(message, sockets, name);
    return message <= bench->bytes && strstr(name, bench->row) != NULL;
}

static bool any_is_wanted(const struct bench *bench, unsigned sockets)
{
    for (size_t i = 0; i < sizeof message_sizes / sizeof *message_sizes; i++)
        if (is_wanted(bench, message_sizes[i], sockets))
            return true;
    return false;
}

static void measure_row(struct bench *bench, uint64_t message, unsigned sockets, unsigned streams)
{
    static double rates[WAYS][MOST_ROUNDS];
    static double cpus[WAYS][MOST_ROUNDS];
    double rate[WAYS];
    double cpu[WAYS];
    char name[32];

    for (int round = 0; round < bench->rounds; round++)
        for (unsigned turn = 0; turn < WAYS; turn++) {
            enum way way = (turn + (unsigned)round) % WAYS;

            run_round(bench, way, streams, message, bench->bytes, &rates[way][round],
                      &cpus[way][round]);
        }
    if (bench->pair.side == SIDE_RECEIVER)
        return;
    for (enum way way = 0; way < WAYS; way++) {
        rate[way] = sorted_at(rates[way], bench->rounds, 0.5);
        cpu[way] = sorted_at(cpus[way], bench->rounds, 0.5);
    }
    name_of_row(message, sockets, name);
    printf("%-20s | %8.2f %8.2f %8.2f | %8.2f %8.2f | %8.2f %8.2f\n", name, rate[WAY_RAW],
           rate[WAY_PIPELINE], rate[WAY_TCPX], rate[WAY_TCPX] / rate[WAY_PIPELINE],
           rate[WAY_TCPX] / rate[WAY_RAW], cpu[WAY_PIPELINE], cpu[WAY_TCPX]);
    fflush(stdout);
}

static void measure_sockets(struct bench *bench, unsigned sockets)
{
    bool prints = bench->pair.side == SIDE_SENDER;
    unsigned got = open_comm(bench, sockets, SIDE_RECEIVER, &bench->comm, &bench->memory);
    unsigned streams = sockets == DEFAULT_SOCKETS ? got : sockets;
    double ignored;

    if (prints && sockets == DEFAULT_SOCKETS)
        printf("# default: %u sockets\n", got);
    if (prints && got != streams)
        printf("# tcpx got %u sockets instead of %u\n", got, streams);
    pair_open_streams(&bench->pair, streams);
    open_pipes(bench, streams);
    for (enum way way = 0; way < WAYS; way++) /* warms up */
        run_round(bench, way, streams, MIB, bench->bytes / PAGE / 4 * PAGE, &ignored, &ignored);
    for (size_t i = 0; i < sizeof message_sizes / sizeof *message_sizes; i++)
        if (is_wanted(bench, message_sizes[i], sockets))
            measure_row(bench, message_sizes[i], sockets, streams);
    pair_meet(&bench->pair);
    close_comm(bench->comm, bench->memory);
    close_pipes(bench, streams);
    pair_close_streams(&bench->pair, streams);
}

static void measure_bandwidth(struct bench *bench)
{
    if (bench->pair.side == SIDE_SENDER)
        printf("%-20s | %8s %8s %8s | %8s %8s | %8s %8s\n", "messages x sockets", "raw GB/s",
               "pipeline", "tcpx", "/ pipe", "/ raw", "s/GB: pipe", "tcpx");
    for (size_t i = 0; i < sizeof socket_counts / sizeof *socket_counts; i++)
        if (any_is_wanted(bench, socket_counts[i]))
            measure_sockets(bench, socket_counts[i]);
}

/* --- latency ------------------------------------------------------------------------------- */

/* This side's two comms, and the data as each of them knows it. */
struct talk {
    struct net_comm *out;
    struct net_comm *in;
    struct net_memory *out_memory;
    struct net_memory *in_memory;
    enum place place; /* where this block's messages lie */
};

static struct net_buffer small(const struct bench *bench, const struct talk *talk,
                               struct net_memory *memory, uint64_t at)
{
    uint64_t gpu = bench->data.address + at;
    void *data = talk->place == PLACE_HOST ? bench->host_data + at : (void *)(uintptr_t)gpu;

    return (struct net_buffer){
        .data = data, .bytes = SMALL, .memory = talk->place == PLACE_GPU ? memory : NULL};
}

static void spin(struct net_request *request)
{
    uint64_t bytes = 0;
    bool done = false;

    while (!done)
        must(net_test(request, &done, &bytes));
    if (bytes != SMALL)
        die("a message of another length");
}

static struct net_request *post(const struct bench *bench, const struct talk *talk, int number)
{
    struct net_buffer buffer =
        small(bench, talk, talk->in_memory, INBOX + (uint64_t)number * SMALL);
    struct net_request *request;

    must(net_irecv_buffer(talk->in, &buffer, 1, &request));
    if (request == NULL)
        die("a busy comm");
    return request;
}

/* The sender's own message, or the receiver's answer: what it got. */
static void say(const struct bench *bench, const struct talk *talk, int number)
{
    uint64_t box = bench->pair.side == SIDE_SENDER ? OUTBOX : INBOX;
    struct net_buffer buffer = small(bench, talk, talk->out_memory, box + (uint64_t)number * SMALL);
    struct net_request *request;

    must(net_isend_buffer(talk->out, &buffer, 1, &request));
    if (request == NULL)
        die("a busy comm");
    spin(request);
}

/* Each side has its next receive posted before its peer can send for it. */
static void run_block(struct bench *bench, const struct talk *talk, double *times)
{
    bool begins = bench->pair.side == SIDE_SENDER;
    struct net_request *request;

    bench->seed++;
    if (begins)
        fill(bench, talk->place, OUTBOX, BOX);
    poison(bench, talk->place, INBOX, BOX);
    request = post(bench, talk, 0);
    pair_meet(&bench->pair);
    for (int i = 0; i < BLOCK; i++) {
        uint64_t from = clock_now();

        if (begins)
            say(bench, talk, i);
        spin(request);
        if (i + 1 < BLOCK)
            request = post(bench, talk, i + 1);
        if (!begins)
            say(bench, talk, i);
        times[i] = (double)(clock_now() - from) * 0.5e-3;
    }
    verify(bench, talk->place, INBOX, BOX, talk->place == PLACE_GPU ? "4 KiB, GPU" : "4 KiB, host");
}

static void measure_latency(struct bench *bench)
{
    static const char *const names[PLACES] = {"4 KiB, GPU to GPU", "4 KiB, host to host"};
    bool begins = bench->pair.side == SIDE_SENDER;
    int count = bench->ping_pongs / BLOCK * BLOCK;
    double *times[PLACES];
    struct talk talk;

    if (strstr("4 KiB", bench->row) == NULL)
        return;
    open_comm(bench, 1, SIDE_RECEIVER, begins ? &talk.out : &talk.in,
              begins ? &talk.out_memory : &talk.in_memory);
    open_comm(bench, 1, SIDE_SENDER, begins ? &talk.in : &talk.out,
              begins ? &talk.in_memory : &talk.out_memory);
    for (enum place place = 0; place < PLACES; place++) {
        times[place] = calloc((size_t)count, sizeof **times);
        must_be(times[place] != NULL);
    }
    for (int i = -BLOCK; i < count; i += BLOCK) /* the first block warms up */
        for (enum place place = 0; place < PLACES; place++) {
            talk.place = place;
            run_block(bench, &talk, times[place] + (i < 0 ? 0 : i));
        }
    pair_meet(&bench->pair);
    close_comm(talk.out, talk.out_memory);
    close_comm(talk.in, talk.in_memory);
    if (begins)
        printf("%-20s | %8s %8s\n", "one way, us", "median", "p99");
    for (enum place place = 0; place < PLACES; place++) {
        double middle = sorted_at(times[place], count, 0.5);
        double late = sorted_at(times[place], count, 0.99);

        if (begins)
            printf("%-20s | %8.2f %8.2f\n", names[place], middle, late);
        free(times[place]);
    }
    fflush(stdout);
}

/* --- two processes ------------------------------------------------------------------------- */

static void run_side(struct bench *bench)
{
    const char *backend;
    const char *reason;

    must(gpu_backend(&backend, &reason));
    if (bench->pair.side == SIDE_SENDER)
        printf("# GPU: %s (%s)\n", backend, reason);
    must(gpu_open(0, &bench->gpu));
    must(gpu_stream_create(bench->gpu, &bench->stream));
    must(gpu_memory_alloc(bench->gpu, bench->bytes, PAGE, &bench->data));
    must(gpu_memory_alloc(bench->gpu, sizeof(struct gpu_verify_result), 8, &bench->answer));
    must(gpu_pinned_alloc(bench->gpu, sizeof(struct gpu_verify_result), &bench->answer_host));
    bench->host_data = mmap(NULL, bench->bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must_be(bench->host_data != MAP_FAILED);
    measure_bandwidth(bench);
    measure_latency(bench);
    munmap(bench->host_data, bench->bytes);
    gpu_pinned_free(bench->gpu, &bench->answer_host);
    gpu_memory_free(bench->gpu, &bench->answer);
    gpu_memory_free(bench->gpu, &bench->data);
    gpu_stream_destroy(bench->stream);
    gpu_close(bench->gpu);
}

static int usage(void)
{
    fprintf(stderr, "usage: gpu [--rounds N] [--bytes N] [--slice N] [--ring N] [--threads N]\n"
                    "           [--row TEXT] [--quick]\n");
    return 2;
}

static bool take_option(struct bench *bench, const char *name, const char *value)
{
    uint64_t number = 0;
    bool is_size = parse_size(value, &number);

    if (strcmp(name, "--rounds") == 0 && is_size && number > 0 && number <= MOST_ROUNDS)
        bench->rounds = (int)number;
    else if (strcmp(name, "--bytes") == 0 && is_size && number >= MIB && number % PAGE == 0)
        bench->bytes = number;
    else if (strcmp(name, "--slice") == 0 && is_size && number > 0 && number % PAGE == 0)
        bench->slice = number;
    else if (strcmp(name, "--ring") == 0 && is_size && number > 0 && number <= MOST_RING)
        bench->ring = (unsigned)number;
    else if (strcmp(name, "--threads") == 0)
        return setenv("UCCL_TCPX_THREADS", value, 1) == 0;
    else if (strcmp(name, "--row") == 0)
        bench->row = value;
    else
        return false;
    return true;
}

int main(int argument_count, char **arguments)
{
    static struct bench bench = {.bytes = 512 * MIB,
                                 .slice = MIB / 2,
                                 .ring = 8,
                                 .rounds = 3,
                                 .ping_pongs = 20000,
                                 .row = ""};

    for (int i = 1; i < argument_count; i++) {
        if (strcmp(arguments[i], "--quick") == 0) {
            bench.rounds = 1;
            bench.bytes = 64 * MIB;
            bench.ping_pongs = 2000;
        } else if (i + 1 == argument_count ||
                   !take_option(&bench, arguments[i], arguments[i + 1])) {
            return usage();
        } else {
            i++;
        }
    }
    printf("# %ld cores; medians of %d rounds of %llu MiB; GB are 10^9 bytes; every byte verified; "
           "pipeline: %u slices of %llu KiB a stream\n",
           sysconf(_SC_NPROCESSORS_ONLN), bench.rounds, (unsigned long long)(bench.bytes / MIB),
           bench.ring, (unsigned long long)(bench.slice >> 10));
    pair_fork(&bench.pair);
    run_side(&bench);
    pair_join(&bench.pair);
    return 0;
}
