/*
 * Shows what the reports of a measurement say, to the letter where scripts read them; that a number
 * which is not there is said to be missing; and that no name ends the script of the page that it is
 * in. What that script draws, tests/support/perf_page.js looks at.
 *
 * Tests link the library only. The reports belong to the program, so they are included here.
 */
#include "tests/unit/checks.h"

/* NOLINTBEGIN(bugprone-suspicious-include) */
#include "tools/page.c"
#include "tools/perf_csv.c"
#include "tools/perf_html.c"
#include "tools/perf_json.c"
#include "tools/perf_names.c"
#include "tools/perf_table.c"
/* NOLINTEND(bugprone-suspicious-include) */

#include <ctype.h>

typedef void (*print_function)(FILE *out, const struct perf_result *result);

/* Good until the next call. */
static const char *printed(print_function print, const struct perf_result *result)
{
    static char room[1 << 20];
    FILE *out = fmemopen(room, sizeof room, "w");

    assert_non_null(out);
    print(out, result);
    assert_int_equal(fclose(out), 0);
    assert_in_range(strlen(room), 1, sizeof room - 2);
    return room;
}

static void print_table(FILE *out, const struct perf_result *result)
{
    perf_print(out, &perf_table, result);
}

static void print_json(FILE *out, const struct perf_result *result)
{
    perf_print(out, &perf_json, result);
}

static void print_csv(FILE *out, const struct perf_result *result)
{
    perf_print(out, &perf_csv, result);
}

/* Two sizes: one with all percentiles, one with too few iterations for any. */
static const struct perf_result small_result = {
    .way = PERF_ONE_WAY,
    .date = "2026-01-02T03:04:05Z",
    .version = "1.2.3",
    .client = "left",
    .server = "right",
    .path = "192.0.2.7: built-in transport over eth0,eth1, 2 channels",
    .memory = "GPU 0 to GPU 1",
    .unpack = "auto",
    .channels = 2,
    .sockets = 8,
    .threads = 1,
    .chunk_bytes = 4 << 20,
    .barrier_us = 3.125,
    .complete = true,
    .size_count = 2,
    .row_count = 2,
    .rows = {{.bytes = 8,
              .iterations = 1000,
              .least_us = 3.5,
              .median_us = 4,
              .p99_us = 5.25,
              .p999_us = 12.5,
              .most_us = 125.5,
              .mean_us = 4.5,
              .gigabytes_per_second = 0.002,
              .stages = {0.5, 1, 0, 2, 1, 0.25}},
             {.bytes = 1 << 20,
              .iterations = 50,
              .least_us = 100,
              .median_us = 125,
              .p99_us = 250,
              .p999_us = 250,
              .most_us = 250,
              .mean_us = 130,
              .gigabytes_per_second = 8.388608,
              .stages = {25, 100, 12.5, 6.25, 110, 50}}},
};

static struct perf_result one_size(void)
{
    struct perf_result result = small_result;

    result.row_count = 1;
    result.size_count = 1;
    result.rows[0] = small_result.rows[1];
    return result;
}

/* --- the table --- */

TEST(test_table)
{
    assert_string_equal(
        printed(print_table, &small_result),
        "one way, left to right\n"
        "  path      192.0.2.7: built-in transport over eth0,eth1, 2 channels\n"
        "  memory    GPU 0 to GPU 1\n"
        "  unpack    auto\n"
        "  options   2 channels, 8 sockets, 1 I/O thread, chunks of 4 MiB\n"
        "  barrier   3.125 us, contained in the times below\n"
        "\n"
        "          size  iterations        GB/s      Gbit/s      min us   median us      p99 us    "
        "p99.9 us\n"
        "           8 B        1000      0.0020      0.0160       3.500       4.000       5.250    "
        "   "
        "12.50\n"
        "         1 MiB          50       8.389       67.11       100.0       125.0           -    "
        "       "
        "-\n"
        "\n"
        "verified: every byte of 1050 iterations, 50.0 MiB in all\n");
}

