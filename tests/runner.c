/*
 * Runs test suites, one after the other or some beside each other, and says in its last line how
 * many tests passed, failed and were skipped. A suite is a shell command that prints TAP; nothing
 * it does can hang the run, outlive it or pass unseen: what it leaves running is named and killed,
 * and a crash, a missing test, a skip without a reason or a silent end is a failed test. Time
 * limits grow with how busy the machine is (tests/limit.h). Needs libc and /proc only.
 */
#include "tests/limit.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    EXIT_SKIP = 77,      /* a suite's status that says "not on this machine" */
    LINES_SHOWN = 200,   /* of a failed suite's output */
    TERM_SECONDS = 2,    /* between SIGTERM and SIGKILL */
    KILL_SECONDS = 5,    /* for SIGKILL to take effect */
    SETTLE_MILLIS = 500, /* for processes that are already ending when their suite ends */
    MOST_LANES = 64,
    SLOWEST = 8,    /* suites that are named at the end of a run, */
    SLOWEST_OF = 20 /* if it has at least so many */
};

static const char usage[] =
    "usage: runner [--timeout SECONDS] [--log FOLDER] [--no-aslr] [--lanes N]\n"
    "              [--only NAMES] [--case TEST] [--list] SUITE...\n"
    "SUITE: 'name: shell command', 'name@SECONDS: shell command' (its own time limit)\n"
    "       or 'skip name: reason' (a suite that could not be built)\n"
    "Those behind the word 'beside' run in N lanes at the same time, before all others; so do "
    "those\n"
    "behind 'waiting', which mostly wait: one of the lanes begins with them. Behind 'alone', and\n"
    "before any such word, suites have the machine for themselves.\n"
    "--only 'unit/session* fuzz/*' runs the suites with these names, --case 'test_cut*' only "
    "these\n"
    "tests of each program, and --list prints the names of the suites.\n"
    "Time limits are for an idle machine: on a busy one they are up to 10 times as long.\n"
    "TCPX_TEST_SLOWNESS=3 makes all of them at least 3 times as long.\n";

