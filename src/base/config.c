/* The table of config.h at work: parsing, and printing it for people, scripts and documents. */
#include "base/config.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/parse.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

enum variable_type { TYPE_BOOL, TYPE_CHOICE, TYPE_INTEGER, TYPE_SIZE, TYPE_TEXT, TYPE_OTHER };

struct variable {
    const char *name;
    const char *initial;
    const char *words; /* CHOICE: separated by '|'; TEXT, OTHER: what is allowed */
    const char *sentence;
    uint64_t least; /* INTEGER, SIZE */
    uint64_t most;
    size_t offset; /* in struct config */
    enum variable_type type;
    bool (*parse)(const char *text, void *field); /* OTHER */
};

/* --- values of their own kind -------------------------------------------------------------- */

/* A number up to `most`, of the characters before `end`. */
static bool parse_part(const char *text, const char *end, uint64_t least, uint64_t most,
                       uint64_t *number)
{
    char digits[16];
    size_t length = (size_t)(end - text);

    if (length >= sizeof digits)
        return false;
    memcpy(digits, text, length);
    digits[length] = '\0';
    return parse_number(digits, number) && *number >= least && *number <= most;
}

/* "N" or "N-M". */
static bool parse_ports(const char *text, void *field)
{
    const char *end = text + strlen(text);
    const char *dash = strchr(text, '-');
    uint64_t first = 0;
    uint64_t last = 0;

    if (strcmp(text, "auto") != 0 &&
        (!parse_part(text, dash != NULL ? dash : end, 1, UINT16_MAX, &first) ||
         !parse_part(dash != NULL ? dash + 1 : text, end, first, UINT16_MAX, &last)))
        return false;
    *(struct config_ports *)field = (struct config_ports){(uint16_t)first, (uint16_t)last};
    return true;
}

static bool parse_address(const char *text, void *field)
{
    struct config_address *address = field;
    uint8_t bytes[16];

    if (*text != '\0' && inet_pton(AF_INET, text, bytes) != 1 &&
        inet_pton(AF_INET6, text, bytes) != 1)
        return false;
    return (size_t)snprintf(address->text, sizeof address->text, "%s", text) < sizeof address->text;
}

/* "N" or "N:FILE". */
static bool parse_stats(const char *text, void *field)
{
    enum { DAY = 86400 };
    struct config_stats *stats = field;
    const char *end = text + strcspn(text, ":");
    uint64_t seconds;

    *stats = (struct config_stats){0};
    if (strcmp(text, "0") == 0)
        return true;
    if (!parse_part(text, end, 1, DAY, &seconds) || strcmp(end, ":") == 0 ||
        strlen(end) > sizeof stats->file)
        return false;
    stats->seconds = (unsigned)seconds;
    if (*end == ':')
        snprintf(stats->file, sizeof stats->file, "%s", end + 1);
    return true;
}

/* --- the table ----------------------------------------------------------------------------- */

/* clang-format off */
#define ROW(field, type, name, initial, words, least, most, sentence)                              \
    {name, initial, words, sentence, least, most, offsetof(struct config, field), type, NULL},
#define BOOL_ROW(field, name, initial, sentence)                                                   \
    ROW(field, TYPE_BOOL, name, initial, NULL, 0, 0, sentence)
#define CHOICE_ROW(field, name, initial, words, sentence)                                          \
    ROW(field, TYPE_CHOICE, name, initial, words, 0, 0, sentence)
#define INTEGER_ROW(field, name, initial, least, most, sentence)                                   \
    ROW(field, TYPE_INTEGER, name, initial, NULL, least, most, sentence)
#define SIZE_ROW(field, name, initial, least, most, sentence)                                      \
    ROW(field, TYPE_SIZE, name, initial, NULL, least, most, sentence)
#define TEXT_ROW(field, name, initial, allowed, sentence)                                          \
    ROW(field, TYPE_TEXT, name, initial, allowed, 0, 0, sentence)
#define OTHER_ROW(field, field_type, name, initial, allowed, parser, sentence)                     \
    {name, initial, allowed, sentence, 0, 0, offsetof(struct config, field), TYPE_OTHER, parser},
/* clang-format on */