/* A single size comes with its stages; ping-pong has no barrier in its times. */
TEST(test_table_of_one_size)
{
    struct perf_result result = one_size();

    result.way = PERF_PING_PONG;
    result.threads = 0;
    result.chunk_bytes = 0;
    result.channels = 1;
    assert_string_equal(
        printed(print_table, &result),
        "ping-pong, left and right\n"
        "  path      192.0.2.7: built-in transport over eth0,eth1, 2 channels\n"
        "  memory    GPU 0 to GPU 1\n"
        "  unpack    auto\n"
        "  options   1 channel, 8 sockets, no I/O threads, no chunks\n"
        "  barrier   3.125 us\n"
        "\n"
        "          size  iterations        GB/s      Gbit/s      min us   median us      p99 us    "
        "p99.9 us\n"
        "         1 MiB          50       8.389       67.11       100.0       125.0           -    "
        "       "
        "-\n"
        "\n"
        "per iteration, on average; stages go on at the same time, and each in several pieces at "
        "once, so that\none can add up to more than the iteration:\n"
        "  stage                                 us     of mean        GB/s\n"
        "  sender    copy out                 25.00      19.2 %       41.94\n"
        "  sender    send                     100.0      76.9 %       10.49\n"
        "  sender    wait for sockets         12.50       9.6 %           -\n"
        "  receiver  wait for data            6.250       4.8 %           -\n"
        "  receiver  receive                  110.0      84.6 %       9.533\n"
        "  receiver  copy in                  50.00      38.5 %       20.97\n"
        "\n"
        "verified: every byte of 50 iterations, 100 MiB in all\n");
}

/* Whose bytes go where; their times do not begin with a signal of the server. */
TEST(test_table_of_accesses)
{
    struct perf_result result = one_size();

    result.operation = PERF_READS;
    result.accesses = 1000;
    result.pieces = 5;
    expect_part(printed(print_table, &result), "reads, one way, left from right\n");
    expect_part(printed(print_table, &result), ", lists of 5 pieces, 1000 reads at once\n");
    expect_part(printed(print_table, &result), "  barrier   3.125 us\n");
    expect_part(printed(print_json, &result),
                "  \"operation\": \"read\",\n  \"accesses\": 1000,\n");
    expect_part(printed(print_csv, &result), ",5,read,1000,3.125,");
    result.operation = PERF_WRITES;
    result.accesses = 1;
    expect_part(printed(print_table, &result), "writes, one way, left to right\n");
    expect_part(printed(print_table, &result), ", 1 write at once\n");
    result.way = PERF_BOTH_WAYS;
    expect_part(printed(print_table, &result), "writes, both ways, left and right\n");
}

/* Stages that nobody measured are left out, not shown as zero. */
TEST(test_table_without_stages)
{
    struct perf_result result = one_size();

    memset(result.rows[0].stages, 0, sizeof result.rows[0].stages);
    assert_null(strstr(printed(print_table, &result), "stage"));
}

TEST(test_table_width)
{
    struct perf_result result = one_size();

    result.rows[0].bytes = UINT64_MAX / 1000;
    result.rows[0].iterations = 9999999999;
    result.rows[0].median_us = 9999999999;
    for (const char *line = printed(print_table, &result); *line != '\0';
         line += strcspn(line, "\n") + 1)
        assert_in_range(strcspn(line, "\n"), 0, 110);
}

/* --- JSON and CSV --- */

