/*
 * What the two ends of a measurement tell each other, besides the bytes that are measured: the
 * client its plan, the server where its session is, both the keys of windows that the other may
 * access, and when an iteration begins, the server what it found, and the client in the end what
 * came out. Messages over the control connection of
 * tools/meeting.h; everything in them is little endian.
 */
#ifndef TCPX_TOOLS_PERF_TALK_H
#define TCPX_TOOLS_PERF_TALK_H

#include "tools/perf.h"

enum perf_message {
    PERF_PLAN = 32, /* client: struct perf_plan, struct perf_self */
    PERF_MEET,      /* server: the port of its session, struct perf_self */
    PERF_PROBE,     /* client, and the server sends it back; the last: the barrier, in ns */
    PERF_READY,     /* client: an iteration whose receives it has posted: struct perf_step */
    PERF_GO,        /* server: the same number */
    PERF_VERDICT,   /* server: nanoseconds that the iteration took there; all bytes were right */
    PERF_STAGES,    /* server: the stages of its receiving side, in a row */
    PERF_ROW,       /* client: struct perf_row */
    PERF_KEY,       /* the key of a window that the other may access */
    PERF_DONE,      /* client: the number of an iteration, whose reads or writes have ended */
    PERF_PATH,      /* both, once the session is there: struct perf_path */
};

/* What one end says of the path that carries the bytes. */
struct perf_path {
    char text[PERF_TEXT];
    char unpack[PERF_UNPACK];
    uint32_t line_mbps; /* 0: unknown */
};

/* An iteration, as the client wants it. */
struct perf_step {
    uint64_t iteration;
    bool counts; /* it is no warm-up */
    bool last;   /* of its size */
};

enum {
    PERF_PLAN_BYTES = 72 + 128 + 8 * PERF_MOST_SIZES,
    PERF_MEET_BYTES = 8 + 128,
    PERF_ROW_BYTES = 8 * 15,
    PERF_PATH_BYTES = 4 + PERF_TEXT + PERF_UNPACK,
    PERF_LARGEST = PERF_PLAN_BYTES,
};

#define PERF_MOST_BYTES      ((uint64_t)1 << 42)
#define PERF_MOST_ITERATIONS ((uint64_t)1000000)
#define PERF_MOST_PIECES     PERF_MOST_ITERATIONS
#define PERF_AUTO            (PERF_MOST_ITERATIONS + 1)
#define PERF_MOST_MS         ((uint64_t)3600000)

void perf_plan_encode(const struct perf_plan *plan, const struct perf_self *self,
                      uint8_t bytes[PERF_PLAN_BYTES]);
void perf_meet_encode(uint16_t port, const struct perf_self *self, uint8_t bytes[PERF_MEET_BYTES]);
void perf_path_encode(const struct perf_path *path, uint8_t bytes[PERF_PATH_BYTES]);
uint64_t perf_step_encode(const struct perf_step *step);
struct perf_step perf_step_decode(uint64_t number);
void perf_row_encode(const struct perf_row *row, uint8_t bytes[PERF_ROW_BYTES]);

/* All fail in words on what no tcpx would have sent. */
MUST_CHECK int perf_plan_decode(const uint8_t *bytes, size_t length, struct perf_plan *plan,
                                struct perf_self *self);
MUST_CHECK int perf_meet_decode(const uint8_t *bytes, size_t length, uint16_t *port,
                                struct perf_self *self);
MUST_CHECK int perf_path_decode(const uint8_t *bytes, size_t length, struct perf_path *path);
MUST_CHECK int perf_row_decode(const uint8_t *bytes, size_t length, struct perf_row *row);

/* The bytes of a PERF_KEY are the key. */
MUST_CHECK int perf_key_check(size_t length);

/* One number of 8 bytes, which some messages are. */
void perf_number_encode(uint64_t number, uint8_t bytes[8]);
uint64_t perf_number_decode(const uint8_t bytes[8]);

#endif
