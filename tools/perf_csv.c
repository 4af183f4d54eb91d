/*
 * The result of a measurement as CSV: a header, then one line per size, each with all that is
 * known of the run, so that several results can be put together. What is unknown is empty.
 */
#include "tools/perf.h"

#include <string.h>

static void csv_number(FILE *out, double value)
{
    if (perf_known(value))
        fprintf(out, ",%.9g", value);
    else
        fputc(',', out);
}

/* A spreadsheet would compute what begins like this; host names come from the peer. */
static bool looks_like_a_formula(const char *text)
{
    return *text != '\0' && strchr("=+-@\t\r", *text) != NULL;
}

/* Between quotes where its characters would end the field, and never a formula. */
static void csv_text(FILE *out, const char *text)
{
    bool formula = looks_like_a_formula(text);

    fputc(',', out);
    if (text[strcspn(text, ",\"\r\n")] == '\0' && !formula) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    if (formula)
        fputc('\'', out);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void csv_measured(FILE *out, const struct perf_result *result, const struct perf_row *row)
{
    fprintf(out, "%llu,%llu", (unsigned long long)row->bytes, (unsigned long long)row->iterations);
    csv_number(out, row->gigabytes_per_second);
    csv_number(out, perf_gigabits(row));
    csv_number(out, perf_line_percent(result, row));
    csv_number(out, row->least_us);
    csv_number(out, row->median_us);
    csv_number(out, row->mean_us);
    csv_number(out, perf_p99(row));
    csv_number(out, perf_p999(row));
    csv_number(out, row->most_us);
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        csv_number(out, row->stages[i]);
}

static void csv_run(FILE *out, const struct perf_result *result)
{
    csv_text(out, perf_way_name(result->way));
    csv_text(out, result->client);
    csv_text(out, result->server);
    csv_text(out, result->path);
    csv_text(out, result->memory);
    csv_text(out, result->unpack);
    fprintf(out, ",%u,%u,%u,%llu,%u,%s,%u", result->channels, result->sockets, result->threads,
            (unsigned long long)result->chunk_bytes, result->pieces,
            perf_operation_name(result->operation), result->accesses);
    csv_number(out, result->barrier_us);
    csv_text(out, result->date);
    csv_text(out, result->version);
    csv_text(out, perf_check_name(result->check));
}

static void csv_begin(FILE *out, const struct perf_result *result)
{
    (void)result;
    fprintf(out, "bytes,iterations,gigabytes_per_second,gigabits_per_second,line_rate_percent,"
                 "min_us,median_us,mean_us,p99_us,p99_9_us,max_us");
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        fprintf(out, ",%s_us", perf_stage_list[i].key);
    fprintf(out, ",way,client,server,path,memory,unpack,channels,sockets,"
                 "threads,chunk_bytes,pieces,operation,accesses,barrier_us,date_utc,version,"
                 "check,row,rows\n");
}

/* The last two say which of how many rows this is: without the last one the run is incomplete. */
static void csv_row(FILE *out, const struct perf_result *result, unsigned number)
{
    csv_measured(out, result, &result->rows[number]);
    csv_run(out, result);
    fprintf(out, ",%u,%u\n", number + 1, result->size_count);
}

static void csv_end(FILE *out, const struct perf_result *result)
{
    (void)out;
    (void)result;
}

const struct perf_form perf_csv = {csv_begin, csv_row, csv_end};
