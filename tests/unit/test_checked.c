/*
 * Shows that the checked arithmetic says no at the exact edge of 64 bits, and then leaves its
 * output alone.
 */
#include "base/checked.h"
#include "tests/support/suite.h"

enum { UNTOUCHED = 4711 };

TEST(test_add)
{
    uint64_t sum = UNTOUCHED;

    assert_false(checked_add(UINT64_MAX, 1, &sum));
    assert_false(checked_add(1, UINT64_MAX, &sum));
    assert_false(checked_add(UINT64_MAX, UINT64_MAX, &sum));
    assert_int_equal(sum, UNTOUCHED);
    assert_true(checked_add(UINT64_MAX - 1, 1, &sum));
    assert_true(sum == UINT64_MAX);
    assert_true(checked_add(0, 0, &sum));
    assert_int_equal(sum, 0);
    assert_true(checked_add(sum, 5, &sum));
    assert_int_equal(sum, 5);
}

TEST(test_multiply)
{
    uint64_t product = UNTOUCHED;

    assert_false(checked_multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, &product));
    assert_false(checked_multiply(UINT64_MAX, 2, &product));
    assert_false(checked_multiply(3, UINT64_MAX / 3 + 1, &product));
    assert_int_equal(product, UNTOUCHED);
    assert_true(checked_multiply(3, UINT64_MAX / 3, &product));
    assert_true(product == UINT64_MAX);
    assert_true(checked_multiply(UINT64_MAX, 0, &product));
    assert_int_equal(product, 0);
}

TEST(test_align_up)
{
    uint64_t aligned = UNTOUCHED;

    assert_false(checked_align_up(UINT64_MAX, 2, &aligned));
    assert_false(checked_align_up(UINT64_MAX - 4094, 4096, &aligned));
    assert_int_equal(aligned, UNTOUCHED);
    assert_true(checked_align_up(UINT64_MAX - 4095, 4096, &aligned));
    assert_true(aligned == UINT64_MAX - 4095);
    assert_true(checked_align_up(UINT64_MAX, 1, &aligned));
    assert_true(aligned == UINT64_MAX);
    assert_true(checked_align_up(0, 4096, &aligned));
    assert_int_equal(aligned, 0);
    assert_true(checked_align_up(1, 4096, &aligned));
    assert_int_equal(aligned, 4096);
    assert_true(checked_align_up(4096, 4096, &aligned));
    assert_int_equal(aligned, 4096);
    assert_true(checked_align_up(4097, 4096, &aligned));
    assert_int_equal(aligned, 8192);
}

TEST(test_power_of_two)
{
    assert_false(is_power_of_two(0));
    assert_true(is_power_of_two(1));
    assert_true(is_power_of_two(2));
    assert_false(is_power_of_two(3));
    assert_true(is_power_of_two(UINT64_C(1) << 63));
    assert_false(is_power_of_two((UINT64_C(1) << 63) + 1));
    assert_false(is_power_of_two(UINT64_MAX));
}

TEST(test_range_inside)
{
    assert_true(range_inside(0, 0, 0));
    assert_true(range_inside(0, 10, 10));
    assert_true(range_inside(10, 0, 10));
    assert_true(range_inside(3, 7, 10));
    assert_false(range_inside(11, 0, 10));
    assert_false(range_inside(3, 8, 10));
    assert_false(range_inside(0, 11, 10));
    assert_false(range_inside(UINT64_MAX, 2, 10));
    assert_false(range_inside(2, UINT64_MAX, 10));
    assert_true(range_inside(UINT64_MAX - 1, 1, UINT64_MAX));
}

SUITE(.name = "checked");
