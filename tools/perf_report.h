/*
 * What the reports of a measurement share: the stages' names, which numbers are there at all, and
 * how they read. A number that is not there is unknown, and every report has its own way to say so.
 */
#ifndef TCPX_TOOLS_PERF_REPORT_H
#define TCPX_TOOLS_PERF_REPORT_H

#include "tools/perf.h"

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

#endif