/* --- small helpers ----------------------------------------------------------------------------*/

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *format, ...)
{
    va_list arguments;

    fputs("runner: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

struct list {
    char **items;
    size_t count;
};

static void list_add(struct list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void list_add(struct list *list, const char *format, ...)
{
    char **grown = reallocarray(list->items, list->count + 1, sizeof *grown);
    va_list arguments;

    if (grown == NULL)
        die("out of memory");
    list->items = grown;
    va_start(arguments, format);
    if (vasprintf(&list->items[list->count], format, arguments) < 0)
        die("out of memory");
    va_end(arguments);
    list->count++;
}

static void list_clear(struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct list){0};
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static struct timespec to_timespec(double seconds)
{
    struct timespec span = {.tv_sec = (time_t)seconds};

    span.tv_nsec = (long)((seconds - (double)span.tv_sec) * 1e9);
    return span;
}

static bool parse_seconds(const char *text, size_t length, double *seconds)
{
    char copy[32];
    char *end;
    double value;

    if (length == 0 || length >= sizeof copy || !isdigit((unsigned char)*text))
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    value = strtod(copy, &end);
    if (*end != '\0' || !(value > 0 && value <= 1e6))
        return false;
    *seconds = value;
    return true;
}

/* --- suites -----------------------------------------------------------------------------------*/

/* What may run at the same time. */
enum company {
    ALONE,
    BESIDE, /* each other */
    WAITING /* the same, but it leaves the CPUs to others most of the time */
};

struct suite {
    char *name;
    const char *command;     /* NULL: not to be run, */
    const char *skip_reason; /* because of this */
    double limit;
    enum company company;
};

static void parse_suite(const char *text, double limit, struct suite *suite)
{
    bool skip = strncmp(text, "skip ", 5) == 0;
    const char *name = skip ? text + 5 : text;
    const char *colon = strstr(name, ": ");
    const char *at;
    size_t length;

    if (colon == NULL || colon == name || strcspn(name, " \t\n") < (size_t)(colon - name))
        die("'%s' is not a suite: expected 'name: command'", text);
    length = (size_t)(colon - name);
    at = skip ? NULL : memchr(name, '@', length);
    suite->limit = limit;
    if (at != NULL) {
        if (!parse_seconds(at + 1, (size_t)(colon - at - 1), &suite->limit))
            die("'%s': the time limit is not a number of seconds", text);
        length = (size_t)(at - name);
    }
    suite->name = strndup(name, length);
    if (suite->name == NULL)
        die("out of memory");
    suite->command = skip ? NULL : colon + 2;
    suite->skip_reason = skip ? colon + 2 : NULL;
}

/* Whether one of the patterns, which are words, is the suite's name. */
static bool is_wanted(const struct suite *suite, const char *patterns)
{
    char *words = strdup(patterns);
    bool wanted = false;
    char *rest;

    if (words == NULL)
        die("out of memory");
    for (char *word = strtok_r(words, " ,", &rest); word != NULL && !wanted;
         word = strtok_r(NULL, " ,", &rest))
        wanted = fnmatch(word, suite->name, 0) == 0;
    free(words);
    return wanted;
}

/* --- TAP --------------------------------------------------------------------------------------*/

/*
 * What the lines of one suite said. A program may print several groups, each with its plan before
 * its tests (cmocka) or behind them (tap.sh).
 */
struct tap {
    int passed;
    int failed;
    int skipped;
    struct list failures; /* names */
    struct list skips;    /* names with reasons */
    long plan;            /* of the group at hand; -1: not seen yet */
    long seen;            /* tests of the group at hand */
    bool started;         /* any TAP at all */
    char problem[256];    /* the first thing wrong with the numbers; "" if nothing is */
    char reason[256];     /* of "# skip: reason" since the latest result */
    char last_line[256];
    size_t lines;
};

static void keep_text(char *to, size_t room, const char *from)
{
    snprintf(to, room, "%s", from);
}

static void tap_problem(struct tap *tap, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void tap_problem(struct tap *tap, const char *format, ...)
{
    va_list arguments;

    if (tap->problem[0] != '\0')
        return;
    va_start(arguments, format);
    vsnprintf(tap->problem, sizeof tap->problem, format, arguments);
    va_end(arguments);
}

static void tap_close_group(struct tap *tap)
{
    if (tap->seen != tap->plan)
        tap_problem(tap, "planned %ld tests, but reported %ld", tap->plan, tap->seen);
    tap->plan = -1;
    tap->seen = 0;
}

static bool tap_plan(struct tap *tap, const char *line)
{
    char *end;
    long plan;

    if (strncmp(line, "1..", 3) != 0 || !isdigit((unsigned char)line[3]))
        return false;
    plan = strtol(line + 3, &end, 10);
    if (*end != '\0' && !isspace((unsigned char)*end))
        return false;
    tap->started = true;
    if (tap->plan >= 0)
        tap_close_group(tap);
    tap->plan = plan;
    if (tap->seen > 0) {
        tap_close_group(tap);
    } else if (plan == 0) {
        const char *directive = strcasestr(end, "# skip ");

        tap_close_group(tap);
        if (directive != NULL) {
            tap->skipped++;
            list_add(&tap->skips, "%s", directive + strlen("# skip "));
        }
    }
    return true;
}

/*
 * Finds "ok N" or "not ok N" and returns what follows the number. Behind an unfinished line of the
 * test itself only the number that is due and the exact form count; a comment that quotes TAP is
 * not a result.
 */
static const char *find_result(const char *line, long due, bool *ok, long *number)
{
    for (const char *at = strstr(line, "ok "); at != NULL; at = strstr(at + 1, "ok ")) {
        bool negated = at - line >= 4 && memcmp(at - 4, "not ", 4) == 0;
        size_t before = (size_t)(at - line) - (negated ? 4 : 0);
        char *end;

        if (!isdigit((unsigned char)at[3]))
            continue;
        *number = strtol(at + 3, &end, 10);
        *ok = !negated;
        if (before == 0)
            return end;
        if (*number == due && (strncmp(end, " - ", 3) == 0 || strncmp(end, " # SKIP", 7) == 0) &&
            !(line[0] == '#' && strspn(line + 1, " \t") >= before - 1))
            return end;
    }
    return NULL;
}

static void trim(char *text)
{
    size_t length = strlen(text);

    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = '\0';
}

/* Whether a skip's text is the name of a test, which is all that cmocka has to say. */
static bool is_name(const char *text)
{
    return strpbrk(text, " \t") == NULL && strchr(text, '_') != NULL;
}

/* A skip counts as one whether "ok" or "not ok" stands before it: cmocka 1.1 prints the latter. */
static bool tap_result(struct tap *tap, const char *line)
{
    bool ok;
    long number;
    const char *rest = find_result(line, tap->seen + 1, &ok, &number);
    const char *directive;
    const char *reason = "";
    char name[256];

    if (rest == NULL)
        return false;
    tap->started = true;
    tap->seen++;
    if (number != tap->seen)
        tap_problem(tap, "reported test %ld where test %ld was due", number, tap->seen);
    rest += strspn(rest, " \t");
    if (strncmp(rest, "- ", 2) == 0)
        rest += 2;
    directive = strcasestr(rest, "# skip");
    snprintf(name, sizeof name, "%.*s",
             directive != NULL ? (int)(directive - rest) : (int)strnlen(rest, 255), rest);
    trim(name);
    if (directive != NULL) {
        reason = directive + strlen("# skip");
        reason += strspn(reason, " \t:");
    }
    if (directive != NULL) {
        /* cmocka prints the test's name only; the reason is a comment before it. */
        bool both = name[0] != '\0' && *reason != '\0';

        tap->skipped++;
        list_add(&tap->skips, "%s%s%s%s%s", name, both ? ": " : "", reason,
                 tap->reason[0] != '\0' ? ": " : "", tap->reason);
        if ((*reason == '\0' || is_name(reason)) && tap->reason[0] == '\0') {
            tap->failed++;
            list_add(&tap->failures, "%s: skipped without a reason",
                     name[0] != '\0' ? name : reason);
        }
    } else if (ok) {
        tap->passed++;
    } else {
        tap->failed++;
        if (name[0] == '\0')
            snprintf(name, sizeof name, "test %ld", number);
        list_add(&tap->failures, "%s", name);
    }
    if (tap->seen == tap->plan)
        tap_close_group(tap);
    return true;
}

static void tap_line(struct tap *tap, const char *line)
{
    tap->lines++;
    if (*line != '\0')
        keep_text(tap->last_line, sizeof tap->last_line, line);
    if (tap_plan(tap, line) || tap_result(tap, line))
        tap->reason[0] = '\0';
    else if (strncmp(line, "# skip: ", 8) == 0)
        keep_text(tap->reason, sizeof tap->reason, line + 8);
}

static void tap_end(struct tap *tap)
{
    if (tap->plan >= 0)
        tap_close_group(tap);
    else if (tap->seen > 0)
        tap_problem(tap, "printed no plan after test %ld: it stopped early", tap->seen);
    else if (!tap->started)
        tap_problem(tap, "printed no test results");
    else if (tap->passed + tap->failed + tap->skipped == 0)
        tap_problem(tap, "planned no tests");
}

static void tap_read(struct tap *tap, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;

    *tap = (struct tap){.plan = -1};
    if (file == NULL)
        die("%s: %s", path, strerror(errno));
    while (getline(&line, &room, file) >= 0) {
        trim(line);
        tap_line(tap, line);
    }
    free(line);
    fclose(file);
    tap_end(tap);
}

/* --- processes --------------------------------------------------------------------------------*/

static pid_t meter; /* the runner's own, and nothing that a suite left behind */

struct process {
    pid_t pid;
    pid_t parent;
    bool zombie;
    bool ours;
};

static bool read_process(const char *pid, struct process *process)
{
    char path[64];
    char text[512];
    const char *behind_name;
    char state;
    int parent;
    FILE *file;
    size_t length;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    behind_name = strrchr(text, ')');
    if (behind_name == NULL || sscanf(behind_name + 1, " %c %d", &state, &parent) != 2)
        return false;
    *process = (struct process){
        .pid = atoi(pid), .parent = parent, .zombie = state == 'Z' || state == 'X'};
    return true;
}

static size_t read_processes(struct process **processes)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    size_t count = 0;

    *processes = NULL;
    if (folder == NULL)
        die("/proc: %s", strerror(errno));
    while ((entry = readdir(folder)) != NULL) {
        struct process process;

        if (!isdigit((unsigned char)entry->d_name[0]) || !read_process(entry->d_name, &process))
            continue;
        *processes = reallocarray(*processes, count + 1, sizeof **processes);
        if (*processes == NULL)
            die("out of memory");
        (*processes)[count++] = process;
    }
    closedir(folder);
    return count;
}

static bool is_ours(const struct process *processes, size_t count, pid_t pid)
{
    if (pid == getpid())
        return true;
    for (size_t i = 0; i < count; i++)
        if (processes[i].pid == pid)
            return processes[i].ours;
    return false;
}

/* Keeps only the living descendants of this process. */
static size_t read_descendants(struct process **processes)
{
    size_t count = read_processes(processes);
    size_t kept = 0;
    bool changed = true;

    while (changed) {
        changed = false;
        for (size_t i = 0; i < count; i++) {
            struct process *process = &(*processes)[i];

            if (!process->ours && is_ours(*processes, count, process->parent))
                changed = process->ours = true;
        }
    }
    for (size_t i = 0; i < count; i++)
        if ((*processes)[i].ours && !(*processes)[i].zombie && (*processes)[i].pid != meter)
            (*processes)[kept++] = (*processes)[i];
    return kept;
}

static void describe_process(pid_t pid, char *text, size_t room)
{
    char path[64];
    FILE *file;
    size_t length = 0;

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    file = fopen(path, "re");
    if (file != NULL) {
        length = fread(text, 1, room - 1, file);
        fclose(file);
    }
    while (length > 0 && text[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if (!isprint((unsigned char)text[i]))
            text[i] = ' ';
    text[length] = '\0';
    if (length == 0)
        snprintf(text, room, "(its command line is gone)");
}

static double cpu_reaped; /* seconds that the processes of the suite at hand have used */

static double to_seconds(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

static void reap(pid_t pid, int *status, bool *ended)
{
    struct rusage used;
    int any_status;
    pid_t any;

    while ((any = wait4(-1, &any_status, WNOHANG, &used)) > 0) {
        cpu_reaped += to_seconds(used.ru_utime) + to_seconds(used.ru_stime);
        if (any == pid) {
            *status = any_status;
            *ended = true;
        }
    }
}

static size_t leftovers_now(struct process **processes)
{
    int status;
    bool ended;

    reap(0, &status, &ended);
    return read_descendants(processes);
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* What is still there once everything that was ending anyway has ended. */
static size_t settled_leftovers(struct process **processes)
{
    double until = seconds_now() + limit_ms(SETTLE_MILLIS) / 1e3;
    size_t count;

    while ((count = leftovers_now(processes)) > 0 && seconds_now() < until) {
        free(*processes);
        pause_briefly();
    }
    return count;
}

/* Names and kills every descendant; a killed one's children become ours, so it looks again. */
static void kill_leftovers(struct list *leftovers)
{
    double until = seconds_now() + limit_ms(KILL_SECONDS * 1000) / 1e3;
    struct process *processes;
    size_t count = settled_leftovers(&processes);

    for (size_t i = 0; i < count; i++) {
        char command[200];

        describe_process(processes[i].pid, command, sizeof command);
        list_add(leftovers, "pid %d: %s", (int)processes[i].pid, command);
    }
    while (count > 0 && seconds_now() < until) {
        for (size_t i = 0; i < count; i++)
            kill(processes[i].pid, SIGKILL);
        pause_briefly();
        free(processes);
        count = leftovers_now(&processes);
    }
    free(processes);
}

/* --- how busy the machine is ------------------------------------------------------------------*/

/*
 * A process of the runner's that does the same small piece of work every second. How long that
 * takes, compared with the CPU time it takes and with the best time so far, is how much longer
 * everything takes; the largest of the last half minute counts.
 */
enum { METER_SAMPLES = 30, METER_WORK_NS = 15000000, METER_PAUSE_NS = 1000000000 };

static char meter_path[PATH_MAX];

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void work(unsigned long turns)
{
    volatile unsigned long sum = 0;

    for (unsigned long i = 0; i < turns; i++)
        sum = sum * 2862933555777941757ul + i;
}

/* As many turns as take that much CPU time. */
static unsigned long calibrated_turns(void)
{
    enum { TURNS = 200000 };
    uint64_t start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t spent;

    work(TURNS);
    spent = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start;
    return (unsigned long)((double)TURNS * METER_WORK_NS / (double)(spent > 0 ? spent : 1)) + 1;
}

static double sample_percent(unsigned long turns, double *best)
{
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    double spent;

    work(turns);
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    spent = (double)(clock_ns(CLOCK_MONOTONIC) - start);
    if (*best == 0 || spent < *best)
        *best = spent;
    return 100 * (spent / *best > spent / (double)cpu ? spent / *best : spent / (double)cpu);
}

static void meter_write(int fd, double percent)
{
    char text[LIMIT_METER_BYTES + 1];

    snprintf(text, sizeof text, "%*u\n", LIMIT_METER_BYTES - 1, limit_clamp(percent));
    if (pwrite(fd, text, LIMIT_METER_BYTES, 0) != LIMIT_METER_BYTES)
        die("%s: %s", meter_path, strerror(errno));
}

static void run_meter(int fd, pid_t runner)
{
    double samples[METER_SAMPLES] = {0};
    unsigned long turns = calibrated_turns();
    double best = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; getppid() == runner; i++) {
        double most = 0;

        samples[i % METER_SAMPLES] = sample_percent(turns, &best);
        for (size_t j = 0; j < METER_SAMPLES; j++)
            if (samples[j] > most)
                most = samples[j];
        meter_write(fd, most);
        nanosleep(&(struct timespec){.tv_sec = METER_PAUSE_NS / 1000000000}, NULL);
    }
    _exit(0);
}

/* The first number is there when this returns. */
static void start_meter(const char *folder)
{
    pid_t runner = getpid();
    char whole[PATH_MAX];
    double best = 0;
    int fd;

    if (realpath(folder, whole) == NULL ||
        (size_t)snprintf(meter_path, sizeof meter_path, "%s/.meter", whole) >= sizeof meter_path)
        die("%s: %s", folder, strerror(errno));
    fd = open(meter_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        die("%s: %s", meter_path, strerror(errno));
    meter_write(fd, sample_percent(calibrated_turns(), &best));
    if (setenv(LIMIT_METER, meter_path, 1) < 0)
        die("setenv: %s", strerror(errno));
    fflush(NULL);
    meter = fork();
    if (meter < 0)
        die("fork: %s", strerror(errno));
    if (meter == 0)
        run_meter(fd, runner);
    close(fd);
}

static void stop_meter(void)
{
    kill(meter, SIGKILL);
    waitpid(meter, NULL, 0);
    unlink(meter_path);
}

/* --- running ----------------------------------------------------------------------------------*/

static bool no_aslr;
static const char *chosen_case; /* a pattern; NULL: every test of a suite */
static sigset_t awaited;        /* blocked here, taken by sigtimedwait() */
static int interrupted_by;

struct outcome {
    int status;
    bool timed_out;
    double seconds;
    double cpu_seconds;
    struct list leftovers;
};

static void exec_suite(const struct suite *suite, const char *log, pid_t runner)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);

    if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        fprintf(stderr, "runner: %s: %s\n", log, strerror(errno));
        _exit(127);
    }
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != runner)
        _exit(127);
    if (no_aslr && personality(ADDR_NO_RANDOMIZE) < 0)
        printf("# runner: cannot turn address randomisation off: %s\n", strerror(errno));
    fflush(stdout);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execl("/bin/sh", "sh", "-c", suite->command, (char *)NULL);
    printf("runner: /bin/sh: %s\n", strerror(errno));
    fflush(stdout);
    _exit(127);
}

/*
 * Returns whether `pid` ended; false at the limit and at a signal that ends the run. Seconds in
 * which the machine is busy count less: by as much as everything takes longer.
 */
static bool await_end(pid_t pid, double limit, int *status)
{
    double spent = 0;
    double before = seconds_now();

    for (;;) {
        struct timespec span;
        double now;
        bool ended = false;
        int number;

        reap(pid, status, &ended);
        if (ended)
            return true;
        now = seconds_now();
        spent += (now - before) * 100 / limit_percent();
        before = now;
        if (spent >= limit)
            return false;
        span = to_timespec(limit - spent < 1 ? limit - spent : 1);
        number = sigtimedwait(&awaited, NULL, &span);
        if (number > 0 && number != SIGCHLD) {
            interrupted_by = number;
            return false;
        }
    }
}

static void run_suite(const struct suite *suite, const char *log, struct outcome *outcome)
{
    double start = seconds_now();
    pid_t runner = getpid();
    pid_t pid;

    *outcome = (struct outcome){0};
    cpu_reaped = 0;
    fflush(NULL);
    pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0)
        exec_suite(suite, log, runner);
    if (!await_end(pid, suite->limit, &outcome->status)) {
        outcome->timed_out = interrupted_by == 0;
        /* The leader is not reaped yet, so its number still means its group. */
        kill(-pid, SIGTERM);
        if (!await_end(pid, TERM_SECONDS, &outcome->status)) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL);
            await_end(pid, KILL_SECONDS, &outcome->status);
        }
    }
    outcome->seconds = seconds_now() - start;
    kill_leftovers(&outcome->leftovers);
    outcome->cpu_seconds = cpu_reaped;
}

