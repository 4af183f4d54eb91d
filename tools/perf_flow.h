/*
 * One direction of one iteration: its bytes as one transfer, or as chunks of which each is a
 * transfer of its own with a tag of its own, several at once.
 */
#ifndef TCPX_TOOLS_PERF_FLOW_H
#define TCPX_TOOLS_PERF_FLOW_H

#include "base/error.h"
#include "tcpx.h"

#include <stdbool.h>

enum { PERF_FLOW_WINDOW = 64, PERF_FLOW_TAG = 99, PERF_FLOW_TAGS = 10000 };

struct perf_flow {
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    bool sending;
    const char *who;    /* SERVER or CLIENT; NULL: no line for each chunk */
    uint64_t iteration; /* its chunks have the tags from PERF_FLOW_TAG + it * PERF_FLOW_TAGS on */
    uint64_t bytes;
    uint64_t chunk_bytes;
    const struct tcpx_piece *pieces; /* of the one transfer; NULL: no list */
    size_t piece_count;
    int timeout_ms; /* for each chunk */

    uint64_t begun; /* chunks */
    uint64_t ended;
    struct tcpx_transfer *window[PERF_FLOW_WINDOW];
};

/* As many chunks as may be under way. */
MUST_CHECK int perf_flow_begin(struct perf_flow *flow);

/*
 * Both, or one and NULL, until everything has been moved. A chunk whose time has run out is an
 * error that names it.
 */
MUST_CHECK int perf_flow_finish(struct perf_flow *one, struct perf_flow *other);

#endif
