/*
 * A measurement: what both ends are going to do, and what came out. tools/perf.c reads the
 * arguments, tools/perf_run.c measures, tools/perf_*.c show the result.
 */
#ifndef TCPX_TOOLS_PERF_H
#define TCPX_TOOLS_PERF_H

#include "tcpx.h"
#include "tools/meeting.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { PERF_MOST_SIZES = 64, PERF_TEXT = 256 };

enum perf_way {
    PERF_ONE_WAY,   /* from the client to the server */
    PERF_BOTH_WAYS, /* at the same time */
    PERF_PING_PONG, /* to the server and back; half of it is one way */
};

/* By what. Accesses are one-sided: the program of the side that is accessed takes no part. */
enum perf_operation {
    PERF_SENDS,  /* and receives */
    PERF_READS,  /* by the client, of the server's memory */
    PERF_WRITES, /* likewise */
};

/* The client's; the server is told. */
struct perf_plan {
    enum perf_way way;
    enum perf_operation operation;
    unsigned size_count;
    uint64_t sizes[PERF_MOST_SIZES];
    uint64_t iterations;  /* 0: more for small sizes than for large ones */
    uint64_t warm_up;     /* iterations before those that count */
    uint64_t spoilt;      /* of this one, counted from 1, the server spoils a byte; 0: none */
    uint64_t chunk_bytes; /* each a transfer of its own; 0: an iteration is one transfer */
    uint32_t channels;    /* 0: as many as the session makes by itself */
    uint32_t pieces;      /* a transfer is a list of so many, and no chunks; 0: no list */
    uint32_t accesses;    /* an iteration is so many reads or writes at once; 0 of sends */
};

/* Of one end's own; the other may have others. */
struct perf_end {
    struct meeting_options meeting;
    int gpu;     /* -1: host memory */
    bool chunks; /* a line for every chunk */
    bool progress;
};

/* What one end says of itself. */
struct perf_self {
    char host[64];
    char memory[64];
};

/* In the order in which bytes pass. Stages go on at the same time. */
enum {
    PERF_COPY_OUT,     /* sender: out of GPU memory */
    PERF_SEND,         /* sender: into sockets */
    PERF_SEND_WAIT,    /* sender: sockets took nothing */
    PERF_RECEIVE_WAIT, /* receiver: sockets had nothing */
    PERF_RECEIVE,      /* receiver: out of sockets */
    PERF_COPY_IN,      /* receiver: into GPU memory, unpacking */
    PERF_STAGE_COUNT
};

/* One size. Times are of one way. */
struct perf_row {
    uint64_t bytes;
    uint64_t iterations;
    double least_us;
    double median_us;
    double p99_us;
    double p999_us;
    double most_us;
    double mean_us;
    double gigabytes_per_second;     /* 10^9 bytes; of the median, both directions together */
    double stages[PERF_STAGE_COUNT]; /* where an iteration's time went, in us on average */
};

struct perf_result {
    enum perf_way way;
    char date[32]; /* ISO 8601, UTC */
    char version[32];
    char client[64];
    char server[64];
    char path[PERF_TEXT]; /* by which bytes travelled, as tcpx_session_path() says it */
    char memory[PERF_TEXT];
    char unpack[16]; /* auto, d2d, host, kernel */
    unsigned channels;
    unsigned pieces; /* 0: no lists */
    enum perf_operation operation;
    unsigned accesses;
    unsigned sockets;
    unsigned threads; /* 0: the program's own moves everything */
    uint64_t chunk_bytes;
    double barrier_us; /* the start signal's way: see perf_contains_barrier() */
    unsigned row_count;
    struct perf_row rows[PERF_MOST_SIZES];
};

/*
 * Both ends; either gets the whole result. Fails in words; a byte that arrived wrong is a failure.
 * `port_to`: a descriptor that gets the port where the server waits, 2 bytes; -1: nobody asks.
 * *met becomes true when a client has come.
 */
MUST_CHECK int perf_serve(const struct perf_end *end, int port_to, struct perf_result *result,
                          bool *met);
MUST_CHECK int perf_visit(const struct perf_end *end, const struct perf_plan *plan,
                          struct perf_result *result);

/* Both ends on this machine, the server in a process of its own. */
MUST_CHECK int perf_loopback(const struct perf_end *end, const struct perf_plan *plan,
                             struct perf_result *result);

/* --- reports ------------------------------------------------------------------------------- */

void perf_print_table(FILE *out, const struct perf_result *result);
void perf_print_json(FILE *out, const struct perf_result *result);
void perf_print_csv(FILE *out, const struct perf_result *result);

/* False: there was no memory for it. */
MUST_CHECK bool perf_print_html(FILE *out, const struct perf_result *result);

/*
 * What the reports share: the stages' names, which numbers are there at all, and how they read. A
 * number that is not there is unknown, and every report has its own way to say so.
 */
enum { PERF_NAME = 24 };

struct perf_stage {
    const char *key; /* in JSON and CSV */
    const char *name;
    bool of_sender;
    bool waits; /* no bytes move in it, so it has no rate */
};

extern const struct perf_stage perf_stage_list[PERF_STAGE_COUNT];

struct perf_total {
    uint64_t iterations;
    double bytes; /* in all directions */
};

/* Neither negative nor something that division by zero made. */
bool perf_known(double value);

/* Of too few iterations a percentile is only the slowest, so it is unknown. */
double perf_p99(const struct perf_row *row);
double perf_p999(const struct perf_row *row);

double perf_stage_percent(const struct perf_row *row, unsigned stage); /* of the median */
double perf_stage_rate(const struct perf_row *row, unsigned stage);    /* GB/s */

/* False: this path does not say where its time went. */
bool perf_has_stages(const struct perf_row *row);

struct perf_total perf_total(const struct perf_result *result);

/* About four digits, as "0.0020", "12.34" or "123456"; "-" for what is unknown. */
const char *perf_number(double value, char text[PERF_NAME]);

/* With one digit after the point, or none if that is enough; without the sign. */
const char *perf_percent(double value, char text[PERF_NAME]);

/* The nearest, as "1.5 GiB". */
const char *perf_amount_name(double bytes, char text[PERF_NAME]);

const char *perf_way_name(enum perf_way way); /* "one way", "both ways", "ping-pong" */
const char *perf_operation_name(enum perf_operation operation); /* "send", "read", "write" */

/* Its times are from the server's start signal to the server's last byte. */
bool perf_contains_barrier(const struct perf_result *result);

/* "512 B", "4 KiB", "1 GiB": exact, else as bytes. */
const char *perf_size_name(uint64_t bytes, char text[24]);

#endif