static const struct variable variables[] = {
    CONFIG_TABLE(BOOL_ROW, CHOICE_ROW, INTEGER_ROW, SIZE_ROW, TEXT_ROW, OTHER_ROW)};

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
    case TYPE_OTHER:
        snprintf(text, room, "%s", variable->words);
        break;
    case TYPE_CHOICE:
        for (word = variable->words; *word != '\0' && used < room; word += *word == '|') {
            int length = (int)strcspn(word, "|");
            const char *behind = word[length] == '\0'                     ? ""
                                 : strchr(word + length + 1, '|') == NULL ? " or "
                                                                          : ", ";

            used += (size_t)snprintf(text + used, room - used, "%.*s%s", length, word, behind);
            word += length;
        }
        break;
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
        return parse_word(text, variable->words, '|', field);
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
    case TYPE_OTHER:
        return variable->parse(text, field);
    case TYPE_TEXT:
        if (strlen(text) >= CONFIG_TEXT_BYTES)
            return false;
        strcpy(field, text); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits */
        return true;
    }
    return false;
}

/* By config_preset(), for each of the variables; NULL: not set. With read_lock. */
static char *presets[VARIABLES];

/* A variable that is set to nothing counts as not set, as in a shell's ${NAME:-default}. */
static const char *value_from_environment(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

static int read_variable(const struct variable *variable, struct config *config)
{
    const char *preset = presets[variable - variables];
    const char *value = preset != NULL ? preset : value_from_environment(variable->name);
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
    const char *value = value_from_environment(variable->name);

    if (value == NULL)
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
    const char *value = value_from_environment(CONFIG_UNBIND);

    if (value == NULL || parse_size(value, &config->unbind_after))
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

/* Guards process_config until process_config_read is set: released there, acquired by readers. */
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

/* With read_lock. */
static int preset_variable(const struct variable *variable, const char *value)
{
    char **preset = &presets[variable - variables];
    char *before = *preset;
    struct config ignored;
    int result;

    /* relaxed: with the lock */
    if (atomic_load_explicit(&process_config_read, memory_order_relaxed)) {
        const char *now = before != NULL ? before : value_from_environment(variable->name);

        if (strcmp(now != NULL ? now : variable->initial, value) == 0)
            return TCPX_SUCCESS;
        return error_set(TCPX_INVALID_USAGE, "this process works with %s=%s already",
                         variable->name, now != NULL ? now : variable->initial);
    }
    *preset = strdup(value);
    result = *preset != NULL ? read_variable(variable, &ignored)
                             : error_set(TCPX_SYSTEM_ERROR, "no memory for %s", variable->name);
    if (result == TCPX_SUCCESS) {
        free(before);
    } else {
        free(*preset);
        *preset = before;
    }
    return result;
}

int config_preset(const char *name, const char *value)
{
    int result = error_set(TCPX_INVALID_ARGUMENT, "%s is not a variable", name);

    pthread_mutex_lock(&read_lock);
    for (size_t i = 0; i < VARIABLES; i++)
        if (strcmp(variables[i].name, name) == 0)
            result = preset_variable(&variables[i], value);
    pthread_mutex_unlock(&read_lock);
    return result;
}

int config_deadline(int timeout_ms, uint64_t *deadline)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    if (timeout_ms < TCPX_DEFAULT_TIMEOUT)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a timeout of %d ms: expected 0 or more, or TCPX_DEFAULT_TIMEOUT",
                         timeout_ms);
    *deadline = deadline_after_ms(timeout_ms == TCPX_DEFAULT_TIMEOUT ? config->timeout_ms
                                                                     : (uint64_t)timeout_ms);
    return TCPX_SUCCESS;
}

/* What is shown of a variable. */
struct shown {
    const struct variable *variable;
    const char *value;
    bool is_set;
    const char *problem; /* NULL: none */
    char allowed[160];
    char here[160]; /* what the value stands for; "": for itself, or nobody knows */
};

static void print_text(FILE *out, const struct shown *shown)
{
    fprintf(out, "%s=%s  (%s%s%s)\n", shown->variable->name, shown->value,
            shown->is_set ? "from the environment" : "default",
            shown->here[0] != '\0' ? "; here: " : "", shown->here);
    fprintf(out, "    %s\n    Allowed: %s.\n", shown->variable->sentence, shown->allowed);
    if (shown->problem != NULL)
        fprintf(out, "    ERROR: %s\n", shown->problem);
}

static void print_json_member(FILE *out, const char *name, const char *value)
{
    fprintf(out, ", \"%s\": ", name);
    json_string(out, value);
}

static void print_json(FILE *out, const struct shown *shown)
{
    fprintf(out, "%s  {\"name\": ", shown->variable == variables ? "[\n" : ",\n");
    json_string(out, shown->variable->name);
    print_json_member(out, "value", shown->value);
    if (shown->here[0] != '\0')
        print_json_member(out, "here", shown->here);
    print_json_member(out, "source", shown->is_set ? "environment" : "default");
    print_json_member(out, "default", shown->variable->initial);
    print_json_member(out, "allowed", shown->allowed);
    print_json_member(out, "meaning", shown->variable->sentence);
    if (shown->problem != NULL)
        print_json_member(out, "error", shown->problem);
    fputc('}', out);
}

