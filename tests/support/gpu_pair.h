/*
 * Two ends of a comm with a buffer each, in GPU memory or host memory, for the tests of
 * src/net/gpu: the GPU that all of them use, buffers with marks around what they hold, and requests
 * whose results are kept, so that a test can let them fail.
 */
#ifndef TCPX_TESTS_SUPPORT_GPU_PAIR_H
#define TCPX_TESTS_SUPPORT_GPU_PAIR_H

#include "gpu/gpu.h"
#include "tests/support/gpu_native.h"
#include "tests/support/pair.h"
#include "tests/unit/net_traffic.h"

enum { GPU_MARGIN = 64, GPU_MARK = SLOT_MARK };

/* --- the GPU --------------------------------------------------------------------------------- */

extern struct gpu_world {
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_event *event;
    struct gpu_pinned window; /* what a test looks at GPU memory through */
    struct text text;
} world;

/* Messages of the text have at most `longest` bytes. 0, or -1 with a line that says why. */
int world_open(uint64_t longest, uint64_t window_bytes);
int world_close(void);

/* Until all that is on the stream is over. */
void world_drain(void);

/* Copies from GPU memory into the window, and waits. */
const uint8_t *world_look(gpu_address from, uint64_t bytes);

/* --- buffers --------------------------------------------------------------------------------- */

/* A buffer, with host memory through which it is filled and looked at. */
struct place {
    bool in_gpu;
    struct gpu_memory device;
    uint8_t *host;
    uint64_t bytes;
};

void place_create(struct place *place, bool in_gpu, uint64_t bytes);
void place_destroy(struct place *place);

/* As the transport wants it. */
void *place_at(const struct place *place, uint64_t at);

/*
 * Marks the first `all` bytes and puts a message at `at`, if there is one; the first of these only
 * puts that on the stream.
 */
void place_begin_to_fill(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                         uint64_t bytes);
void place_fill(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                uint64_t bytes);

/* Reads the first `all` bytes. */
const uint8_t *place_look(struct place *place, uint64_t all);

/* Whether the message is at `at`, and marks are all around it, up to `all`. */
bool place_holds(struct place *place, uint64_t all, uint64_t at, const uint8_t *message,
                 uint64_t bytes);

/* --- two ends -------------------------------------------------------------------------------- */

struct gpu_end {
    struct net_comm *comm;
    struct place place;
    struct net_memory *memory;
    struct net_request *request; /* NULL: it has ended, or never began */
    int result;
};

struct gpu_pair {
    struct gpu_end sender;
    struct gpu_end receiver;
};

/* Places of `room` bytes in GPU memory; the last does both. */
void gpu_pair_connect(struct gpu_pair *pair, const struct net_link_options *options, uint64_t room);
void gpu_pair_register(struct gpu_pair *pair);
void gpu_pair_open(struct gpu_pair *pair, const struct net_link_options *options, uint64_t room);

/* Deregisters and closes; the place stays, and its bytes can be looked at. */
void gpu_end_close(struct gpu_end *end);
void gpu_pair_close(struct gpu_pair *pair);

/* Closes what is open, and frees the places. */
void gpu_pair_free(struct gpu_pair *pair);

/* A message of so many bytes behind a margin of the place; tag 1. */
struct net_buffer gpu_end_buffer(const struct gpu_end *end, uint64_t bytes);
int gpu_pair_send(struct gpu_pair *pair, uint64_t bytes, enum net_after after, void *what);
int gpu_pair_receive(struct gpu_pair *pair, uint64_t bytes);

/*
 * Moves it on by a test, or by a wait so short that the other end is not forgotten, since that may
 * need calls. Returns the result, which it keeps.
 */
int gpu_end_step(struct gpu_end *end, bool waiting);
/* Both once; true: both have ended. */
bool gpu_pair_step(struct gpu_pair *pair, bool waiting);
/* Both to the end, in success. */
void gpu_pair_must_end(struct gpu_pair *pair);

#endif