TEST(test_json)
{
    assert_string_equal(
        printed(print_json, &small_result),
        "{\n"
        "  \"version\": \"1.2.3\",\n"
        "  \"date\": \"2026-01-02T03:04:05Z\",\n"
        "  \"way\": \"one way\",\n"
        "  \"client\": \"left\",\n"
        "  \"server\": \"right\",\n"
        "  \"path\": \"192.0.2.7: built-in transport over eth0,eth1, 2 channels\",\n"
        "  \"memory\": \"GPU 0 to GPU 1\",\n"
        "  \"unpack\": \"auto\",\n"
        "  \"check\": \"every\",\n"
        "  \"channels\": 2,\n"
        "  \"sockets\": 8,\n"
        "  \"threads\": 1,\n"
        "  \"chunk_bytes\": 4194304,\n"
        "  \"pieces\": 0,\n"
        "  \"operation\": \"send\",\n"
        "  \"accesses\": 0,\n"
        "  \"barrier_us\": 3.125,\n"
        "  \"line_rate_gigabits_per_second\": null,\n"
        "  \"sizes\": 2,\n"
        "  \"rows\": [\n"
        "    {\"bytes\": 8, \"iterations\": 1000, \"gigabytes_per_second\": 0.002, "
        "\"gigabits_per_second\": 0.016,\n"
        "     \"line_rate_percent\": null,\n"
        "     \"min_us\": 3.5, \"median_us\": 4, \"mean_us\": 4.5, \"p99_us\": 5.25, "
        "\"p99_9_us\": 12.5, \"max_us\": 125.5,\n"
        "     \"stages_us\": {\"copy_out\": 0.5, \"send\": 1, \"send_wait\": 0, "
        "\"receive_wait\": 2, \"receive\": 1, \"copy_in\": 0.25}},\n"
        "    {\"bytes\": 1048576, \"iterations\": 50, \"gigabytes_per_second\": 8.388608, "
        "\"gigabits_per_second\": 67.108864,\n"
        "     \"line_rate_percent\": null,\n"
        "     \"min_us\": 100, \"median_us\": 125, \"mean_us\": 130, \"p99_us\": null, "
        "\"p99_9_us\": null, \"max_us\": 250,\n"
        "     \"stages_us\": {\"copy_out\": 25, \"send\": 100, \"send_wait\": 12.5, "
        "\"receive_wait\": 6.25, \"receive\": 110, \"copy_in\": 50}}\n"
        "  ],\n"
        "  \"incomplete_because\": \"\",\n"
        "  \"complete\": true,\n"
        "  \"verified_iterations\": 1050,\n"
        "  \"verified_bytes\": 52436800\n"
        "}\n");
}

#define CSV_HEADER                                                                                 \
    "bytes,iterations,gigabytes_per_second,gigabits_per_second,line_rate_percent,min_us,median_"   \
    "us,"                                                                                          \
    "mean_us,p99_us,p99_9_us,max_us,"                                                              \
    "copy_out_us,send_us,send_wait_us,receive_wait_us,receive_us,copy_in_us,way,client,server,"    \
    "path,memory,unpack,channels,sockets,threads,chunk_bytes,pieces,operation,accesses,barrier_"   \
    "us,date_utc,version,check,row,rows\n"
#define CSV_RUN                                                                                    \
    ",one way,left,right,\"192.0.2.7: built-in transport over eth0,eth1, 2 channels\","            \
    "GPU 0 to GPU 1,auto,2,8,1,4194304,0,send,0,3.125,2026-01-02T03:04:05Z,1.2.3,every,"

TEST(test_csv)
{
    assert_string_equal(
        printed(print_csv, &small_result), CSV_HEADER
        "8,1000,0.002,0.016,,3.5,4,4.5,5.25,12.5,125.5,0.5,1,0,2,1,0.25" CSV_RUN "1,2\n"
        "1048576,50,8.388608,67.108864,,100,125,130,,,250,25,100,12.5,6.25,110,50" CSV_RUN "2,2\n");
}

/* Names end neither a field nor a string, whatever is in them. */
TEST(test_hostile_names)
{
    struct perf_result result = small_result;

    snprintf(result.client, sizeof result.client, "a\"b\\c\n\x01\xff");
    expect_part(printed(print_json, &result), "\"client\": \"a\\\"b\\\\c\\u000a\\u0001?\",\n");
    expect_part(printed(print_csv, &result), ",one way,\"a\"\"b\\c\n\x01\xff\",right,");
}

