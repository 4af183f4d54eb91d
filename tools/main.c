/* The program tcpx: finds the subcommand and hands its arguments over. */
#include "tools/command.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command *const commands[] = {
    &command_connection, &command_devices, &command_doctor,   &command_env,     &command_matrix,
    &command_perf,       &command_report,  &command_transfer, &command_version,
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_overview(FILE *out)
{
    fputs("usage: tcpx COMMAND [ARGUMENT...]\n\n"
          "Moves GPU memory between hosts over TCP.\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n'tcpx COMMAND --help' says more about one of them.\n", out);
}

static void print_help(const struct command *command)
{
    printf("usage: tcpx %s%s%s\n\n%s\n%s", command->name, command->arguments[0] != '\0' ? " " : "",
           command->arguments, command->summary, command->help);
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

int command_failed(void)
{
    fprintf(stderr, "tcpx: %s\n", error_text());
    return EXIT_FAILED;
}

int command_usage(const struct command *command, const char *problem, const char *argument)
{
    fprintf(stderr, "tcpx %s: %s '%s'; 'tcpx %s --help' shows what is possible\n", command->name,
            problem, argument, command->name);
    return EXIT_USAGE;
}

const char *command_variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL ? value : "";
}

int command_finish(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_OK;
    fprintf(stderr, "tcpx: cannot write to standard output: %s\n", strerror(errno));
    return EXIT_FAILED;
}

/* The names of the original tests. */
static const struct command *find_by_old_name(const char *path)
{
    static const struct {
        const char *name;
        const struct command *command;
    } old[] = {{"test_connection", &command_connection},
               {"test_tcpx_perf", &command_perf},
               {"test_tcpx_transfer", &command_transfer}};
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;

    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (strcmp(old[i].name, name) == 0)
            return old[i].command;
    return NULL;
}

/* Says so, and ends by that signal, as a shell expects of a program that was interrupted. */
static void on_interrupt(int signal)
{
    static const char line[] = "\ntcpx: interrupted\n";

    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    raise(signal);
}

/* What the caller lets us ignore, as a shell does for jobs in the background, stays ignored. */
static void say_interruption(int signal)
{
    const struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;

    if (sigaction(signal, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal, &action, NULL);
}

static int run_command(const struct command *command, int argument_count, char **arguments)
{
    say_interruption(SIGINT);
    say_interruption(SIGTERM);
    for (int i = 0; i < argument_count; i++)
        if (is_help(arguments[i])) {
            print_help(command);
            return command_finish();
        }
    return command->run(argument_count, arguments);
}

/* As the original tests: each step is shown, and a server ends after one client. */
static int run_by_old_name(const struct command *command, int argument_count, char **arguments)
{
    static char once[] = "--once";
    bool is_server = argument_count > 0 && strcmp(arguments[0], "server") == 0;
    char **all = calloc((size_t)argument_count + 2, sizeof *all);
    int status;

    if (all == NULL || setenv("UCCL_TCPX_DEBUG", "1", 0) != 0) {
        free(all);
        return EXIT_FAILED;
    }
    memcpy(all, arguments, (size_t)argument_count * sizeof *all);
    if (is_server)
        all[argument_count++] = once;
    status = run_command(command, argument_count, all);
    free(all);
    return status;
}

int main(int argument_count, char **arguments)
{
    const struct command *command = argument_count > 0 ? find_by_old_name(arguments[0]) : NULL;

    if (command != NULL)
        return run_by_old_name(command, argument_count - 1, arguments + 1);

    if (argument_count < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (is_help(arguments[1]) || strcmp(arguments[1], "help") == 0) {
        command = argument_count > 2 ? find(arguments[2]) : NULL;
        if (command != NULL)
            print_help(command);
        else
            print_overview(stdout);
        return command_finish();
    }
    command = find(strcmp(arguments[1], "--version") == 0 ? "version" : arguments[1]);
    if (command == NULL) {
        fprintf(stderr, "tcpx: there is no command '%s'; 'tcpx --help' lists them\n", arguments[1]);
        return EXIT_USAGE;
    }
    return run_command(command, argument_count - 2, arguments + 2);
}
