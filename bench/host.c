/*
 * The transport between two processes on this machine, from host memory to host memory, beside raw
 * sockets in the same run. Raw: blocking sockets, on each side one thread per stream, calls of
 * 512 KiB or of one message if that is less. tcpx: one comm with as many sockets, one thread on
 * each side that keeps a window of messages going and waits for the oldest; with --poll it tests
 * and yields, as NCCL does.
 *
 * Both go round by round, by turns first, over the same buffers and over connections that live as
 * long as the row's number of sockets; rates are medians over rounds. Before each round the
 * sender's buffer gets that round's pattern and the receiver's is poisoned; after it every byte is
 * compared: a wrong one ends the program. The span is from when both sides are ready to when the
 * last of them is finished. CPU seconds are those of both processes in it.
 *
 * Then the latency of 8 bytes: half of a ping-pong, both sides spinning, over a raw non-blocking
 * socket beside two comms, one each way, in blocks by turns; each message carries its number.
 *
 * --rounds N, of each row, and --bytes N, in a round, are 7 and 512M; messages below 1 MiB move a
 * quarter of that. --slice N is the largest slice, 512K. --row TEXT measures only the rows whose
 * size and sockets, "1 MiB x 4", contain it. --quick is one round of 64M, and fewer ping-pongs.
 */
#include "base/parse.h"
#include "bench/bench.h"
#include "gpu/kernels.h"
#include "net/transport.h"

enum {
    MOST_ROUNDS = 1000,
    RAW_CALL_BYTES = 512 << 10,
    WINDOW = 8,
    POISON = 0xee,
    BLOCK = 500, /* ping-pongs */
};

enum way { WAY_RAW, WAY_TCPX, WAYS };

static const uint64_t message_sizes[] = {64 << 10, MIB, 16 * MIB, 256 * MIB};
static const unsigned stream_counts[] = {1, 2, 4, 8};

struct bench {
    struct pair pair;
    uint8_t *buffer;
    uint64_t bytes; /* of the buffer, and of a round */
    uint64_t slice;
    int rounds;
    int ping_pongs;
    const char *row;
    bool polls;
    uint64_t seed; /* of this round */

    struct net_comm *comm;
    struct net_comm *back; /* latency: from receiver to sender */
};

/* --- data ---------------------------------------------------------------------------------- */

static void prepare(struct bench *bench, uint64_t bytes)
{
    if (bench->pair.side == SIDE_RECEIVER) {
        memset(bench->buffer, POISON, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word = pattern_word(bench->seed, i);

        memcpy(bench->buffer + 8 * i, &word, 8);
    }
}

static void verify(struct bench *bench, uint64_t bytes, enum way way)
{
    if (bench->pair.side == SIDE_SENDER)
        return;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        uint64_t word = pattern_word(bench->seed, i);

        if (memcmp(bench->buffer + 8 * i, &word, 8) == 0)
            continue;
        fprintf(stderr, "%s: of 8 bytes at %llu some are wrong\n", way == WAY_RAW ? "raw" : "tcpx",
                (unsigned long long)i * 8);
        _exit(1);
    }
}

/* --- connections --------------------------------------------------------------------------- */

/* A comm in the direction of `to`. */
static void open_comm(struct bench *bench, unsigned sockets, enum side to, struct net_comm **comm)
{
    const struct net_link_options options = {.sockets = (uint8_t)sockets,
                                             .match = WIRE_MATCH_TAG,
                                             .framing = WIRE_INLINE,
                                             .eager_limit = 8192,
                                             .eager_credit = 65536,
                                             .largest_slice = NET_HOST_SHARE * bench->slice,
                                             .timeout_ms = LIMIT_MS,
                                             .handshake_ms = 5000};
    struct net_link link;

    pair_link(&bench->pair, &options, to, &link);
    must(net_comm_create(&link, bench->pair.side == to ? NET_RECEIVER : NET_SENDER, comm));
    pair_meet(&bench->pair);
}

/* --- bandwidth ----------------------------------------------------------------------------- */

/* One of the threads that move a round's bytes: its share of them. */
struct mover {
    struct bench *bench;
    enum way way;
    unsigned movers;
    unsigned number;
    uint64_t bytes;
    uint64_t message;
    pthread_t thread;
};

