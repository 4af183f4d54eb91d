/*
 * Starts the ranks of a matrix: on this machine, or by ssh on others, all of them as the same
 * program with a rank's variables in its environment. What such a process says is kept, so that its
 * last line explains why it ended.
 */
#include "tools/matrix.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { COMMAND_BYTES = 32768, MOST_WORDS = 64, FINISH_MS = 3000, NAP_NS = 10000000 };

/* What a rank somewhere else should have as this process does: those of tcpx and NCCL. */
static const char *const passed_on[] = {"UCCL_TCPX_", "NCCL_", "TCPX_TEST_"};

struct command_line {
    char text[COMMAND_BYTES];
    size_t used;
    bool too_long;
};

/* --- what is started ----------------------------------------------------------------------- */

static void line_add(struct command_line *line, const char *text, size_t length)
{
    if (line->used + length >= sizeof line->text) {
        line->too_long = true;
        return;
    }
    memcpy(line->text + line->used, text, length);
    line->used += length;
    line->text[line->used] = '\0';
}

/* As one word for the shell on the other host. */
static void line_add_word(struct command_line *line, const char *word)
{
    line_add(line, line->used > 0 ? " '" : "'", line->used > 0 ? 2 : 1);
    for (; *word != '\0'; word++)
        line_add(line, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    line_add(line, "'", 1);
}

static bool is_passed_on(const char *variable)
{
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (strncmp(variable, passed_on[i], strlen(passed_on[i])) == 0)
            return true;
    return false;
}

/* Its number among the ranks of its host, and how many these are. */
static void count_local(const struct matrix_launch *launch, unsigned rank, unsigned *number,
                        unsigned *count)
{
    *number = 0;
    *count = 0;
    for (unsigned i = 0; i < launch->ranks; i++) {
        bool here =
            launch->hosts[rank] == NULL || strcmp(launch->hosts[i], launch->hosts[rank]) == 0;

        *number += here && i < rank;
        *count += here;
    }
}

enum { RANK_VARIABLES = 4, VARIABLE_BYTES = 40 };

/* Those of torchrun; LOCAL_WORLD_SIZE is what I/O threads are divided by, too. */
static void rank_variables(const struct matrix_launch *launch, unsigned rank,
                           char list[RANK_VARIABLES][VARIABLE_BYTES])
{
    unsigned number;
    unsigned count;

    count_local(launch, rank, &number, &count);
    snprintf(list[0], VARIABLE_BYTES, "RANK=%u", rank);
    snprintf(list[1], VARIABLE_BYTES, "WORLD_SIZE=%u", launch->ranks);
    snprintf(list[2], VARIABLE_BYTES, "LOCAL_RANK=%u", number);
    snprintf(list[3], VARIABLE_BYTES, "LOCAL_WORLD_SIZE=%u", count);
}

static int own_program(const struct matrix_launch *launch, char path[4096])
{
    ssize_t length;

    if (launch->program != NULL) {
        snprintf(path, 4096, "%s", launch->program);
        return TCPX_SUCCESS;
    }
    length = readlink("/proc/self/exe", path, 4095);
    if (length < 0)
        return error_system(errno, "cannot find this program's path; --program PATH says it");
    path[length] = '\0';
    return TCPX_SUCCESS;
}

/* A rank's arguments, NULL at the end. */
static unsigned rank_words(const struct matrix_launch *launch, const char *program,
                           char where[MATRIX_ADDRESS_BYTES + 8], const char *words[MOST_WORDS])
{
    unsigned count = 0;

    snprintf(where, MATRIX_ADDRESS_BYTES + 8, "%s%s%u", launch->meet != NULL ? launch->meet : "",
             launch->meet != NULL ? ":" : "", launch->port);
    words[count++] = program;
    words[count++] = "matrix";
    words[count++] = "--join";
    words[count++] = where;
    for (const char *const *argument = launch->arguments;
         *argument != NULL && count < MOST_WORDS - 1; argument++)
        words[count++] = *argument;
    words[count] = NULL;
    return count;
}

static int remote_line(char variables[RANK_VARIABLES][VARIABLE_BYTES],
                       const char *const words[MOST_WORDS], struct command_line *line)
{
    *line = (struct command_line){.used = 0};
    line_add_word(line, "env");
    for (unsigned i = 0; i < RANK_VARIABLES; i++)
        line_add_word(line, variables[i]);
    for (char **entry = environ; *entry != NULL; entry++)
        if (is_passed_on(*entry))
            line_add_word(line, *entry);
    for (unsigned i = 0; words[i] != NULL; i++)
        line_add_word(line, words[i]);
    return line->too_long
               ? error_set(TCPX_INVALID_USAGE,
                           "the command for another host has more than %d bytes", COMMAND_BYTES)
               : TCPX_SUCCESS;
}

/* The words of `ssh`, cut where they are, the host and the command. */
static int ssh_words(char *ssh, const char *host, const char *command,
                     const char *words[MOST_WORDS])
{
    unsigned count = 0;
    char *rest;

    for (char *word = strtok_r(ssh, " ", &rest); word != NULL && count < MOST_WORDS - 3;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    if (count == 0)
        return error_set(TCPX_INVALID_USAGE, "--ssh is no command");
    words[count++] = host;
    words[count++] = command;
    words[count] = NULL;
    return TCPX_SUCCESS;
}

/* --- the process --------------------------------------------------------------------------- */

/* In the child. */
static void become(const char *const words[MOST_WORDS],
                   char variables[RANK_VARIABLES][VARIABLE_BYTES], int to_parent)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

    for (unsigned i = 0; variables != NULL && i < RANK_VARIABLES; i++)
        putenv(variables[i]);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(to_parent, STDOUT_FILENO) < 0 ||
        dup2(to_parent, STDERR_FILENO) < 0)
        _exit(126);
    execvp(words[0], (char *const *)words);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static int spawn(const char *const words[MOST_WORDS],
                 char variables[RANK_VARIABLES][VARIABLE_BYTES], struct matrix_process *process)
{
    pid_t parent = getpid();
    int ends[2];
    int error;

    *process = (struct matrix_process){.was_started = false};
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_system(errno, "pipe");
    fflush(stdout);
    process->pid = fork();
    error = errno;
    if (process->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            become(words, variables, ends[1]);
        _exit(1);
    }
    close(ends[1]);
    if (process->pid < 0) {
        process->pid = 0;
        close(ends[0]);
        return error_system(error, "fork");
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    process->from = ends[0];
    process->was_started = true;
    return TCPX_SUCCESS;
}

int matrix_launch_start(const struct matrix_launch *launch, unsigned rank,
                        struct matrix_process *process)
{
    static struct command_line line;
    char variables[RANK_VARIABLES][VARIABLE_BYTES];
    char where[MATRIX_ADDRESS_BYTES + 8];
    const char *words[MOST_WORDS];
    char program[4096];
    char *ssh;
    int result = own_program(launch, program);

    if (result != TCPX_SUCCESS)
        return result;
    rank_variables(launch, rank, variables);
    rank_words(launch, program, where, words);
    if (launch->hosts[rank] == NULL)
        return spawn(words, launch->own_only ? NULL : variables, process);
    result = remote_line(variables, words, &line);
    if (result != TCPX_SUCCESS)
        return result;
    ssh = strdup(launch->ssh);
    if (ssh == NULL)
        return error_system(ENOMEM, "a command");
    result = ssh_words(ssh, launch->hosts[rank], line.text, words);
    if (result == TCPX_SUCCESS)
        result = spawn(words, variables, process);
    free(ssh);
    return result;
}

/* Keeps the last line that has anything in it. */
static void keep_line(struct matrix_process *process, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            process->have = 0;
        } else if (process->have < sizeof process->said - 1) {
            process->said[process->have++] = bytes[i];
            process->said[process->have] = '\0';
        }
    }
}

