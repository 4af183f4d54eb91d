/*
 * Shows that what is JSON is told from what is not, to the end of the text and not beyond it, and
 * that members of an object are found. The program's own file is part of this test, as it is no
 * part of the library.
 */
#include "tests/unit/checks.h"
#include "tools/json_read.c" /* NOLINT(bugprone-suspicious-include) */

/* In memory of exactly its length, so that a sanitizer sees what is read behind it. */
static bool is_json(const char *text)
{
    size_t length = strlen(text);
    char *copy = malloc(length > 0 ? length : 1);
    const char *behind;
    bool good;

    assert_non_null(copy);
    memcpy(copy, text, length);
    behind = json_skip(copy, copy + length);
    good = behind == copy + length;
    free(copy);
    return good;
}

TEST(test_json)
{
    static const char *const good[] = {"{}",
                                       "[]",
                                       " [ ] ",
                                       "null",
                                       "true",
                                       "false",
                                       "0",
                                       "-0",
                                       "12",
                                       "-1.5",
                                       "1e9",
                                       "1.25E-3",
                                       "2e+0",
                                       "\"\"",
                                       "\"\\u00e9\\n\\\\\"",
                                       "[1, 2]",
                                       "[[]]",
                                       "{\"a\": 1}",
                                       "{\"a\":[{}],\"b\":null}",
                                       "\n{ \"a\" : \"}\" }\t"};

    for (size_t i = 0; i < COUNT_OF(good); i++)
        if (!is_json(good[i]))
            fail_msg("refused: %s", good[i]);
}

TEST(test_no_json)
{
    static const char *const bad[] = {
        "",      " ",         "{",        "}",          "[",           "[1",       "[1,",   "[1,]",
        "[,1]",  "{\"a\"}",   "{\"a\":}", "{\"a\":1,}", "{a:1}",       "{\"a\":1", "{,}",   "nul",
        "nulls", "01",        "-",        "1.",         ".5",          "1e",       "1e+",   "+1",
        "\"",    "\"a",       "\"\\x\"",  "\"\\u12\"",  "\"\\u12g4\"", "\"\n\"",   "\"\\",  "'a'",
        "[1 2]", "{\"a\" 1}", "1 2",      "[}",         "{]",          "\"\\u",    "\"\\u1"};

    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (is_json(bad[i]))
            fail_msg("taken: %s", bad[i]);
}

/* Nesting is bounded, so that no text uses up the stack. */
TEST(test_depth)
{
    char text[201];

    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    text[200] = '\0';
    assert_false(is_json(text));
    text[130] = '\0';
    assert_true(is_json(text + 70));
}

TEST(test_members)
{
    static const char text[] =
        " {\"rowsX\": 1, \"x\": {\"rows\": 2}, \"rows\" : [3], \"v\": \"4\"}";
    const char *end = text + strlen(text);

    assert_int_equal(strncmp(json_member(text, end, "rows"), "[3]", 3), 0);
    assert_int_equal(strncmp(json_member(text, end, "v"), "\"4\"", 3), 0);
    assert_null(json_member(text, end, "row"));
    assert_null(json_member(text, end, "2"));
}

SUITE(.name = "json read");
