/*
 * A bounded queue of elements of one size, first in, first out, kept by value in one allocation. A
 * queue is not locked: its owner's lock guards it.
 */
#ifndef TCPX_BASE_QUEUE_H
#define TCPX_BASE_QUEUE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct queue {
    unsigned char *elements;
    size_t element_size;
    size_t capacity;
    size_t first; /* the oldest element */
    size_t length;
};

/* Neither `capacity` nor `element_size` is zero. */
MUST_CHECK int queue_init(struct queue *queue, size_t capacity, size_t element_size);

/* A queue of zeros or one destroyed already is left alone. */
void queue_destroy(struct queue *queue);

/* Copies `element` to the end; false when the queue is full. */
MUST_CHECK bool queue_push(struct queue *queue, const void *element);

/* Moves the oldest element to `element`, or only drops it if that is NULL; false when empty. */
MUST_CHECK bool queue_pop(struct queue *queue, void *element);

/* The oldest element in its place, valid until it is popped; NULL when the queue is empty. */
MUST_CHECK void *queue_peek(struct queue *queue);

/* The element that `index` others are older than, in its place; it is there. */
void *queue_at(struct queue *queue, size_t index);

static inline size_t queue_length(const struct queue *queue)
{
    return queue->length;
}

#endif