/* A host name of the peer is text in every spreadsheet, whatever it begins with. */
TEST(test_csv_without_formulas)
{
    static const char *const names[][2] = {{"=cmd|' /C calc'!A0", "\"'=cmd|' /C calc'!A0\""},
                                           {"+1+1", "\"'+1+1\""},
                                           {"-2+3", "\"'-2+3\""},
                                           {"@SUM(A1:A9)", "\"'@SUM(A1:A9)\""},
                                           {"=1,\"2", "\"'=1,\"\"2\""},
                                           {"a=b", "a=b"},
                                           {"", ""}};
    struct perf_result result = small_result;

    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char expected[120];

        snprintf(result.client, sizeof result.client, "%s", names[i][0]);
        snprintf(expected, sizeof expected, ",one way,%s,right,", names[i][1]);
        expect_part(printed(print_csv, &result), expected);
    }
}

/* The rate of the line is that of one direction, and both ways have two. */
TEST(test_line_rate)
{
    struct perf_result result = one_size();

    result.line_mbps = 100000;
    expect_part(printed(print_table, &result), "  line      100.0 Gbit/s\n");
    expect_part(printed(print_table, &result), "       67.11    67.1 %       100.0");
    expect_part(printed(print_json, &result), "\"line_rate_gigabits_per_second\": 100,\n");
    expect_part(printed(print_json, &result), "\"line_rate_percent\": 67.108864,\n");
    expect_part(printed(print_csv, &result), ",67.108864,67.108864,100,");
    result.way = PERF_BOTH_WAYS;
    expect_part(printed(print_json, &result), "\"line_rate_percent\": 33.554432,\n");
}

/* A number of bytes that nobody compared is not taken for one that somebody did. */
TEST(test_unverified)
{
    struct perf_result result = small_result;

    result.check = PERF_CHECK_FIRST;
    expect_part(printed(print_table, &result), "  check     first: ");
    expect_part(printed(print_table, &result),
                "verified: every byte of 2 iterations, 1.0 MiB in all; no other was");
    expect_part(printed(print_json, &result), "\"verified_iterations\": 2,\n");
    expect_part(printed(print_csv, &result), ",1.2.3,first,1,2\n");
    result.check = PERF_CHECK_NONE;
    expect_part(printed(print_table, &result), "  check     none: NOT VERIFIED");
    expect_part(printed(print_table, &result), "\nNOT VERIFIED: ");
    assert_null(strstr(printed(print_table, &result), "verified: every"));
    expect_part(printed(print_json, &result), "\"check\": \"none\",\n");
    expect_part(printed(print_json, &result), "\"verified_bytes\": 0\n");
    expect_part(printed(print_csv, &result), ",1.2.3,none,2,2\n");
}

/* What there is of a run that was cut short says that it was. */
TEST(test_incomplete)
{
    struct perf_result result = small_result;

    result.complete = false;
    result.size_count = 5;
    snprintf(result.why, sizeof result.why, "the \"peer\" left");
    expect_part(printed(print_table, &result),
                "\nINCOMPLETE: 2 of 5 sizes were measured: the \"peer\" left\n");
    expect_part(printed(print_json, &result),
                "\"incomplete_because\": \"the \\\"peer\\\" left\",\n  \"complete\": false,\n");
    expect_part(printed(print_csv, &result), ",every,2,5\n");
    result.row_count = 0;
    expect_part(printed(print_table, &result), "\nINCOMPLETE: 0 of 5 sizes");
    expect_part(printed(print_json, &result), "\"rows\": [\n  ],\n");
}

