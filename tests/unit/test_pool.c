/*
 * Shows that a pool hands out each object once, aligned and apart from the others, refuses what is
 * not its own or not taken, and that impossible sizes are refused in words.
 */
#include "base/pool.h"
#include "tests/support/suite.h"

#include <string.h>

enum { COUNT = 7, SIZE = 24, ALIGNMENT = 64 };

TEST(test_objects_are_apart_and_aligned)
{
    unsigned char *objects[COUNT];
    struct pool pool;

    assert_int_equal(pool_init(&pool, COUNT, SIZE, ALIGNMENT), TCPX_SUCCESS);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(pool_taken(&pool), i);
        objects[i] = pool_take(&pool);
        assert_non_null(objects[i]);
        assert_int_equal((uintptr_t)objects[i] % ALIGNMENT, 0);
        memset(objects[i], i, SIZE);
    }
    assert_null(pool_take(&pool));
    assert_int_equal(pool_taken(&pool), COUNT);
    for (int i = 0; i < COUNT; i++)
        for (int byte = 0; byte < SIZE; byte++)
            assert_int_equal(objects[i][byte], i);
    pool_destroy(&pool);
}

TEST(test_given_objects_come_back)
{
    void *objects[COUNT];
    struct pool pool;

    assert_int_equal(pool_init(&pool, COUNT, SIZE, 1), TCPX_SUCCESS);
    for (int i = 0; i < COUNT; i++)
        objects[i] = pool_take(&pool);
    for (int round = 0; round < 100; round++) {
        int a = round % COUNT;
        int b = (round * 3 + 1) % COUNT;

        if (a == b)
            continue;
        assert_true(pool_give(&pool, objects[a]));
        assert_true(pool_give(&pool, objects[b]));
        assert_int_equal(pool_taken(&pool), COUNT - 2);
        objects[a] = pool_take(&pool);
        objects[b] = pool_take(&pool);
        assert_non_null(objects[a]);
        assert_non_null(objects[b]);
        assert_null(pool_take(&pool));
        for (int i = 0; i < COUNT; i++)
            for (int j = 0; j < i; j++)
                assert_ptr_not_equal(objects[i], objects[j]);
    }
    pool_destroy(&pool);
}

TEST(test_strangers_are_refused)
{
    struct pool pool;
    struct pool other;
    unsigned char *object;
    unsigned char *foreign;

    assert_int_equal(pool_init(&pool, COUNT, SIZE, ALIGNMENT), TCPX_SUCCESS);
    assert_int_equal(pool_init(&other, COUNT, SIZE, ALIGNMENT), TCPX_SUCCESS);
    object = pool_take(&pool);
    foreign = pool_take(&other);
    assert_false(pool_give(&pool, NULL));
    assert_false(pool_give(&pool, foreign));
    assert_false(pool_give(&pool, object + 1));
    assert_false(pool_give(&pool, object - ALIGNMENT));
    assert_false(pool_give(&pool, object + ALIGNMENT));                 /* never taken */
    assert_false(pool_give(&pool, object + (size_t)COUNT * ALIGNMENT)); /* behind the last */
    assert_int_equal(pool_taken(&pool), 1);
    assert_true(pool_give(&pool, object));
    assert_false(pool_give(&pool, object));
    assert_int_equal(pool_taken(&pool), 0);
    pool_destroy(&pool);
    pool_destroy(&other);
}

TEST(test_free_list_is_out_of_reach)
{
    struct pool pool;
    void *first;
    void *second;

    assert_int_equal(pool_init(&pool, 2, SIZE, 8), TCPX_SUCCESS);
    first = pool_take(&pool);
    second = pool_take(&pool);
    assert_true(pool_give(&pool, first));
    assert_true(pool_give(&pool, second));
    memset(first, 0xff, SIZE);
    memset(second, 0xff, SIZE);
    assert_non_null(pool_take(&pool));
    assert_non_null(pool_take(&pool));
    assert_null(pool_take(&pool));
    pool_destroy(&pool);
}

TEST(test_impossible_sizes)
{
    static const struct {
        size_t count;
        size_t size;
        size_t alignment;
    } cases[] = {{0, 8, 8},        {8, 0, 8},         {8, 8, 0},
                 {8, 8, 24},       {8, SIZE_MAX, 64}, {(size_t)1 << 31, (size_t)1 << 40, 1},
                 {SIZE_MAX, 1, 1}, {UINT32_MAX, 1, 1}};
    struct pool pool = {.taken = 4711};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        (void)error_set(TCPX_SUCCESS, "none");
        assert_int_equal(pool_init(&pool, cases[i].count, cases[i].size, cases[i].alignment),
                         TCPX_INVALID_ARGUMENT);
        assert_non_null(strstr(error_text(), "a pool of "));
    }
    assert_int_equal(pool.taken, 4711);
}

TEST(test_no_pool)
{
    struct pool pool = {0};
    int something;

    assert_null(pool_take(&pool));
    assert_false(pool_give(&pool, &something));
    assert_false(pool_give(&pool, NULL));
    pool_destroy(&pool);
    pool_destroy(&pool);
    assert_null(pool_take(&pool));
}

SUITE(.name = "pool");
