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

enum { PERF_MOST_SIZES = 64, PERF_TEXT = 256, PERF_UNPACK = 48 };

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

/* Which iterations are compared with the pattern, byte by byte, where they arrived. */
enum perf_check {
    PERF_CHECK_EVERY,
    PERF_CHECK_FIRST, /* the first of each size: a warm-up, where there is one */
    PERF_CHECK_NONE,
};

/* The client's; the server is told. */
struct perf_plan {
    enum perf_way way;
    enum perf_operation operation;
    unsigned size_count;
    uint64_t sizes[PERF_MOST_SIZES];
    uint64_t iterations; /* 0: more for small sizes than for large ones */
    uint64_t time_ms;    /* each size is measured so long, whatever the iterations; 0: it is not */
    uint64_t warm_up;    /* iterations before those that count; PERF_AUTO: by size */
    enum perf_check check;
    uint64_t spoilt;      /* of this one, counted from 1, the server spoils a byte; 0: none */
    uint64_t chunk_bytes; /* each a transfer of its own; 0: an iteration is one transfer */
    uint32_t channels;    /* 0: as many as the session makes by itself */
    uint32_t pieces;      /* a transfer is a list of so many, and no chunks; 0: no list */
    uint32_t accesses;    /* an iteration is so many reads or writes at once; 0 of sends */
};

struct perf_report;

/* Of one end's own; the other may have others. */
struct perf_end {
    struct meeting_options meeting;
    int gpu;     /* -1: host memory */
    bool chunks; /* a line for every chunk */
    bool progress;
    bool is_alone;              /* false: both ends are on this machine */
    struct perf_report *report; /* NULL: nothing is shown */
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
    char path[2 * PERF_TEXT]; /* by which bytes travelled, as tcpx_session_path() says it */
    char memory[PERF_TEXT];
    char unpack[PERF_UNPACK]; /* auto, d2d, host, kernel; "none": the path needs no unpacking */
    enum perf_check check;
    unsigned line_mbps; /* of the interfaces; 0: unknown */
    unsigned channels;
    unsigned pieces; /* 0: no lists */
    enum perf_operation operation;
    unsigned accesses;
    unsigned sockets;
    unsigned threads; /* 0: the program's own moves everything */
    uint64_t chunk_bytes;
    double barrier_us; /* the start signal's way: see perf_contains_barrier() */
    bool complete;
    char why[400];       /* it is not */
    unsigned size_count; /* of the plan */
    unsigned row_count;
    struct perf_row rows[PERF_MOST_SIZES];
};

/*
 * Both ends; either gets the whole result, and its report shows what there is, also when the run
 * fails in its middle. Fails in words; a byte that arrived wrong is a failure.
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

/* What is known before the rows, one row, and the rest. */
struct perf_form {
    void (*begin)(FILE *out, const struct perf_result *result);
    void (*row)(FILE *out, const struct perf_result *result, unsigned number);
    void (*end)(FILE *out, const struct perf_result *result);
};

extern const struct perf_form perf_table;
extern const struct perf_form perf_json;
extern const struct perf_form perf_csv;

/* All of it. */
void perf_print(FILE *out, const struct perf_form *form, const struct perf_result *result);

/* A page of one run or of several, each as the JSON that perf_json prints. */
struct perf_run {
    const char *name;
    const char *json;
    size_t length;
};

MUST_CHECK bool perf_print_page(FILE *out, const struct perf_run *runs, size_t count);

/* A page of this one. False: there was no memory for it. */
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

double perf_stage_percent(const struct perf_row *row, unsigned stage); /* of the mean */
double perf_stage_rate(const struct perf_row *row, unsigned stage);    /* GB/s */

/* False: this path does not say where its time went. */
bool perf_has_stages(const struct perf_row *row);

double perf_gigabits(const struct perf_row *row); /* per second */

/* Of the rate of the interfaces; of both directions where both are used. Unknown where that is. */
double perf_line_percent(const struct perf_result *result, const struct perf_row *row);

/* What was verified. */
struct perf_total perf_total(const struct perf_result *result);

/* About four digits, as "0.0020", "12.34" or "123456"; "-" for what is unknown. */
const char *perf_number(double value, char text[PERF_NAME]);

/* With one digit after the point, or none if that is enough; without the sign. */
const char *perf_percent(double value, char text[PERF_NAME]);

/* The nearest, as "1.5 GiB". */
const char *perf_amount_name(double bytes, char text[PERF_NAME]);

const char *perf_way_name(enum perf_way way); /* "one way", "both ways", "ping-pong" */
const char *perf_operation_name(enum perf_operation operation); /* "send", "read", "write" */
const char *perf_check_name(enum perf_check check);             /* "every", "first", "none" */

/* Its times are from the server's start signal to the server's last byte. */
bool perf_contains_barrier(const struct perf_result *result);

/* "512 B", "4 KiB", "1 GiB": exact, else as bytes. */
const char *perf_size_name(uint64_t bytes, char text[24]);

#endif
