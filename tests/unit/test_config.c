/*
 * Shows that every variable of the table has a good default, takes what it should, refuses the rest
 * with a text that names variable, value and what is allowed, and that the table prints whole in
 * all four formats. The rows come from the table itself, so a new variable is tested unasked.
 */
#include "base/config.h"

#include "base/log.h"
#include "tests/unit/checks.h"

#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum row_type { ROW_BOOL, ROW_CHOICE, ROW_INTEGER, ROW_SIZE, ROW_TEXT, ROW_OTHER };

static const struct row {
    const char *name;
    const char *initial;
    const char *words;
    uint64_t least;
    uint64_t most;
    size_t offset;
    enum row_type type;
} rows[] = {
#define BOOL_ROW(field, name, initial, sentence)                                                   \
    {name, initial, "0|1", 0, 0, offsetof(struct config, field), ROW_BOOL},
#define CHOICE_ROW(field, name, initial, words, sentence)                                          \
    {name, initial, words, 0, 0, offsetof(struct config, field), ROW_CHOICE},
#define INTEGER_ROW(field, name, initial, least, most, sentence)                                   \
    {name, initial, NULL, least, most, offsetof(struct config, field), ROW_INTEGER},
#define SIZE_ROW(field, name, initial, least, most, sentence)                                      \
    {name, initial, NULL, least, most, offsetof(struct config, field), ROW_SIZE},
#define TEXT_ROW(field, name, initial, allowed, sentence)                                          \
    {name, initial, NULL, 0, 0, offsetof(struct config, field), ROW_TEXT},
#define OTHER_ROW(field, type, name, initial, allowed, parser, sentence)                           \
    {name, initial, NULL, 0, 0, offsetof(struct config, field), ROW_OTHER},
    CONFIG_TABLE(BOOL_ROW, CHOICE_ROW, INTEGER_ROW, SIZE_ROW, TEXT_ROW, OTHER_ROW)};

enum { ROWS = COUNT_OF(rows) };

static uint64_t field_of(const struct config *config, const struct row *row)
{
    const char *field = (const char *)config + row->offset;

    switch (row->type) {
    case ROW_BOOL:
        return *(const bool *)field;
    case ROW_CHOICE:
        return (uint64_t)(*(const int *)field);
    case ROW_TEXT:
        return strlen(field);
    case ROW_OTHER:
        return 0; /* compared by its own test */
    default:
        return *(const uint64_t *)field;
    }
}

/* Removes what the environment of the test itself may hold. */
static int clear_environment(void **state)
{
    (void)state;
    for (char **entry = environ; *entry != NULL;)
        if (strncmp(*entry, "UCCL_TCPX_", 10) == 0 || strncmp(*entry, "NCCL_", 5) == 0) {
            char *name = strndup(*entry, strcspn(*entry, "="));

            unsetenv(name);
            free(name);
            entry = environ;
        } else {
            entry++;
        }
    return 0;
}

static void expect_taken(const struct row *row, const char *text, uint64_t expected)
{
    struct config config;

    setenv(row->name, text, 1);
    if (config_read(&config) != TCPX_SUCCESS)
        fail_msg("%s=%s was refused: %s", row->name, text, error_text());
    assert_int_equal(field_of(&config, row), expected);
    unsetenv(row->name);
}

static void expect_refusal(const struct row *row, const char *text)
{
    struct config config;
    char named[512];

    memset(&config, 0x5a, sizeof config);
    setenv(row->name, text, 1);
    if (config_read(&config) != TCPX_INVALID_ARGUMENT)
        fail_msg("%s=%s was taken", row->name, text);
    unsetenv(row->name);
    expect_untouched(&config, sizeof config);
    snprintf(named, sizeof named, "%s=%s is not ", row->name, text);
    if (strncmp(error_text(), named, strlen(named)) != 0)
        fail_msg("'%s' does not begin with '%s'", error_text(), named);
    assert_non_null(strstr(error_text() + strlen(named), "expected "));
}

/* Good until the next call. */
static const char *in_digits(uint64_t number)
{
    static char text[32];

    snprintf(text, sizeof text, "%" PRIu64, number);
    return text;
}

static const struct row *row_of(const char *name)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    fail_msg("no row for %s", name);
    return NULL;
}

#define CONFIG_TEST(function) TEST_WITH(function, clear_environment, clear_environment)

