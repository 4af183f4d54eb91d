/* What programs that measure the transport do: transfer.h. */
#include "bench/transfer.h"
#include "base/parse.h"
#include "gpu/kernels.h"
#include "net/transport.h"

enum {
    MOST_ROUNDS = 1000,
    MOST_RING = 64,
    PAGE = 4096,
    RAW_CALL_BYTES = 512 << 10,
    WINDOW = 8,
    POISON = 0xee,
    OUTBOX = 0, /* of the latency's messages: both boxes fit into the smallest buffer, 1 MiB */
    INBOX = 512 << 10,
};

enum place { PLACE_GPU, PLACE_HOST };

static const char *const way_names[WAYS] = {"raw", "pipeline", "tcpx"};
static const char *const talk_names[] = {"raw", "raw, two connections", "host to host",
                                         "GPU to GPU"};

/* What one stream of the pipeline has beside its socket. */
struct pipe {
    struct gpu_stream *stream;
    struct gpu_pinned ring;
    struct gpu_event *events[MOST_RING]; /* the copy from or to this slice is done */
};

struct bench {
    const struct transfer_plan *plan;
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
    bool polls;
    uint64_t seed; /* of this round */

    struct pipe pipes[MOST_STREAMS];
    struct net_comm *comm;
    struct net_memory *memory; /* the data, as the comm knows it */
};

/* --- data ---------------------------------------------------------------------------------- */