/* --- judging and printing ---------------------------------------------------------------------*/

struct slow {
    double seconds;
    double cpu_seconds;
    char name[128];
};

struct totals {
    int passed;
    int failed;
    int skipped;
    struct list failures;
    struct list skips;
    struct slow slowest[SLOWEST]; /* the longest first; name "": none */
};

static void add_slow(struct totals *totals, const struct slow *slow)
{
    size_t place = SLOWEST;

    while (place > 0 && totals->slowest[place - 1].seconds < slow->seconds)
        place--;
    if (place == SLOWEST)
        return;
    memmove(&totals->slowest[place + 1], &totals->slowest[place],
            (SLOWEST - 1 - place) * sizeof totals->slowest[0]);
    totals->slowest[place] = *slow;
}

static bool colours;

/* The cause of a bad end in words; "" if the suite ended well. */
static void describe_end(const struct suite *suite, const struct outcome *outcome,
                         const struct tap *tap, char *text, size_t room)
{
    int signal_number = 0;

    text[0] = '\0';
    if (interrupted_by != 0) {
        snprintf(text, room, "interrupted by signal %d (%s)", interrupted_by,
                 strsignal(interrupted_by));
        return;
    }
    if (outcome->timed_out) {
        snprintf(text, room, "timed out after %.3g s (its limit is %g s on an idle machine)",
                 outcome->seconds, suite->limit);
        return;
    }
    if (WIFSIGNALED(outcome->status))
        signal_number = WTERMSIG(outcome->status);
    else if (WEXITSTATUS(outcome->status) > 128 && WEXITSTATUS(outcome->status) < 128 + NSIG)
        signal_number = WEXITSTATUS(outcome->status) - 128;
    /* With a failed test a bad status is expected, unless the rest of the tests is missing. */
    if (tap->failed > 0 && tap->problem[0] == '\0')
        return;
    if (signal_number != 0)
        snprintf(text, room, "killed by signal %d (%s)", signal_number, strsignal(signal_number));
    else if (WEXITSTATUS(outcome->status) != 0 && tap->failed == 0)
        snprintf(text, room, "exit status %d, though no test failed", WEXITSTATUS(outcome->status));
}

