/* The findings: kept, and printed for people and for scripts. */
#include "base/json.h"
#include "tools/doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_COLUMN = 11, TEXT_COLUMN = 33, LINE_WIDTH = 100 };

static const char *const level_marks[DOCTOR_LEVELS] = {"ok", "note", "PROBLEM"};
static const char *const level_names[DOCTOR_LEVELS] = {"ok", "note", "problem"};
static const char *const level_colours[DOCTOR_LEVELS] = {"\033[32m", "\033[33m", "\033[1;31m"};

void doctor_find(struct doctor *doctor, enum doctor_level level, const char *name,
                 const char *format, ...)
{
    struct doctor_finding *finding;
    va_list arguments;

    if (doctor->finding_count == DOCTOR_MOST_FINDINGS)
        return;
    finding = &doctor->findings[doctor->finding_count++];
    *finding = (struct doctor_finding){.group = doctor->group, .level = level};
    snprintf(finding->name, sizeof finding->name, "%s", name);
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
    doctor->counts[level]++;
}

void doctor_advise(struct doctor *doctor, const char *format, ...)
{
    struct doctor_finding *finding = &doctor->findings[doctor->finding_count - 1];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(finding->advice, sizeof finding->advice, format, arguments);
    va_end(arguments);
}

/* --- for people ---------------------------------------------------------------------------- */

static bool in_colour(void)
{
    const char *terminal = getenv("TERM");

    return isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL && terminal != NULL &&
           strcmp(terminal, "dumb") != 0;
}

/* The length of a word; what stands between single quotes is one, so that it can be copied. */
static int word_length(const char *text)
{
    const char *start = text[0] == '(' ? text + 1 : text;
    const char *end = start[0] == '\'' ? strchr(start + 1, '\'') : NULL;

    if (end == NULL)
        end = text;
    return (int)(end - text) + (int)strcspn(end, " \n");
}

/* Words from `column` on, where the cursor is already, in lines that are not too long. */
static void print_wrapped(const char *text, int column)
{
    int at = column;

    while (*text != '\0') {
        int length = word_length(text);

        if (at > column && at + 1 + length > LINE_WIDTH) {
            printf("\n%*s", column, "");
            at = column;
        } else if (at > column) {
            putchar(' ');
            at++;
        }
        printf("%.*s", length, text);
        at += length;
        text += length;
        text += strspn(text, " \n");
    }
    putchar('\n');
}

static void print_finding(const struct doctor_finding *finding, bool colour)
{
    int mark = (int)strlen(level_marks[finding->level]);
    int name = (int)strlen(finding->name);

    printf("  %s%s%s%*s%s", colour ? level_colours[finding->level] : "",
           level_marks[finding->level], colour ? "\033[0m" : "", NAME_COLUMN - 2 - mark, "",
           finding->name);
    if (NAME_COLUMN + name + 2 > TEXT_COLUMN)
        printf("\n%*s", TEXT_COLUMN, "");
    else
        printf("%*s", TEXT_COLUMN - NAME_COLUMN - name, "");
    print_wrapped(finding->text, TEXT_COLUMN);
    if (finding->advice[0] != '\0') {
        printf("%*s-> ", TEXT_COLUMN, "");
        print_wrapped(finding->advice, TEXT_COLUMN + 3);
    }
}

void doctor_print_findings(const struct doctor *doctor, unsigned first)
{
    bool colour = in_colour();

    for (unsigned i = first; i < doctor->finding_count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];

        if (i == first || strcmp(finding->group, doctor->findings[i - 1].group) != 0)
            printf("%s%s\n", i == 0 ? "" : "\n", finding->group);
        print_finding(finding, colour);
    }
    fflush(stdout);
}

static void count_text(unsigned count, const char *word, char *text, size_t room)
{
    if (count == 0)
        snprintf(text, room, "no %ss", word);
    else
        snprintf(text, room, "%u %s%s", count, word, count == 1 ? "" : "s");
}

static void print_stages(const struct doctor_transfer *transfer)
{
    printf("\n  %-12s %12s %14s\n", "stage", "holds up", "rate");
    for (enum limiting_stage i = DOCTOR_FIRST_STAGE; i <= DOCTOR_LAST_STAGE; i++) {
        double rate = doctor_stage_rate(transfer, i);

        printf("  %-12s ", limiting_stage_name(i));
        if (rate > 0)
            printf("%9.2f ms %9.2f GB/s%s\n", doctor_stage_us(transfer, i) / 1e3, rate,
                   i == transfer->limit ? "  <- limits" : "");
        else
            printf("%12s %14s\n", "-", "not used");
    }
}

void doctor_print_summary(const struct doctor *doctor)
{
    char notes[32];
    char problems[32];

    count_text(doctor->counts[DOCTOR_NOTE], "note", notes, sizeof notes);
    count_text(doctor->counts[DOCTOR_PROBLEM], "problem", problems, sizeof problems);
    printf("\n%s, %s\n", notes, problems);
    if (doctor->transfer.stages_known)
        print_stages(&doctor->transfer);
}

/* --- for scripts --------------------------------------------------------------------------- */

static void print_json_field(const char *name, const char *value)
{
    printf("\"%s\": ", name);
    json_string(stdout, value);
}

static void print_json_transfer(const struct doctor_transfer *transfer)
{
    printf("  \"transfer\": {\"gigabytes_per_second\": %.3f, ", transfer->row.gigabytes_per_second);
    if (!transfer->stages_known) {
        printf("\"limit\": null, \"stages\": null}\n");
        return;
    }
    printf("\"limit\": \"%s\", \"stages\": [\n", limiting_stage_name(transfer->limit));
    for (enum limiting_stage i = DOCTOR_FIRST_STAGE; i <= DOCTOR_LAST_STAGE; i++) {
        double rate = doctor_stage_rate(transfer, i);

        printf("    {\"stage\": \"%s\", \"busy_us\": %.1f, \"gigabytes_per_second\": ",
               limiting_stage_name(i), doctor_stage_us(transfer, i));
        if (rate > 0)
            printf("%.3f}", rate);
        else
            printf("null}");
        printf("%s\n", i < DOCTOR_LAST_STAGE ? "," : "");
    }
    printf("  ]}\n");
}

void doctor_print_json(const struct doctor *doctor)
{
    printf("{\n  \"findings\": [\n");
    for (unsigned i = 0; i < doctor->finding_count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];

        printf("    {");
        print_json_field("group", finding->group);
        printf(", ");
        print_json_field("name", finding->name);
        printf(", \"level\": \"%s\", ", level_names[finding->level]);
        print_json_field("text", finding->text);
        printf(", ");
        print_json_field("advice", finding->advice);
        printf("}%s\n", i + 1 < doctor->finding_count ? "," : "");
    }
    printf("  ],\n  \"notes\": %u,\n  \"problems\": %u,\n", doctor->counts[DOCTOR_NOTE],
           doctor->counts[DOCTOR_PROBLEM]);
    if (doctor->transfer.measured)
        print_json_transfer(&doctor->transfer);
    else
        printf("  \"transfer\": null\n");
    printf("}\n");
}