/* A percentile is known from as many iterations on as it divides into. */
TEST(test_percentiles)
{
    struct perf_row row = {.p99_us = 1, .p999_us = 2};

    row.iterations = 99;
    assert_false(perf_known(perf_p99(&row)));
    row.iterations = 100;
    assert_true(perf_known(perf_p99(&row)));
    row.iterations = 999;
    assert_false(perf_known(perf_p999(&row)));
    row.iterations = 1000;
    assert_true(perf_known(perf_p999(&row)));
}

/* What arrives in both directions is verified in both. */
TEST(test_total)
{
    struct perf_result result = one_size();

    assert_true(perf_total(&result).bytes == 50.0 * (1 << 20));
    result.way = PERF_BOTH_WAYS;
    assert_true(perf_total(&result).bytes == 100.0 * (1 << 20));
    assert_int_equal(perf_total(&result).iterations, 50);
}

/* --- names --- */

TEST(test_names)
{
    static const struct {
        uint64_t bytes;
        const char *name;
    } sizes[] = {{0, "0 B"},
                 {1, "1 B"},
                 {512, "512 B"},
                 {1025, "1025 B"},
                 {4096, "4 KiB"},
                 {1536, "1536 B"},
                 {3 << 19, "1536 KiB"},
                 {(uint64_t)1 << 30, "1 GiB"},
                 {(uint64_t)1 << 63, "8 EiB"},
                 {UINT64_MAX, "18446744073709551615 B"}};
    char text[PERF_NAME];

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        assert_string_equal(perf_size_name(sizes[i].bytes, text), sizes[i].name);
    assert_string_equal(perf_way_name(PERF_ONE_WAY), "one way");
    assert_string_equal(perf_way_name(PERF_BOTH_WAYS), "both ways");
    assert_string_equal(perf_way_name(PERF_PING_PONG), "ping-pong");
    assert_string_equal(perf_amount_name(0, text), "0 B");
    assert_string_equal(perf_amount_name(1023, text), "1023 B");
    assert_string_equal(perf_amount_name(1536, text), "1.5 KiB");
    assert_string_equal(perf_amount_name(1e40, text), "8.67e+21 EiB");
}

TEST(test_numbers)
{
    const struct {
        double value;
        const char *name;
    } numbers[] = {
        {0, "0"},          {0.00204, "0.0020"},      {0.99996, "1.000"},    {9.9996, "10.00"},
        {12.345, "12.35"}, {999.96, "1000"},         {123456, "123456"},    {1e300, "1.000e+300"},
        {-1, "-"},         {__builtin_nan(""), "-"}, {__builtin_inf(), "-"}};
    char text[PERF_NAME];

    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        assert_string_equal(perf_number(numbers[i].value, text), numbers[i].name);
}

/* --- the page --- */

static void print_html(FILE *out, const struct perf_result *result)
{
    assert_true(perf_print_html(out, result));
}

static void expect_no_word(const char *text, const char *word)
{
    for (const char *at = strcasestr(text, word); at != NULL; at = strcasestr(at + 1, word)) {
        bool inside = (at > text && isalpha((unsigned char)at[-1])) ||
                      isalpha((unsigned char)at[strlen(word)]);

        if (!inside)
            fail_msg("'%s' in: %.80s", word, at > text + 40 ? at - 40 : text);
    }
}

static unsigned occurrences(const char *text, const char *part)
{
    unsigned count = 0;

    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part))
        count++;
    return count;
}

static void check_page(const struct perf_result *result)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    static const char *const absent[] = {
        "http:", "https:", "src=", "href=", "url(", "@import", "<link"};
    const char *page = printed(print_html, result);

    assert_int_equal(strncmp(page, doctype, strlen(doctype)), 0);
    expect_no_word(page, "nan");
    expect_no_word(page, "inf");
    for (unsigned i = 0; i < COUNT_OF(absent); i++)
        if (strstr(page, absent[i]) != NULL)
            fail_msg("'%s' in the page", absent[i]);
    /* the result and the script that draws it; names of hosts add none */
    assert_int_equal(occurrences(page, "<script"), 2);
    assert_int_equal(occurrences(page, "</script"), 2);
}