static void fill(struct bench *bench, enum place place, uint64_t at, uint64_t bytes)
{
    if (place == PLACE_GPU) {
        must(gpu_fill_pattern(bench->stream, bench->data.address + at, bytes, bench->seed, 0));
        drain(bench->gpu, bench->stream);
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
    drain(bench->gpu, bench->stream);
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
    drain(bench->gpu, bench->stream);
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
    *memory = NULL;
    if (bench->plan->in_gpu)
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

/* All of [at, at + bytes) of host memory. */
static void pass(int fd, bool sends, uint8_t *at, uint64_t bytes, int flags)
{
    while (bytes > 0) {
        ssize_t did =
            sends ? send(fd, at, bytes, MSG_NOSIGNAL | flags) : recv(fd, at, bytes, flags);

        if (did < 0 && errno == EAGAIN)
            continue;
        must_be(did > 0);
        at += did;
        bytes -= (uint64_t)did;
    }
}

static void pass_mover(const struct mover *mover, uint8_t *at, uint64_t bytes)
{
    const struct pair *pair = &mover->bench->pair;

    pass(pair->streams[mover->number], pair->side == SIDE_SENDER, at, bytes, 0);
}

static void move_raw(const struct mover *mover)
{
    uint64_t call = least(mover->message, RAW_CALL_BYTES);

    for (uint64_t done = 0; done < mover->share; done += call)
        pass_mover(mover, mover->bench->host_data + mover->at + done,
                   least(call, mover->share - done));
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
        pass_mover(mover, step.host, step.bytes);
    }
}

static void receive_to_gpu(const struct mover *mover, uint64_t deadline)
{
    const struct pipe *pipe = &mover->bench->pipes[mover->number];
    uint64_t steps = steps_of(mover);

    for (uint64_t i = 0; i < steps; i++) {
        struct step step = step_of(mover, i);

        must(gpu_event_wait(step.event, deadline));
        pass_mover(mover, step.host, step.bytes);
        must(gpu_copy_to_device(pipe->stream, step.device, step.host, step.bytes));
        must(gpu_event_record(step.event, pipe->stream));
    }
    for (unsigned k = 0; k < mover->bench->ring; k++)
        must(gpu_event_wait(pipe->events[k], deadline));
}

/* A part of the data, in GPU memory or host memory. */
static struct net_buffer buffer_of(const struct bench *bench, enum place place, uint64_t at,
                                   uint64_t bytes, struct net_memory *memory)
{
    gpu_address gpu = bench->data.address + at;

    return (struct net_buffer){.data = place == PLACE_GPU ? (void *)(uintptr_t)gpu
                                                          : bench->host_data + at,
                               .bytes = bytes,
                               .memory = place == PLACE_GPU ? memory : NULL};
}

static bool start_one(const struct mover *mover, uint64_t at, struct net_request **request)
{
    const struct bench *bench = mover->bench;
    const struct net_buffer buffer =
        buffer_of(bench, bench->plan->in_gpu ? PLACE_GPU : PLACE_HOST, at,
                  least(mover->message, mover->share - at), bench->memory);

    must(bench->pair.side == SIDE_SENDER ? net_isend_buffer(bench->comm, &buffer, 1, request)
                                         : net_irecv_buffer(bench->comm, &buffer, 1, request));
    return *request != NULL;
}

static void wait_for(const struct bench *bench, struct net_request *request, uint64_t expected,
                     uint64_t deadline)
{
    uint64_t bytes = 0;
    bool done = false;

    if (!bench->polls)
        must(net_wait(request, deadline, &done, &bytes));
    while (!done) {
        must(net_test(request, &done, &bytes));
        if (!done && deadline_passed(deadline))
            die("nothing moves any more");
        if (!done)
            sched_yield();
    }
    if (bytes != expected)
        die("tcpx: a message of another length");
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

        while (used < WINDOW && started < mover->share &&
               start_one(mover, started, &window[(first + used) % WINDOW])) {
            started += least(mover->message, mover->share - started);
            used++;
        }
        wait_for(mover->bench, window[first], expected, deadline);
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
    enum place place = way == WAY_RAW || !bench->plan->in_gpu ? PLACE_HOST : PLACE_GPU;
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
    int length = snprintf(name, 32, "%llu %s x ",
                          (unsigned long long)(message < MIB ? message >> 10 : message >> 20),
                          message < MIB ? "KiB" : "MiB");

    snprintf(name + length, 32 - (size_t)length, sockets == DEFAULT_SOCKETS ? "default" : "%u",
             sockets);
}

static bool is_wanted(const struct bench *bench, uint64_t message, unsigned sockets)
{
    char name[32];

    name_of_row(message, sockets, name);
    return message <= bench->bytes && strstr(name, bench->row) != NULL;
}

static bool any_is_wanted(const struct bench *bench, unsigned sockets)
{
    for (size_t i = 0; i < TRANSFER_SIZES; i++)
        if (is_wanted(bench, bench->plan->message_sizes[i], sockets))
            return true;
    return false;
}

/* A value of each way, and what tcpx, the last of them, is of each other. */
static void print_values(const struct transfer_plan *plan, double values[WAYS][MOST_ROUNDS],
                         int rounds)
{
    double medians[WAYS] = {0};
    double tcpx = 0;

    printf(" |");
    for (int i = 0; i < plan->way_count; i++) {
        tcpx = sorted_at(values[plan->ways[i]], rounds, 0.5);
        medians[i] = tcpx;
        printf(" %8.2f", tcpx);
    }
    printf(" |");
    for (int i = 0; i < plan->way_count - 1; i++)
        printf(" %8.2f", tcpx / medians[i]);
}

static void print_names(const struct transfer_plan *plan, const char *unit)
{
    printf(" |");
    for (int i = 0; i < plan->way_count; i++)
        printf(" %8s", i == 0 ? unit : way_names[plan->ways[i]]);
    printf(" |");
    for (int i = 0; i < plan->way_count - 1; i++)
        printf(" %8s", i == 0 ? "/ raw" : "/ pipe");
}

static void measure_row(struct bench *bench, uint64_t message, unsigned sockets, unsigned streams)
{
    static double rates[WAYS][MOST_ROUNDS];
    static double cpus[WAYS][MOST_ROUNDS];
    const struct transfer_plan *plan = bench->plan;
    uint64_t bytes = message < MIB ? bench->bytes / PAGE / 4 * PAGE : bench->bytes;
    char name[32];

    for (int round = 0; round < bench->rounds; round++)
        for (int turn = 0; turn < plan->way_count; turn++) {
            enum way way = plan->ways[(turn + round) % plan->way_count];

            run_round(bench, way, streams, message, bytes, &rates[way][round], &cpus[way][round]);
        }
    if (bench->pair.side == SIDE_RECEIVER)
        return;
    name_of_row(message, sockets, name);
    printf("%-20s", name);
    print_values(plan, rates, bench->rounds);
    print_values(plan, cpus, bench->rounds);
    printf("\n");
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
    open_pipes(bench, bench->plan->in_gpu ? streams : 0);
    for (int i = 0; i < bench->plan->way_count; i++) /* warms up */
        run_round(bench, bench->plan->ways[i], streams, MIB, bench->bytes / PAGE / 4 * PAGE,
                  &ignored, &ignored);
    for (size_t i = 0; i < TRANSFER_SIZES; i++)
        if (is_wanted(bench, bench->plan->message_sizes[i], sockets))
            measure_row(bench, bench->plan->message_sizes[i], sockets, streams);
    pair_meet(&bench->pair);
    close_comm(bench->comm, bench->memory);
    close_pipes(bench, bench->plan->in_gpu ? streams : 0);
    pair_close_streams(&bench->pair, streams);
}

static void measure_bandwidth(struct bench *bench)
{
    const struct transfer_plan *plan = bench->plan;

    if (bench->pair.side == SIDE_SENDER) {
        printf("%-20s", "messages x sockets");
        print_names(plan, "raw GB/s");
        print_names(plan, "CPU s/GB");
        printf("\n");
    }
    for (int i = 0; i < plan->socket_choices; i++)
        if (any_is_wanted(bench, plan->socket_counts[i]))
            measure_sockets(bench, plan->socket_counts[i]);
}

/* --- latency ------------------------------------------------------------------------------- */

/* This side's two comms, and the data as each of them knows it. */
struct talk {
    struct net_comm *out;
    struct net_comm *in;
    struct net_memory *out_memory;
    struct net_memory *in_memory;
    enum talk_kind kind; /* of this block */
    enum place place;
};

static void spin(struct net_request *request, uint64_t expected)
{
    uint64_t bytes = 0;
    bool done = false;

    if (request == NULL)
        die("a busy comm");
    while (!done)
        must(net_test(request, &done, &bytes));
    if (bytes != expected)
        die("a message of another length");
}

static bool talk_is_raw(const struct talk *talk)
{
    return talk->kind == TALK_RAW || talk->kind == TALK_RAW_APART;
}

/* The second one is for the answers. */
static unsigned raw_stream(const struct bench *bench, const struct talk *talk, bool says)
{
    return talk->kind == TALK_RAW_APART && (bench->pair.side == SIDE_SENDER) != says;
}

/* The receive of a message, before its peer can send it; raw sockets have none. */
static struct net_request *post(const struct bench *bench, const struct talk *talk, int number)
{
    uint64_t small = bench->plan->small;
    struct net_buffer buffer =
        buffer_of(bench, talk->place, INBOX + (uint64_t)number * small, small, talk->in_memory);
    struct net_request *request = NULL;

    if (!talk_is_raw(talk) && number < bench->plan->block)
        must(net_irecv_buffer(talk->in, &buffer, 1, &request));
    return request;
}

static void hear(const struct bench *bench, const struct talk *talk, int number,
                 struct net_request *request)
{
    uint64_t small = bench->plan->small;

    if (talk_is_raw(talk))
        pass(bench->pair.streams[raw_stream(bench, talk, false)], false,
             bench->host_data + INBOX + (uint64_t)number * small, small, MSG_DONTWAIT);
    else
        spin(request, small);
}

/* The sender's own message, or the receiver's answer: what it got. */
static void say(const struct bench *bench, const struct talk *talk, int number)
{
    uint64_t small = bench->plan->small;
    uint64_t box = bench->pair.side == SIDE_SENDER ? OUTBOX : INBOX;
    uint64_t at = box + (uint64_t)number * small;
    struct net_buffer buffer = buffer_of(bench, talk->place, at, small, talk->out_memory);
    struct net_request *request;

    if (talk_is_raw(talk)) {
        pass(bench->pair.streams[raw_stream(bench, talk, true)], true, bench->host_data + at, small,
             MSG_DONTWAIT);
        return;
    }
    must(net_isend_buffer(talk->out, &buffer, 1, &request));
    spin(request, small);
}

/* Each side has its next receive posted before its peer can send for it. */
static void run_block(struct bench *bench, const struct talk *talk, double *times)
{
    bool begins = bench->pair.side == SIDE_SENDER;
    uint64_t box = (uint64_t)bench->plan->block * bench->plan->small;
    struct net_request *request;

    bench->seed++;
    if (begins)
        fill(bench, talk->place, OUTBOX, box);
    poison(bench, talk->place, INBOX, box);
    request = post(bench, talk, 0);
    pair_meet(&bench->pair);
    for (int i = 0; i < bench->plan->block; i++) {
        uint64_t from = clock_now();

        if (begins)
            say(bench, talk, i);
        hear(bench, talk, i, request);
        request = post(bench, talk, i + 1);
        if (!begins)
            say(bench, talk, i);
        times[i] = (double)(clock_now() - from) * 0.5e-3;
    }
    verify(bench, talk->place, INBOX, box, talk_names[talk->kind]);
}

static void measure_latency(struct bench *bench)
{
    const struct transfer_plan *plan = bench->plan;
    bool begins = bench->pair.side == SIDE_SENDER;
    int count = bench->ping_pongs / plan->block * plan->block;
    double *times[TRANSFER_TALKS];
    struct talk talk;

    if (strstr(plan->small_name, bench->row) == NULL)
        return;
    pair_open_streams(&bench->pair, 2);
    open_comm(bench, 1, SIDE_RECEIVER, begins ? &talk.out : &talk.in,
              begins ? &talk.out_memory : &talk.in_memory);
    open_comm(bench, 1, SIDE_SENDER, begins ? &talk.in : &talk.out,
              begins ? &talk.in_memory : &talk.out_memory);
    for (int k = 0; k < plan->talk_count; k++) {
        times[k] = calloc((size_t)count, sizeof **times);
        must_be(times[k] != NULL);
    }
    for (int i = -plan->block; i < count; i += plan->block) /* the first block warms up */
        for (int k = 0; k < plan->talk_count; k++) {
            talk.kind = plan->talks[k];
            talk.place = talk.kind == TALK_GPU ? PLACE_GPU : PLACE_HOST;
            run_block(bench, &talk, times[k] + (i < 0 ? 0 : i));
        }
    pair_meet(&bench->pair);
    close_comm(talk.out, talk.out_memory);
    close_comm(talk.in, talk.in_memory);
    pair_close_streams(&bench->pair, 2);
    if (begins)
        printf("%s one way, us%*s | %8s %8s\n", plan->small_name,
               (int)(8 - strlen(plan->small_name)), "", "median", "p99");
    for (int k = 0; k < plan->talk_count; k++) {
        double middle = sorted_at(times[k], count, 0.5);
        double late = sorted_at(times[k], count, 0.99);

        if (begins)
            printf("%-20s | %8.2f %8.2f\n", talk_names[plan->talks[k]], middle, late);
        free(times[k]);
    }
    fflush(stdout);
}

/* --- two processes ------------------------------------------------------------------------- */

static void open_gpu(struct bench *bench)
{
    const char *backend;
    const char *reason;

    must(gpu_backend(&backend, &reason));
    if (bench->pair.side == SIDE_SENDER)
        printf("# GPU: %s (%s); pipeline: %u slices of %llu KiB a stream\n", backend, reason,
               bench->ring, (unsigned long long)(bench->slice >> 10));
    must(gpu_open(0, &bench->gpu));
    must(gpu_stream_create(bench->gpu, &bench->stream));
    must(gpu_memory_alloc(bench->gpu, bench->bytes, PAGE, &bench->data));
    must(gpu_memory_alloc(bench->gpu, sizeof(struct gpu_verify_result), 8, &bench->answer));
    must(gpu_pinned_alloc(bench->gpu, sizeof(struct gpu_verify_result), &bench->answer_host));
}

static void close_gpu(struct bench *bench)
{
    gpu_pinned_free(bench->gpu, &bench->answer_host);
    gpu_memory_free(bench->gpu, &bench->answer);
    gpu_memory_free(bench->gpu, &bench->data);
    gpu_stream_destroy(bench->stream);
    gpu_close(bench->gpu);
}

static void run_side(struct bench *bench)
{
    if (bench->plan->in_gpu)
        open_gpu(bench);
    bench->host_data = mmap(NULL, bench->bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must_be(bench->host_data != MAP_FAILED);
    measure_bandwidth(bench);
    measure_latency(bench);
    munmap(bench->host_data, bench->bytes);
    if (bench->plan->in_gpu)
        close_gpu(bench);
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--rounds N] [--bytes N] [--slice N] [--ring N] [--threads N]\n"
            "       [--row TEXT] [--poll] [--quick]\n",
            program);
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

int transfer_main(const struct transfer_plan *plan, int argument_count, char **arguments)
{
    static struct bench bench = {
        .bytes = 512 * MIB, .slice = MIB / 2, .ring = 8, .ping_pongs = 20000, .row = ""};

    bench.plan = plan;
    bench.rounds = plan->rounds;
    for (int i = 1; i < argument_count; i++) {
        if (strcmp(arguments[i], "--quick") == 0) {
            bench.rounds = 1;
            bench.bytes = 64 * MIB;
            bench.ping_pongs = 2000;
        } else if (strcmp(arguments[i], "--poll") == 0) {
            bench.polls = true;
        } else if (i + 1 == argument_count ||
                   !take_option(&bench, arguments[i], arguments[i + 1])) {
            return usage(arguments[0]);
        } else {
            i++;
        }
    }
    printf(
        "# %ld cores; medians of %d rounds of %llu MiB; GB are 10^9 bytes; every byte verified\n",
        sysconf(_SC_NPROCESSORS_ONLN), bench.rounds, (unsigned long long)(bench.bytes / MIB));
    pair_fork(&bench.pair);
    run_side(&bench);
    pair_join(&bench.pair);
    return 0;
}
