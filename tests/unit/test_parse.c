/*
 * Shows that only whole texts count as numbers and sizes, that nothing wraps, and that a refused
 * text leaves the output alone.
 */
#include "base/parse.h"
#include "tests/support/suite.h"

enum { UNTOUCHED = 4711 };

typedef bool parse_call(const char *text, uint64_t *number);

static void expect_taken(parse_call *parse, const char *text, uint64_t expected)
{
    uint64_t number = UNTOUCHED;

    if (!parse(text, &number))
        fail_msg("'%s' was refused", text);
    assert_int_equal(number, expected);
}

static void expect_refused(parse_call *parse, const char *text)
{
    uint64_t number = UNTOUCHED;

    if (parse(text, &number))
        fail_msg("'%s' was taken", text);
    assert_int_equal(number, UNTOUCHED);
}

TEST(test_numbers)
{
    expect_taken(parse_number, "0", 0);
    expect_taken(parse_number, "7", 7);
    expect_taken(parse_number, "007", 7);
    expect_taken(parse_number, "1234567890", 1234567890);
    expect_taken(parse_number, "18446744073709551615", UINT64_MAX);
}

TEST(test_not_numbers)
{
    static const char *const texts[] = {"",   " ",   " 1", "1 ", "+1", "-1", "-0", "0x10", "1e3",
                                        "1.", "1\n", "1K", "a",  "1a", "1-", ",",  "\xb2", "1_0"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_refused(parse_number, texts[i]);
}

TEST(test_number_overflow)
{
    expect_refused(parse_number, "18446744073709551616"); /* the sum wraps */
    expect_refused(parse_number, "18446744073709551620"); /* the product wraps */
    expect_refused(parse_number, "99999999999999999999999999999999");
}

TEST(test_sizes)
{
    expect_taken(parse_size, "0", 0);
    expect_taken(parse_size, "4096", 4096);
    expect_taken(parse_size, "1K", 1024);
    expect_taken(parse_size, "1k", 1024);
    expect_taken(parse_size, "3M", 3145728);
    expect_taken(parse_size, "2g", 2147483648u);
    expect_taken(parse_size, "1T", 1099511627776u);
    expect_taken(parse_size, "512KB", 524288);
    expect_taken(parse_size, "512kb", 524288);
    expect_taken(parse_size, "4MiB", 4194304);
    expect_taken(parse_size, "4mib", 4194304);
    expect_taken(parse_size, "0T", 0);
    expect_taken(parse_size, "16777215T", 18446742974197923840u);
}

TEST(test_not_sizes)
{
    static const char *const texts[] = {"",    "K",     "1B",   "1iB",  "1 K",   "1KK",  "1KMB",
                                        "1Ki", "1KiBs", "1KBi", "1.5G", "-1K",   "1P",   "1\vK",
                                        "1K ", " 1K",   "1K1",  "0x1K", "1\xcb", "1\xeb"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_refused(parse_size, texts[i]);
}

TEST(test_size_overflow)
{
    expect_taken(parse_size, "18014398509481983K", 18446744073709550592u);
    expect_refused(parse_size, "18014398509481984K");
    expect_refused(parse_size, "16777216T");
    expect_refused(parse_size, "18446744073709551616");
    expect_refused(parse_size, "18446744073709551615T");
}

SUITE(.name = "parse");
