/*
 * Many comms that one thread polls, as NCCL's proxy does. Between two processes there are N comms
 * with as many sockets as they get by default, host memory, in order; one thread on each side keeps
 * 8 messages of each going, and tests them in turn. The rate is that of all comms together. The
 * numbers of comms go round by round, by turns; every byte is compared after each round: a wrong
 * one ends the program.
 *
 * --pairs P: P such pairs of processes at the same time; the rate is that of all of them. --rounds
 * N (5), --message N (512K), --bytes N in a round of a pair (512M), --comms N: only this number.
 */
#include "bench/bench.h"

#include "base/parse.h"
#include "net/transport.h"

enum { MOST_COMMS = 256, MOST_PAIRS = 16, MOST_ROUNDS = 64, WINDOW = 8 };

static const unsigned numbers[] = {1, 2, 8, 16, 64, 256};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* One comm and its part of the bytes. */
struct flow {
    struct net_comm *comm;
    uint64_t at;
    uint64_t end;
    uint64_t started;
    uint64_t finished;
    struct net_request *window[WINDOW];
    unsigned first;
    unsigned used;
};

struct all_pairs {
    pthread_barrier_t ready; /* the senders of all pairs */
    _Atomic uint64_t from;
    _Atomic uint64_t to;
};

static struct all_pairs *all;
static unsigned pairs = 1;
static uint64_t message = 512 << 10;
static uint64_t bytes = 512 << 20;
static int rounds = 5;
static unsigned only;
static struct pair pair;
static uint8_t *data;
static struct flow flows[MOST_COMMS];

/* A word that differs by place and round. */
static uint64_t word_at(uint64_t place, uint64_t seed)
{
    return (place + 1) * 0x9e3779b97f4a7c15 ^ seed;
}

static void fill(uint64_t seed)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)(void *)data)[i] = word_at(i, seed);
}

static void verify(uint64_t seed)
{
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (((uint64_t *)(void *)data)[i] != word_at(i, seed))
            die("a wrong byte");
}

static void flow_open(struct flow *flow)
{
    struct net_link_options options;
    struct net_link link;

    must(net_link_defaults(WIRE_MATCH_FIFO, &options));
    pair_link(&pair, &options, SIDE_RECEIVER, &link);
    must(net_comm_create(&link, pair.side == SIDE_RECEIVER ? NET_RECEIVER : NET_SENDER,
                         &flow->comm));
}

/* Starts what there is room for, and tests the oldest request. False: it has moved all. */
static bool flow_poll(struct flow *flow)
{
    struct net_request **oldest = &flow->window[flow->first];
    uint64_t moved;
    bool done;

    while (flow->used < WINDOW && flow->started < flow->end) {
        struct net_request **next = &flow->window[(flow->first + flow->used) % WINDOW];
        uint64_t part = least(message, flow->end - flow->started);

        must(pair.side == SIDE_SENDER ? net_isend(flow->comm, data + flow->started, part, 0, next)
                                      : net_irecv(flow->comm, data + flow->started, part, 0, next));
        if (*next == NULL)
            break;
        flow->started += part;
        flow->used++;
    }
    if (flow->used == 0)
        return flow->finished < flow->end;
    must(net_test(*oldest, &done, &moved));
    if (done) {
        flow->finished += moved;
        flow->first = (flow->first + 1) % WINDOW;
        flow->used--;
    }
    return flow->finished < flow->end;
}

static void note_from(void)
{
    uint64_t expected = 0;

    atomic_compare_exchange_strong(&all->from, &expected, clock_now());
}

static void note_to(void)
{
    uint64_t now = clock_now();
    uint64_t last = atomic_load(&all->to);

    while (last < now && !atomic_compare_exchange_weak(&all->to, &last, now))
        ;
}

