/* tcpx version: the version, and nothing else, so that scripts can read it. */
#include "tools/command.h"

static int version_main(int argument_count, char **arguments)
{
    if (argument_count > 0)
        return command_usage(&command_version, "unexpected argument", arguments[0]);
    printf("tcpx %s\n", tcpx_version());
    return command_finish();
}

const struct command command_version = {
    .name = "version",
    .arguments = "",
    .summary = "Print the version.",
    .help = "",
    .run = version_main,
};
