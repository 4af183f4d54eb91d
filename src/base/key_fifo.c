/* Chains of nodes in an array: one for each bucket, and one for each key. */
#include "base/key_fifo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NONE UINT32_MAX

struct key_fifo_node {
    uint64_t key;
    uint32_t next;           /* the next younger one of the key; of an unused node, another one */
    uint32_t youngest;       /* of the key; valid in its oldest node */
    uint32_t next_in_bucket; /* the oldest node of another key; valid in the oldest node */
    bool is_used;
};

static uint64_t random_multiplier(void)
{
    uint64_t number = 0x9e3779b97f4a7c15u;

    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
        number = 0x9e3779b97f4a7c15u;
    return number | 1;
}

int key_fifo_init(struct key_fifo *fifo, uint32_t capacity, size_t element_size)
{
    unsigned bits = 1;

    while (bits < 31 && (uint32_t)1 << bits < capacity)
        bits++;
    *fifo = (struct key_fifo){.nodes = calloc(capacity, sizeof *fifo->nodes),
                              .elements = calloc(capacity, element_size),
                              .buckets = malloc(sizeof *fifo->buckets << bits),
                              .element_size = element_size,
                              .capacity = capacity,
                              .bucket_bits = bits,
                              .multiplier = random_multiplier()};
    if (fifo->nodes == NULL || fifo->elements == NULL || fifo->buckets == NULL) {
        key_fifo_destroy(fifo);
        return error_system(ENOMEM, "%u elements by their keys", capacity);
    }
    memset(fifo->buckets, 0xff, sizeof *fifo->buckets << bits); /* NONE */
    for (uint32_t i = 0; i < capacity; i++)
        fifo->nodes[i].next = i + 1 < capacity ? i + 1 : NONE;
    return TCPX_SUCCESS;
}

void key_fifo_destroy(struct key_fifo *fifo)
{
    free(fifo->nodes);
    free(fifo->elements);
    free(fifo->buckets);
    *fifo = (struct key_fifo){0};
}

static void *element_of(const struct key_fifo *fifo, uint32_t node)
{
    return fifo->elements + node * fifo->element_size;
}

/* Where the number of the key's oldest node stands, or would stand. */
static uint32_t *link_to(struct key_fifo *fifo, uint64_t key)
{
    uint32_t *link =
        &fifo->buckets[(key ^ key >> 32) * fifo->multiplier >> (64 - fifo->bucket_bits)];

    while (*link != NONE && fifo->nodes[*link].key != key)
        link = &fifo->nodes[*link].next_in_bucket;
    return link;
}

bool key_fifo_push(struct key_fifo *fifo, uint64_t key, const void *element)
{
    uint32_t added = fifo->unused;
    uint32_t *link;

    if (added == NONE)
        return false;
    fifo->unused = fifo->nodes[added].next;
    link = link_to(fifo, key);
    fifo->nodes[added] = (struct key_fifo_node){
        .key = key, .next = NONE, .youngest = added, .next_in_bucket = NONE, .is_used = true};
    memcpy(element_of(fifo, added), element, fifo->element_size);
    if (*link == NONE) {
        *link = added;
    } else {
        fifo->nodes[fifo->nodes[*link].youngest].next = added;
        fifo->nodes[*link].youngest = added;
    }
    return true;
}

void *key_fifo_peek(struct key_fifo *fifo, uint64_t key)
{
    uint32_t oldest = *link_to(fifo, key);

    return oldest != NONE ? element_of(fifo, oldest) : NULL;
}

bool key_fifo_pop(struct key_fifo *fifo, uint64_t key, void *element)
{
    uint32_t *link = link_to(fifo, key);
    uint32_t oldest = *link;
    struct key_fifo_node *node;

    if (oldest == NONE)
        return false;
    node = &fifo->nodes[oldest];
    if (element != NULL)
        memcpy(element, element_of(fifo, oldest), fifo->element_size);
    if (node->next == NONE) {
        *link = node->next_in_bucket;
    } else {
        fifo->nodes[node->next].youngest = node->youngest;
        fifo->nodes[node->next].next_in_bucket = node->next_in_bucket;
        *link = node->next;
    }
    *node = (struct key_fifo_node){.next = fifo->unused};
    fifo->unused = oldest;
    return true;
}

bool key_fifo_remove(struct key_fifo *fifo, uint64_t key,
                     bool (*is)(const void *element, const void *what), const void *what)
{
    uint32_t oldest = *link_to(fifo, key);
    uint32_t before = NONE;
    uint32_t at = oldest;

    while (at != NONE && !is(element_of(fifo, at), what)) {
        before = at;
        at = fifo->nodes[at].next;
    }
    if (at == NONE)
        return false;
    if (before == NONE)
        return key_fifo_pop(fifo, key, NULL);
    fifo->nodes[before].next = fifo->nodes[at].next;
    if (fifo->nodes[oldest].youngest == at)
        fifo->nodes[oldest].youngest = before;
    fifo->nodes[at] = (struct key_fifo_node){.next = fifo->unused};
    fifo->unused = at;
    return true;
}

const void *key_fifo_at(const struct key_fifo *fifo, uint32_t place)
{
    return fifo->nodes[place].is_used ? element_of(fifo, place) : NULL;
}
