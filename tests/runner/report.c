/*
 * Lines for humans: one for each suite, the output of those that failed, and the sums.
 */
#include "tests/runner/report.h"

#include "tests/runner/tap.h"

#include <ctype.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EXIT_SKIP = 77,    /* a suite's status that says "not on this machine" */
    LINES_SHOWN = 200, /* of a failed suite's output */
    SLOWEST_OF = 20    /* suites of a run whose slowest are named */
};

/* --- judging ----------------------------------------------------------------------------------*/

/* The cause of a bad end in words; "" if the suite ended well. */
static void describe_end(const struct suite *suite, const struct result *result,
                         const struct tap *tap, char *text, size_t room)
{
    int status = WEXITSTATUS(result->status);
    int number = 0;

    text[0] = '\0';
    if (WIFSIGNALED(result->status))
        number = WTERMSIG(result->status);
    else if (status > 128 && status < 128 + NSIG)
        number = status - 128; /* a shell's way to pass it on */
    if (result->interrupted_by != 0)
        snprintf(text, room, "interrupted by signal %d (%s)", result->interrupted_by,
                 strsignal(result->interrupted_by));
    else if (result->timed_out)
        snprintf(text, room, "timed out after %.3g s (its limit is %g s on an idle machine)",
                 result->seconds, suite->limit);
    /* With a failed test a bad status is expected, unless the rest of the tests is missing. */
    else if (tap->failed > 0 && tap->problem[0] == '\0')
        return;
    else if (number != 0)
        snprintf(text, room, "killed by signal %d (%s)", number, strsignal(number));
    else if (status != 0 && tap->failed == 0)
        snprintf(text, room, "exit status %d, though no test failed", status);
}

static bool skipped_itself(const struct result *result, const struct tap *tap)
{
    return result->interrupted_by == 0 && !result->timed_out && WIFEXITED(result->status) &&
           WEXITSTATUS(result->status) == EXIT_SKIP && tap->failed == 0;
}

static bool sanitizer_spoke(const char *log)
{
    FILE *file = fopen(log, "r");
    char *line = NULL;
    size_t room = 0;
    bool spoke = false;

    while (file != NULL && !spoke && getline(&line, &room, file) >= 0)
        spoke = strstr(line, "Sanitizer:") != NULL || strstr(line, "runtime error:") != NULL;
    free(line);
    if (file != NULL)
        fclose(file);
    return spoke;
}

static void judge(const struct plan *plan, const struct result *result, struct tap *tap)
{
    char end[128];
    char cause[512];

    if (skipped_itself(result, tap)) {
        list_clear(&tap->skips);
        tap->passed = 0;
        tap->skipped = 0;
        tap_add_skip(tap, tap->last_line);
        if (tap->last_line[0] == '\0')
            tap_add_failure(tap, "skipped without a reason");
    } else {
        if (plan->only_case != NULL && tap->started &&
            tap->passed + tap->failed + tap->skipped == 0)
            tap->problem[0] = '\0'; /* the chosen test is another suite's */
        describe_end(&plan->suites[result->suite], result, tap, end, sizeof end);
        snprintf(cause, sizeof cause, "%s%s%s", end,
                 end[0] != '\0' && tap->problem[0] != '\0' ? ": " : "", tap->problem);
        if (cause[0] != '\0')
            tap_add_failure(tap, cause);
    }
    if (result->leftovers.count > 0)
        tap_add_failure(tap, "left processes behind");
}

/* A crash, a sanitizer's report and processes left behind are never the fault of a busy machine. */
static bool may_be_tried_again(const struct report *report, const struct result *result,
                               const struct tap *tap, const char *log)
{
    return report->first_try_count < report->plan->second_tries && result->interrupted_by == 0 &&
           (result->timed_out || WIFEXITED(result->status)) && result->leftovers.count == 0 &&
           WEXITSTATUS(result->status) <= 128 && tap->failed > 0 && !sanitizer_spoke(log);
}

/* --- printing ---------------------------------------------------------------------------------*/