/* As much as a pipe holds: one that never stops does not hold up the others. */
void matrix_launch_hear(struct matrix_process *process)
{
    enum { MOST_READS = 16 };
    char bytes[4096];
    ssize_t got;

    for (int i = 0; i < MOST_READS && (got = read(process->from, bytes, sizeof bytes)) > 0; i++)
        keep_line(process, bytes, (size_t)got);
}

static void explain_end(const struct matrix_process *process, int status, const char *host,
                        char why[MATRIX_WHY_BYTES])
{
    static const char own[] = "tcpx: "; /* as every failure of this program begins */
    char said[MATRIX_WHY_BYTES];
    const char *what = host != NULL ? "ssh" : "the process";
    const char *line = process->said;

    if (strncmp(line, own, sizeof own - 1) == 0)
        line += sizeof own - 1;
    text_printable(line, strlen(line), said, sizeof said);
    if (WIFSIGNALED(status))
        snprintf(why, MATRIX_WHY_BYTES, "%s was ended by signal %d (%s)", what, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (said[0] != '\0')
        snprintf(why, MATRIX_WHY_BYTES, "%.*s", MATRIX_WHY_BYTES - 1, said);
    else
        snprintf(why, MATRIX_WHY_BYTES, "%s ended with status %d and said nothing", what,
                 WEXITSTATUS(status));
}

bool matrix_launch_has_ended(struct matrix_process *process, const char *host,
                             char why[MATRIX_WHY_BYTES])
{
    int status;

    if (process->pid == 0)
        return false;
    matrix_launch_hear(process);
    if (waitpid(process->pid, &status, WNOHANG) != process->pid)
        return false;
    matrix_launch_hear(process);
    explain_end(process, status, host, why);
    process->pid = 0;
    return true;
}

void matrix_launch_finish(struct matrix_process *processes, unsigned count)
{
    static const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t deadline = deadline_after_ms(FINISH_MS);
    char why[MATRIX_WHY_BYTES];
    bool running = true;

    while (running && !deadline_passed(deadline)) {
        running = false;
        for (unsigned i = 0; i < count; i++)
            running |= processes[i].pid != 0 && !matrix_launch_has_ended(&processes[i], NULL, why);
        if (running)
            nanosleep(&nap, NULL);
    }
    for (unsigned i = 0; i < count; i++) {
        if (processes[i].pid != 0) {
            kill(processes[i].pid, SIGKILL);
            while (waitpid(processes[i].pid, NULL, 0) < 0 && errno == EINTR)
                ;
        }
        if (processes[i].was_started)
            close(processes[i].from);
        processes[i] = (struct matrix_process){.was_started = false};
    }
}
