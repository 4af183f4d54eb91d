/*
 * tcpx report: puts what `tcpx perf --json` printed, of one run or of several, into one page that
 * shows them beside each other.
 */
#include "tools/command.h"
#include "tools/json_read.h"
#include "tools/page.h"
#include "tools/perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RUNS = 8, MOST_BYTES = 64 << 20, NAME_BYTES = 128 };

struct report {
    const char *output;
    char *texts[MOST_RUNS]; /* of the files */
    size_t text_count;
    struct perf_run runs[MOST_RUNS];
    char names[MOST_RUNS][NAME_BYTES];
    size_t run_count;
};

/* --- files --------------------------------------------------------------------------------- */

static int read_text(FILE *file, const char *path, char **text, size_t *length)
{
    size_t room = 0;
    size_t have = 0;

    do {
        char *grown;

        room = room == 0 ? 1 << 16 : 2 * room;
        if (room > MOST_BYTES)
            return error_set(TCPX_INVALID_ARGUMENT, "%s is larger than a report of tcpx perf is",
                             path);
        grown = realloc(*text, room);
        if (grown == NULL)
            return error_system(ENOMEM, "reading %s", path);
        *text = grown;
        have += fread(*text + have, 1, room - have, file);
    } while (have == room);
    *length = have;
    return ferror(file) ? error_system(errno, "cannot read %s", path) : TCPX_SUCCESS;
}

static int read_file(const char *path, char **text, size_t *length)
{
    FILE *file = fopen(path, "re");
    int result;

    if (file == NULL)
        return error_system(errno, "cannot read %s", path);
    result = read_text(file, path, text, length);
    (void)fclose(file);
    return result;
}

/* --- runs ---------------------------------------------------------------------------------- */

static bool is_run(const char *at, const char *end)
{
    const char *rows = json_member(at, end, "rows");
    const char *version = json_member(at, end, "version");

    return rows != NULL && *rows == '[' && version != NULL && *version == '"';
}

/* The file's name without folder and ".json", with a number from its second run on. */
static void name_run(char name[NAME_BYTES], const char *path, unsigned number)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t length = strlen(base);

    if (length > 5 && strcmp(base + length - 5, ".json") == 0)
        length -= 5;
    if (length > NAME_BYTES - 16)
        length = NAME_BYTES - 16;
    snprintf(name, NAME_BYTES, number == 1 ? "%.*s" : "%.*s, %u", (int)length, base, number);
}

/* Each object of the file: a server prints one for each client. */
static int take_runs(struct report *report, const char *path, const char *at, const char *end)
{
    unsigned number = 0;

    do {
        const char *behind = json_skip(at, end);
        size_t i = report->run_count;

        if (behind == NULL || !is_run(at, behind))
            return error_set(TCPX_INVALID_ARGUMENT,
                             "%s is not what 'tcpx perf --json' prints, as a whole", path);
        if (i == MOST_RUNS)
            return error_set(TCPX_INVALID_ARGUMENT, "%s: more than %d runs are too many for a page",
                             path, MOST_RUNS);
        name_run(report->names[i], path, ++number);
        report->runs[i] = (struct perf_run){
            .name = report->names[i], .json = at, .length = (size_t)(behind - at)};
        report->run_count++;
        at = behind;
    } while (at < end);
    return TCPX_SUCCESS;
}

static int take_file(struct report *report, const char *path)
{
    char **text = &report->texts[report->text_count++];
    size_t length = 0;
    int result = read_file(path, text, &length);

    return result == TCPX_SUCCESS ? take_runs(report, path, *text, *text + length) : result;
}

/* --- the command --------------------------------------------------------------------------- */

static int write_report(const struct report *report)
{
    struct page_file file = {.path = report->output};
    int result = page_open(&file);

    if (result != TCPX_SUCCESS)
        return result;
    if (perf_print_page(file.out, report->runs, report->run_count))
        return page_close(&file);
    page_discard(&file);
    return error_system(ENOMEM, "a page of %zu runs", report->run_count);
}

static int report_main(int argument_count, char **arguments)
{
    static struct report report;
    struct words words = {0};
    const struct option options[] = {
        {.name = "-o", .text = &report.output, .problem = "not a file:"}, {.name = NULL}};
    int status = options_read(&command_report, argument_count, arguments, options, &words);
    int result = TCPX_SUCCESS;

    if (status != EXIT_OK)
        return status;
    if (words.count == 0)
        return command_usage(&command_report, "a file of 'tcpx perf --json' is expected, not", "");
    if (report.output == NULL)
        return command_usage(&command_report, "the page's file is missing:", "-o");
    for (int i = 0; i < words.count && result == TCPX_SUCCESS; i++)
        result = take_file(&report, words.list[i]);
    if (result == TCPX_SUCCESS)
        result = write_report(&report);
    for (size_t i = 0; i < report.text_count; i++)
        free(report.texts[i]);
    return result == TCPX_SUCCESS ? EXIT_OK : command_failed();
}

const struct command command_report = {
    .name = "report",
    .arguments = "RUN.json... -o PAGE.html",
    .summary = "Show runs of tcpx perf beside each other in one page.",
    .help = "\n"
            "  RUN.json      what tcpx perf printed as JSON; up to 8 runs\n"
            "  -o PAGE.html  where the page goes; the page needs no other file\n"
            "\n"
            "The first run is the one that the others are compared with.\n",
    .run = report_main,
};
