/*
 * Shows that time moves forward only, that a deadline lies where it was put, and that one too far
 * away never passes instead of wrapping into the past.
 */
#include "base/clock.h"
#include "tests/support/suite.h"

#include <unistd.h>

TEST(test_time_moves_forward)
{
    uint64_t before = clock_now();
    uint64_t last = before;

    for (int i = 0; i < 100000; i++) {
        uint64_t now = clock_now();

        assert_true(now >= last);
        last = now;
    }
    usleep(2000);
    assert_true(clock_now() >= before + 2000000u);
    assert_true(clock_now() < before + 60000000000u);
}

TEST(test_deadline_lies_where_it_was_put)
{
    uint64_t before = clock_now();
    uint64_t deadline = deadline_after_ms(1500);
    uint64_t after = clock_now();

    assert_true(deadline >= before + 1500000000u);
    assert_true(deadline <= after + 1500000000u);
}

TEST(test_deadline_passes)
{
    uint64_t soon = deadline_after_ms(20);

    assert_true(deadline_passed(deadline_after_ms(0)));
    assert_true(deadline_passed(0));
    assert_false(deadline_passed(deadline_after_ms(3600000)));
    while (!deadline_passed(soon))
        usleep(1000);
    assert_true(clock_now() >= soon);
}

TEST(test_far_deadlines_never_pass)
{
    assert_false(deadline_passed(DEADLINE_NEVER));
    assert_true(deadline_after_ms(UINT64_MAX) == DEADLINE_NEVER);
    /* the product fits, the sum does not */
    assert_true(deadline_after_ms(UINT64_MAX / 1000000u) == DEADLINE_NEVER);
    /* the product wraps to a small number */
    assert_true(deadline_after_ms(UINT64_MAX / 1000000u + 1) == DEADLINE_NEVER);
}

SUITE(.name = "clock");
