/* The result of a measurement as a table for people, at most 110 columns wide. */
#include "tools/perf.h"

static const char *table_plural(unsigned count)
{
    return count == 1 ? "" : "s";
}

static void table_threads(FILE *out, unsigned threads)
{
    if (threads == 0)
        fprintf(out, "no I/O threads");
    else
        fprintf(out, "%u I/O thread%s", threads, table_plural(threads));
}

static const char *table_between(const struct perf_result *result)
{
    if (result->way != PERF_ONE_WAY)
        return "and";
    return result->operation == PERF_READS ? "from" : "to";
}

static void table_header(FILE *out, const struct perf_result *result)
{
    char chunk[24];
    char barrier[PERF_NAME];

    if (result->operation != PERF_SENDS)
        fprintf(out, "%ss, ", perf_operation_name(result->operation));
    fprintf(out, "%s, %s %s %s\n", perf_way_name(result->way), result->client,
            table_between(result), result->server);
    fprintf(out, "  path      %s\n", result->path);
    fprintf(out, "  memory    %s\n", result->memory);
    fprintf(out, "  unpack    %s\n", result->unpack);
    fprintf(out, "  options   %u channel%s, %u socket%s, ", result->channels,
            table_plural(result->channels), result->sockets, table_plural(result->sockets));
    table_threads(out, result->threads);
    if (result->chunk_bytes != 0)
        fprintf(out, ", chunks of %s", perf_size_name(result->chunk_bytes, chunk));
    else
        fprintf(out, ", no chunks");
    if (result->pieces != 0)
        fprintf(out, ", lists of %u pieces", result->pieces);
    if (result->operation != PERF_SENDS)
        fprintf(out, ", %u %s%s at once", result->accesses, perf_operation_name(result->operation),
                table_plural(result->accesses));
    fprintf(out, "\n  barrier   %s us%s\n\n", perf_number(result->barrier_us, barrier),
            perf_contains_barrier(result) ? ", contained in the times below" : "");
}

static void table_row(FILE *out, const struct perf_row *row)
{
    char size[24];
    char text[5][PERF_NAME];

    fprintf(out, "%14s  %10llu  %10s  %10s  %10s  %10s  %10s\n", perf_size_name(row->bytes, size),
            (unsigned long long)row->iterations, perf_number(row->gigabytes_per_second, text[0]),
            perf_number(row->least_us, text[1]), perf_number(row->median_us, text[2]),
            perf_number(perf_p99(row), text[3]), perf_number(perf_p999(row), text[4]));
}

static void table_stages(FILE *out, const struct perf_row *row)
{
    fprintf(out, "\nper iteration, on average; stages go on at the same time:\n");
    fprintf(out, "  %-28s  %10s  %10s  %10s\n", "stage", "us", "of median", "GB/s");
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++) {
        double percent = perf_stage_percent(row, i);
        char text[3][PERF_NAME];

        fprintf(out, "  %-8s  %-18s  %10s  %8s%s  %10s\n",
                perf_stage_list[i].of_sender ? "sender" : "receiver", perf_stage_list[i].name,
                perf_number(row->stages[i], text[0]), perf_percent(percent, text[1]),
                perf_known(percent) ? " %" : "  ", perf_number(perf_stage_rate(row, i), text[2]));
    }
}

void perf_print_table(FILE *out, const struct perf_result *result)
{
    struct perf_total total = perf_total(result);
    char amount[PERF_NAME];

    table_header(out, result);
    fprintf(out, "%14s  %10s  %10s  %10s  %10s  %10s  %10s\n", "size", "iterations", "GB/s",
            "min us", "median us", "p99 us", "p99.9 us");
    for (unsigned i = 0; i < result->row_count; i++)
        table_row(out, &result->rows[i]);
    if (result->row_count == 1 && perf_has_stages(&result->rows[0]))
        table_stages(out, &result->rows[0]);
    fprintf(out, "\nverified: every byte of %llu iterations, %s in all\n",
            (unsigned long long)total.iterations, perf_amount_name(total.bytes, amount));
}
