/*
 * Finds the living children of this process in /proc. What a killed one leaves behind becomes a
 * child of this process in its turn, so that looking again finds every descendant.
 */
#include "tests/runner/leftovers.h"

#include "tests/limit.h"
#include "tests/runner/common.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    KILL_SECONDS = 5,   /* for SIGKILL to take effect */
    SETTLE_MILLIS = 500 /* for processes that are already ending when their suite ends */
};

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

bool reap_all(pid_t pid, int *status, double *cpu_seconds)
{
    struct rusage used;
    int any_status;
    bool ended = false;
    pid_t any;

    while ((any = wait4(-1, &any_status, WNOHANG, &used)) > 0) {
        *cpu_seconds += seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
        if (any == pid) {
            *status = any_status;
            ended = true;
        }
    }
    return ended;
}

/* Returns how much of the file fits; 0 if the process is gone. */
static size_t read_proc(pid_t pid, const char *name, char *text, size_t room)
{
    char path[64];
    FILE *file;
    size_t length = 0;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    file = fopen(path, "re");
    if (file != NULL) {
        length = fread(text, 1, room - 1, file);
        fclose(file);
    }
    text[length] = '\0';
    return length;
}

static bool is_living_child(pid_t pid)
{
    char text[512];
    const char *behind_name;
    char state;
    int parent;

    read_proc(pid, "stat", text, sizeof text);
    behind_name = strrchr(text, ')');
    return behind_name != NULL && sscanf(behind_name + 1, " %c %d", &state, &parent) == 2 &&
           parent == getpid() && state != 'Z' && state != 'X';
}

static void leftovers_name(struct leftovers *leftovers, pid_t pid)
{
    size_t named = leftovers->count < LEFTOVERS_NAMED ? leftovers->count : LEFTOVERS_NAMED;
    char *command;
    size_t length;

    for (size_t i = 0; i < named; i++)
        if (leftovers->named[i].pid == pid)
            return; /* it takes a while to die */
    leftovers->count++;
    if (named == LEFTOVERS_NAMED)
        return;
    command = leftovers->named[named].command;
    leftovers->named[named].pid = pid;
    length = read_proc(pid, "cmdline", command, LEFTOVERS_COMMAND);
    while (length > 0 && command[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if (!isprint((unsigned char)command[i]))
            command[i] = ' ';
    if (length == 0)
        snprintf(command, LEFTOVERS_COMMAND, "(its command line is gone)");
}

/* Returns whether there are children; names and kills them if it is given where to. */
static bool leftovers_look(struct leftovers *leftovers, double *cpu_seconds)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    bool found = false;
    int status;

    if (folder == NULL)
        die("/proc: %s", strerror(errno));
    reap_all(0, &status, cpu_seconds);
    while ((entry = readdir(folder)) != NULL) {
        pid_t pid = atoi(entry->d_name);

        if (pid <= 0 || !is_living_child(pid))
            continue;
        found = true;
        if (leftovers != NULL) {
            leftovers_name(leftovers, pid);
            kill(pid, SIGKILL);
        }
    }
    closedir(folder);
    return found;
}

/* Looks until there are none, or the time is over. */
static bool leftovers_stay(struct leftovers *leftovers, unsigned ms, double *cpu_seconds)
{
    double until = seconds_now() + limit_ms(ms) / 1e3;

    while (leftovers_look(leftovers, cpu_seconds)) {
        if (seconds_now() >= until)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

void leftovers_kill(struct leftovers *leftovers, double *cpu_seconds)
{
    if (leftovers_stay(NULL, SETTLE_MILLIS, cpu_seconds))
        leftovers_stay(leftovers, KILL_SECONDS * 1000, cpu_seconds);
}
