/* tcpx env: every variable that tcpx reads, its value here and where that comes from. */
#include "base/config.h"
#include "tools/command.h"
#include "tools/env_resolve.h"

static int env_main(int argument_count, char **arguments)
{
    int format = CONFIG_FORMAT_TEXT;
    const struct option options[] = {
        {.name = "--json", .choice = &format, .chosen = CONFIG_FORMAT_JSON},
        {.name = "--markdown", .choice = &format, .chosen = CONFIG_FORMAT_MARKDOWN},
        {.name = "--man", .choice = &format, .chosen = CONFIG_FORMAT_MAN},
        {.name = NULL}};
    int result = options_read(&command_env, argument_count, arguments, options, NULL);

    if (result != EXIT_OK)
        return result;
    result = config_print(stdout, (enum config_format)format, env_resolve);
    if (command_finish() != EXIT_OK)
        return EXIT_FAILED;
    return result == TCPX_SUCCESS ? EXIT_OK : command_failed();
}

const struct command command_env = {
    .name = "env",
    .arguments = "[--json | --markdown | --man]",
    .summary = "Show every variable of the environment that tcpx reads.",
    .help = "\n"
            "Those that are set come first. For a value such as auto, \"here\" shows what it\n"
            "means on this machine.\n"
            "\n"
            "  --json      values and where they come from, for scripts\n"
            "  --markdown  the table of docs/environment.md, with defaults instead of values\n"
            "  --man       the same for the man page\n"
            "\n"
            "Fails if a value is not understood; each such value is shown with the reason.\n",
    .run = env_main,
};
