/*
 * The queue as a ring. Its capacity need not be a power of two: an index never passes twice the
 * capacity, so one comparison wraps it.
 */
#include "base/queue.h"

#include "base/checked.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int queue_init(struct queue *queue, size_t capacity, size_t element_size)
{
    uint64_t total;
    void *elements;

    if (capacity == 0 || element_size == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a queue of %zu elements of %zu bytes cannot be: sizes are not zero",
                         capacity, element_size);
    if (!checked_multiply(capacity, element_size, &total) || total > PTRDIFF_MAX)
        return error_set(TCPX_INVALID_ARGUMENT, "a queue of %zu elements of %zu bytes is too large",
                         capacity, element_size);
    elements = malloc(total);
    if (elements == NULL)
        return error_system(errno, "cannot allocate a queue of %zu elements of %zu bytes", capacity,
                            element_size);
    *queue =
        (struct queue){.elements = elements, .element_size = element_size, .capacity = capacity};
    return TCPX_SUCCESS;
}

void queue_destroy(struct queue *queue)
{
    free(queue->elements);
    *queue = (struct queue){0};
}

static unsigned char *element_at(const struct queue *queue, size_t index)
{
    if (index >= queue->capacity)
        index -= queue->capacity;
    return queue->elements + index * queue->element_size;
}

bool queue_push(struct queue *queue, const void *element)
{
    if (queue->length == queue->capacity)
        return false;
    memcpy(element_at(queue, queue->first + queue->length), element, queue->element_size);
    queue->length++;
    return true;
}

bool queue_pop(struct queue *queue, void *element)
{
    if (queue->length == 0)
        return false;
    if (element != NULL)
        memcpy(element, element_at(queue, queue->first), queue->element_size);
    queue->first++;
    if (queue->first == queue->capacity)
        queue->first = 0;
    queue->length--;
    return true;
}

void *queue_peek(struct queue *queue)
{
    return queue->length > 0 ? element_at(queue, queue->first) : NULL;
}

void *queue_at(struct queue *queue, size_t index)
{
    return element_at(queue, queue->first + index);
}