static void fail(struct tap *tap, const char *name)
{
    tap->failed++;
    list_add(&tap->failures, "%s", name);
}

static void judge(const struct suite *suite, const struct outcome *outcome, struct tap *tap)
{
    char end[128];
    char cause[512];

    if (interrupted_by == 0 && !outcome->timed_out && WIFEXITED(outcome->status) &&
        WEXITSTATUS(outcome->status) == EXIT_SKIP && tap->failed == 0) {
        list_clear(&tap->skips);
        tap->passed = 0;
        tap->skipped = 1;
        list_add(&tap->skips, "%s", tap->last_line);
        if (tap->last_line[0] == '\0')
            fail(tap, "skipped without a reason");
    } else {
        if (chosen_case != NULL && tap->started && tap->passed + tap->failed + tap->skipped == 0)
            tap->problem[0] = '\0'; /* the chosen test is another suite's */
        describe_end(suite, outcome, tap, end, sizeof end);
        snprintf(cause, sizeof cause, "%s%s%s", end,
                 end[0] != '\0' && tap->problem[0] != '\0' ? ": " : "", tap->problem);
        if (cause[0] != '\0')
            fail(tap, cause);
    }
    if (outcome->leftovers.count > 0)
        fail(tap, "left processes behind");
}

static void print_status(const char *word, const char *colour)
{
    if (colours)
        printf("\033[%sm%s\033[0m  ", colour, word);
    else
        printf("%s  ", word);
}

