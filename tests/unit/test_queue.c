/*
 * Shows that a queue keeps order and values through every turn of its ring, says when it is full or
 * empty, and that impossible sizes are refused in words.
 */
#include "base/queue.h"
#include "tests/support/suite.h"

#include <string.h>

struct element {
    uint64_t number;
    char text[5]; /* an odd size, so that a wrong stride shows */
};

static struct element make_element(uint64_t number)
{
    struct element element;

    memset(&element, (int)(number % 251), sizeof element);
    element.number = number;
    return element;
}

static bool push(struct queue *queue, uint64_t number)
{
    struct element element = make_element(number);

    return queue_push(queue, &element);
}

static void expect_pop(struct queue *queue, uint64_t number)
{
    struct element expected = make_element(number);
    struct element element;

    assert_true(queue_pop(queue, &element));
    assert_memory_equal(&element, &expected, sizeof element);
}

TEST(test_order_through_every_turn)
{
    struct queue queue;

    for (size_t capacity = 1; capacity <= 5; capacity++) {
        uint64_t pushed = 0;
        uint64_t popped = 0;

        assert_int_equal(queue_init(&queue, capacity, sizeof(struct element)), TCPX_SUCCESS);
        for (int round = 0; round < 50; round++) {
            size_t fill = (size_t)round % (capacity + 1);

            while (queue_length(&queue) < fill)
                assert_true(push(&queue, pushed++));
            while (queue_length(&queue) > fill / 2)
                expect_pop(&queue, popped++);
        }
        assert_true(pushed > 3 * capacity);
        while (queue_length(&queue) > 0)
            expect_pop(&queue, popped++);
        assert_int_equal(pushed, popped);
        queue_destroy(&queue);
    }
}

TEST(test_full_and_empty)
{
    struct element untouched = make_element(99);
    struct element expected = make_element(99);
    struct queue queue;

    assert_int_equal(queue_init(&queue, 3, sizeof expected), TCPX_SUCCESS);
    assert_false(queue_pop(&queue, &untouched));
    assert_memory_equal(&untouched, &expected, sizeof expected);
    assert_null(queue_peek(&queue));
    for (uint64_t i = 1; i <= 3; i++) {
        assert_true(push(&queue, i));
        assert_int_equal(queue_length(&queue), i);
    }
    assert_false(push(&queue, 4));
    assert_int_equal(queue_length(&queue), 3);
    for (uint64_t i = 1; i <= 3; i++)
        expect_pop(&queue, i);
    assert_false(queue_pop(&queue, NULL));
    assert_true(push(&queue, 4));
    expect_pop(&queue, 4);
    queue_destroy(&queue);
}

TEST(test_peek_shows_the_oldest_in_its_place)
{
    struct element *oldest;
    struct queue queue;

    assert_int_equal(queue_init(&queue, 2, sizeof *oldest), TCPX_SUCCESS);
    assert_true(push(&queue, 1));
    assert_true(push(&queue, 2));
    oldest = queue_peek(&queue);
    assert_non_null(oldest);
    assert_int_equal(oldest->number, 1);
    assert_int_equal(queue_length(&queue), 2);
    *oldest = make_element(7);
    expect_pop(&queue, 7);
    assert_true(queue_pop(&queue, NULL));
    assert_null(queue_peek(&queue));
    queue_destroy(&queue);
}

TEST(test_impossible_sizes)
{
    struct queue queue = {.length = 4711};

    assert_int_equal(queue_init(&queue, 0, 8), TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text(), "a queue of 0 elements of 8 bytes"));
    assert_int_equal(queue_init(&queue, 8, 0), TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text(), "a queue of 8 elements of 0 bytes"));
    assert_int_equal(queue_init(&queue, SIZE_MAX, 2), TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text(), "too large"));
    assert_int_equal(queue_init(&queue, SIZE_MAX / 2 + 1, 1), TCPX_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text(), "too large"));
    assert_int_equal(queue.length, 4711);
}

TEST(test_no_queue)
{
    struct queue queue = {0};
    int element = 0;

    assert_false(queue_push(&queue, &element));
    assert_false(queue_pop(&queue, &element));
    assert_null(queue_peek(&queue));
    queue_destroy(&queue);
    queue_destroy(&queue);
}

TEST(test_elements_by_their_index)
{
    struct queue queue;

    assert_int_equal(queue_init(&queue, 3, sizeof(struct element)), TCPX_SUCCESS);
    for (uint64_t first = 0; first < 7; first++) {
        while (queue_length(&queue) < 3)
            assert_true(push(&queue, first + queue_length(&queue)));
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(((struct element *)queue_at(&queue, i))->number, first + i);
        assert_true(queue_pop(&queue, NULL));
    }
    queue_destroy(&queue);
}

SUITE(.name = "queue");
