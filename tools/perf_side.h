/* One of the two ends of a measurement, while it runs. */
#ifndef TCPX_TOOLS_PERF_SIDE_H
#define TCPX_TOOLS_PERF_SIDE_H

#include "tools/buffer.h"
#include "tools/perf_talk.h"

/* Its reads and writes, and what the other side may access. */
struct perf_access {
    struct tcpx_window *out; /* over the buffers of these names; NULL: there is none */
    struct tcpx_window *in;
    struct tcpx_remote *remote; /* the other side's; NULL: this side begins no accesses */
    struct tcpx_part *parts;    /* of the size at hand: of all accesses, one behind the other */
    size_t part_count;          /* of each access */
    size_t count;               /* accesses */
    struct tcpx_transfer **transfers;
    int event_fd; /* of the session */
};

/* What has been done of the size at hand. */
struct perf_size {
    uint64_t bytes;
    uint64_t iterations; /* warm-up too */
    uint64_t counted;    /* without it */
    uint64_t timed_ns;   /* of those */
    uint64_t latest_ns;  /* of the latest iteration */
    struct perf_step step;
    uint64_t *spans; /* of those that count */
    size_t room;
    double stages[PERF_STAGE_COUNT]; /* sums, in microseconds */
};

struct perf_bar {
    uint64_t began;
    uint64_t shown_at; /* when it was last drawn; 0: never */
};

struct perf_side {
    const struct perf_end *end;
    struct perf_plan plan;
    struct perf_result *result;
    bool is_server;
    struct meeting meeting;
    struct tcpx_session *session;
    struct buffer out; /* what it sends from, and receives into, where it does */
    struct buffer in;
    struct tcpx_memory *out_memory;
    struct tcpx_memory *in_memory;
    struct tcpx_piece *pieces; /* of the size at hand; NULL: no lists */
    size_t piece_count;
    struct perf_access access;
    uint64_t iteration; /* over all sizes, warm-up too */
    uint64_t counted;   /* over all sizes, without warm-up */
    uint64_t pattern;   /* of the iteration at hand: every pattern is another */
    uint64_t filled;    /* which pattern `out` has already; 0: none that is of use */
    struct perf_size at_hand;
    struct perf_bar bar;
};

/* Who has memory that bytes are sent or read from, and memory that they arrive in. */
bool perf_has_out(const struct perf_plan *plan, bool is_server);
bool perf_has_in(const struct perf_plan *plan, bool is_server);

/* Messages to the other end, besides meeting_say(). A message of another type is an error. */
MUST_CHECK int perf_say_number(struct perf_side *side, enum perf_message type, uint64_t number);

/* *length: the room for it, then its own. */
MUST_CHECK int perf_hear(struct perf_side *side, enum perf_message type, const char *awaited,
                         uint8_t *payload, size_t *length);
MUST_CHECK int perf_hear_number(struct perf_side *side, enum perf_message type, const char *awaited,
                                uint64_t *number);

/* --- one direction of one iteration -------------------------------------------------------- */

/*
 * Its bytes as one transfer, or as chunks of which each is a transfer of its own with a tag of its
 * own, several at once: LEAST of them, and of small ones as many as fill BYTES. The receives that
 * are posted must cover what a path can have in flight: 10 Gbit/s and 10 ms are 12 MiB.
 */
enum {
    PERF_FLOW_LEAST = 64,
    PERF_FLOW_MOST = 1024,
    PERF_FLOW_BYTES = 16 << 20,
    PERF_FLOW_TAG = 99,
    PERF_FLOW_TAGS = 10000
};

struct perf_flow {
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    bool sending;
    const char *who;      /* SERVER or CLIENT; NULL: no line for each chunk */
    const char *received; /* how a receive is in place when it is done, for that line */
    uint64_t iteration;   /* its chunks have the tags from PERF_FLOW_TAG + it * PERF_FLOW_TAGS on */
    uint64_t bytes;
    uint64_t chunk_bytes;
    const struct tcpx_piece *pieces; /* of the one transfer; NULL: no list */
    size_t piece_count;
    int timeout_ms; /* for each chunk */

    uint64_t begun; /* chunks */
    uint64_t ended;
    struct tcpx_transfer *window[PERF_FLOW_MOST];
};

/* Makes the list of pieces of an iteration of so many bytes, if there is one. */
MUST_CHECK int perf_flow_divide(struct perf_side *side, uint64_t bytes);

/* As many chunks as may be under way. */
MUST_CHECK int perf_flow_begin(struct perf_flow *flow);

/*
 * Both, or one and NULL, until everything has been moved. A chunk whose time has run out is an
 * error that names it.
 */
MUST_CHECK int perf_flow_finish(struct perf_flow *one, struct perf_flow *other);

/* --- one-sided access: an iteration is divided among accesses, and these into parts --------- */

/* Opens the windows, and exchanges their keys. */
MUST_CHECK int perf_access_open(struct perf_side *side);

/* Also what could not be opened. The session is closed already. */
void perf_access_close(struct perf_access *access);

MUST_CHECK int perf_access_divide(struct perf_side *side, uint64_t bytes);

/*
 * The accesses of an iteration, in turn with those of the other side in ping-pong: then the last
 * note says that all bytes are here. Otherwise until they have ended.
 */
MUST_CHECK int perf_access_move(struct perf_side *side);
/* Until they have ended, in any case. One that takes too long is named. */
MUST_CHECK int perf_access_finish(struct perf_side *side);

/* --- a bar on a terminal, for people who wait ---------------------------------------------- */

/* After an iteration of the size with this number: how much of all sizes is done. */
void perf_bar_show(struct perf_side *side, unsigned number);
void perf_bar_clear(struct perf_side *side);

/* How many iterations a size has without --time, and how long they may take at most. */
uint64_t perf_iterations_of(const struct perf_plan *plan, uint64_t bytes);

/* --- memory -------------------------------------------------------------------------------- */

/* What the plan needs at this end, or at both on one machine, is there; an error says what is. */
MUST_CHECK int perf_check_memory(const struct perf_end *end, const struct perf_plan *plan,
                                 bool is_server);

/* The rate of the interfaces that tcpx_session_path() names, together; 0: unknown. */
MUST_CHECK int perf_line_rate(const char *path, uint32_t *mbps);

/* --- the measurement ----------------------------------------------------------------------- */

/* All sizes of the plan, over the session that both have made. */
MUST_CHECK int perf_measure(struct perf_side *side);

#endif
