/*
 * Reads 'name@SECONDS: command', 'skip name: reason' and the words alone, beside and waiting.
 */
#include "tests/runner/suite.h"

#include "tests/runner/common.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_seconds(const char *text, size_t length, double *seconds)
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

static void suite_parse(const char *text, double limit, struct suite *suite)
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
static bool suite_is_wanted(const struct suite *suite, const char *patterns)
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

static bool company_read(const char *text, enum company *company)
{
    static const char *const words[COMPANIES] = {"alone", "beside", "waiting"};

    for (int i = 0; i < COMPANIES; i++)
        if (strcmp(text, words[i]) == 0) {
            *company = (enum company)i;
            return true;
        }
    return false;
}

struct suite *suites_read(int count, char **arguments, double limit, const char *only,
                          size_t *found)
{
    struct suite *suites = calloc((size_t)count + 1, sizeof *suites);
    enum company company = ALONE;

    if (suites == NULL)
        die("out of memory");
    *found = 0;
    for (int i = 0; i < count; i++) {
        struct suite *suite = &suites[*found];

        if (company_read(arguments[i], &company))
            continue;
        suite_parse(arguments[i], limit, suite);
        suite->company = company;
        if (only == NULL || suite_is_wanted(suite, only))
            (*found)++;
        else
            free(suite->name);
    }
    return suites;
}

void suites_free(struct suite *suites, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(suites[i].name);
    free(suites);
}

void suite_log_path(const struct suite *suite, const char *folder, char *path, size_t room)
{
    size_t start = (size_t)snprintf(path, room, "%s/", folder);

    if (start >= room ||
        (size_t)snprintf(path + start, room - start, "%s.log", suite->name) >= room - start)
        die("%s: the name of its log file is too long", suite->name);
    for (char *at = path + start; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at) && strchr("._-", *at) == NULL)
            *at = '-';
}
