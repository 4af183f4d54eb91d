/*
 * Elements of one size, each with a key: a FIFO for each key. Every operation costs the same,
 * however many elements and keys there are. The number of elements is bounded, and all memory is
 * allocated at the beginning. Its owner's lock guards it.
 */
#ifndef TCPX_BASE_KEY_FIFO_H
#define TCPX_BASE_KEY_FIFO_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct key_fifo_node;

struct key_fifo {
    struct key_fifo_node *nodes;
    unsigned char *elements;
    uint32_t *buckets; /* the oldest node of each key, in chains */
    size_t element_size;
    uint32_t capacity;
    unsigned bucket_bits;
    uint32_t unused;     /* a chain of nodes */
    uint64_t multiplier; /* of the hash: random, since a peer may choose keys */
};

/* Neither `capacity` nor `element_size` is zero. */
MUST_CHECK int key_fifo_init(struct key_fifo *fifo, uint32_t capacity, size_t element_size);

/* One of zeros, or destroyed already, is left alone. */
void key_fifo_destroy(struct key_fifo *fifo);

/* Copies `element` behind those of its key; false: there is no room. */
MUST_CHECK bool key_fifo_push(struct key_fifo *fifo, uint64_t key, const void *element);

/* The oldest of this key in its place, until it is popped; NULL: there is none. */
MUST_CHECK void *key_fifo_peek(struct key_fifo *fifo, uint64_t key);

/* Moves the oldest to `element`, or drops it if that is NULL; false: there is none. */
bool key_fifo_pop(struct key_fifo *fifo, uint64_t key, void *element);

/*
 * Takes one out, from anywhere among those of its key: the first that is what is looked for. False:
 * none is. It costs as much as there are before it.
 */
bool key_fifo_remove(struct key_fifo *fifo, uint64_t key,
                     bool (*is)(const void *element, const void *what), const void *what);

/* To visit all elements: the one at a place below `capacity`, or NULL. */
MUST_CHECK const void *key_fifo_at(const struct key_fifo *fifo, uint32_t place);

#endif