static void check_everywhere(const struct perf_result *result)
{
    static const print_function others[] = {print_table, print_json, print_csv};

    check_page(result);
    for (unsigned i = 0; i < COUNT_OF(others); i++) {
        const char *text = printed(others[i], result);

        expect_no_word(text, "nan");
        expect_no_word(text, "inf");
    }
}

/* The page has the JSON that --json prints. */
TEST(test_page_result)
{
    char *json = strdup(printed(print_json, &small_result));

    check_page(&small_result);
    expect_part(printed(print_html, &small_result), json);
    free(json);
}

TEST(test_page_escapes)
{
    static const char hostile[] = "</title></script><script>\"&'\x01";
    struct perf_result result = small_result;

    snprintf(result.client, sizeof result.client, "%s", hostile);
    snprintf(result.server, sizeof result.server, "%s", hostile);
    snprintf(result.path, sizeof result.path, "%s", hostile);
    snprintf(result.memory, sizeof result.memory, "%s", hostile);
    snprintf(result.unpack, sizeof result.unpack, "<p>");
    snprintf(result.version, sizeof result.version, "%s", hostile);
    snprintf(result.date, sizeof result.date, "%s", hostile);
    check_page(&result);
    expect_part(printed(print_html, &result),
                "\"\\u003c/title>\\u003c/script>\\u003cscript>\\\"&'\\u0001\"");
}

/* --- extremes --- */

static const double extreme_values[] = {0,    1e-320, 1e-300,      1e-9, 1,     5,
                                        1e15, 1e300,  __DBL_MAX__, -1,   -1e300};

static struct perf_row row_of(uint64_t bytes, double value)
{
    return (struct perf_row){
        .bytes = bytes,
        .iterations = 5000,
        .least_us = value,
        .median_us = value,
        .p99_us = value,
        .p999_us = value,
        .most_us = value,
        .mean_us = value,
        .gigabytes_per_second = value,
        .stages = {value, value, value, value, value, value},
    };
}

/* All rows are alike, or there is one; in every report, with each number that there can be. */
TEST(test_equal_rows)
{
    static const uint64_t sizes[] = {0, 1, 4096, UINT64_MAX};
    enum { VALUES = COUNT_OF(extreme_values) };
    struct perf_result result = small_result;

    for (unsigned i = 0; i < 4 * (VALUES + 2); i++) {
        double value = i / 4 < VALUES    ? extreme_values[i / 4]
                       : i / 4 == VALUES ? __builtin_nan("")
                                         : __builtin_inf();

        for (result.row_count = 1; result.row_count <= 8; result.row_count *= 8) {
            for (unsigned k = 0; k < result.row_count; k++)
                result.rows[k] = row_of(sizes[i % 4], value);
            check_everywhere(&result);
        }
    }
}

/* Each size that there can be, from the largest down; values from the least to the greatest. */
TEST(test_64_rows)
{
    struct perf_result result = small_result;
    double value = 1e-300;

    result.row_count = PERF_MOST_SIZES;
    for (unsigned i = 0; i < PERF_MOST_SIZES; i++, value *= 2e9)
        result.rows[i] = row_of(i == 63 ? 0 : (uint64_t)1 << (63 - i), value);
    check_everywhere(&result);
    for (unsigned i = 0; i < PERF_MOST_SIZES; i++)
        result.rows[i] = row_of(4096, 5);
    check_everywhere(&result);
}

/* One value far from the others leaves each in its place. */
TEST(test_outlier)
{
    struct perf_result result = small_result;

    for (unsigned i = 0; i < COUNT_OF(extreme_values); i++) {
        result.rows[0] = row_of(0, extreme_values[i]);
        result.rows[0].median_us = 1;
        check_everywhere(&result);
        result.rows[0] = row_of(1, 3);
        result.rows[0].median_us = extreme_values[i];
        check_everywhere(&result);
    }
}

SUITE(.name = "perf_report");