static void move_raw(const struct mover *mover)
{
    const struct bench *bench = mover->bench;
    uint64_t share = mover->bytes / mover->movers;
    uint64_t call = least(mover->message, RAW_CALL_BYTES);
    uint8_t *at = bench->buffer + mover->number * share;
    int fd = bench->pair.streams[mover->number];

    while (share > 0) {
        uint64_t want = least(call, share);
        ssize_t did = bench->pair.side == SIDE_SENDER ? send(fd, at, want, MSG_NOSIGNAL)
                                                      : recv(fd, at, want, 0);

        must_be(did > 0);
        at += did;
        share -= (uint64_t)did;
    }
}

static bool start_one(const struct mover *mover, uint64_t at, struct net_request **request)
{
    const struct bench *bench = mover->bench;
    uint64_t bytes = least(mover->message, mover->bytes - at);

    must(bench->pair.side == SIDE_SENDER
             ? net_isend(bench->comm, bench->buffer + at, bytes, 1, request)
             : net_irecv(bench->comm, bench->buffer + at, bytes, 1, request));
    return *request != NULL;
}

static void wait_for(const struct bench *bench, struct net_request *request, uint64_t deadline)
{
    bool done = false;

    if (!bench->polls)
        must(net_wait(request, deadline, &done, NULL));
    while (!done) {
        must(net_test(request, &done, NULL));
        if (!done && deadline_passed(deadline))
            die("nothing moves any more");
        if (!done)
            sched_yield();
    }
}

static void move_tcpx(const struct mover *mover)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    struct net_request *window[WINDOW] = {NULL};
    uint64_t started = 0;
    uint64_t finished = 0;
    unsigned first = 0;
    unsigned used = 0;

    while (finished < mover->bytes) {
        while (used < WINDOW && started < mover->bytes &&
               start_one(mover, started, &window[(first + used) % WINDOW])) {
            started += least(mover->message, mover->bytes - started);
            used++;
        }
        wait_for(mover->bench, window[first], deadline);
        finished += least(mover->message, mover->bytes - finished);
        first = (first + 1) % WINDOW;
        used--;
    }
}

static void *run_mover(void *argument)
{
    const struct mover *mover = argument;
    const struct pair *pair = &mover->bench->pair;

    pair_begin_span(pair, mover->movers);
    if (mover->way == WAY_RAW)
        move_raw(mover);
    else
        move_tcpx(mover);
    pair_end_span(pair);
    return NULL;
}

