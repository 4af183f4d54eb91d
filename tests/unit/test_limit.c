/*
 * Limits of time (tests/limit.h): as long as they say on an idle machine, longer by what the runner
 * has measured and is measuring, never shorter than the environment says, and bounded.
 */
#include "tests/limit.h"
#include "tests/support/suite.h"

static int file;

static void measure(const char *percent)
{
    char text[LIMIT_METER_BYTES + 1];

    snprintf(text, sizeof text, "%*s\n", LIMIT_METER_BYTES - 1, percent);
    assert_int_equal(pwrite(file, text, LIMIT_METER_BYTES, 0), LIMIT_METER_BYTES);
}

TEST(test_limits_follow_the_runner)
{
    measure("100");
    assert_int_equal(limit_ms(2000), 2000);
    measure("270");
    assert_int_equal(limit_ms(2000), 5400);
    assert_int_equal(limit_ns(2000000000), 5400000000);
    measure("100");
    assert_int_equal(limit_ms(2000), 2000);
}

TEST(test_limits_are_bounded)
{
    measure("99999");
    assert_int_equal(limit_ms(2000), 20000);
    assert_int_equal(limit_ms(UINT32_MAX), INT32_MAX);
    measure("3");
    assert_int_equal(limit_ms(2000), 2000);
    measure("");
    assert_int_equal(limit_ms(2000), 2000);
}

TEST(test_the_environment_has_the_least)
{
    measure("270");
    setenv(LIMIT_SLOWNESS, "3.5", 1);
    assert_int_equal(limit_ms(2000), 7000);
    setenv(LIMIT_SLOWNESS, "2", 1);
    assert_int_equal(limit_ms(2000), 5400);
    setenv(LIMIT_SLOWNESS, "many", 1);
    assert_int_equal(limit_ms(2000), 5400);
    unsetenv(LIMIT_SLOWNESS);
}

TEST(test_without_a_runner)
{
    assert_in_range(limit_of_runnable(), 100, LIMIT_PERCENT_MOST);
}

static int make_file(void)
{
    static char path[] = "/tmp/test_limit.XXXXXX";

    file = mkstemp(path);
    if (file < 0 || setenv(LIMIT_METER, path, 1) != 0 || unsetenv(LIMIT_SLOWNESS) != 0)
        return -1;
    measure("100");
    limit_percent(); /* it is mapped now */
    return unlink(path);
}

SUITE(.name = "limits", .set_up = make_file);