/* --- reading --- */

CONFIG_TEST(test_defaults)
{
    struct config config;

    assert_int_equal(config_read(&config), TCPX_SUCCESS);
    assert_false(config.debug);
    assert_int_equal(config.gpu, CONFIG_GPU_AUTO);
    assert_int_equal(config.host_gpus, 1);
    assert_int_equal(config.host_gpu_memory, UINT64_C(16) << 30);
    for (size_t i = 0; i < ROWS; i++)
        expect_taken(&rows[i], rows[i].initial, field_of(&config, &rows[i]));
}

CONFIG_TEST(test_empty_is_unset)
{
    struct config config;

    assert_int_equal(config_read(&config), TCPX_SUCCESS);
    for (size_t i = 0; i < ROWS; i++)
        expect_taken(&rows[i], "", field_of(&config, &rows[i]));
}

CONFIG_TEST(test_words)
{
    for (size_t i = 0; i < ROWS; i++) {
        char *words;
        char *rest;
        char *word;

        if (rows[i].words == NULL)
            continue;
        rest = words = strdup(rows[i].words);
        for (uint64_t value = 0; (word = strsep(&rest, "|")) != NULL; value++) {
            char longer[128];

            expect_taken(&rows[i], word, value);
            snprintf(longer, sizeof longer, "%sx", word);
            expect_refusal(&rows[i], longer);
            snprintf(longer, sizeof longer, " %s", word);
            expect_refusal(&rows[i], longer);
        }
        expect_refusal(&rows[i], rows[i].words);
        expect_refusal(&rows[i], "|");
        expect_refusal(&rows[i], "2");
        free(words);
    }
}

CONFIG_TEST(test_numbers)
{
    static const char *const garbage[] = {"x", "-1", "+1", "0x10", "1.5", "18446744073709551616"};

    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];

        if (row->words != NULL || row->type == ROW_TEXT || row->type == ROW_OTHER)
            continue;
        expect_taken(row, in_digits(row->least), row->least);
        expect_taken(row, in_digits(row->most), row->most);
        if (row->least > 0)
            expect_refusal(row, in_digits(row->least - 1));
        if (row->most < UINT64_MAX)
            expect_refusal(row, in_digits(row->most + 1));
        for (size_t j = 0; j < COUNT_OF(garbage); j++)
            expect_refusal(row, garbage[j]);
        if (row->type == ROW_INTEGER)
            expect_refusal(row, "1K");
    }
    expect_taken(row_of("UCCL_TCPX_HOST_GPU_MEMORY"), "2TiB", UINT64_C(2) << 40);
}

CONFIG_TEST(test_texts)
{
    struct config config;
    char longest[CONFIG_TEXT_BYTES + 1];

    memset(longest, 'x', sizeof longest);
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].type != ROW_TEXT)
            continue;
        longest[CONFIG_TEXT_BYTES - 1] = '\0';
        expect_taken(&rows[i], longest, CONFIG_TEXT_BYTES - 1);
        longest[CONFIG_TEXT_BYTES - 1] = 'x';
        longest[CONFIG_TEXT_BYTES] = '\0';
        setenv(rows[i].name, longest, 1);
        assert_int_equal(config_read(&config), TCPX_INVALID_ARGUMENT);
        assert_non_null(strstr(error_text(), rows[i].name));
        unsetenv(rows[i].name);
    }
    setenv("NCCL_SOCKET_IFNAME", "^=lo", 1);
    assert_int_equal(config_read(&config), TCPX_SUCCESS);
    assert_string_equal(config.socket_ifname, "^=lo");
    unsetenv("NCCL_SOCKET_IFNAME");
}

