/*
 * Windows: memory of this process that peers may read or write by key (tcpx.h). Here: the table of
 * the process, keys and their proofs, and who uses a window. Sessions move the bytes
 * (session/access.h).
 *
 * A lock guards the table and all uses. It may be taken with the lock of a session; with it, only
 * what closing() needs is called.
 */
#ifndef TCPX_WINDOW_WINDOW_H
#define TCPX_WINDOW_WINDOW_H

#include "base/error.h"
#include "gpu/gpu.h"
#include "tcpx.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WINDOW_SECRET_BYTES = 16, WINDOW_PROOF_BYTES = 16 };

struct window_use;

struct tcpx_window {
    struct tcpx_window *next;
    uint64_t id; /* of this process; never used again */
    uint8_t secret[WINDOW_SECRET_BYTES];
    int gpu;           /* -1: host memory */
    struct gpu *holds; /* the GPU stays open; NULL: host memory */
    uint8_t *address;
    uint64_t bytes;
    int access;          /* of enum tcpx_window_access */
    atomic_bool closing; /* set with the lock; release and acquire */
    struct window_use *uses;
};

/* What a key says. */
struct window_key {
    uint64_t id;
    uint64_t bytes;
    int access;
    bool on_gpu;
    uint8_t secret[WINDOW_SECRET_BYTES];
};

/* Embedded in what belongs to a session. From begin to end the window's memory may be accessed. */
struct window_use {
    struct tcpx_window *window;              /* NULL: none */
    void (*closing)(struct window_use *use); /* asks to end the use soon; with the lock */
    struct window_use *next;
    struct window_use **here;
};

/* Of a window that is being closed: TCPX_INVALID_USAGE. */
MUST_CHECK int window_use_begin(struct tcpx_window *window, struct window_use *use);
/* No effect on a use without a window. */
void window_use_end(struct window_use *use);

static inline bool window_is_closing(const struct tcpx_window *window)
{
    return atomic_load_explicit(&window->closing, memory_order_acquire);
}

/*
 * Begins a use of the window of this number if the proof is right; a wrong one and a window that
 * does not exist are the same refusal.
 */
MUST_CHECK int window_find(uint64_t id, const void *context, size_t bytes,
                           const uint8_t proof[WINDOW_PROOF_BYTES], struct window_use *use);

/* That its maker has the secret: of this context, and no other one. */
void window_proof(const uint8_t secret[WINDOW_SECRET_BYTES], const void *context, size_t bytes,
                  uint8_t proof[WINDOW_PROOF_BYTES]);

/* A key that a peer has given; checked. */
MUST_CHECK int window_key_read(const void *bytes, size_t length, struct window_key *key);

#endif
