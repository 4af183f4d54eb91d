/*
 * Shows that time moves forward only, that a deadline lies where it was put, and that one too far
 * away never passes instead of wrapping into the past.
 */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

static void test_time_moves_forward(void **state)
{
    uint64_t before = clock_now();
    uint64_t last = before;

    (void)state;
    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_now();

        assert_true(now >= last);
        last = now;
    }
    usleep(2000);
    assert_true(clock_now() >= before + 2000000u);
    assert_true(clock_now() < before + 60000000000u);
}

static void test_deadline_lies_where_it_was_put(void **state)
{
    uint64_t before = clock_now();
    uint64_t deadline = deadline_after_ms(1500);
    uint64_t after = clock_now();

    (void)state;
    assert_true(deadline >= before + 1500000000u);
    assert_true(deadline <= after + 1500000000u);
}

static void test_deadline_passes(void **state)
{
    uint64_t soon = deadline_after_ms(20);

    (void)state;
    assert_true(deadline_passed(deadline_after_ms(0)));
    assert_true(deadline_passed(0));
    assert_false(deadline_passed(deadline_after_ms(3600000)));
    while (!deadline_passed(soon))
        usleep(1000);
    assert_true(clock_now() >= soon);
}

static void test_far_deadlines_never_pass(void **state)
{
    (void)state;
    assert_false(deadline_passed(DEADLINE_NEVER));
    assert_true(deadline_after_ms(UINT64_MAX) == DEADLINE_NEVER);
    /* the product fits, the sum does not */
    assert_true(deadline_after_ms(UINT64_MAX / 1000000u) == DEADLINE_NEVER);
    /* the product wraps to a small number */
    assert_true(deadline_after_ms(UINT64_MAX / 1000000u + 1) == DEADLINE_NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_moves_forward),
        cmocka_unit_test(test_deadline_lies_where_it_was_put),
        cmocka_unit_test(test_deadline_passes),
        cmocka_unit_test(test_far_deadlines_never_pass),
    };

    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
