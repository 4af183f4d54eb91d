/* The table of config.h at work: parsing, and printing it for people, scripts and documents. */
#include "base/config.h"

#include "base/json.h"
#include "base/log.h"
#include "base/parse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum variable_type { TYPE_BOOL, TYPE_CHOICE, TYPE_INTEGER, TYPE_SIZE, TYPE_TEXT };

struct variable {
    const char *name;
    const char *initial;
    const char *words; /* CHOICE: separated by '|'; TEXT: what is allowed */
    const char *sentence;
    uint64_t least; /* INTEGER, SIZE */
    uint64_t most;
    size_t offset; /* in struct config */
    enum variable_type type;
};

#define BOOL_ROW(field, variable_name, default_text, meaning)                                      \
    {.name = variable_name,                                                                        \
     .initial = default_text,                                                                      \
     .sentence = meaning,                                                                          \
     .offset = offsetof(struct config, field),                                                     \
     .type = TYPE_BOOL},
#define CHOICE_ROW(field, variable_name, default_text, choices, meaning)                           \
    {.name = variable_name,                                                                        \
     .initial = default_text,                                                                      \
     .words = choices,                                                                             \
     .sentence = meaning,                                                                          \
     .offset = offsetof(struct config, field),                                                     \
     .type = TYPE_CHOICE},
#define NUMBER_ROW(field, variable_name, default_text, smallest, largest, meaning, kind)           \
    {.name = variable_name,                                                                        \
     .initial = default_text,                                                                      \
     .sentence = meaning,                                                                          \
     .least = smallest,                                                                            \
     .most = largest,                                                                              \
     .offset = offsetof(struct config, field),                                                     \
     .type = kind},
#define INTEGER_ROW(field, variable_name, default_text, smallest, largest, meaning)                \
    NUMBER_ROW(field, variable_name, default_text, smallest, largest, meaning, TYPE_INTEGER)
#define SIZE_ROW(field, variable_name, default_text, smallest, largest, meaning)                   \
    NUMBER_ROW(field, variable_name, default_text, smallest, largest, meaning, TYPE_SIZE)

#define TEXT_ROW(field, variable_name, default_text, allowed, meaning)                             \
    {.name = variable_name,                                                                        \
     .initial = default_text,                                                                      \
     .words = allowed,                                                                             \
     .sentence = meaning,                                                                          \
     .offset = offsetof(struct config, field),                                                     \
     .type = TYPE_TEXT},

static const struct variable variables[] = {
    CONFIG_TABLE(BOOL_ROW, CHOICE_ROW, INTEGER_ROW, SIZE_ROW, TEXT_ROW)};

enum { VARIABLES = sizeof variables / sizeof *variables };

/* A size as a person would write it: with the largest suffix that leaves no rest. */
static void format_size(uint64_t bytes, char *text, size_t room)
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T"};
    size_t unit = 0;

    while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < sizeof suffixes / sizeof *suffixes) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, room, "%llu%s", (unsigned long long)bytes, suffixes[unit]);
}

static bool can_be_auto(const struct variable *variable)
{
    return variable->type == TYPE_INTEGER && strcmp(variable->initial, "auto") == 0;
}

/* What a value may be, in words that fit behind "is not" and into a table. */
static void describe_allowed(const struct variable *variable, char *text, size_t room)
{
    char least[32];
    char most[32];
    size_t used = 0;
    const char *word;

    switch (variable->type) {
    case TYPE_BOOL:
        snprintf(text, room, "0 or 1");
        break;
    case TYPE_INTEGER:
        snprintf(text, room, "%sa whole number from %llu to %llu",
                 can_be_auto(variable) ? "auto or " : "", (unsigned long long)variable->least,
                 (unsigned long long)variable->most);
        break;
    case TYPE_SIZE:
        format_size(variable->least, least, sizeof least);
        format_size(variable->most, most, sizeof most);
        snprintf(text, room, "a size from %s to %s, such as 512K, 4M or 1G", least, most);
        break;
    case TYPE_TEXT:
        snprintf(text, room, "%s", variable->words);
        break;
    case TYPE_CHOICE:
        for (word = variable->words; used < room; word += strcspn(word, "|") + 1) {
            int length = (int)strcspn(word, "|");
            bool last = word[length] == '\0';
            bool next_is_last = !last && strchr(word + length + 1, '|') == NULL;

            used += (size_t)snprintf(text + used, room - used, "%.*s%s", length, word,
                                     last           ? ""
                                     : next_is_last ? " or "
                                                    : ", ");
            if (last)
                break;
        }
        break;
    }
}

static bool find_word(const char *words, const char *text, int *index)
{
    size_t length = strlen(text);

    for (int i = 0;; i++) {
        size_t word_length = strcspn(words, "|");

        if (length == word_length && memcmp(words, text, length) == 0) {
            *index = i;
            return true;
        }
        if (words[word_length] == '\0')
            return false;
        words += word_length + 1;
    }
}

