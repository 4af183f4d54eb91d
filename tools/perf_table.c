/* The result of a measurement as a table for people, at most 110 columns wide, row by row. */
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

static void table_options(FILE *out, const struct perf_result *result)
{
    char chunk[24];

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
    fprintf(out, "\n");
}

static void table_begin(FILE *out, const struct perf_result *result)
{
    static const char *const checks[] = {
        [PERF_CHECK_FIRST] = "first: of each size one iteration was verified, the others were not",
        [PERF_CHECK_NONE] = "none: NOT VERIFIED, nothing was compared with what was sent"};
    char text[PERF_NAME];

    if (result->operation != PERF_SENDS)
        fprintf(out, "%ss, ", perf_operation_name(result->operation));
    fprintf(out, "%s, %s %s %s\n", perf_way_name(result->way), result->client,
            table_between(result), result->server);
    fprintf(out, "  path      %s\n", result->path);
    fprintf(out, "  memory    %s\n", result->memory);
    fprintf(out, "  unpack    %s\n", result->unpack);
    table_options(out, result);
    if (result->line_mbps != 0)
        fprintf(out, "  line      %s Gbit/s\n", perf_number(result->line_mbps * 1e-3, text));
    if (result->check != PERF_CHECK_EVERY)
        fprintf(out, "  check     %s\n", checks[result->check]);
    fprintf(out, "  barrier   %s us%s\n\n", perf_number(result->barrier_us, text),
            perf_contains_barrier(result) ? ", contained in the times below" : "");
    fprintf(out, "%14s  %10s  %10s  %10s", "size", "iterations", "GB/s", "Gbit/s");
    if (result->line_mbps != 0)
        fprintf(out, "  %8s", "of line");
    fprintf(out, "  %10s  %10s  %10s  %10s\n", "min us", "median us", "p99 us", "p99.9 us");
}

static void table_row(FILE *out, const struct perf_result *result, unsigned number)
{
    const struct perf_row *row = &result->rows[number];
    char size[24];
    char text[4][PERF_NAME];

    fprintf(out, "%14s  %10llu  %10s  %10s", perf_size_name(row->bytes, size),
            (unsigned long long)row->iterations, perf_number(row->gigabytes_per_second, text[0]),
            perf_number(perf_gigabits(row), text[1]));
    if (result->line_mbps != 0)
        fprintf(out, "  %6s %%", perf_percent(perf_line_percent(result, row), text[0]));
    fprintf(out, "  %10s  %10s  %10s  %10s\n", perf_number(row->least_us, text[0]),
            perf_number(row->median_us, text[1]), perf_number(perf_p99(row), text[2]),
            perf_number(perf_p999(row), text[3]));
}

static void table_stages(FILE *out, const struct perf_row *row)
{
    fprintf(out, "\nper iteration, on average; stages go on at the same time, and each in several "
                 "pieces at once, so that\none can add up to more than the iteration:\n");
    fprintf(out, "  %-28s  %10s  %10s  %10s\n", "stage", "us", "of mean", "GB/s");
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++) {
        double percent = perf_stage_percent(row, i);
        char text[3][PERF_NAME];

        fprintf(out, "  %-8s  %-18s  %10s  %8s%s  %10s\n",
                perf_stage_list[i].of_sender ? "sender" : "receiver", perf_stage_list[i].name,
                perf_number(row->stages[i], text[0]), perf_percent(percent, text[1]),
                perf_known(percent) ? " %" : "  ", perf_number(perf_stage_rate(row, i), text[2]));
    }
}

static void table_verified(FILE *out, const struct perf_result *result)
{
    struct perf_total total = perf_total(result);
    char amount[PERF_NAME];

    if (result->row_count == 0)
        return;
    if (result->check == PERF_CHECK_NONE)
        fprintf(out, "\nNOT VERIFIED: no byte was compared with what was sent (--check none)\n");
    else
        fprintf(out, "\nverified: every byte of %llu iteration%s, %s in all%s\n",
                (unsigned long long)total.iterations, table_plural(total.iterations != 1 ? 2 : 1),
                perf_amount_name(total.bytes, amount),
                result->check == PERF_CHECK_FIRST ? "; no other was (--check first)" : "");
}

static void table_end(FILE *out, const struct perf_result *result)
{
    if (result->size_count == 1 && result->row_count == 1 && perf_has_stages(&result->rows[0]))
        table_stages(out, &result->rows[0]);
    table_verified(out, result);
    if (!result->complete)
        fprintf(out, "INCOMPLETE: %u of %u sizes were measured: %s\n", result->row_count,
                result->size_count, result->why);
}

const struct perf_form perf_table = {table_begin, table_row, table_end};
