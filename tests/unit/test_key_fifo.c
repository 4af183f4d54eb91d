/*
 * Elements by keys: random operations beside a list that is searched from its beginning, in small
 * and large tables, with few keys, many, and keys that differ in their highest bits only.
 */
#include "base/key_fifo.h"
#include "tests/support/basics.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <string.h>

struct element {
    uint64_t key;
    uint64_t number;
    uint8_t padding[5];
};

/* All that is in the table, in the order in which it was pushed. */
static struct element *model;
static size_t model_length;

static uint64_t random_state = 7;

static uint64_t below(uint64_t limit)
{
    return random_below(&random_state, limit);
}

static size_t oldest_in_model(uint64_t key)
{
    size_t i = 0;

    while (i < model_length && model[i].key != key)
        i++;
    return i;
}

static void pop_both(struct key_fifo *fifo, uint64_t key)
{
    size_t i = oldest_in_model(key);
    struct element popped = {0};
    const struct element *seen = key_fifo_peek(fifo, key);

    if (i == model_length) {
        assert_null(seen);
        assert_false(key_fifo_pop(fifo, key, &popped));
        return;
    }
    assert_non_null(seen);
    assert_memory_equal(seen, &model[i], sizeof *seen);
    if (below(8) == 0) {
        assert_true(key_fifo_pop(fifo, key, NULL));
    } else {
        assert_true(key_fifo_pop(fifo, key, &popped));
        assert_memory_equal(&popped, &model[i], sizeof popped);
    }
    model_length--;
    memmove(&model[i], &model[i + 1], (model_length - i) * sizeof *model);
}

static void assert_all_are_there(const struct key_fifo *fifo)
{
    size_t count = 0;

    for (uint32_t i = 0; i < fifo->capacity; i++)
        count += key_fifo_at(fifo, i) != NULL;
    assert_int_equal(count, model_length);
}

static void work(uint32_t capacity, uint64_t keys, unsigned shift)
{
    struct key_fifo fifo;

    assert_int_equal(key_fifo_init(&fifo, capacity, sizeof(struct element)), TCPX_SUCCESS);
    model = calloc(capacity, sizeof *model);
    model_length = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t key = below(keys) << shift;
        struct element element = {0};

        element.key = key;
        element.number = i;
        /* fuller and emptier by turns */
        if (below(100) < (i / 4000 % 2 ? 35u : 65u)) {
            bool has_room = model_length < capacity;

            assert_int_equal(key_fifo_push(&fifo, key, &element), has_room);
            if (has_room)
                model[model_length++] = element;
        } else {
            pop_both(&fifo, key);
        }
    }
    assert_all_are_there(&fifo);
    while (model_length > 0)
        pop_both(&fifo, model[below(model_length)].key);
    assert_all_are_there(&fifo);
    key_fifo_destroy(&fifo);
    key_fifo_destroy(&fifo);
    free(model);
}

TEST(test_random_operations)
{
    static const uint32_t capacities[] = {1, 2, 3, 64, 1000};
    static const uint64_t keys[] = {1, 2, 10, 5000};

    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 4; k++)
            for (unsigned shift = 0; shift <= 48; shift += 24)
                work(capacities[i], keys[k], shift);
}

TEST(test_elements_in_their_places)
{
    static const struct element four[] = {{7, 1, {0}}, {8, 2, {0}}, {7, 3, {0}}, {8, 4, {0}}};
    struct element *element;
    struct key_fifo fifo;
    struct element popped;
    uint64_t sum = 0;

    assert_int_equal(key_fifo_init(&fifo, 8, sizeof *element), TCPX_SUCCESS);
    for (size_t i = 0; i < COUNT_OF(four); i++)
        assert_true(key_fifo_push(&fifo, four[i].key, &four[i]));
    assert_null(key_fifo_peek(&fifo, 9));
    element = key_fifo_peek(&fifo, 7);
    element->number = 99;
    assert_true(key_fifo_pop(&fifo, 7, &popped));
    assert_int_equal(popped.number, 99);
    element = key_fifo_peek(&fifo, 7);
    assert_int_equal(element->number, 3);
    for (uint32_t i = 0; i < 8; i++) {
        const struct element *seen = key_fifo_at(&fifo, i);

        sum += seen != NULL ? seen->number : 0;
    }
    assert_int_equal(sum, 2 + 3 + 4);
    key_fifo_destroy(&fifo);
}

SUITE(.name = "elements by keys");
