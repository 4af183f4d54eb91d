/*
 * Decides which call has a fault, and counts. At the end of a program that was given a seed, it
 * prints the seed and what was injected; TCPX_TEST_FAULTS_NEED=KIND,KIND... names the kinds without
 * which the program fails, since it would then have shown nothing.
 */
#include "tests/faults/faults.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ONE_IN = 8, /* unless the environment says otherwise */
    /* So that a call which is repeated until it succeeds comes to an end: */
    MOST_IN_A_ROW = 4,
    SPARED = 8, /* questions; one call asks several */
};

static char *const names[FAULTS_KINDS + 1] = {
    [FAULT_SHORT_READ] = "short_read", [FAULT_SHORT_WRITE] = "short_write",
    [FAULT_AGAIN] = "again",           [FAULT_INTERRUPTED] = "interrupted",
    [FAULT_NO_BUFFERS] = "no_buffers", [FAULT_ABORTED] = "aborted",
    [FAULT_NO_ACCEPT] = "no_accept",   [FAULT_FEWER] = "fewer",
};

/*
 * What is injected. Written by the test while the library is idle, or before it starts; the release
 * store of `on` publishes the rest to the library's threads.
 */
static struct {
    uint64_t seed;
    unsigned one_in;
    unsigned kinds;
} plan;

static atomic_bool on;
static atomic_uint generation; /* of the plan: each thread starts its sequence anew */
static atomic_uint threads;
static atomic_ulong injected; /* by this plan */
static atomic_ulong *seen;    /* by kind; shared with forked children, which some tests work in */
static pid_t process;
static char *from_environment;

static _Thread_local struct {
    unsigned generation;
    unsigned in_a_row;
    unsigned spared;
    uint64_t state;
} sequence;

/* --- the sequence of a thread --------------------------------------------------------------- */

/* splitmix64 */
static uint64_t next(void)
{
    uint64_t mixed = sequence.state += 0x9e3779b97f4a7c15u;

    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static void start_sequence(void)
{
    unsigned now = atomic_load(&generation);

    if (sequence.generation == now)
        return;
    sequence.generation = now;
    sequence.in_a_row = 0;
    sequence.spared = 0;
    sequence.state = plan.seed * 0xd1342543de82ef95u + atomic_fetch_add(&threads, 1);
}

uint64_t faults_below(uint64_t limit)
{
    start_sequence();
    return next() % limit;
}

/* --- deciding ------------------------------------------------------------------------------- */

/* The first call that can have a kind of fault has it, so that no run lacks a kind by chance. */
static bool hit_by_seed(enum faults_kind kind)
{
    if ((plan.kinds & (1u << kind)) == 0)
        return false;
    start_sequence();
    if (sequence.spared > 0) {
        sequence.spared--;
        return false;
    }
    if (next() % plan.one_in != 0 && atomic_load(&seen[kind]) > 0) {
        sequence.in_a_row = 0;
        return false;
    }
    if (++sequence.in_a_row == MOST_IN_A_ROW) {
        sequence.in_a_row = 0;
        sequence.spared = SPARED;
    }
    return true;
}

bool faults_hit(enum faults_kind kind)
{
    if (!atomic_load_explicit(&on, memory_order_acquire) || !hit_by_seed(kind))
        return false;
    atomic_fetch_add(&seen[kind], 1);
    atomic_fetch_add(&injected, 1);
    return true;
}

void faults_by_seed(uint64_t seed, unsigned one_in, unsigned kinds)
{
    atomic_store(&on, false);
    plan.seed = seed;
    plan.one_in = one_in > 0 ? one_in : 1;
    plan.kinds = kinds;
    atomic_store(&injected, 0);
    atomic_store(&threads, 0);
    atomic_fetch_add(&generation, 1);
    atomic_store_explicit(&on, true, memory_order_release);
}

unsigned long faults_stop(void)
{
    atomic_store(&on, false);
    return atomic_load(&injected);
}

unsigned long faults_seen(enum faults_kind kind)
{
    return atomic_load(&seen[kind]);
}

/* --- the environment ------------------------------------------------------------------------ */

static void refuse(const char *variable, const char *value)
{
    dprintf(STDERR_FILENO, "%s=%s: expected are SEED[:ONE_IN[:KIND,KIND...]] and kinds of faults\n",
            variable, value);
    _exit(2);
}

/* A mask of the kinds in a list. */
static unsigned read_kinds(const char *variable, const char *list)
{
    char *copy = strdup(list);
    char *rest = copy;
    unsigned mask = 0;

    while (rest != NULL && *rest != '\0') {
        char *value;
        int kind = getsubopt(&rest, names, &value);

        if (kind < 0)
            refuse(variable, list);
        mask |= 1u << kind;
    }
    free(copy);
    return mask;
}

__attribute__((constructor)) static void read_environment(void)
{
    static const char variable[] = "TCPX_TEST_FAULTS";
    const char *text = getenv(variable);
    unsigned kinds = FAULTS_ALL;
    unsigned long one_in = ONE_IN;
    unsigned long long seed;
    char *end;

    process = getpid();
    seen = mmap(NULL, FAULTS_KINDS * sizeof *seen, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        _exit(2);
    if (text == NULL || *text == '\0')
        return;
    seed = strtoull(text, &end, 0);
    if (end != text && *end == ':')
        one_in = strtoul(end + 1, &end, 0);
    if (*end == ':')
        kinds = read_kinds(variable, end + 1);
    else if (*end != '\0')
        refuse(variable, text);
    from_environment = strdup(text);
    faults_by_seed(seed, (unsigned)one_in, kinds);
}

/* By the first process, for its forked children too. */
__attribute__((destructor)) static void report(void)
{
    const char *needed = getenv("TCPX_TEST_FAULTS_NEED");
    unsigned missing = needed == NULL ? 0 : read_kinds("TCPX_TEST_FAULTS_NEED", needed);
    char line[512];
    int length;

    if (from_environment == NULL || getpid() != process)
        return;
    length = snprintf(line, sizeof line, "# TCPX_TEST_FAULTS=%s:", from_environment);
    for (int kind = 0; kind < FAULTS_KINDS; kind++) {
        unsigned long count = faults_seen((enum faults_kind)kind);

        if (count > 0) {
            missing &= ~(1u << kind);
            length += snprintf(line + length, sizeof line - (size_t)length, " %s %lu", names[kind],
                               count);
        } else if ((missing & (1u << kind)) != 0) {
            dprintf(STDERR_FILENO, "# no fault of kind %s was injected\n", names[kind]);
        }
    }
    dprintf(STDERR_FILENO, "%s\n", line);
    free(from_environment);
    from_environment = NULL;
    if (missing != 0)
        _exit(1);
}
