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
    PERF_PROBE,     /* client, and the server sends it back */
    PERF_READY,     /* client: the number of an iteration, whose receives it has posted */
    PERF_GO,        /* server: the same number */
    PERF_VERDICT,   /* server: nanoseconds that the iteration took there; all bytes were right */
    PERF_STAGES,    /* server: the stages of its receiving side, in a row */
    PERF_ROW,       /* client: barrier, struct perf_row */
    PERF_KEY,       /* the key of a window that the other may access */
    PERF_DONE,      /* client: the number of an iteration, whose reads or writes have ended */
};

enum {
    PERF_PLAN_BYTES = 64 + 128 + 8 * PERF_MOST_SIZES,
    PERF_MEET_BYTES = 8 + 128,
    PERF_ROW_BYTES = 8 * 16,
    PERF_LARGEST = PERF_PLAN_BYTES,
};

#define PERF_MOST_BYTES      ((uint64_t)1 << 42)
#define PERF_MOST_ITERATIONS ((uint64_t)1000000)
#define PERF_MOST_PIECES     PERF_MOST_ITERATIONS

void perf_plan_encode(const struct perf_plan *plan, const struct perf_self *self,
                      uint8_t bytes[PERF_PLAN_BYTES]);
void perf_meet_encode(uint16_t port, const struct perf_self *self, uint8_t bytes[PERF_MEET_BYTES]);
void perf_row_encode(double barrier_us, const struct perf_row *row, uint8_t bytes[PERF_ROW_BYTES]);

/* All fail in words on what no tcpx would have sent. */
MUST_CHECK int perf_plan_decode(const uint8_t *bytes, size_t length, struct perf_plan *plan,
                                struct perf_self *self);
MUST_CHECK int perf_meet_decode(const uint8_t *bytes, size_t length, uint16_t *port,
                                struct perf_self *self);
MUST_CHECK int perf_row_decode(const uint8_t *bytes, size_t length, double *barrier_us,
                               struct perf_row *row);

/* The bytes of a PERF_KEY are the key. */
MUST_CHECK int perf_key_check(size_t length);

/* One number of 8 bytes, which some messages are. */
void perf_number_encode(uint64_t number, uint8_t bytes[8]);
uint64_t perf_number_decode(const uint8_t bytes[8]);

#endif
