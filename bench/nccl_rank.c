/*
 * A rank: one or two communicators, each with a stream and buffers of its own (a lane), and
 * operations whose every byte is verified. The destination is poisoned before each iteration, with
 * some bytes behind it; each iteration, rank and slot has other data. Bytes that are only moved are
 * compared on the GPU; sums are of whole numbers in float32, which are exact, and compared here.
 */
#include "bench/nccl_rank.h"
#include "base/clock.h"
#include "gpu/gpu.h"
#include "tests/support/basics.h"
#include "tests/support/gpu_native.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    POISON = 0xee,
    GUARD = 64, /* bytes behind each destination that must stay as they are */
    SLOT_ALIGN = 512,
    CHUNK = 4 << 20,
    TABLE_SHIFTS = 65536,
    START_DELAY_NS = 20000,
    LOOK_NS = 1000000, /* how often a wait looks at deadline and communicator */
};

const char *const operation_names[OPERATIONS] = {"sendrecv",   "bidir",      "alltoall",
                                                 "all_reduce", "all_gather", "reduce_scatter",
                                                 "broadcast",  "reduce"};

/* Part of the driver, for graphs alone: src/gpu has no use for them. */
#define GRAPH_CALLS(CALL)                                                                          \
    CALL(cuDevicePrimaryCtxRetain, void **context, int device)                                     \
    CALL(cuCtxSetCurrent, void *context)                                                           \
    CALL(cuStreamBeginCapture_v2, void *stream, int mode)                                          \
    CALL(cuStreamEndCapture, void *stream, void **graph)                                           \
    CALL(cuGraphInstantiateWithFlags, void **instance, void *graph, unsigned long long flags)      \
    CALL(cuGraphLaunch, void *instance, void *stream)                                              \
    CALL(cuGraphExecDestroy, void *instance)                                                       \
    CALL(cuGraphDestroy, void *graph)

struct graph_api {
#define GRAPH_MEMBER(name, ...) int (*name)(__VA_ARGS__);
    GRAPH_CALLS(GRAPH_MEMBER)
};

enum { CAPTURE_THREAD_LOCAL = 1 };

/* What the CPU reads of a lane's results, in pinned memory. */
struct scratch {
    struct gpu_verify_result results[2 * MOST_BURST];
    uint8_t guards[MOST_BURST][GUARD];
    float chunk[CHUNK / sizeof(float)];
};

struct lane {
    struct rank *rank;
    int number;
    int peer; /* a socket */
    nccl_comm comm;
    nccl_result async_error;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_memory from;
    struct gpu_memory to;
    struct gpu_memory results;
    struct gpu_pinned pinned;
    void *handles[2]; /* of registered buffers */
    void *graph;
    struct answer answer;
};

struct rank {
    int number;
    int orders; /* a socket */
    struct nccl_api nccl;
    struct graph_api driver;
    struct gpu *gpu;
    struct lane lanes[LANES];
    /* Whole numbers: what is summed is a part of it that begins at one of TABLE_SHIFTS places. */
    float *host_table;
    struct gpu_memory table;
};

/* One operation of one order. */
struct run {
    struct lane *lane;
    const struct order *order;
    enum operation operation;
    uint64_t bytes;
    uint64_t half;
    uint64_t stride; /* between slots */
    int slots;       /* the order's burst, or 1 where that many do not fit */
    uint64_t iteration;
    int root;
};

/* --- failures ------------------------------------------------------------------------------ */

/* The first one stays. */
static void complain(struct lane *lane, enum answer_status status, const char *format, va_list list)
{
    if (lane->answer.status >= status)
        return;
    lane->answer.status = status;
    vsnprintf(lane->answer.text, sizeof lane->answer.text, format, list);
}

__attribute__((format(printf, 2, 3))) static bool fail(struct lane *lane, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    complain(lane, ANSWER_FAILED, format, list);
    va_end(list);
    return false;
}

__attribute__((format(printf, 2, 3))) static void wrong(struct lane *lane, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    complain(lane, ANSWER_WRONG, format, list);
    va_end(list);
}

static bool gpu_fine(struct lane *lane, int result)
{
    return result == TCPX_SUCCESS || fail(lane, "%s", tcpx_last_error());
}

static bool nccl_fine(struct lane *lane, nccl_result result, const char *what)
{
    const struct nccl_api *nccl = &lane->rank->nccl;

    if (result == NCCL_OK)
        return true;
    return fail(lane, "%s: %s (%s)", what, nccl->ncclGetErrorString(result),
                nccl->ncclGetLastError(lane->comm));
}