/* What is taken, and what the fields are then, as text; NULL: it is refused. */
static const struct other {
    const char *name;
    const char *variable;
    const char *value;
    const char *fields;
} others[] = {
    {"test_ports", "UCCL_TCPX_PORT", "auto", "0 0"},
    {"test_ports", "UCCL_TCPX_PORT", "1", "1 1"},
    {"test_ports", "UCCL_TCPX_PORT", "65535", "65535 65535"},
    {"test_ports", "UCCL_TCPX_PORT", "20000-20007", "20000 20007"},
    {"test_ports", "UCCL_TCPX_PORT", "0", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "65536", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "-", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "5-", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "-5", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "20-10", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "5-x", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "1-2-3", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "1-65536", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "5 - 6", NULL},
    {"test_ports", "UCCL_TCPX_PORT", "00000000000000005", NULL},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "203.0.113.7", "203.0.113.7"},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "2001:db8::7", "2001:db8::7"},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "host", NULL},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "1.2.3", NULL},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "1.2.3.4.5", NULL},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "1.2.3.4:5", NULL},
    {"test_addresses", "UCCL_TCPX_ADVERTISE", "fe80::1%lo", NULL},
    {"test_stats", "UCCL_TCPX_STATS", "0", "0 "},
    {"test_stats", "UCCL_TCPX_STATS", "1", "1 "},
    {"test_stats", "UCCL_TCPX_STATS", "86400:/a:b", "86400 /a:b"},
    {"test_stats", "UCCL_TCPX_STATS", "86401", NULL},
    {"test_stats", "UCCL_TCPX_STATS", "5:", NULL},
    {"test_stats", "UCCL_TCPX_STATS", ":/a", NULL},
    {"test_stats", "UCCL_TCPX_STATS", "0:/a", NULL},
    {"test_stats", "UCCL_TCPX_STATS", "1.5", NULL},
};

TABLE_TEST(others)
{
    char fields[3 * CONFIG_TEXT_BYTES];
    struct config config;

    clear_environment(NULL);
    if (row->fields == NULL) {
        expect_refusal(row_of(row->variable), row->value);
        return;
    }
    setenv(row->variable, row->value, 1);
    assert_int_equal(config_read(&config), TCPX_SUCCESS);
    unsetenv(row->variable);
    if (strcmp(row->name, "test_ports") == 0)
        snprintf(fields, sizeof fields, "%u %u", config.ports.first, config.ports.last);
    else if (strcmp(row->name, "test_addresses") == 0)
        snprintf(fields, sizeof fields, "%s", config.advertise.text);
    else
        snprintf(fields, sizeof fields, "%u %s", config.stats.seconds, config.stats.file);
    assert_string_equal(fields, row->fields);
}