/* Which of how many suites of the run ended; lanes share it. */
struct counter {
    atomic_size_t ended;
    size_t all;
};

static void print_place(struct counter *counter)
{
    int digits = snprintf(NULL, 0, "%zu", counter->all);

    printf("[%*zu/%zu] ", digits, atomic_fetch_add(&counter->ended, 1) + 1, counter->all);
}

static void print_line(const struct suite *suite, const struct tap *tap, double seconds, int width)
{
    char counts[96] = "";
    size_t used = 0;
    const struct {
        int count;
        const char *word;
    } parts[] = {{tap->passed, "passed"}, {tap->failed, "failed"}, {tap->skipped, "skipped"}};

    for (size_t i = 0; i < 3; i++)
        if (parts[i].count > 0)
            used += (size_t)snprintf(counts + used, sizeof counts - used, "%s%d %s",
                                     used > 0 ? ", " : "", parts[i].count, parts[i].word);
    if (tap->failed > 0)
        print_status("FAIL", "31");
    else if (tap->passed > 0)
        print_status("pass", "32");
    else if (tap->skipped > 0)
        print_status("skip", "33");
    else
        print_status("none", "33");
    printf("%-*s  %-30s %7.2f s\n", width, suite->name, counts, seconds);
}

/* Control characters are shown as '?', so that a suite cannot move the terminal's cursor. */
static void print_output(const char *log, size_t lines)
{
    FILE *file = fopen(log, "r");
    char *line = NULL;
    size_t room = 0;

    if (file == NULL)
        return;
    if (lines > LINES_SHOWN)
        printf("    (%zu lines before these: %s)\n", lines - LINES_SHOWN, log);
    for (size_t i = 0; getline(&line, &room, file) >= 0; i++) {
        if (i + LINES_SHOWN < lines)
            continue;
        trim(line);
        for (char *at = line; *at != '\0'; at++)
            if (iscntrl((unsigned char)*at) && *at != '\t')
                *at = '?';
        printf("    %.2000s\n", line);
    }
    free(line);
    fclose(file);
}

