/*
 * The transport between two processes on this machine, in the same run beside what it is compared
 * with. Raw: host memory, blocking sockets, on each side one thread per stream, calls of 512 KiB or
 * of one message if that is less. Pipeline: the same threads and sockets, but each sender's bytes
 * come from the GPU through a ring of pinned slices, with copies issued ahead, and each receiver's
 * go to the GPU through one. tcpx: one comm with as many sockets, one thread on each side that
 * keeps a window of messages going and waits for the oldest; with --poll it tests and yields, as
 * NCCL does.
 *
 * They go round by round, by turns first, over the same buffers and over connections that live as
 * long as the row's number of sockets; rates are medians over rounds. Before each round the
 * sender's buffer gets that round's pattern and the receiver's is poisoned; after it every byte is
 * compared: a wrong one ends the program. The span is from when both sides are ready to when the
 * last of them is finished. CPU seconds are those of both processes in it; the emulated GPU's are
 * among them. Behind the values of all ways are the ratios of tcpx to each other one.
 *
 * Rows by number have the slice that is measured; those of "default" have what the environment says
 * for sockets and slices, and raw and pipeline as many streams as that gives.
 *
 * Then the latency of a small message: half of a ping-pong, both sides spinning, over a raw
 * non-blocking socket or two comms of one socket, one each way, in blocks by turns. The receiver
 * sends back what came, from where it came; every message has bytes and a place of its own, and all
 * are compared when their block is over.
 *
 * --rounds N, of each row, and --bytes N, in a round, which is 512M; messages below 1 MiB move a
 * quarter of that, and a row of larger messages than a round is left out. --slice N and --ring N,
 * the pipeline's slices and how many of them each stream has, are 512K and 8; the former is the
 * largest slice of tcpx, too. --threads N is UCCL_TCPX_THREADS. --row TEXT measures only the rows
 * whose size and sockets, "1 MiB x 4", contain it. --quick is one round of 64M, and fewer
 * ping-pongs.
 */
#ifndef TCPX_BENCH_TRANSFER_H
#define TCPX_BENCH_TRANSFER_H

#include "bench/bench.h"

enum { TRANSFER_SIZES = 4, TRANSFER_TALKS = 3, DEFAULT_SOCKETS = 0 };

enum way { WAY_RAW, WAY_PIPELINE, WAY_TCPX, WAYS };

/* What the latency is of. */
enum talk_kind {
    TALK_RAW,
    TALK_RAW_APART, /* a connection for each direction, as comms have them */
    TALK_HOST,
    TALK_GPU,
};

struct transfer_plan {
    bool in_gpu; /* what tcpx moves, and the pipeline */
    enum way ways[WAYS];
    int way_count; /* tcpx is the last */
    uint64_t message_sizes[TRANSFER_SIZES];
    unsigned socket_counts[6];
    int socket_choices;
    int rounds; /* unless told otherwise */
    uint64_t small;
    const char *small_name;
    int block; /* of ping-pongs */
    enum talk_kind talks[TRANSFER_TALKS];
    int talk_count;
};

int transfer_main(const struct transfer_plan *plan, int argument_count, char **arguments);

#endif
