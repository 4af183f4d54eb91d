/*
 * Runs test suites, one after the other or some beside each other, and says in its last line how
 * many tests passed, failed and were skipped. A suite is a shell command that prints TAP; nothing
 * it does can hang the run, outlive it or pass unseen: what it leaves running is named and killed,
 * and a crash, a missing test, a skip without a reason or a silent end is a failed test. Time
 * limits grow with how busy the machine is (tests/limit.h). Needs libc and /proc only.
 */
#include "tests/runner/common.h"
#include "tests/runner/lane.h"
#include "tests/runner/meter.h"
#include "tests/runner/report.h"
#include "tests/runner/suite.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "usage: runner [--timeout SECONDS] [--log FOLDER] [--no-aslr] [--lanes N]\n"
    "              [--second-tries N] [--only NAMES] [--case TEST] [--list] SUITE...\n"
    "SUITE: 'name: shell command', 'name@SECONDS: shell command' (its own time limit)\n"
    "       or 'skip name: reason' (a suite that could not be built)\n"
    "Those behind the word 'beside' run in N lanes at the same time, before all others; so do "
    "those\n"
    "behind 'waiting', which mostly wait: one of the lanes begins with them. Behind 'alone', and\n"
    "before any such word, suites have the machine for themselves.\n"
    "--only 'unit/session* fuzz/*' runs the suites with these names, --case 'test_cut*' only "
    "these\n"
    "tests of each program, and --list prints the names of the suites.\n"
    "--second-tries N: up to N suites that failed by a check or their time limit run once more,\n"
    "alone, if nothing else failed; crashes and reports of sanitizers are final.\n"
    "Time limits are for an idle machine: on a busy one they are up to 10 times as long.\n"
    "TCPX_TEST_SLOWNESS=3 makes all of them at least 3 times as long.\n";

struct settings {
    double limit; /* of a suite that has none of its own */
    unsigned lanes;
    const char *only; /* patterns; NULL: all suites */
    bool list;
    struct plan plan; /* without a folder: a temporary one */
};

/* The number that the option at hand was given. */
static unsigned read_count(const char *option, unsigned least, unsigned most)
{
    char *end;
    unsigned long count = strtoul(optarg, &end, 10);

    if (end == optarg || *end != '\0' || count < least || count > most)
        die("%s %s is not a number from %u to %u", option, optarg, least, most);
    return (unsigned)count;
}

/* Returns whether there is something to do; if not, *status is the runner's. */
static bool read_options(int argc, char **argv, struct settings *settings, int *status)
{
    static const struct option options[] = {{"timeout", required_argument, NULL, 't'},
                                            {"log", required_argument, NULL, 'l'},
                                            {"no-aslr", no_argument, NULL, 'a'},
                                            {"lanes", required_argument, NULL, 'n'},
                                            {"second-tries", required_argument, NULL, 's'},
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
            settings->plan.folder = optarg;
            break;
        case 'a':
            settings->plan.no_aslr = true;
            break;
        case 'n':
            settings->lanes = read_count("--lanes", 1, MOST_LANES);
            break;
        case 's':
            settings->plan.second_tries = read_count("--second-tries", 0, MOST_SECOND_TRIES);
            break;
        case 'o':
            settings->only = optarg;
            break;
        case 'c':
            settings->plan.only_case = optarg;
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

static void remove_logs(const struct plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        char path[PATH_MAX];

        suite_log_path(&plan->suites[i], plan->folder, path, sizeof path);
        unlink(path);
    }
    rmdir(plan->folder);
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

/* Those that run alone, or all others. Returns the signal that ended the run, or 0. */
static int run_some(const struct plan *plan, bool alone, unsigned count, struct report *report)
{
    struct lanes lanes;
    struct result result;

    lanes_start(&lanes, plan, alone, count);
    while (lanes_next(&lanes, &result))
        report_suite(report, &result);
    report_lost_lanes(report, lanes_end(&lanes));
    return lanes.interrupted_by;
}

/* Those that failed and may be tried once more. Returns as run_some(). */
static int run_again(const struct plan *plan, struct report *report)
{
    struct suite suites[MOST_SECOND_TRIES];
    struct plan again = *plan;
    int interrupted_by = 0;

    again.suites = suites;
    again.count = report_again(report, suites);
    again.second_tries = 0;
    if (again.count == 0)
        return 0;
    report->plan = &again;
    report->ended = 0;
    interrupted_by = run_some(&again, true, 1, report);
    report->plan = plan;
    return interrupted_by;
}

static int run(struct plan *plan, unsigned lanes)
{
    bool keeps_logs = plan->folder != NULL;
    char temporary[] = "/tmp/tests.XXXXXX";
    struct report report;
    int interrupted_by;
    bool passed;

    if (keeps_logs)
        make_folders(plan->folder);
    else if ((plan->folder = mkdtemp(temporary)) == NULL)
        die("%s: %s", temporary, strerror(errno));
    /* The number of processes that run beside a suite must not decide what it does. */
    if (setenv("CMOCKA_MESSAGE_OUTPUT", "TAP", 1) < 0 ||
        setenv("UCCL_TCPX_PROCESSES", "1", 0) < 0 ||
        (plan->only_case != NULL && setenv("TCPX_TEST_CASE", plan->only_case, 1) < 0))
        die("setenv: %s", strerror(errno));
    lanes_prepare();
    meter_start(plan->folder);
    report_begin(&report, plan);
    interrupted_by = run_some(plan, false, lanes, &report);
    if (interrupted_by == 0)
        interrupted_by = run_some(plan, true, 1, &report);
    if (interrupted_by == 0)
        interrupted_by = run_again(plan, &report);
    meter_stop();
    if (!keeps_logs && report.failed == 0)
        remove_logs(plan);
    passed = report_end(&report);
    if (interrupted_by != 0)
        end_as_signalled(interrupted_by);
    return passed ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct settings settings = {.limit = 120, .lanes = 1};
    struct suite *suites;
    size_t count;
    int status = 0;

    if (!read_options(argc, argv, &settings, &status))
        return status;
    suites = suites_read(argc - optind, argv + optind, settings.limit, settings.only, &count);
    if (count == 0 && optind < argc)
        die("no suite is called '%s': --list has the names", settings.only);
    settings.plan.suites = suites;
    settings.plan.count = count;
    if (count == 0) {
        fputs(usage, stderr);
        status = 2;
    } else if (settings.list) {
        for (size_t i = 0; i < count; i++)
            puts(suites[i].name);
    } else {
        status = run(&settings.plan, settings.lanes);
    }
    suites_free(suites, count);
    return status;
}