static bool parse_value(const struct variable *variable, const char *text, struct config *config)
{
    void *field = (char *)config + variable->offset;
    uint64_t number;

    switch (variable->type) {
    case TYPE_BOOL:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return false;
        *(bool *)field = *text == '1';
        return true;
    case TYPE_CHOICE:
        return find_word(variable->words, text, field);
    case TYPE_INTEGER:
    case TYPE_SIZE:
        if (can_be_auto(variable) && strcmp(text, "auto") == 0) {
            *(uint64_t *)field = CONFIG_AUTO;
            return true;
        }
        if (!(variable->type == TYPE_SIZE ? parse_size(text, &number)
                                          : parse_number(text, &number)) ||
            number < variable->least || number > variable->most)
            return false;
        *(uint64_t *)field = number;
        return true;
    case TYPE_TEXT:
        if (strlen(text) >= CONFIG_TEXT_BYTES)
            return false;
        strcpy(field, text); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits */
        return true;
    }
    return false;
}

/* A variable that is set to nothing counts as not set, as in a shell's ${NAME:-default}. */
static const char *value_from_environment(const struct variable *variable)
{
    const char *value = getenv(variable->name);

    return value != NULL && *value != '\0' ? value : NULL;
}

static int read_variable(const struct variable *variable, struct config *config)
{
    const char *value = value_from_environment(variable);
    char allowed[160];

    if (parse_value(variable, value != NULL ? value : variable->initial, config))
        return TCPX_SUCCESS;
    describe_allowed(variable, allowed, sizeof allowed);
    return error_set(TCPX_INVALID_ARGUMENT, "%s=%.200s is not valid: expected %s", variable->name,
                     value != NULL ? value : variable->initial, allowed);
}

/* --- variables for tests ------------------------------------------------------------------ */

static struct test_variable {
    const char *name;
    const char *part;         /* of the tests, that acts on it */
    config_test_reader *read; /* NULL: that part is not in this build */
} test_variables[] = {
    {CONFIG_SOFT_DEVMEM, "software devmem", NULL},
    {CONFIG_THROTTLE, "throttle", NULL},
};

enum { TEST_VARIABLES = sizeof test_variables / sizeof *test_variables };

void config_set_test_reader(const char *name, config_test_reader *read)
{
    for (size_t i = 0; i < TEST_VARIABLES; i++)
        if (strcmp(test_variables[i].name, name) == 0)
            test_variables[i].read = read;
}

/* A build without the part of the tests refuses the variable: it would have no effect. */
static int read_test_variable(const struct test_variable *variable, struct config *config)
{
    const char *value = getenv(variable->name);

    if (value == NULL || *value == '\0')
        return TCPX_SUCCESS;
    if (variable->read != NULL)
        return variable->read(value, config);
    if (strcmp(value, "0") == 0)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT,
                     "%s=%.200s: this build has no %s, which is a part of the tests; unset it",
                     variable->name, value, variable->part);
}

static int read_unbind(struct config *config)
{
    const char *value = getenv(CONFIG_UNBIND);

    if (value == NULL || *value == '\0' || parse_size(value, &config->unbind_after))
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT, "%s=%.200s is not valid: expected a size",
                     CONFIG_UNBIND, value);
}

int config_read(struct config *config)
{
    struct config fresh = {0};
    int result = read_unbind(&fresh);

    for (size_t i = 0; i < TEST_VARIABLES && result == TCPX_SUCCESS; i++)
        result = read_test_variable(&test_variables[i], &fresh);
    for (size_t i = 0; i < VARIABLES && result == TCPX_SUCCESS; i++)
        result = read_variable(&variables[i], &fresh);
    if (result == TCPX_SUCCESS)
        *config = fresh;
    return result;
}

/* Guards process_config until process_config_read is set. */
static pthread_mutex_t read_lock = PTHREAD_MUTEX_INITIALIZER;
static struct config process_config;
static atomic_bool process_config_read;

int config_get(const struct config **config)
{
    int result = TCPX_SUCCESS;

    /* acquire: pairs with the release below, so that the fields are seen */
    if (!atomic_load_explicit(&process_config_read, memory_order_acquire)) {
        pthread_mutex_lock(&read_lock);
        if (!atomic_load_explicit(&process_config_read, memory_order_relaxed)) {
            result = config_read(&process_config);
            if (result == TCPX_SUCCESS) {
                if (process_config.debug)
                    log_set_stderr(true);
                atomic_store_explicit(&process_config_read, true, memory_order_release);
            }
        }
        pthread_mutex_unlock(&read_lock);
    }
    if (result == TCPX_SUCCESS)
        *config = &process_config;
    return result;
}

