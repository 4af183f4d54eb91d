/* What a run shows while it goes on, and in the end. */
#ifndef TCPX_TOOLS_PERF_REPORT_H
#define TCPX_TOOLS_PERF_REPORT_H

#include "tools/perf.h"

#include <pthread.h>
#include <signal.h>

enum perf_form_name { PERF_TABLE, PERF_JSON, PERF_CSV };

struct perf_report {
    int form;         /* enum perf_form_name, on standard output */
    const char *html; /* where the page goes; NULL: none */

    FILE *page;
    bool is_new;                /* nothing but perf_report_open() has made the file */
    struct perf_result *result; /* of the run at hand; NULL: there is none */
    pthread_mutex_t lock;       /* over standard output, the page and *result */
    int problem;                /* errno of the first failure of standard output */
    pthread_t watcher;
    sigset_t signals;
    bool watching;
};

/* Opens the page, so that a path that cannot be written is known before anything is measured. */
MUST_CHECK int perf_report_open(struct perf_report *report);

/*
 * From now on a signal that ends the program ends the report, too: in a thread of its own, for
 * which all threads that begin later have the signals blocked. A second call has nothing to do.
 */
MUST_CHECK int perf_report_watch(struct perf_report *report);

/* Prints what is known before the first row. */
void perf_report_begin(struct perf_report *report, struct perf_result *result);

/* Adds the next row to the result and prints it. */
void perf_report_row(struct perf_report *report, const struct perf_row *row);

/* Prints the rest and writes the page, if a run has begun. `why`: it is incomplete; NULL: it is
 * not. */
MUST_CHECK int perf_report_end(struct perf_report *report, const char *why);

void perf_report_close(struct perf_report *report);

#endif
