/* tcpx env: every variable that tcpx reads, its value here and where that comes from. */
#include "base/config.h"
#include "tools/command.h"

#include <string.h>

static int env_main(int argument_count, char **arguments)
{
    enum config_format format = CONFIG_FORMAT_TEXT;
    int result;

    for (int i = 0; i < argument_count; i++) {
        if (strcmp(arguments[i], "--json") == 0)
            format = CONFIG_FORMAT_JSON;
        else if (strcmp(arguments[i], "--markdown") == 0)
            format = CONFIG_FORMAT_MARKDOWN;
        else if (strcmp(arguments[i], "--man") == 0)
            format = CONFIG_FORMAT_MAN;
        else
            return command_usage(&command_env, "unknown argument", arguments[i]);
    }
    result = config_print(stdout, format);
    if (command_finish() != EXIT_OK)
        return EXIT_FAILED;
    return result == TCPX_SUCCESS ? EXIT_OK : command_failed();
}

const struct command command_env = {
    .name = "env",
    .arguments = "[--json | --markdown | --man]",
    .summary = "Show every variable of the environment that tcpx reads.",
    .help = "\n"
            "  --json      values and where they come from, for scripts\n"
            "  --markdown  the table of the README, with defaults instead of values\n"
            "  --man       the same for the man page\n"
            "\n"
            "Fails if a value is not understood; each such value is shown with the reason.\n",
    .run = env_main,
};