static void print_text(FILE *out, const struct variable *variable, const char *problem)
{
    const char *value = value_from_environment(variable);
    char allowed[160];

    describe_allowed(variable, allowed, sizeof allowed);
    fprintf(out, "%s=%s  (%s)\n", variable->name, value != NULL ? value : variable->initial,
            value != NULL ? "from the environment" : "default");
    fprintf(out, "    %s\n    Allowed: %s.\n", variable->sentence, allowed);
    if (problem != NULL)
        fprintf(out, "    ERROR: %s\n", problem);
}

static void print_json(FILE *out, const struct variable *variable, const char *problem)
{
    const char *value = value_from_environment(variable);
    char allowed[160];

    describe_allowed(variable, allowed, sizeof allowed);
    fprintf(out, "%s  {\"name\": ", variable == variables ? "[\n" : ",\n");
    json_string(out, variable->name);
    fputs(", \"value\": ", out);
    json_string(out, value != NULL ? value : variable->initial);
    fprintf(out, ", \"source\": \"%s\", \"default\": ", value != NULL ? "environment" : "default");
    json_string(out, variable->initial);
    fputs(", \"allowed\": ", out);
    json_string(out, allowed);
    fputs(", \"meaning\": ", out);
    json_string(out, variable->sentence);
    if (problem != NULL) {
        fputs(", \"error\": ", out);
        json_string(out, problem);
    }
    fputc('}', out);
}

static void print_document(FILE *out, const struct variable *variable, enum config_format format)
{
    char allowed[160];

    describe_allowed(variable, allowed, sizeof allowed);
    if (format == CONFIG_FORMAT_MAN)
        fprintf(out, ".TP\n.B %s\n%s\nDefault %s; allowed: %s.\n", variable->name,
                variable->sentence, *variable->initial != '\0' ? variable->initial : "none",
                allowed);
    else
        fprintf(out, "%s| `%s` | %s%s%s | %s | %s |\n",
                variable == variables ? "| variable | default | allowed | meaning |\n"
                                        "| --- | --- | --- | --- |\n"
                                      : "",
                variable->name, *variable->initial != '\0' ? "`" : "", variable->initial,
                *variable->initial != '\0' ? "`" : "", allowed, variable->sentence);
}

/* Names with our prefix that no row has: most likely a slip of the pen. */
static void print_unknown(FILE *out)
{
    static const char prefix[] = "UCCL_TCPX_";

    for (char **entry = environ; *entry != NULL; entry++) {
        size_t length = strcspn(*entry, "=");
        bool known = false;

        if (strncmp(*entry, prefix, sizeof prefix - 1) != 0)
            continue;
        for (size_t i = 0; i < VARIABLES && !known; i++)
            known = strlen(variables[i].name) == length &&
                    memcmp(variables[i].name, *entry, length) == 0;
        for (size_t i = 0; i < TEST_VARIABLES && !known; i++)
            known = strlen(test_variables[i].name) == length &&
                    memcmp(test_variables[i].name, *entry, length) == 0;
        if (!known)
            fprintf(out, "%.*s  (set, but this version of tcpx does not read it)\n", (int)length,
                    *entry);
    }
}

/* A variable for tests is shown only where it is refused. */
static int print_refused(FILE *out)
{
    struct config ignored;
    int refused = TCPX_SUCCESS;

    for (size_t i = 0; i < TEST_VARIABLES; i++) {
        int result = read_test_variable(&test_variables[i], &ignored);

        if (result == TCPX_SUCCESS)
            continue;
        fprintf(out, "%s\n    ERROR: %s\n", test_variables[i].name, error_text());
        refused = result;
    }
    return refused;
}

int config_print(FILE *out, enum config_format format)
{
    char first_problem[1024];
    int first_result = TCPX_SUCCESS;
    struct config ignored;

    for (size_t i = 0; i < VARIABLES; i++) {
        const char *problem = NULL;
        int result;

        if (format == CONFIG_FORMAT_MARKDOWN || format == CONFIG_FORMAT_MAN) {
            print_document(out, &variables[i], format);
            continue;
        }
        result = read_variable(&variables[i], &ignored);
        if (result != TCPX_SUCCESS) {
            problem = error_text();
            if (first_result == TCPX_SUCCESS) {
                first_result = result;
                snprintf(first_problem, sizeof first_problem, "%s", problem);
            }
        }
        (format == CONFIG_FORMAT_JSON ? print_json : print_text)(out, &variables[i], problem);
    }
    if (format == CONFIG_FORMAT_JSON)
        fputs("\n]\n", out);
    else if (format == CONFIG_FORMAT_TEXT)
        print_unknown(out);
    if (first_result != TCPX_SUCCESS)
        return error_set(first_result, "%s", first_problem);
    return format == CONFIG_FORMAT_TEXT ? print_refused(out) : TCPX_SUCCESS;
}