static void print_failure(const struct outcome *outcome, const struct tap *tap, const char *log)
{
    if (log != NULL)
        print_output(log, tap->lines);
    for (size_t i = 0; i < tap->failures.count; i++)
        printf("    failed: %s\n", tap->failures.items[i]);
    for (size_t i = 0; i < outcome->leftovers.count; i++)
        printf("    left behind: %s\n", outcome->leftovers.items[i]);
}

static void add_to_totals(struct totals *totals, const struct suite *suite, const struct tap *tap)
{
    totals->passed += tap->passed;
    totals->failed += tap->failed;
    totals->skipped += tap->skipped;
    for (size_t i = 0; i < tap->failures.count; i++)
        list_add(&totals->failures, "%s: %s", suite->name, tap->failures.items[i]);
    for (size_t i = 0; i < tap->skips.count; i++)
        list_add(&totals->skips, "%s: %s", suite->name, tap->skips.items[i]);
}

/* The log file of a suite: its name without what a file name should not have. */
static void log_path(const char *folder, const char *name, char *path, size_t room)
{
    size_t start = (size_t)snprintf(path, room, "%s/", folder);

    if (start >= room ||
        (size_t)snprintf(path + start, room - start, "%s.log", name) >= room - start)
        die("%s: the name of its log file is too long", name);
    for (char *at = path + start; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at) && strchr("._-", *at) == NULL)
            *at = '-';
}

/* What came out of a suite. */
struct finished {
    struct outcome outcome;
    struct tap tap;
    char log[PATH_MAX];
};

static void finish_suite(const struct suite *suite, const char *folder, struct finished *finished)
{
    *finished = (struct finished){.tap = {.plan = -1}};
    log_path(folder, suite->name, finished->log, sizeof finished->log);
    if (suite->command != NULL) {
        run_suite(suite, finished->log, &finished->outcome);
        tap_read(&finished->tap, finished->log);
        judge(suite, &finished->outcome, &finished->tap);
    } else {
        finished->tap.skipped = 1;
        list_add(&finished->tap.skips, "%s", suite->skip_reason);
    }
}

static void show_suite(const struct suite *suite, int width, struct counter *counter,
                       struct finished *finished, struct totals *totals)
{
    struct slow slow;

    print_place(counter);
    print_line(suite, &finished->tap, finished->outcome.seconds, width);
    if (finished->tap.failed > 0)
        print_failure(&finished->outcome, &finished->tap, finished->log);
    fflush(stdout);
    add_to_totals(totals, suite, &finished->tap);
    slow.seconds = finished->outcome.seconds;
    slow.cpu_seconds = finished->outcome.cpu_seconds;
    keep_text(slow.name, sizeof slow.name, suite->name);
    add_slow(totals, &slow);
    list_clear(&finished->tap.failures);
    list_clear(&finished->tap.skips);
    list_clear(&finished->outcome.leftovers);
}

static void print_list(const char *title, const struct list *list)
{
    if (list->count == 0)
        return;
    printf("%s:\n", title);
    for (size_t i = 0; i < list->count; i++)
        printf("  %s\n", list->items[i]);
}

static void print_slowest(const struct totals *totals)
{
    puts("slowest:");
    for (size_t i = 0; i < SLOWEST && totals->slowest[i].name[0] != '\0'; i++)
        printf("  %7.2f s, %7.2f s of CPU  %s\n", totals->slowest[i].seconds,
               totals->slowest[i].cpu_seconds, totals->slowest[i].name);
}

static void print_totals(const struct totals *totals, size_t suites, const char *folder)
{
    if (suites >= SLOWEST_OF)
        print_slowest(totals);
    print_list("skipped", &totals->skips);
    print_list("failed", &totals->failures);
    if (totals->failed > 0)
        printf("logs: %s\n", folder);
    printf("%d passed, %d failed, %d skipped\n", totals->passed, totals->failed, totals->skipped);
    fflush(stdout);
}

/* --- lanes ------------------------------------------------------------------------------------*/

/*
 * A lane is a process that runs one suite after the other, as the runner itself does: what a suite
 * leaves behind becomes the lane's. All lanes take from the same row.
 */
struct lanes {
    const struct suite *suites;
    size_t count;
    const char *folder;
    int width;
    struct counter *counter; /* these two are shared by all */
    atomic_size_t *next;     /* of each kind of company */
    FILE *results;           /* a file that each adds its totals to, under a lock */
};

/* Locks of this kind are a process's own, also over a descriptor that it was born with. */
static void lock_results(const struct lanes *lanes, short kind)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_len = 1};

    while (fcntl(fileno(lanes->results), F_SETLKW, &lock) < 0)
        if (errno != EINTR)
            die("lock: %s", strerror(errno));
}