/* --- the GPU ------------------------------------------------------------------------------- */

/* A communicator's own threads report here what goes wrong behind an operation's back. */
static bool comm_is_fine(struct lane *lane)
{
    nccl_result error = NCCL_OK;

    if (lane->comm == NULL)
        return true;
    if (!nccl_fine(lane, lane->rank->nccl.ncclCommGetAsyncError(lane->comm, &error),
                   "ncclCommGetAsyncError"))
        return false;
    if (error == NCCL_OK || error == NCCL_IN_PROGRESS)
        return true;
    lane->async_error = error;
    return nccl_fine(lane, error, "asynchronous error");
}

/* All work of the lane's stream so far. It never sleeps: that would be measured. */
static bool finish(struct lane *lane, uint64_t deadline, uint64_t *moment)
{
    uint64_t look = clock_now() + LOOK_NS;
    bool done = false;

    if (!gpu_fine(lane, gpu_event_record(lane->event, lane->stream)))
        return false;
    for (;;) {
        uint64_t now;

        if (!gpu_fine(lane, gpu_event_query(lane->event, &done)))
            return false;
        now = clock_now();
        if (done) {
            *moment = now;
            return true;
        }
        if (now >= look) {
            look = now + LOOK_NS;
            if (!comm_is_fine(lane))
                return false;
            if (deadline_passed(deadline))
                return fail(lane, "the GPU's work is not finished in time");
        }
        sched_yield();
    }
}

static bool drain(struct lane *lane, uint64_t deadline)
{
    uint64_t moment;

    return finish(lane, deadline, &moment);
}

static bool build_table(struct lane *lane, uint64_t bytes)
{
    struct rank *rank = lane->rank;
    uint64_t all = (bytes + TABLE_SHIFTS * sizeof(float) + 7) / 8 * 8;

    if (bytes == 0 || rank->host_table != NULL)
        return true;
    rank->host_table = malloc(all);
    if (rank->host_table == NULL)
        return fail(lane, "no memory for a table of %llu bytes", (unsigned long long)all);
    for (uint64_t i = 0; i < all / 8; i++) {
        uint64_t word = pattern_word(1, i);

        rank->host_table[2 * i] = (float)(word & 0xfffff); /* 20 bits: a sum of two is exact */
        rank->host_table[2 * i + 1] = (float)(word >> 44);
    }
    return gpu_fine(lane, gpu_memory_alloc(rank->gpu, all, PAGE, &rank->table)) &&
           gpu_fine(lane,
                    gpu_copy_to_device(lane->stream, rank->table.address, rank->host_table, all));
}