static void print_line(const struct report *report, const struct suite *suite,
                       const struct tap *tap, double seconds)
{
    static const struct {
        const char *word;
        const char *colour;
    } kinds[] = {{"FAIL", "31"}, {"pass", "32"}, {"skip", "33"}, {"none", "33"}};
    int kind = tap->failed > 0 ? 0 : tap->passed > 0 ? 1 : tap->skipped > 0 ? 2 : 3;
    const struct {
        int count;
        const char *word;
    } parts[] = {{tap->passed, "passed"}, {tap->failed, "failed"}, {tap->skipped, "skipped"}};
    char counts[96] = "";
    size_t used = 0;

    for (size_t i = 0; i < 3; i++)
        if (parts[i].count > 0)
            used += (size_t)snprintf(counts + used, sizeof counts - used, "%s%d %s",
                                     used > 0 ? ", " : "", parts[i].count, parts[i].word);
    printf("[%*zu/%zu] ", snprintf(NULL, 0, "%zu", report->plan->count), report->ended,
           report->plan->count);
    if (report->colours)
        printf("\033[%sm%s\033[0m", kinds[kind].colour, kinds[kind].word);
    else
        fputs(kinds[kind].word, stdout);
    printf("  %-*s  %-30s %7.2f s\n", report->width, suite->name, counts, seconds);
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

static void print_failure(const struct leftovers *leftovers, const struct tap *tap, const char *log)
{
    print_output(log, tap->lines);
    for (size_t i = 0; i < tap->failures.count; i++)
        printf("    failed: %s\n", tap->failures.items[i]);
    for (size_t i = 0; i < leftovers->count && i < LEFTOVERS_NAMED; i++)
        printf("    left behind: pid %d: %s\n", (int)leftovers->named[i].pid,
               leftovers->named[i].command);
    if (leftovers->count > LEFTOVERS_NAMED)
        printf("    left behind: %zu more\n", leftovers->count - LEFTOVERS_NAMED);
}

static void print_list(const char *title, const struct list *list)
{
    if (list->count == 0)
        return;
    printf("%s:\n", title);
    for (size_t i = 0; i < list->count; i++)
        printf("  %s\n", list->items[i]);
}

/* --- the report -------------------------------------------------------------------------------*/

void report_begin(struct report *report, const struct plan *plan)
{
    *report = (struct report){.plan = plan,
                              .colours = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL};
    for (size_t i = 0; i < plan->count; i++)
        if ((int)strlen(plan->suites[i].name) > report->width)
            report->width = (int)strlen(plan->suites[i].name);
}

static void add_slow(struct report *report, const struct slow *slow)
{
    size_t place = SLOWEST;

    while (place > 0 && report->slowest[place - 1].seconds < slow->seconds)
        place--;
    if (place == SLOWEST)
        return;
    memmove(&report->slowest[place + 1], &report->slowest[place],
            (SLOWEST - 1 - place) * sizeof report->slowest[0]);
    report->slowest[place] = *slow;
}

static void add_failures(struct list *list, const struct suite *suite, const struct tap *tap)
{
    for (size_t i = 0; i < tap->failures.count; i++)
        list_add(list, "%s: %s", suite->name, tap->failures.items[i]);
}

void report_suite(struct report *report, const struct result *result)
{
    const struct suite *suite = &report->plan->suites[result->suite];
    struct tap tap = {0};
    char log[PATH_MAX];

    suite_log_path(suite, report->plan->folder, log, sizeof log);
    if (suite->command != NULL) {
        tap_read(&tap, log);
        judge(report->plan, result, &tap);
    } else {
        tap_add_skip(&tap, suite->skip_reason);
    }
    report->ended++;
    print_line(report, suite, &tap, result->seconds);
    if (tap.failed > 0)
        print_failure(&result->leftovers, &tap, log);
    fflush(stdout);
    if (may_be_tried_again(report, result, &tap, log)) {
        report->first_tries[report->first_try_count++] =
            (struct first_try){result->suite, tap.passed, tap.failed, tap.skipped};
        add_failures(&report->first_failures, suite, &tap);
        tap_free(&tap);
        return;
    }
    report->passed += tap.passed;
    report->failed += tap.failed;
    report->skipped += tap.skipped;
    add_failures(&report->failures, suite, &tap);
    for (size_t i = 0; i < tap.skips.count; i++)
        list_add(&report->skips, "%s: %s", suite->name, tap.skips.items[i]);
    add_slow(report, &(struct slow){result->seconds, result->cpu_seconds, suite->name});
    tap_free(&tap);
}

void report_lost_lanes(struct report *report, unsigned count)
{
    for (; count > 0; count--) {
        report->failed++;
        list_add(&report->failures, "a lane ended before its suites");
    }
}

static void count_first_tries(struct report *report, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        report->passed += report->first_tries[i].passed;
        report->failed += report->first_tries[i].failed;
        report->skipped += report->first_tries[i].skipped;
    }
    for (size_t i = 0; i < report->first_failures.count; i++)
        list_add(&report->failures, "%s", report->first_failures.items[i]);
    list_clear(&report->first_failures);
}

size_t report_again(struct report *report, struct suite *again)
{
    unsigned count = report->first_try_count;

    report->first_try_count = 0;
    if (report->failed > 0) {
        count_first_tries(report, count);
        return 0;
    }
    for (unsigned i = 0; i < count; i++) {
        again[i] = report->plan->suites[report->first_tries[i].suite];
        again[i].company = ALONE;
    }
    return count;
}

bool report_end(struct report *report)
{
    if (report->plan->count >= SLOWEST_OF) {
        puts("slowest:");
        for (size_t i = 0; i < SLOWEST && report->slowest[i].name != NULL; i++)
            printf("  %7.2f s, %7.2f s of CPU  %s\n", report->slowest[i].seconds,
                   report->slowest[i].cpu_seconds, report->slowest[i].name);
    }
    print_list("skipped", &report->skips);
    print_list("failed once, and tried again", &report->first_failures);
    print_list("failed", &report->failures);
    if (report->failed > 0)
        printf("logs: %s\n", report->plan->folder);
    printf("%d passed, %d failed, %d skipped\n", report->passed, report->failed, report->skipped);
    fflush(stdout);
    list_clear(&report->failures);
    list_clear(&report->skips);
    list_clear(&report->first_failures);
    return report->failed == 0 && report->passed > 0;
}