static void write_totals(const struct lanes *lanes, const struct totals *totals)
{
    fprintf(lanes->results, "n%d %d %d\n", totals->passed, totals->failed, totals->skipped);
    for (size_t i = 0; i < totals->failures.count; i++)
        fprintf(lanes->results, "f%s\n", totals->failures.items[i]);
    for (size_t i = 0; i < totals->skips.count; i++)
        fprintf(lanes->results, "s%s\n", totals->skips.items[i]);
    for (size_t i = 0; i < SLOWEST && totals->slowest[i].name[0] != '\0'; i++)
        fprintf(lanes->results, "t%f %f %s\n", totals->slowest[i].seconds,
                totals->slowest[i].cpu_seconds, totals->slowest[i].name);
    if (fflush(lanes->results) != 0)
        die("the results of a lane: %s", strerror(errno));
}

static void read_totals(struct lanes *lanes, struct totals *totals)
{
    char *line = NULL;
    size_t room = 0;
    int passed;
    int failed;
    int skipped;
    struct slow slow;

    rewind(lanes->results);
    while (getline(&line, &room, lanes->results) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "n%d %d %d", &passed, &failed, &skipped) == 3) {
            totals->passed += passed;
            totals->failed += failed;
            totals->skipped += skipped;
        } else if (sscanf(line, "t%lf %lf %127s", &slow.seconds, &slow.cpu_seconds, slow.name) ==
                   3) {
            add_slow(totals, &slow);
        } else {
            list_add(line[0] == 'f' ? &totals->failures : &totals->skips, "%s", line + 1);
        }
    }
    free(line);
}

/* The next one of that kind, or NULL. */
static const struct suite *take_suite(const struct lanes *lanes, enum company company)
{
    size_t place;

    while ((place = atomic_fetch_add(&lanes->next[company], 1)) < lanes->count)
        if (lanes->suites[place].company == company)
            return &lanes->suites[place];
    return NULL;
}

static void run_lane(const struct lanes *lanes, enum company preferred, pid_t runner)
{
    enum company other = preferred == BESIDE ? WAITING : BESIDE;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != runner || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        _exit(1);
    while (interrupted_by == 0) {
        const struct suite *suite = take_suite(lanes, preferred);
        struct totals totals = {0};
        struct finished finished;

        if (suite == NULL && (suite = take_suite(lanes, other)) == NULL)
            break;
        finish_suite(suite, lanes->folder, &finished);
        lock_results(lanes, F_WRLCK);
        show_suite(suite, lanes->width, lanes->counter, &finished, &totals);
        write_totals(lanes, &totals);
        lock_results(lanes, F_UNLCK);
    }
    _exit(0);
}

/* How many of them have not ended; what ended badly is counted. */
static unsigned reap_lanes(pid_t *pids, unsigned count, struct totals *totals)
{
    unsigned left = 0;

    for (unsigned i = 0; i < count; i++) {
        int status = 0;

        if (pids[i] == 0)
            continue;
        if (waitpid(pids[i], &status, WNOHANG) == 0) {
            left++;
            continue;
        }
        pids[i] = 0;
        if (status != 0) {
            totals->failed++;
            list_add(&totals->failures, "a lane ended with status %d", status);
        }
    }
    return left;
}

/* Until all have ended; a signal that ends the run is passed on, and they end their suites. */
static void await_lanes(pid_t *pids, unsigned count, struct totals *totals)
{
    while (reap_lanes(pids, count, totals) > 0) {
        const struct timespec span = {.tv_sec = 1};
        int number = sigtimedwait(&awaited, NULL, &span);

        if (number <= 0 || number == SIGCHLD)
            continue;
        interrupted_by = number;
        for (unsigned i = 0; i < count; i++)
            if (pids[i] != 0)
                kill(pids[i], number);
    }
}

static void *map_shared(size_t bytes)
{
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (mapped == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    return mapped;
}

static void run_beside(const struct suite *suites, size_t count, const char *folder, int width,
                       struct counter *counter, unsigned lane_count, struct totals *totals)
{
    struct lanes lanes = {
        .suites = suites, .count = count, .folder = folder, .width = width, .counter = counter};
    pid_t pids[MOST_LANES];
    pid_t runner = getpid();

    lanes.results = tmpfile();
    lanes.next = map_shared((WAITING + 1) * sizeof *lanes.next);
    if (lanes.results == NULL || fcntl(fileno(lanes.results), F_SETFD, FD_CLOEXEC) < 0)
        die("lanes: %s", strerror(errno));
    fflush(NULL);
    for (unsigned i = 0; i < lane_count; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            die("fork: %s", strerror(errno));
        if (pids[i] == 0)
            run_lane(&lanes, i == 0 ? WAITING : BESIDE, runner);
    }
    await_lanes(pids, lane_count, totals);
    read_totals(&lanes, totals);
    fclose(lanes.results);
    munmap((void *)lanes.next, (WAITING + 1) * sizeof *lanes.next);
}

/* --- the run ----------------------------------------------------------------------------------*/

static void make_folders(const char *path)
{
    char copy[PATH_MAX];

    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy)
        die("%.100s...: too long", path);
    for (char *at = copy + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            mkdir(copy, 0777);
            *at = '/';
        }
    if (mkdir(copy, 0777) < 0 && errno != EEXIST)
        die("%s: %s", path, strerror(errno));
}

static void remove_logs(const char *folder, const struct suite *suites, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char path[PATH_MAX];

        log_path(folder, suites[i].name, path, sizeof path);
        unlink(path);
    }
    rmdir(folder);
}

static void prepare_process(void)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        die("PR_SET_CHILD_SUBREAPER: %s", strerror(errno));
    if (setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1) < 0)
        die("setenv: %s", strerror(errno));
    if (chosen_case != NULL && setenv("TCPX_TEST_CASE", chosen_case, 1) < 0)
        die("setenv: %s", strerror(errno));
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigaddset(&awaited, SIGHUP);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    /* An ignored SIGCHLD, which a parent can hand down, would let children vanish unreaped. */
    signal(SIGCHLD, SIG_DFL);
    colours = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
}

