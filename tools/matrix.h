/*
 * tcpx matrix: every pair of some processes measured, first each alone, then all at once. One
 * process coordinates and moves no data; the others are ranks, which it joins over TCP. A rank
 * opens a session to each other one, and reads memory there, which it verifies.
 */
#ifndef TCPX_TOOLS_MATRIX_H
#define TCPX_TOOLS_MATRIX_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    MATRIX_MOST_RANKS = 128,
    MATRIX_MOST_READS = 10000,
    MATRIX_NAME_BYTES = 64,
    MATRIX_ADDRESS_BYTES = 128,
    MATRIX_WHY_BYTES = 256,
    MATRIX_MOST_FAILURES = 64,
    MATRIX_MOST_FINDINGS = 64,
};

#define MATRIX_MOST_BYTES ((uint64_t)1 << 32)

/* What the coordinator tells each rank. */
struct matrix_plan {
    uint64_t run; /* a random number, so that ranks of two runs never meet */
    uint64_t bytes;
    uint32_t ranks;
    uint32_t reads;      /* of each pair alone; one more goes before them */
    uint32_t span_ms;    /* all at once */
    uint32_t timeout_ms; /* of each step */
};

/* --- the result ---------------------------------------------------------------------------- */

struct matrix_rank {
    char host[MATRIX_NAME_BYTES];
    char memory[MATRIX_NAME_BYTES];
    char why[MATRIX_WHY_BYTES]; /* why it takes no part, or no more; "": it does */
};

/* [reader][source] in 10^9 bytes per second; below 0: not measured. */
struct matrix_rates {
    double list[MATRIX_MOST_RANKS][MATRIX_MOST_RANKS];
};

enum matrix_phase { MATRIX_ALONE, MATRIX_ALL_AT_ONCE, MATRIX_PHASES };

/* Each phase is measured twice, one time after the other, to see what is chance. */
enum { MATRIX_PASSES = 2 };

/* Of a pair whose ranks both took part. */
struct matrix_failure {
    unsigned reader;
    unsigned source;
    char why[MATRIX_WHY_BYTES];
};

enum matrix_finding_kind { MATRIX_SLOW_HOST, MATRIX_SLOW_RANK, MATRIX_SLOW_LINK };

struct matrix_finding {
    enum matrix_phase phase;
    enum matrix_finding_kind kind;
    unsigned rank; /* the reader of a link, the first rank of a host */
    unsigned source;
    bool sends;    /* slow when others read from it */
    bool receives; /* slow when it reads */
    double rate;
    double usual; /* what it is compared with */
    char text[320];
};

struct matrix_result {
    char date[32];
    char version[32];
    struct matrix_plan plan;
    unsigned ranks;
    struct matrix_rank rank[MATRIX_MOST_RANKS];
    struct matrix_rates passes[MATRIX_PHASES][MATRIX_PASSES];
    struct matrix_rates rates[MATRIX_PHASES]; /* the better of the passes */
    int noise_percent[MATRIX_PHASES];         /* by which the passes of a pair differ: the median */
    int rank_percent[MATRIX_PHASES];          /* what is slow: below these */
    int link_percent[MATRIX_PHASES];
    unsigned failure_count; /* those of the list; there may have been more */
    struct matrix_failure failures[MATRIX_MOST_FAILURES];
    unsigned finding_count;
    struct matrix_finding findings[MATRIX_MOST_FINDINGS];
};

const char *matrix_phase_name(enum matrix_phase phase); /* "alone", "all at once" */

/* --- the ranks ----------------------------------------------------------------------------- */

/* How a rank is started, besides the environment. */
struct matrix_rank_options {
    unsigned rank;
    const char *meet; /* where the coordinator is */
    uint16_t port;
    const char *secret_file; /* NULL: none */
    int gpu;                 /* -1: host memory */
    int timeout_ms;          /* until the coordinator is there */
};

/* Does what the coordinator says until that ends it. Fails in words. */
MUST_CHECK int matrix_rank_run(const struct matrix_rank_options *options);

/* --- processes that this one starts (matrix_launch.c) --------------------------------------- */

struct matrix_launch {
    unsigned ranks;
    bool own_only; /* somebody else starts the ranks, but for number 0, which is as this process */
    char *hosts[MATRIX_MOST_RANKS]; /* NULL: on this machine, without ssh */
    const char *ssh;                /* words, separated by spaces */
    const char *program;            /* NULL: as this one */
    const char *meet;               /* NULL: as ssh says where it comes from */
    uint16_t port;
    const char *const *arguments; /* for each rank, besides where to meet; ends with NULL */
};

struct matrix_process {
    bool was_started;
    int pid;  /* 0: it has ended */
    int from; /* what it says */
    size_t have;
    char said[MATRIX_WHY_BYTES]; /* the last line */
};

MUST_CHECK int matrix_launch_start(const struct matrix_launch *launch, unsigned rank,
                                   struct matrix_process *process);

/* Whether it has ended; then why[] says how, with what it said last. Never waits. */
bool matrix_launch_has_ended(struct matrix_process *process, const char *host,
                             char why[MATRIX_WHY_BYTES]);

/* Reads some of what it says, so that it does not wait for that. */
void matrix_launch_hear(struct matrix_process *process);

/* Those that still run after a while are killed. */
void matrix_launch_finish(struct matrix_process *processes, unsigned count);

/* --- the coordinator ------------------------------------------------------------------------ */

struct matrix_run {
    struct matrix_plan plan;
    const char *address; /* where it listens; NULL: at all addresses */
    uint16_t port;       /* 0: any */
    const char *secret_file;
    struct matrix_launch *launch; /* its port is set when there is one */
    bool progress;
};

/* What could be measured. Fails only if nothing could be. */
MUST_CHECK int matrix_coordinate(const struct matrix_run *run, struct matrix_result *result);

/* --- what comes out ------------------------------------------------------------------------- */

/*
 * Who is slow, by one rule for each phase. A rank is, if the median of what it reads, or of what is
 * read from it, is below MATRIX_RANK_PERCENT of the median of all pairs without it; a host of
 * several ranks is, if all of them are. A link is, if it is below MATRIX_LINK_PERCENT of the
 * medians of what its reader reads and of what is read from its source, without it, or of its other
 * direction where there is nothing else; links of ranks that are slow are not named. Where the two
 * passes of a pair differ by n percent, in the median, nothing above 100 - 3n percent is slow.
 */
enum { MATRIX_RANK_PERCENT = 67, MATRIX_LINK_PERCENT = 50, MATRIX_LEAST_PERCENT = 15 };

void matrix_find_slow(struct matrix_result *result);

/*
 * Of what is known of a list; below 0: nothing is. Of an even number it is the greater one of the
 * two in the middle, so that one slow link does not make a rank with two of them slow. Changes the
 * list.
 */
double matrix_median(double *list, unsigned count);

/* "rank 2 (node7)" */
const char *matrix_rank_name(const struct matrix_result *result, unsigned rank, char text[96]);

void matrix_print_table(FILE *out, const struct matrix_result *result);
void matrix_print_json(FILE *out, const struct matrix_result *result);

/* False: there was no memory for it. */
MUST_CHECK bool matrix_print_html(FILE *out, const struct matrix_result *result);

#endif
