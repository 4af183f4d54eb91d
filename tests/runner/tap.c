/*
 * A reader of TAP that cannot be fooled: a missing test, one too many, a skip without a reason and
 * an end without a plan are failures; text that only looks like a result is none.
 */
#include "tests/runner/tap.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tap_add_failure(struct tap *tap, const char *name)
{
    tap->failed++;
    list_add(&tap->failures, "%s", name);
}

void tap_add_skip(struct tap *tap, const char *reason)
{
    tap->skipped++;
    list_add(&tap->skips, "%s", reason);
}

void tap_free(struct tap *tap)
{
    list_clear(&tap->failures);
    list_clear(&tap->skips);
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
        if (directive != NULL)
            tap_add_skip(tap, directive + strlen("# skip "));
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
        /* cmocka prints the test's name only; the reason is a comment before it. */
        const char *reason = directive + strlen("# skip");
        bool both;

        reason += strspn(reason, " \t:");
        both = name[0] != '\0' && *reason != '\0';
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
        if (name[0] == '\0')
            snprintf(name, sizeof name, "test %ld", number);
        tap_add_failure(tap, name);
    }
    if (tap->seen == tap->plan)
        tap_close_group(tap);
    return true;
}

static void tap_line(struct tap *tap, const char *line)
{
    tap->lines++;
    if (*line != '\0')
        snprintf(tap->last_line, sizeof tap->last_line, "%s", line);
    if (tap_plan(tap, line) || tap_result(tap, line))
        tap->reason[0] = '\0';
    else if (strncmp(line, "# skip: ", 8) == 0)
        snprintf(tap->reason, sizeof tap->reason, "%s", line + 8);
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

void tap_read(struct tap *tap, const char *path)
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