static void end_as_signalled(int number)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, number);
    signal(number, SIG_DFL);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static bool read_company(const char *text, enum company *company)
{
    static const char *const words[] = {"alone", "beside", "waiting"};

    for (int i = ALONE; i <= WAITING; i++)
        if (strcmp(text, words[i]) == 0) {
            *company = (enum company)i;
            return true;
        }
    return false;
}

/* The suites of the command line that `only` names, or all; *width: of the longest name. */
static struct suite *read_suites(int argc, char **argv, double limit, const char *only,
                                 size_t *count, int *width)
{
    struct suite *suites = calloc((size_t)argc + 1, sizeof *suites);
    enum company company = ALONE;

    if (suites == NULL)
        die("out of memory");
    *count = 0;
    *width = 0;
    for (int i = 0; i < argc; i++) {
        if (read_company(argv[i], &company))
            continue;
        parse_suite(argv[i], limit, &suites[*count]);
        suites[*count].company = company;
        if (only != NULL && !is_wanted(&suites[*count], only)) {
            free(suites[*count].name);
            continue;
        }
        if ((int)strlen(suites[*count].name) > *width)
            *width = (int)strlen(suites[*count].name);
        (*count)++;
    }
    return suites;
}

static void run_all(const struct suite *suites, size_t count, const char *folder, int width,
                    unsigned lanes, struct totals *totals)
{
    struct counter *counter = map_shared(sizeof *counter);
    bool any_beside = false;

    counter->all = count;
    for (size_t i = 0; i < count; i++)
        any_beside |= suites[i].company != ALONE;
    if (any_beside)
        run_beside(suites, count, folder, width, counter, lanes, totals);
    for (size_t i = 0; i < count && interrupted_by == 0; i++) {
        struct finished finished;

        if (suites[i].company != ALONE)
            continue;
        finish_suite(&suites[i], folder, &finished);
        show_suite(&suites[i], width, counter, &finished, totals);
    }
    munmap(counter, sizeof *counter);
}

struct settings {
    double limit; /* of a suite that has none of its own */
    unsigned lanes;
    const char *folder; /* of the logs; NULL: a temporary one */
    const char *only;   /* patterns; NULL: all suites */
    bool list;
};

/* Returns whether there is something to do; if not, *status is the runner's. */
static bool read_options(int argc, char **argv, struct settings *settings, int *status)
{
    static const struct option options[] = {{"timeout", required_argument, NULL, 't'},
                                            {"log", required_argument, NULL, 'l'},
                                            {"no-aslr", no_argument, NULL, 'a'},
                                            {"lanes", required_argument, NULL, 'n'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"case", required_argument, NULL, 'c'},
                                            {"list", no_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int option;

    while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        switch (option) {
        case 't':
            if (!parse_seconds(optarg, strlen(optarg), &settings->limit))
                die("--timeout %s is not a number of seconds", optarg);
            break;
        case 'l':
            settings->folder = optarg;
            break;
        case 'a':
            no_aslr = true;
            break;
        case 'n':
            settings->lanes = (unsigned)strtoul(optarg, NULL, 10);
            if (settings->lanes < 1 || settings->lanes > MOST_LANES)
                die("--lanes %s is not a number from 1 to %d", optarg, MOST_LANES);
            break;
        case 'o':
            settings->only = optarg;
            break;
        case 'c':
            chosen_case = optarg;
            break;
        case 'i':
            settings->list = true;
            break;
        default:
            fputs(usage, option == 'h' ? stdout : stderr);
            *status = option == 'h' ? 0 : 2;
            return false;
        }
    }
    return true;
}

static int run_and_tell(const struct settings *settings, const struct suite *suites, size_t count,
                        int width)
{
    char temporary[] = "/tmp/tests.XXXXXX";
    const char *folder = settings->folder;
    struct totals totals = {0};

    if (folder != NULL)
        make_folders(folder);
    prepare_process();
    if (folder == NULL && (folder = mkdtemp(temporary)) == NULL)
        die("%s: %s", temporary, strerror(errno));
    start_meter(folder);
    run_all(suites, count, folder, width, settings->lanes, &totals);
    stop_meter();
    if (settings->folder == NULL && totals.failed == 0)
        remove_logs(folder, suites, count);
    print_totals(&totals, count, folder);
    list_clear(&totals.failures);
    list_clear(&totals.skips);
    if (interrupted_by != 0)
        end_as_signalled(interrupted_by);
    return totals.failed > 0 || totals.passed == 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct settings settings = {.limit = 120, .lanes = 1};
    struct suite *suites;
    size_t count;
    int width;
    int status = 0;

    if (!read_options(argc, argv, &settings, &status))
        return status;
    suites =
        read_suites(argc - optind, argv + optind, settings.limit, settings.only, &count, &width);
    if (count == 0 && optind < argc)
        die("no suite is called '%s': --list has the names", settings.only);
    if (count == 0) {
        fputs(usage, stderr);
        status = 2;
    } else if (settings.list) {
        for (size_t i = 0; i < count; i++)
            puts(suites[i].name);
    } else {
        status = run_and_tell(&settings, suites, count, width);
    }
    for (size_t i = 0; i < count; i++)
        free(suites[i].name);
    free(suites);
    return status;
}