CONFIG_TEST(test_text_says_what_is_allowed)
{
    static const char *const cases[][3] = {
        {"UCCL_TCPX_DEBUG", "yes", "expected 0 or 1"},
        {"UCCL_TCPX_GPU", "Cuda", "expected auto, cuda or host"},
        {"UCCL_TCPX_HOST_GPUS", "65", "expected a whole number from 1 to 64"},
        {"UCCL_TCPX_HOST_GPU_MEMORY", "1", "expected a size from 64K to 64T"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_refusal(row_of(cases[i][0]), cases[i][1]);
        expect_text(cases[i][2]);
    }
}

/* One test, because the configuration of the process is read once and for all. */
CONFIG_TEST(test_process_configuration)
{
    const struct config *config = NULL;
    const struct config *again;

    setenv("UCCL_TCPX_HOST_GPUS", "none", 1);
    assert_int_equal(config_get(&config), TCPX_INVALID_ARGUMENT);
    assert_int_equal(config_get(&config), TCPX_INVALID_ARGUMENT);
    assert_null(config);
    assert_non_null(strstr(error_text(), "UCCL_TCPX_HOST_GPUS=none"));
    assert_false(log_enabled(LOG_DEBUG));

    setenv("UCCL_TCPX_HOST_GPUS", "3", 1);
    setenv("UCCL_TCPX_DEBUG", "1", 1);
    assert_int_equal(config_get(&config), TCPX_SUCCESS);
    assert_int_equal(config->host_gpus, 3);
    assert_true(config->debug);
    assert_true(log_enabled(LOG_DEBUG));
    log_set_stderr(false);

    setenv("UCCL_TCPX_HOST_GPUS", "4", 1);
    assert_int_equal(config_get(&again), TCPX_SUCCESS);
    assert_ptr_equal(again, config);
    assert_int_equal(again->host_gpus, 3);
    setenv("UCCL_TCPX_HOST_GPUS", "none", 1);
    assert_int_equal(config_get(&again), TCPX_SUCCESS);
}

/* --- printing --- */

static config_resolver *resolver;

/* What the latest print() has printed. */
static char *text;

static void print(enum config_format format, int expected)
{
    size_t length;
    FILE *out;

    free(text);
    text = NULL;
    out = open_memstream(&text, &length);
    assert_non_null(out);
    assert_int_equal(config_print(out, format, resolver), expected);
    assert_int_equal(fclose(out), 0);
}

static int count_of(const char *part)
{
    int count = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

CONFIG_TEST(test_print_text)
{
    char line[512];

    setenv("UCCL_TCPX_HOST_GPUS", "5", 1);
    print(CONFIG_FORMAT_TEXT, TCPX_SUCCESS);
    expect_part(text, "UCCL_TCPX_HOST_GPUS=5  (from the environment)\n");
    expect_part(text, "UCCL_TCPX_GPU=auto  (default)\n");
    assert_int_equal(count_of("\n    Allowed: "), ROWS);
    assert_int_equal(count_of("ERROR"), 0);
    for (size_t i = 0; i < ROWS; i++) {
        snprintf(line, sizeof line, "%s=", rows[i].name);
        assert_int_equal(count_of(line), 1);
    }
}

/* Of one variable. It is not asked about values that are not understood. */
static void resolve_one(const char *name, const char *value, char *out, size_t room)
{
    bool asked = strcmp(name, "UCCL_TCPX_THREADS") == 0;

    assert_string_not_equal(value, "none at all");
    snprintf(out, room, "%s%s", asked ? "7, instead of " : "", asked ? value : "");
}

CONFIG_TEST(test_print_what_values_stand_for)
{
    resolver = resolve_one;
    setenv("UCCL_TCPX_HOST_GPUS", "5", 1);
    setenv("UCCL_TCPX_SOCKETS", "none at all", 1);
    print(CONFIG_FORMAT_TEXT, TCPX_INVALID_ARGUMENT);
    expect_part(text, "\nUCCL_TCPX_THREADS=auto  (default; here: 7, instead of auto)\n");
    assert_int_equal(count_of("here: "), 1);
    /* those that are set come first, in their order */
    assert_int_equal(strncmp(text, "UCCL_TCPX_SOCKETS=", 18), 0);
    assert_true(strstr(text, "\nUCCL_TCPX_HOST_GPUS=5") < strstr(text, "\nUCCL_TCPX_DEBUG=0"));
    print(CONFIG_FORMAT_JSON, TCPX_INVALID_ARGUMENT);
    assert_int_equal(count_of("\"here\": \"7, instead of auto\""), 1);
    print(CONFIG_FORMAT_MARKDOWN, TCPX_SUCCESS);
    assert_int_equal(count_of("7, instead of"), 0);
    resolver = NULL;
}

CONFIG_TEST(test_print_text_with_errors)
{
    setenv("UCCL_TCPX_GPU", "amd", 1);
    setenv("UCCL_TCPX_HOST_GPUS", "0", 1);
    print(CONFIG_FORMAT_TEXT, TCPX_INVALID_ARGUMENT);
    expect_part(text, "\n    ERROR: UCCL_TCPX_GPU=amd is not ");
    expect_part(text, "\n    ERROR: UCCL_TCPX_HOST_GPUS=0 is not ");
    assert_int_equal(count_of("ERROR"), 2);
    assert_int_equal(count_of("\n    Allowed: "), ROWS);
    /* the first of the two is the result */
    expect_part(error_text(), "UCCL_TCPX_GPU=amd");
}

CONFIG_TEST(test_print_unknown_names)
{
    setenv("UCCL_TCPX_HOST_GPU", "1", 1);
    setenv("UCCL_TCPX_DEBUGS", "", 1);
    setenv("UCCL_OTHER", "1", 1);
    print(CONFIG_FORMAT_TEXT, TCPX_SUCCESS);
    expect_part(text, "\nUCCL_TCPX_HOST_GPU  (set, but this version of tcpx does not read it)\n");
    expect_part(text, "\nUCCL_TCPX_DEBUGS  (set, but this version of tcpx does not read it)\n");
    assert_int_equal(count_of("does not read it"), 2);
    unsetenv("UCCL_OTHER");
}

CONFIG_TEST(test_print_documents)
{
    char *plain;
    char *man;
    char line[512];

    print(CONFIG_FORMAT_MARKDOWN, TCPX_SUCCESS);
    plain = strdup(text);
    assert_int_equal(count_of("\n| `"), ROWS);
    assert_int_equal(count_of("\n"), ROWS + 2);
    assert_int_equal(count_of("|"), 5 * (ROWS + 2));
    print(CONFIG_FORMAT_MAN, TCPX_SUCCESS);
    man = strdup(text);
    assert_int_equal(count_of(".TP\n.B "), ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        bool none = *rows[i].initial == '\0';

        snprintf(line, sizeof line, "| `%s` | %s%s%s |", rows[i].name, none ? "" : "`",
                 rows[i].initial, none ? "" : "`");
        expect_part(plain, line);
        snprintf(line, sizeof line, ".B %s\n", rows[i].name);
        expect_part(man, line);
        snprintf(line, sizeof line, "\nDefault %s; allowed: ", none ? "none" : rows[i].initial);
        expect_part(man, line);
    }

    /* Documents are the same everywhere: neither values nor slips of the environment show. */
    setenv("UCCL_TCPX_HOST_GPUS", "none", 1);
    setenv("UCCL_TCPX_SLIP", "1", 1);
    print(CONFIG_FORMAT_MARKDOWN, TCPX_SUCCESS);
    assert_string_equal(text, plain);
    print(CONFIG_FORMAT_MAN, TCPX_SUCCESS);
    assert_string_equal(text, man);
    free(plain);
    free(man);
}

/* --- JSON, as it is printed: a list of objects whose values are strings --- */

#define STRING "\"([^\"\\\\[:cntrl:]]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4})*\""
#define MEMBER STRING ": " STRING
#define OBJECT "\\{" MEMBER "(, " MEMBER ")*\\}"

static bool is_json(const char *json)
{
    regex_t list;
    bool matches;

    assert_int_equal(
        regcomp(&list, "^\\[\n  " OBJECT "(,\n  " OBJECT ")*\n\\]\n$", REG_EXTENDED | REG_NOSUB),
        0);
    matches = regexec(&list, json, 0, NULL, 0) == 0;
    regfree(&list);
    return matches;
}

CONFIG_TEST(test_what_is_json)
{
    static const char *const good[] = {"\"a\": \"\"",
                                       "\"a\": \"\\u00e9\\n\\\"\", \"b\": \"\xc3\xa9\""};
    static const char *const bad[] = {"",
                                      "\"a\"",
                                      "\"a\":",
                                      "\"a\": \"",
                                      "\"a\": \"\\x\"",
                                      "\"a\": \"\n\"",
                                      "\"a\": \"\\u12g4\"",
                                      "\"a\": \"b\",",
                                      "\"a\": \"b\" \"c\": \"d\"",
                                      "\"a\": \"b\"}",
                                      "\"a\": \"b\"\n]\n"};
    char json[100];

    for (size_t i = 0; i < COUNT_OF(good) + COUNT_OF(bad); i++) {
        bool is_good = i < COUNT_OF(good);

        snprintf(json, sizeof json, "[\n  {%s}\n]\n", is_good ? good[i] : bad[i - COUNT_OF(good)]);
        assert_int_equal(is_json(json), is_good);
    }
}

CONFIG_TEST(test_print_json)
{
    setenv("UCCL_TCPX_HOST_GPUS", "6", 1);
    print(CONFIG_FORMAT_JSON, TCPX_SUCCESS);
    assert_true(is_json(text));
    assert_int_equal(count_of("{\"name\": \""), ROWS);
    assert_int_equal(count_of("\"error\""), 0);
    expect_part(text, "{\"name\": \"UCCL_TCPX_HOST_GPUS\", \"value\": \"6\", "
                      "\"source\": \"environment\", \"default\": \"1\"");
    expect_part(text, "{\"name\": \"UCCL_TCPX_GPU\", \"value\": \"auto\", "
                      "\"source\": \"default\", \"default\": \"auto\"");
}

CONFIG_TEST(test_print_json_of_odd_values)
{
    setenv("UCCL_TCPX_GPU", "a\"b\\c\nd\x01\xff\xc3\xa9", 1);
    print(CONFIG_FORMAT_JSON, TCPX_INVALID_ARGUMENT);
    assert_true(is_json(text));
    expect_part(text, "\"value\": \"a\\\"b\\\\c\\u000ad\\u0001?\xc3\xa9\"");
    assert_int_equal(count_of(", \"error\": \"UCCL_TCPX_GPU="), 1);
}

SUITE(.name = "config");
