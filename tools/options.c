/* Reads the arguments of a subcommand by its table. */
#include "tools/command.h"

#include "base/config.h"
#include "base/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct option *find_option(const struct option *options, const char *name)
{
    while (options->name != NULL && strcmp(options->name, name) != 0)
        options++;
    return options->name != NULL ? options : NULL;
}

static bool has_value(const struct option *option)
{
    return option->flag == NULL && option->choice == NULL;
}

static int set_variable(const struct command *command, const struct option *option,
                        const char *value)
{
    struct config config;

    if (setenv(option->variable, value, 1) != 0) {
        error_keep_system(errno, "%s", option->name);
        return command_failed();
    }
    return config_read(&config) == TCPX_SUCCESS
               ? EXIT_OK
               : command_usage(command, error_text(), option->name);
}

/* Names the option, what is expected and what was given. */
static int wrong_value(const struct command *command, const struct option *option,
                       const char *value)
{
    char problem[160];

    snprintf(problem, sizeof problem, "%s: %s", option->name, option->problem);
    return command_usage(command, problem, value);
}

static bool take_value(const struct option *option, const char *value)
{
    if (option->read != NULL)
        return option->read(option->target, value);
    if (option->text != NULL) {
        *option->text = value;
        return *value != '\0';
    }
    return parse_number(value, option->number) && *option->number >= option->least &&
           *option->number <= option->most;
}

static int take_option(const struct command *command, const struct option *option,
                       const char *value)
{
    if (option->flag != NULL)
        *option->flag = true;
    else if (option->choice != NULL)
        *option->choice = option->chosen;
    else if (*value == '\0' && option->missing != NULL)
        return command_usage(command, option->missing, option->name);
    else if (option->variable != NULL)
        return set_variable(command, option, value);
    else if (!take_value(option, value))
        return wrong_value(command, option, value);
    return EXIT_OK;
}

int options_read(const struct command *command, int argument_count, char **arguments,
                 const struct option *options, struct words *words)
{
    enum { MOST_WORDS = sizeof words->list / sizeof *words->list };
    int status = EXIT_OK;

    for (int i = 0; i < argument_count && status == EXIT_OK; i++) {
        const struct option *option = find_option(options, arguments[i]);

        if (option != NULL) {
            status = take_option(command, option, i + 1 < argument_count ? arguments[i + 1] : "");
            i += has_value(option);
        } else if (words == NULL || arguments[i][0] == '-' || words->count == MOST_WORDS) {
            status = command_usage(command, "unknown argument", arguments[i]);
        } else {
            words->list[words->count++] = arguments[i];
        }
    }
    return status;
}