static uint64_t stride_of(uint64_t bytes)
{
    return (bytes + GUARD + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

static bool open_lane(struct lane *lane, const struct order *order)
{
    struct gpu *gpu = lane->rank->gpu;
    uint64_t bytes = stride_of(order->bytes);

    if (bytes < SLOTS_BYTES)
        bytes = SLOTS_BYTES;
    return gpu_fine(lane, gpu_stream_create(gpu, &lane->stream)) &&
           gpu_fine(lane, gpu_event_create(gpu, &lane->event)) &&
           gpu_fine(lane, gpu_memory_alloc(gpu, bytes, PAGE, &lane->from)) &&
           gpu_fine(lane, gpu_memory_alloc(gpu, bytes, PAGE, &lane->to)) &&
           gpu_fine(lane, gpu_memory_alloc(gpu, sizeof(struct gpu_verify_result) * 2 * MOST_BURST,
                                           PAGE, &lane->results)) &&
           gpu_fine(lane, gpu_pinned_alloc(gpu, sizeof(struct scratch), &lane->pinned)) &&
           build_table(lane, order->table_bytes) && drain(lane, deadline_after_ms(order->limit_ms));
}

static void close_lane(struct lane *lane)
{
    struct gpu *gpu = lane->rank->gpu;

    if (lane->stream == NULL)
        return;
    gpu_pinned_free(gpu, &lane->pinned);
    gpu_memory_free(gpu, &lane->results);
    gpu_memory_free(gpu, &lane->to);
    gpu_memory_free(gpu, &lane->from);
    gpu_event_destroy(lane->event);
    gpu_stream_destroy(lane->stream);
    lane->stream = NULL;
}

/* --- operations ---------------------------------------------------------------------------- */

uint64_t operation_bytes(enum operation operation, uint64_t asked)
{
    uint64_t unit = 1;

    if (operation == OP_ALLTOALL || operation == OP_ALL_GATHER)
        unit = RANKS;
    else if (operation == OP_REDUCE_SCATTER)
        unit = RANKS * sizeof(float);
    else if (operation_reduces(operation))
        unit = sizeof(float);
    return (asked + unit - 1) / unit * unit;
}

/* What this rank sends in a slot. */
static uint64_t source_bytes(const struct run *run)
{
    int me = run->lane->rank->number;

    if ((run->operation == OP_SENDRECV && me != 0) ||
        (run->operation == OP_BROADCAST && me != run->root))
        return 0;
    return run->operation == OP_ALL_GATHER ? run->half : run->bytes;
}

/* What this rank gets in a slot. */
static uint64_t destination_bytes(const struct run *run)
{
    int me = run->lane->rank->number;

    if ((run->operation == OP_SENDRECV && me != 1) ||
        (run->operation == OP_REDUCE && me != run->root))
        return 0;
    return run->operation == OP_REDUCE_SCATTER ? run->half : run->bytes;
}

static gpu_address slot_of(const struct run *run, const struct gpu_memory *memory, int slot)
{
    return memory->address + (uint64_t)slot * run->stride;
}

static nccl_result exchange(const struct run *run, const uint8_t *from, uint8_t *to, bool sends,
                            bool receives)
{
    struct lane *lane = run->lane;
    const struct nccl_api *nccl = &lane->rank->nccl;
    void *stream = gpu_stream_native(lane->stream);
    int peer = 1 - lane->rank->number;
    nccl_result result = NCCL_OK;
    nccl_result end;

    nccl->ncclGroupStart();
    if (sends)
        result = nccl->ncclSend(from, run->bytes, NCCL_UINT8, peer, lane->comm, stream);
    if (result == NCCL_OK && receives)
        result = nccl->ncclRecv(to, run->bytes, NCCL_UINT8, peer, lane->comm, stream);
    end = nccl->ncclGroupEnd();
    return result != NCCL_OK ? result : end;
}

static nccl_result all_to_all(const struct run *run, const uint8_t *from, uint8_t *to)
{
    struct lane *lane = run->lane;
    const struct nccl_api *nccl = &lane->rank->nccl;
    void *stream = gpu_stream_native(lane->stream);
    nccl_result result = NCCL_OK;
    nccl_result end;

    nccl->ncclGroupStart();
    for (int peer = 0; peer < RANKS && result == NCCL_OK; peer++) {
        uint64_t at = (uint64_t)peer * run->half;

        result = nccl->ncclSend(from + at, run->half, NCCL_UINT8, peer, lane->comm, stream);
        if (result == NCCL_OK)
            result = nccl->ncclRecv(to + at, run->half, NCCL_UINT8, peer, lane->comm, stream);
    }
    end = nccl->ncclGroupEnd();
    return result != NCCL_OK ? result : end;
}

static nccl_result issue(const struct run *run, int slot)
{
    struct lane *lane = run->lane;
    const struct nccl_api *nccl = &lane->rank->nccl;
    const uint8_t *from = (const uint8_t *)(uintptr_t)slot_of(run, &lane->from, slot);
    uint8_t *to = (uint8_t *)(uintptr_t)slot_of(run, &lane->to, slot);
    void *stream = gpu_stream_native(lane->stream);
    size_t floats = run->bytes / sizeof(float);
    int me = lane->rank->number;

    switch (run->operation) {
    case OP_SENDRECV:
        return exchange(run, from, to, me == 0, me == 1);
    case OP_BIDIR:
        return exchange(run, from, to, true, true);
    case OP_ALLTOALL:
        return all_to_all(run, from, to);
    case OP_ALL_REDUCE:
        return nccl->ncclAllReduce(from, to, floats, NCCL_FLOAT32, NCCL_SUM, lane->comm, stream);
    case OP_ALL_GATHER:
        return nccl->ncclAllGather(from, to, run->half, NCCL_UINT8, lane->comm, stream);
    case OP_REDUCE_SCATTER:
        return nccl->ncclReduceScatter(from, to, floats / RANKS, NCCL_FLOAT32, NCCL_SUM, lane->comm,
                                       stream);
    case OP_BROADCAST:
        return nccl->ncclBroadcast(from, to, run->bytes, NCCL_UINT8, run->root, lane->comm, stream);
    default:
        return nccl->ncclReduce(from, to, floats, NCCL_FLOAT32, NCCL_SUM, run->root, lane->comm,
                                stream);
    }
}

/* --- data ---------------------------------------------------------------------------------- */

static uint64_t seed_of(const struct run *run, int rank, int slot)
{
    uint64_t what = run->bytes << 8 | (uint64_t)run->operation << 1 | (uint64_t)run->lane->number;

    return pattern_word(pattern_word(what, run->iteration),
                        (uint64_t)slot * RANKS + (uint64_t)rank);
}

/* Where in the table this rank's numbers begin. */
static uint64_t shift_of(const struct run *run, int rank, int slot)
{
    return seed_of(run, rank, slot) % TABLE_SHIFTS;
}

static bool prepare(const struct run *run, uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct rank *rank = lane->rank;
    uint64_t bytes = source_bytes(run);
    int result =
        gpu_set(lane->stream, lane->to.address, POISON, (uint64_t)run->slots * run->stride);

    for (int slot = 0; slot < run->slots && bytes > 0 && result == TCPX_SUCCESS; slot++) {
        gpu_address at = slot_of(run, &lane->from, slot);

        if (operation_reduces(run->operation))
            result = gpu_copy_on_device(
                lane->stream, at,
                rank->table.address + shift_of(run, rank->number, slot) * sizeof(float), bytes);
        else
            result = gpu_fill_pattern(lane->stream, at, bytes, seed_of(run, rank->number, slot), 0);
    }
    return gpu_fine(lane, result) && drain(lane, deadline);
}

/* A part of a slot's destination, and the part of the pattern that must be there. */
struct piece {
    uint64_t at;
    uint64_t bytes;
    uint64_t seed;
    uint64_t position;
};

static int pieces_of(const struct run *run, int slot, struct piece pieces[RANKS])
{
    uint64_t me = (uint64_t)run->lane->rank->number;
    int source = run->operation == OP_BROADCAST ? run->root : 1 - run->lane->rank->number;

    if (destination_bytes(run) == 0)
        return 0;
    if (run->operation != OP_ALLTOALL && run->operation != OP_ALL_GATHER) {
        pieces[0] = (struct piece){.bytes = run->bytes, .seed = seed_of(run, source, slot)};
        return 1;
    }
    for (int rank = 0; rank < RANKS; rank++)
        pieces[rank] =
            (struct piece){.at = (uint64_t)rank * run->half,
                           .bytes = run->half,
                           .seed = seed_of(run, rank, slot),
                           .position = run->operation == OP_ALLTOALL ? me * run->half : 0};
    return RANKS;
}

static void report(const struct run *run, int slot, uint64_t at, const char *expected,
                   const char *got)
{
    wrong(run->lane,
          "%s of %llu bytes, rank %d, iteration %llu, operation %d of the burst: wrong from byte "
          "%llu on: %s instead of %s",
          operation_names[run->operation], (unsigned long long)run->bytes, run->lane->rank->number,
          (unsigned long long)run->iteration, slot, (unsigned long long)at, got, expected);
}

static bool read_back(struct lane *lane, void *to, gpu_address from, uint64_t bytes,
                      uint64_t deadline)
{
    return gpu_fine(lane, gpu_copy_to_host(lane->stream, to, from, bytes)) && drain(lane, deadline);
}

static bool report_byte(const struct run *run, int slot, const struct piece *piece, uint64_t first,
                        uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct scratch *scratch = lane->pinned.host;
    uint64_t at = piece->at + first;
    uint8_t *got = (uint8_t *)scratch->chunk;
    char expected_text[16];
    char got_text[16];

    if (!read_back(lane, got, slot_of(run, &lane->to, slot) + at, 1, deadline))
        return false;
    snprintf(expected_text, sizeof expected_text, "0x%02x",
             pattern_byte(piece->seed, piece->position + first));
    snprintf(got_text, sizeof got_text, "0x%02x", *got);
    report(run, slot, at, expected_text, got_text);
    return true;
}

/* By the GPU, all slots at once. */
static bool verify_moved(const struct run *run, uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct scratch *scratch = lane->pinned.host;
    uint64_t one = sizeof(struct gpu_verify_result);
    struct piece pieces[RANKS];

    memset(scratch->results, 0, sizeof scratch->results); /* "wrong", if nothing comes */
    for (int slot = 0; slot < run->slots; slot++) {
        int count = pieces_of(run, slot, pieces);

        for (int i = 0; i < count; i++)
            if (!gpu_fine(lane, gpu_verify_pattern(
                                    lane->stream, slot_of(run, &lane->to, slot) + pieces[i].at,
                                    pieces[i].bytes, pieces[i].seed, pieces[i].position,
                                    lane->results.address + (uint64_t)(RANKS * slot + i) * one)))
                return false;
    }
    if (!read_back(lane, scratch->results, lane->results.address,
                   (uint64_t)(RANKS * run->slots) * one, deadline))
        return false;
    for (int slot = 0; slot < run->slots; slot++) {
        int count = pieces_of(run, slot, pieces);

        for (int i = 0; i < count; i++) {
            const struct gpu_verify_result *result = &scratch->results[RANKS * slot + i];

            if (result->first != UINT64_MAX || result->differences != 0)
                return report_byte(run, slot, &pieces[i], result->first, deadline);
        }
    }
    return true;
}

static uint64_t first_wrong_sum(const float *got, const float *a, const float *b, uint64_t count)
{
    uint64_t different = 0;

    for (uint64_t i = 0; i < count; i++) /* without a branch: the compiler makes vectors of it */
        different += got[i] != a[i] + b[i];
    for (uint64_t i = 0; different > 0 && i < count; i++)
        if (got[i] != a[i] + b[i])
            return i;
    return UINT64_MAX;
}

static bool verify_sums_of_slot(const struct run *run, int slot, uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct rank *rank = lane->rank;
    struct scratch *scratch = lane->pinned.host;
    uint64_t bytes = destination_bytes(run);
    uint64_t skipped = run->operation == OP_REDUCE_SCATTER ? (uint64_t)rank->number * run->half : 0;
    const float *inputs[RANKS];

    for (int i = 0; i < RANKS; i++)
        inputs[i] = rank->host_table + shift_of(run, i, slot) + skipped / sizeof(float);
    for (uint64_t at = 0; at < bytes; at += CHUNK) {
        uint64_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        uint64_t place = at / sizeof(float);
        uint64_t first;

        if (!read_back(lane, scratch->chunk, slot_of(run, &lane->to, slot) + at, part, deadline))
            return false;
        first = first_wrong_sum(scratch->chunk, inputs[0] + place, inputs[1] + place,
                                part / sizeof(float));
        if (first != UINT64_MAX) {
            char expected[32];
            char got[32];

            snprintf(expected, sizeof expected, "%.9g",
                     (double)(inputs[0][place + first] + inputs[1][place + first]));
            snprintf(got, sizeof got, "%.9g", (double)scratch->chunk[first]);
            report(run, slot, at + first * sizeof(float), expected, got);
            return true;
        }
    }
    return true;
}

static bool verify_sums(const struct run *run, uint64_t deadline)
{
    for (int slot = 0; slot < run->slots; slot++)
        if (!verify_sums_of_slot(run, slot, deadline))
            return false;
    return true;
}

/* Nothing is written behind a destination, nor where there is none. */
static bool verify_guards(const struct run *run, uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct scratch *scratch = lane->pinned.host;
    uint64_t end = destination_bytes(run);

    memset(scratch->guards, 0, sizeof scratch->guards);
    for (int slot = 0; slot < run->slots; slot++)
        if (!gpu_fine(lane, gpu_copy_to_host(lane->stream, scratch->guards[slot],
                                             slot_of(run, &lane->to, slot) + end, GUARD)))
            return false;
    if (!drain(lane, deadline))
        return false;
    for (int slot = 0; slot < run->slots; slot++)
        for (unsigned i = 0; i < GUARD; i++)
            if (scratch->guards[slot][i] != POISON) {
                report(run, slot, end + i, "what was there before", "bytes behind the destination");
                return true;
            }
    return true;
}

static bool plant(const struct run *run, uint64_t deadline)
{
    struct lane *lane = run->lane;
    struct scratch *scratch = lane->pinned.host;
    uint8_t *byte = (uint8_t *)scratch->chunk;
    uint64_t bytes = destination_bytes(run);
    gpu_address at = slot_of(run, &lane->to, run->slots - 1) + bytes / 2;

    if (bytes == 0)
        return true;
    if (!read_back(lane, byte, at, 1, deadline))
        return false;
    *byte ^= 0x40;
    return gpu_fine(lane, gpu_copy_to_device(lane->stream, at, byte, 1)) && drain(lane, deadline);
}

static bool verify(const struct run *run, uint64_t deadline)
{
    bool asked = operation_reduces(run->operation) ? verify_sums(run, deadline)
                                                   : verify_moved(run, deadline);

    return asked && verify_guards(run, deadline);
}

/* --- graphs -------------------------------------------------------------------------------- */

static bool load_driver(struct lane *lane)
{
    struct graph_api *driver = &lane->rank->driver;
    void *library;

    if (driver->cuGraphDestroy != NULL)
        return true;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return fail(lane, "graphs: %s", dlerror());
#define GRAPH_FIND(name, ...)                                                                      \
    *(void **)&driver->name = dlsym(library, #name);                                               \
    if (driver->name == NULL)                                                                      \
        return fail(lane, "graphs: no " #name " in libcuda.so.1");
    GRAPH_CALLS(GRAPH_FIND)
    return true;
}

static bool driver_fine(struct lane *lane, int result, const char *what)
{
    return result == 0 || fail(lane, "%s: CUDA error %d", what, result);
}

/* All operations of an iteration, as a graph that each iteration launches. */
static bool capture(const struct run *run)
{
    struct lane *lane = run->lane;
    struct graph_api *driver = &lane->rank->driver;
    void *stream = gpu_stream_native(lane->stream);
    nccl_result issued = NCCL_OK;
    void *context;
    void *graph = NULL;
    bool fine;

    if (!load_driver(lane) ||
        !driver_fine(lane, driver->cuDevicePrimaryCtxRetain(&context, 0), "the context") ||
        !driver_fine(lane, driver->cuCtxSetCurrent(context), "cuCtxSetCurrent") ||
        !driver_fine(lane, driver->cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL),
                     "cuStreamBeginCapture"))
        return false;
    for (int i = 0; i < run->order->burst && issued == NCCL_OK; i++)
        issued = issue(run, i % run->slots);
    fine = nccl_fine(lane, issued, "an operation that is captured");
    if (!driver_fine(lane, driver->cuStreamEndCapture(stream, &graph), "cuStreamEndCapture") ||
        !fine)
        return false;
    fine = driver_fine(lane, driver->cuGraphInstantiateWithFlags(&lane->graph, graph, 0),
                       "cuGraphInstantiateWithFlags");
    driver->cuGraphDestroy(graph);
    return fine;
}

/* Before the communicator is destroyed, which would wait for it. */
static void drop_graph(struct lane *lane)
{
    if (lane->graph != NULL)
        lane->rank->driver.cuGraphExecDestroy(lane->graph);
    lane->graph = NULL;
}

/* --- iterations ---------------------------------------------------------------------------- */

static bool hear(struct lane *lane, void *message, size_t bytes, uint64_t deadline)
{
    for (;;) {
        ssize_t got = recv(lane->peer, message, bytes, MSG_DONTWAIT);

        if (got == (ssize_t)bytes)
            return true;
        if (got >= 0)
            return fail(lane, "the other rank is gone");
        if (errno != EAGAIN && errno != EINTR)
            return fail(lane, "the other rank: %s", strerror(errno));
        if (deadline_passed(deadline))
            return fail(lane, "the other rank does not come");
        sched_yield();
    }
}

static bool say(struct lane *lane, const void *message, size_t bytes)
{
    if (send(lane->peer, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes)
        return true;
    return fail(lane, "the other rank: %s", strerror(errno));
}

/* Both ranks start at the same moment, so that neither measures the other's lateness. */
static bool meet(struct lane *lane, uint64_t deadline, uint64_t *start)
{
    uint64_t moment = 0;

    if (lane->rank->number == 0) {
        if (!hear(lane, &moment, sizeof moment, deadline))
            return false;
        moment = clock_now() + START_DELAY_NS;
        if (!say(lane, &moment, sizeof moment))
            return false;
    } else if (!say(lane, &moment, sizeof moment) ||
               !hear(lane, &moment, sizeof moment, deadline)) {
        return false;
    }
    while (clock_now() < moment)
        ;
    *start = moment;
    return true;
}

static bool enqueue(const struct run *run)
{
    struct lane *lane = run->lane;

    if (lane->graph != NULL)
        return driver_fine(
            lane, lane->rank->driver.cuGraphLaunch(lane->graph, gpu_stream_native(lane->stream)),
            "cuGraphLaunch");
    for (int i = 0; i < run->order->burst; i++)
        if (!nccl_fine(lane, issue(run, i % run->slots), operation_names[run->operation]))
            return false;
    return true;
}

static bool iterate(const struct run *run, bool plants, double *seconds)
{
    struct lane *lane = run->lane;
    uint64_t deadline = deadline_after_ms(run->order->limit_ms);
    uint64_t start = 0;
    uint64_t end = 0;

    if (!prepare(run, deadline) || !meet(lane, deadline, &start) || !enqueue(run) ||
        !finish(lane, deadline, &end))
        return false;
    *seconds = (double)(end - start) * 1e-9 / run->order->burst;
    return (!plants || plant(run, deadline)) && verify(run, deadline);
}

static struct run start_run(struct lane *lane, const struct order *order, enum operation operation)
{
    struct run run = {.lane = lane,
                      .order = order,
                      .operation = operation,
                      .bytes = operation_bytes(operation, order->bytes)};

    run.half = run.bytes / RANKS;
    run.stride = stride_of(run.bytes);
    run.slots = (uint64_t)order->burst * run.stride <= SLOTS_BYTES ? order->burst : 1;
    return run;
}

static bool run_order(struct lane *lane, const struct order *order, enum operation operation)
{
    struct run run = start_run(lane, order, operation);
    int all = order->warmup + order->iterations;
    bool fine = true;

    for (int i = 0; i < all && fine; i++) {
        double seconds = 0;

        run.iteration = order->first + (uint64_t)i;
        run.root = order->graph ? 0 : (int)(run.iteration % RANKS);
        if (order->graph && i == order->warmup)
            fine = capture(&run);
        fine = fine && iterate(&run, order->plant && i == 0, &seconds);
        if (fine && i >= order->warmup)
            lane->answer.seconds[i - order->warmup] = seconds;
    }
    drop_graph(lane);
    return fine;
}

/* --- orders -------------------------------------------------------------------------------- */

static void answer(struct lane *lane)
{
    lane->answer.moment = clock_now();
    if (send(lane->rank->orders, &lane->answer, sizeof lane->answer, MSG_NOSIGNAL) < 0)
        _exit(1); /* nobody is left to tell */
}

struct drive {
    struct lane *lane;
    const struct order *order;
    enum operation operation;
};

static void *drive_lane(void *argument)
{
    struct drive *drive = argument;

    run_order(drive->lane, drive->order, drive->operation);
    return NULL;
}

static void run_both(struct rank *rank, const struct order *order)
{
    struct drive drives[LANES] = {{&rank->lanes[0], order, order->operation},
                                  {&rank->lanes[1], order, order->other_operation}};
    struct answer *first = &rank->lanes[0].answer;
    struct answer *second = &rank->lanes[1].answer;
    pthread_t thread;

    memset(second, 0, sizeof *second);
    if (pthread_create(&thread, NULL, drive_lane, &drives[1]) != 0) {
        fail(&rank->lanes[0], "no thread");
        return;
    }
    drive_lane(&drives[0]);
    pthread_join(thread, NULL);
    if (second->status > first->status)
        *first = *second;
}

/* The first answer: it runs. The second: it has failed, as it should. The third: it is aborted. */
static void run_until_failure(struct lane *lane, const struct order *order)
{
    struct run run = start_run(lane, order, order->operation);
    nccl_result result;

    for (uint64_t i = 0;; i++) {
        if (i == 2)
            answer(lane);
        if (!nccl_fine(lane, issue(&run, 0), operation_names[run.operation]) ||
            !drain(lane, deadline_after_ms(order->limit_ms)))
            break;
    }
    if (lane->async_error == NCCL_OK)
        comm_is_fine(lane); /* a call failed before a wait could look */
    if (lane->async_error != NCCL_OK)
        lane->answer.status = ANSWER_FINE; /* its text stays */
    answer(lane);
    result = lane->rank->nccl.ncclCommAbort(lane->comm);
    lane->comm = NULL;
    lane->answer.status = ANSWER_FINE;
    nccl_fine(lane, result, "ncclCommAbort");
}

static bool open_comm(struct lane *lane, const struct order *order)
{
    struct rank *rank = lane->rank;
    const struct nccl_api *nccl = &rank->nccl;

    if (order->kind == ORDER_SPLIT) {
        if (!nccl_fine(lane,
                       nccl->ncclCommSplit(rank->lanes[0].comm, 0, rank->number, &lane->comm, NULL),
                       "ncclCommSplit"))
            return false;
    } else if (!nccl_fine(lane, nccl->ncclCommInitRank(&lane->comm, RANKS, order->id, rank->number),
                          "ncclCommInitRank")) {
        return false;
    }
    if (!order->register_buffers)
        return true;
    return nccl_fine(lane,
                     nccl->ncclCommRegister(lane->comm, (void *)(uintptr_t)lane->from.address,
                                            lane->from.bytes, &lane->handles[0]),
                     "ncclCommRegister") &&
           nccl_fine(lane,
                     nccl->ncclCommRegister(lane->comm, (void *)(uintptr_t)lane->to.address,
                                            lane->to.bytes, &lane->handles[1]),
                     "ncclCommRegister");
}

static bool close_comm(struct lane *lane)
{
    const struct nccl_api *nccl = &lane->rank->nccl;
    nccl_comm comm = lane->comm;

    if (comm == NULL)
        return true;
    for (int i = 0; i < 2; i++)
        if (lane->handles[i] != NULL &&
            !nccl_fine(lane, nccl->ncclCommDeregister(comm, lane->handles[i]),
                       "ncclCommDeregister"))
            return false;
    memset(lane->handles, 0, sizeof lane->handles);
    lane->comm = NULL;
    return nccl_fine(lane, nccl->ncclCommDestroy(comm), "ncclCommDestroy");
}

static void obey(struct lane *lane, const struct order *order)
{
    struct rank *rank = lane->rank;

    switch (order->kind) {
    case ORDER_BUFFERS:
        open_lane(lane, order);
        break;
    case ORDER_ID:
        nccl_fine(lane, rank->nccl.ncclGetUniqueId(&lane->answer.id), "ncclGetUniqueId");
        break;
    case ORDER_INIT:
    case ORDER_SPLIT:
        open_comm(lane, order);
        break;
    case ORDER_RUN:
        run_order(lane, order, order->operation);
        break;
    case ORDER_RUN_BOTH:
        run_both(rank, order);
        break;
    case ORDER_LOOP:
        run_until_failure(lane, order);
        break;
    case ORDER_COUNT:
        lane->answer.files = open_descriptors();
        lane->answer.threads = running_threads();
        break;
    case ORDER_CLOSE:
        close_comm(lane);
        break;
    case ORDER_QUIT:
        for (int i = LANES - 1; i >= 0; i--) /* a part before what it was split from */
            if (!close_comm(&rank->lanes[i]) && i > 0)
                lane->answer = rank->lanes[i].answer;
        break;
    }
}

/* What this machine has: the library and a GPU. */
static void introduce(struct rank *rank, const char *libnccl)
{
    struct lane *lane = &rank->lanes[0];
    const char *asked = getenv("UCCL_TCPX_GPU");
    bool emulated_is_fine = asked != NULL && strcmp(asked, "host") == 0;
    const char *backend;
    const char *reason;

    lane->answer.status = ANSWER_SKIP;
    if (!nccl_load(libnccl, &rank->nccl, lane->answer.text, sizeof lane->answer.text))
        return;
    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS) {
        snprintf(lane->answer.text, sizeof lane->answer.text, "no GPU: %s", tcpx_last_error());
        return;
    }
    if (strcmp(backend, "cuda") != 0 && !emulated_is_fine) {
        snprintf(lane->answer.text, sizeof lane->answer.text, "no GPU: %s", reason);
        return;
    }
    lane->answer.status = ANSWER_FINE;
    if (gpu_fine(lane, gpu_open(0, &rank->gpu)) &&
        nccl_fine(lane, rank->nccl.ncclGetVersion(&lane->answer.version), "ncclGetVersion"))
        snprintf(lane->answer.text, sizeof lane->answer.text, "%s (%s)", backend, reason);
}

int rank_main(int number, int orders, const int peers[LANES], const char *libnccl)
{
    static struct rank rank;
    struct order order;

    setlinebuf(stdout);
    rank.number = number;
    rank.orders = orders;
    for (int i = 0; i < LANES; i++) {
        rank.lanes[i].rank = &rank;
        rank.lanes[i].number = i;
        rank.lanes[i].peer = peers[i];
    }
    introduce(&rank, libnccl);
    answer(&rank.lanes[0]);
    while (recv(orders, &order, sizeof order, 0) == (ssize_t)sizeof order) {
        struct lane *lane = &rank.lanes[order.lane];

        memset(&lane->answer, 0, sizeof lane->answer);
        obey(lane, &order);
        if (order.kind == ORDER_QUIT) {
            for (int i = 0; i < LANES; i++)
                close_lane(&rank.lanes[i]);
            gpu_memory_free(rank.gpu, &rank.table);
            gpu_close(rank.gpu);
            free(rank.host_table);
        }
        answer(lane);
        if (order.kind == ORDER_QUIT)
            return 0;
    }
    return 1;
}