/* GB/s of all pairs; the receiver's value means nothing. */
static double run_round(unsigned count, uint64_t seed)
{
    uint64_t deadline = deadline_after_ms(LIMIT_MS);
    uint64_t part = bytes / count / 8 * 8;
    bool more = true;

    for (unsigned i = 0; i < count; i++) {
        flows[i].at = i * part;
        flows[i].started = flows[i].finished = flows[i].at;
        flows[i].end = i + 1 == count ? bytes : flows[i].at + part;
    }
    if (pair.side == SIDE_SENDER)
        fill(seed);
    else
        memset(data, 0, bytes);
    pair_meet(&pair);
    if (pair.side == SIDE_SENDER)
        pthread_barrier_wait(&all->ready);
    pair_meet(&pair);
    note_from();
    while (more) {
        more = false;
        for (unsigned i = 0; i < count; i++)
            more |= flow_poll(&flows[i]);
        if (deadline_passed(deadline))
            die("nothing moves any more");
    }
    note_to();
    pair_meet(&pair);
    if (pair.side == SIDE_RECEIVER)
        verify(seed);
    pair_meet(&pair);
    if (pair.side == SIDE_SENDER)
        pthread_barrier_wait(&all->ready);
    return (double)(pairs * bytes) / (double)(all->to - all->from);
}

static void reset_span(bool is_first)
{
    if (pair.side != SIDE_SENDER)
        return;
    pthread_barrier_wait(&all->ready);
    if (is_first) {
        atomic_store(&all->from, 0);
        atomic_store(&all->to, 0);
    }
}

/* All comms of a number are open while its round runs, and no others. */
static void run_pair(bool is_first)
{
    double rates[NUMBERS][MOST_ROUNDS];

    pair_fork(&pair);
    must_be((data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) != MAP_FAILED);
    for (int round = -1; round < rounds; round++) /* the first one warms up */
        for (int n = 0; n < NUMBERS; n++) {
            if (only != 0 && only != numbers[n])
                continue;
            for (unsigned i = 0; i < numbers[n]; i++)
                flow_open(&flows[i]);
            reset_span(is_first);
            rates[n][round < 0 ? 0 : round] =
                run_round(numbers[n], (uint64_t)(round + 1) * NUMBERS + (uint64_t)n);
            for (unsigned i = 0; i < numbers[n]; i++)
                net_comm_close(flows[i].comm);
        }
    if (is_first && pair.side == SIDE_SENDER)
        for (int n = 0; n < NUMBERS; n++)
            if (only == 0 || only == numbers[n])
                printf("%3u comms, %u pairs: %.2f GB/s (%.2f to %.2f)\n", numbers[n], pairs,
                       sorted_at(rates[n], rounds, 0.5), sorted_at(rates[n], rounds, 0.0),
                       sorted_at(rates[n], rounds, 1.0));
    pair_join(&pair);
}

static bool take_option(const char *name, const char *value)
{
    uint64_t number;

    if (!parse_size(value, &number))
        return false;
    if (strcmp(name, "--pairs") == 0 && number >= 1 && number <= MOST_PAIRS)
        pairs = (unsigned)number;
    else if (strcmp(name, "--rounds") == 0 && number >= 1 && number <= MOST_ROUNDS)
        rounds = (int)number;
    else if (strcmp(name, "--message") == 0 && number >= 8)
        message = number;
    else if (strcmp(name, "--bytes") == 0 && number >= MIB)
        bytes = number / 8 * 8;
    else if (strcmp(name, "--comms") == 0)
        only = (unsigned)number;
    else
        return false;
    return true;
}

int main(int argument_count, char **arguments)
{
    pthread_barrierattr_t attributes;
    pid_t others[MOST_PAIRS];

    for (int i = 1; i < argument_count; i += 2)
        if (i + 1 == argument_count || !take_option(arguments[i], arguments[i + 1])) {
            fprintf(stderr,
                    "usage: %s [--pairs N] [--rounds N] [--message N] [--bytes N] [--comms N]\n",
                    arguments[0]);
            return 2;
        }
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must_be(all != MAP_FAILED);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->ready, &attributes, pairs);
    for (unsigned i = 1; i < pairs; i++) {
        others[i] = fork();
        must_be(others[i] >= 0);
        if (others[i] == 0) {
            run_pair(false);
            return 0;
        }
    }
    run_pair(true);
    for (unsigned i = 1; i < pairs && pair.side == SIDE_SENDER; i++)
        waitpid(others[i], NULL, 0);
    return 0;
}