/* One way of one round; both results per second and per GB are of 10^9 bytes. */
static void run_round(struct bench *bench, enum way way, unsigned streams, uint64_t message,
                      uint64_t bytes, double *rate, double *cpu)
{
    struct mover movers[MOST_STREAMS];
    struct pair_shared *shared = bench->pair.shared;
    unsigned count = way == WAY_RAW ? streams : 1;
    double before;

    bench->seed++;
    prepare(bench, bytes);
    pair_reset_span(&bench->pair);
    pair_meet(&bench->pair);
    before = cpu_seconds();
    for (unsigned i = 0; i < count; i++) {
        movers[i] = (struct mover){.bench = bench,
                                   .way = way,
                                   .movers = count,
                                   .number = i,
                                   .bytes = bytes,
                                   .message = message};
        must_be(pthread_create(&movers[i].thread, NULL, run_mover, &movers[i]) == 0);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(movers[i].thread, NULL);
    shared->cpu_seconds[bench->pair.side] = cpu_seconds() - before;
    pair_meet(&bench->pair);
    verify(bench, bytes, way);
    *rate = (double)bytes / (double)(shared->to - shared->from);
    *cpu = (shared->cpu_seconds[SIDE_SENDER] + shared->cpu_seconds[SIDE_RECEIVER]) * 1e9 /
           (double)bytes;
}

static void name_of_row(uint64_t message, unsigned streams, char name[32])
{
    snprintf(name, 32, "%llu %s x %u",
             (unsigned long long)(message < MIB ? message >> 10 : message >> 20),
             message < MIB ? "KiB" : "MiB", streams);
}

static void measure_row(struct bench *bench, unsigned streams, uint64_t message)
{
    static double rates[WAYS][MOST_ROUNDS];
    static double cpus[WAYS][MOST_ROUNDS];
    uint64_t bytes = message < MIB ? bench->bytes / 4 : bench->bytes;
    double rate[WAYS];
    double cpu[WAYS];
    char name[32];

    name_of_row(message, streams, name);
    if (strstr(name, bench->row) == NULL)
        return;
    for (int round = 0; round < bench->rounds; round++)
        for (int turn = 0; turn < WAYS; turn++) {
            enum way way = (enum way)((turn + round) % WAYS);

            run_round(bench, way, streams, message, bytes, &rates[way][round], &cpus[way][round]);
        }
    if (bench->pair.side == SIDE_RECEIVER)
        return;
    for (enum way way = 0; way < WAYS; way++) {
        rate[way] = sorted_at(rates[way], bench->rounds, 0.5);
        cpu[way] = sorted_at(cpus[way], bench->rounds, 0.5);
    }
    printf("%-24s | %8.2f %8.2f %6.2f | %8.2f %8.2f %6.2f\n", name, rate[WAY_RAW], rate[WAY_TCPX],
           rate[WAY_TCPX] / rate[WAY_RAW], cpu[WAY_RAW], cpu[WAY_TCPX],
           cpu[WAY_TCPX] / cpu[WAY_RAW]);
    fflush(stdout);
}

static void measure_bandwidth(struct bench *bench)
{
    double ignored;

    if (bench->pair.side == SIDE_SENDER)
        printf("%-24s | %8s %8s %6s | %8s %8s %6s\n", "messages x sockets", "raw GB/s", "tcpx",
               "ratio", "CPU s/GB", "tcpx", "ratio");
    for (size_t i = 0; i < sizeof stream_counts / sizeof *stream_counts; i++) {
        pair_open_streams(&bench->pair, stream_counts[i]);
        open_comm(bench, stream_counts[i], SIDE_RECEIVER, &bench->comm);
        for (enum way way = 0; way < WAYS; way++) /* warms up */
            run_round(bench, way, stream_counts[i], MIB, bench->bytes / 4, &ignored, &ignored);
        for (size_t k = 0; k < sizeof message_sizes / sizeof *message_sizes; k++)
            measure_row(bench, stream_counts[i], message_sizes[k]);
        pair_meet(&bench->pair);
        net_comm_close(bench->comm);
        pair_close_streams(&bench->pair, stream_counts[i]);
    }
}

/* --- latency ------------------------------------------------------------------------------- */

static void raw_send(const struct bench *bench, uint64_t number)
{
    must_be(send(bench->pair.streams[0], &number, sizeof number, MSG_NOSIGNAL | MSG_DONTWAIT) ==
            (ssize_t)sizeof number);
}

static void raw_receive(const struct bench *bench, uint64_t number)
{
    uint64_t came = 0;
    size_t have = 0;

    while (have < sizeof came) {
        ssize_t got =
            recv(bench->pair.streams[0], (char *)&came + have, sizeof came - have, MSG_DONTWAIT);

        must_be(got > 0 || (got < 0 && errno == EAGAIN));
        have += got > 0 ? (size_t)got : 0;
    }
    if (came != number)
        die("raw: a wrong message");
}

static void raw_ping_pong(const struct bench *bench, uint64_t number)
{
    if (bench->pair.side == SIDE_SENDER)
        raw_send(bench, number);
    raw_receive(bench, number);
    if (bench->pair.side == SIDE_RECEIVER)
        raw_send(bench, number);
}

static void spin(struct net_request *request)
{
    bool done = false;

    while (!done)
        must(net_test(request, &done, NULL));
}

static void send_by_tcpx(struct net_comm *comm, uint64_t number)
{
    struct net_request *request;

    must(net_isend(comm, &number, sizeof number, 1, &request));
    if (request == NULL)
        die("a busy comm");
    spin(request);
}

/* What comes, and the receive for it. */
struct inbox {
    uint64_t number;
    struct net_request *request;
};

static void post(const struct bench *bench, struct inbox *inbox)
{
    struct net_comm *comm = bench->pair.side == SIDE_SENDER ? bench->back : bench->comm;

    inbox->number = UINT64_MAX;
    must(net_irecv(comm, &inbox->number, sizeof inbox->number, 1, &inbox->request));
    if (inbox->request == NULL)
        die("a busy comm");
}

/* Each side has its next receive posted before its peer can send for it. */
static void tcpx_ping_pong(const struct bench *bench, struct inbox *inbox, uint64_t number)
{
    if (bench->pair.side == SIDE_SENDER)
        send_by_tcpx(bench->comm, number);
    spin(inbox->request);
    if (inbox->number != number)
        die("tcpx: a wrong message");
    post(bench, inbox);
    if (bench->pair.side == SIDE_RECEIVER)
        send_by_tcpx(bench->back, number);
}

static void measure_latency(struct bench *bench)
{
    double *times[WAYS];
    struct inbox inbox;
    double middle[WAYS];
    double late[WAYS];
    int count = bench->ping_pongs / BLOCK * BLOCK;

    if (strstr("8 bytes", bench->row) == NULL)
        return;
    pair_open_streams(&bench->pair, 1);
    open_comm(bench, 1, SIDE_RECEIVER, &bench->comm);
    open_comm(bench, 1, SIDE_SENDER, &bench->back);
    for (enum way way = 0; way < WAYS; way++)
        times[way] = calloc((size_t)count, sizeof **times);
    post(bench, &inbox);
    for (int i = -BLOCK; i < count; i += BLOCK) /* the first block warms up */
        for (enum way way = 0; way < WAYS; way++) {
            pair_meet(&bench->pair);
            for (int k = 0; k < BLOCK; k++) {
                uint64_t number = (uint64_t)(i + k + BLOCK) * 0x0101010101010101u;
                uint64_t from = clock_now();

                if (way == WAY_RAW)
                    raw_ping_pong(bench, number);
                else
                    tcpx_ping_pong(bench, &inbox, number);
                if (i >= 0)
                    times[way][i + k] = (double)(clock_now() - from) * 0.5e-3;
            }
        }
    pair_meet(&bench->pair);
    for (enum way way = 0; way < WAYS; way++) {
        middle[way] = sorted_at(times[way], count, 0.5);
        late[way] = sorted_at(times[way], count, 0.99);
        free(times[way]);
    }
    if (bench->pair.side == SIDE_SENDER)
        printf("%-24s | %8.2f %8.2f %6.2f | %8.2f %8.2f %6.2f\n", "8 bytes: us; and p99",
               middle[WAY_RAW], middle[WAY_TCPX], middle[WAY_TCPX] / middle[WAY_RAW], late[WAY_RAW],
               late[WAY_TCPX], late[WAY_TCPX] / late[WAY_RAW]);
    net_comm_close(bench->comm);
    net_comm_close(bench->back);
    pair_close_streams(&bench->pair, 1);
}

/* --- two processes ------------------------------------------------------------------------- */

static void run_side(struct bench *bench)
{
    bench->buffer = mmap(NULL, bench->bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must_be(bench->buffer != MAP_FAILED);
    measure_bandwidth(bench);
    measure_latency(bench);
    munmap(bench->buffer, bench->bytes);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: host [--rounds N] [--bytes N] [--slice N] [--row TEXT] [--poll] [--quick]\n");
    return 2;
}

static bool take_option(struct bench *bench, const char *name, const char *value)
{
    uint64_t number = 0;
    bool is_size = parse_size(value, &number);

    if (strcmp(name, "--rounds") == 0 && is_size && number > 0 && number <= MOST_ROUNDS)
        bench->rounds = (int)number;
    else if (strcmp(name, "--bytes") == 0 && is_size && number >= MIB && number % 4096 == 0)
        bench->bytes = number;
    else if (strcmp(name, "--slice") == 0 && is_size && number > 0)
        bench->slice = number;
    else if (strcmp(name, "--row") == 0)
        bench->row = value;
    else
        return false;
    return true;
}

int main(int argument_count, char **arguments)
{
    struct bench bench = {
        .bytes = 512 * MIB, .slice = MIB / 2, .rounds = 7, .ping_pongs = 20000, .row = ""};

    for (int i = 1; i < argument_count; i++) {
        if (strcmp(arguments[i], "--quick") == 0) {
            bench.rounds = 1;
            bench.bytes = 64 * MIB;
            bench.ping_pongs = 2000;
        } else if (strcmp(arguments[i], "--poll") == 0) {
            bench.polls = true;
        } else if (i + 1 == argument_count ||
                   !take_option(&bench, arguments[i], arguments[i + 1])) {
            return usage();
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