static void print_man(FILE *out, const struct shown *shown)
{
    const struct variable *variable = shown->variable;

    fprintf(out, ".TP\n.B %s\n%s\nDefault %s; allowed: %s.\n", variable->name, variable->sentence,
            *variable->initial != '\0' ? variable->initial : "none", shown->allowed);
}

static void print_markdown(FILE *out, const struct shown *shown)
{
    const struct variable *variable = shown->variable;
    const char *quote = *variable->initial != '\0' ? "`" : "";

    if (variable == variables)
        fputs("| variable | default | allowed | meaning |\n| --- | --- | --- | --- |\n", out);
    fprintf(out, "| `%s` | %s%s%s | %s | %s |\n", variable->name, quote, variable->initial, quote,
            shown->allowed, variable->sentence);
}

static bool is_name(const char *name, const char *entry)
{
    size_t length = strlen(name);

    return strncmp(name, entry, length) == 0 && entry[length] == '=';
}

/* Names with our prefix that no row has: most likely a typing error. */
static void print_unknown(FILE *out)
{
    static const char prefix[] = "UCCL_TCPX_";

    for (char **entry = environ; *entry != NULL; entry++) {
        bool known = false;

        if (strncmp(*entry, prefix, sizeof prefix - 1) != 0)
            continue;
        for (size_t i = 0; i < VARIABLES && !known; i++)
            known = is_name(variables[i].name, *entry);
        for (size_t i = 0; i < TEST_VARIABLES && !known; i++)
            known = is_name(test_variables[i].name, *entry);
        if (!known)
            fprintf(out, "%.*s  (set, but this version of tcpx does not read it)\n",
                    (int)strcspn(*entry, "="), *entry);
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

static bool format_has_values(enum config_format format)
{
    return format == CONFIG_FORMAT_TEXT || format == CONFIG_FORMAT_JSON;
}

struct printing {
    FILE *out;
    enum config_format format;
    config_resolver *resolve;
    int first_result; /* of what is wrong */
    char first_problem[1024];
};

static void print_variable(struct printing *printing, const struct variable *variable)
{
    static void (*const print[])(FILE * out, const struct shown *shown) = {
        [CONFIG_FORMAT_TEXT] = print_text,
        [CONFIG_FORMAT_JSON] = print_json,
        [CONFIG_FORMAT_MARKDOWN] = print_markdown,
        [CONFIG_FORMAT_MAN] = print_man,
    };
    bool with_value = format_has_values(printing->format);
    const char *value = value_from_environment(variable->name);
    struct shown shown = {.variable = variable,
                          .value = value != NULL ? value : variable->initial,
                          .is_set = value != NULL};
    struct config ignored;
    char problem[1024];
    int result = with_value ? read_variable(variable, &ignored) : TCPX_SUCCESS;

    describe_allowed(variable, shown.allowed, sizeof shown.allowed);
    if (result != TCPX_SUCCESS) {
        snprintf(problem, sizeof problem, "%s", error_text());
        shown.problem = problem;
    } else if (with_value && printing->resolve != NULL) {
        printing->resolve(variable->name, shown.value, shown.here, sizeof shown.here);
    }
    if (result != TCPX_SUCCESS && printing->first_result == TCPX_SUCCESS) {
        printing->first_result = result;
        snprintf(printing->first_problem, sizeof printing->first_problem, "%s", problem);
    }
    print[printing->format](printing->out, &shown);
}

int config_print(FILE *out, enum config_format format, config_resolver *resolve)
{
    struct printing printing = {.out = out, .format = format, .resolve = resolve};

    for (size_t i = 0; i < VARIABLES && format == CONFIG_FORMAT_TEXT; i++)
        if (value_from_environment(variables[i].name) != NULL)
            print_variable(&printing, &variables[i]);
    for (size_t i = 0; i < VARIABLES; i++)
        if (format != CONFIG_FORMAT_TEXT || value_from_environment(variables[i].name) == NULL)
            print_variable(&printing, &variables[i]);
    if (format == CONFIG_FORMAT_JSON)
        fputs("\n]\n", out);
    else if (format == CONFIG_FORMAT_TEXT)
        print_unknown(out);
    if (printing.first_result != TCPX_SUCCESS)
        return error_set(printing.first_result, "%s", printing.first_problem);
    return format == CONFIG_FORMAT_TEXT ? print_refused(out) : TCPX_SUCCESS;
}
