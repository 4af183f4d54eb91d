/*
 * One NCCL rank in a process of its own, and what it is told: orders and answers are single
 * messages over a socket. An idle rank sleeps in a read. Every wait of a rank has the order's
 * limit; NCCL's own blocking calls have none, so whoever gives orders watches the time as well.
 */
#ifndef TCPX_BENCH_NCCL_RANK_H
#define TCPX_BENCH_NCCL_RANK_H

#include "bench/nccl_api.h"

enum {
    RANKS = 2,
    LANES = 2,         /* communicators of a rank at the same time */
    MOST_BURST = 256,  /* operations in one iteration */
    MOST_RUN = 64,     /* iterations of one order */
    TEXT_BYTES = 1000, /* of an answer */
    SLOTS_BYTES = 64 << 20,
};

enum operation {
    OP_SENDRECV, /* from rank 0 to rank 1 */
    OP_BIDIR,
    OP_ALLTOALL,
    OP_ALL_REDUCE,
    OP_ALL_GATHER,
    OP_REDUCE_SCATTER,
    OP_BROADCAST,
    OP_REDUCE,
    OPERATIONS
};

static inline bool operation_reduces(enum operation operation)
{
    return operation == OP_ALL_REDUCE || operation == OP_REDUCE_SCATTER || operation == OP_REDUCE;
}

enum order_kind {
    ORDER_BUFFERS,  /* allocate: bytes, table_bytes */
    ORDER_ID,       /* answer with a new communicator's id */
    ORDER_INIT,     /* a communicator from id */
    ORDER_SPLIT,    /* lane 1's communicator from lane 0's */
    ORDER_RUN,      /* iterations, verified */
    ORDER_RUN_BOTH, /* the same on both lanes at once; lane 1 does other_operation */
    ORDER_LOOP,     /* operations until the communicator fails, then abort it; answers thrice */
    ORDER_COUNT,    /* files and threads of this process */
    ORDER_CLOSE,    /* destroy the lane's communicator */
    ORDER_QUIT
};

struct order {
    enum order_kind kind;
    enum operation operation;
    enum operation other_operation;
    int lane;
    int iterations;
    int warmup;
    int burst;
    bool plant; /* a wrong byte, so that verification must fail */
    bool graph; /* capture once, then replay */
    bool register_buffers;
    uint64_t bytes; /* of the operation as nccl-tests count it, or of the buffers */
    uint64_t table_bytes;
    uint64_t first; /* iteration's number, which chooses its data */
    uint64_t limit_ms;
    struct nccl_id id;
};

enum answer_status {
    ANSWER_FINE,
    ANSWER_WRONG,  /* data; the rank goes on */
    ANSWER_FAILED, /* the rank cannot go on */
    ANSWER_SKIP    /* this machine lacks something */
};

struct answer {
    enum answer_status status;
    char text[TEXT_BYTES];
    int version;
    int files;
    int threads;
    uint64_t moment; /* by base/clock.h */
    struct nccl_id id;
    double seconds[MOST_RUN]; /* of each iteration's operation; warm-up is left out */
};

extern const char *const operation_names[OPERATIONS];

/* So many bytes each rank's larger buffer really has: whole elements for each rank. */
uint64_t operation_bytes(enum operation operation, uint64_t asked);

/* The life of a rank process; the exit status. One socket to the peer for each lane. */
int rank_main(int number, int orders, const int peers[LANES], const char *libnccl);

#endif
