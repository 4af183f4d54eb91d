/* The result of a measurement as one JSON object. What is unknown is null. */
#include "base/json.h"
#include "tools/perf.h"

static void json_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, "  \"%s\": ", key);
    json_string(out, text);
    fprintf(out, ",\n");
}

static void json_number(FILE *out, const char *before, const char *key, double value)
{
    if (perf_known(value))
        fprintf(out, "%s\"%s\": %.9g", before, key, value);
    else
        fprintf(out, "%s\"%s\": null", before, key);
}

static void json_begin(FILE *out, const struct perf_result *result)
{
    fprintf(out, "{\n");
    json_text(out, "version", result->version);
    json_text(out, "date", result->date);
    json_text(out, "way", perf_way_name(result->way));
    json_text(out, "client", result->client);
    json_text(out, "server", result->server);
    json_text(out, "path", result->path);
    json_text(out, "memory", result->memory);
    json_text(out, "unpack", result->unpack);
    json_text(out, "check", perf_check_name(result->check));
    fprintf(out, "  \"channels\": %u,\n  \"sockets\": %u,\n  \"threads\": %u,\n", result->channels,
            result->sockets, result->threads);
    fprintf(out, "  \"chunk_bytes\": %llu,\n  \"pieces\": %u,\n",
            (unsigned long long)result->chunk_bytes, result->pieces);
    fprintf(out, "  \"operation\": \"%s\",\n  \"accesses\": %u",
            perf_operation_name(result->operation), result->accesses);
    json_number(out, ",\n  ", "barrier_us", result->barrier_us);
    json_number(out, ",\n  ", "line_rate_gigabits_per_second",
                result->line_mbps != 0 ? result->line_mbps * 1e-3 : -1);
    fprintf(out, ",\n  \"sizes\": %u,\n  \"rows\": [", result->size_count);
}

static void json_row(FILE *out, const struct perf_result *result, unsigned number)
{
    const struct perf_row *row = &result->rows[number];

    fprintf(out, "%s\n    {\"bytes\": %llu, \"iterations\": %llu", number != 0 ? "," : "",
            (unsigned long long)row->bytes, (unsigned long long)row->iterations);
    json_number(out, ", ", "gigabytes_per_second", row->gigabytes_per_second);
    json_number(out, ", ", "gigabits_per_second", perf_gigabits(row));
    json_number(out, ",\n     ", "line_rate_percent", perf_line_percent(result, row));
    json_number(out, ",\n     ", "min_us", row->least_us);
    json_number(out, ", ", "median_us", row->median_us);
    json_number(out, ", ", "mean_us", row->mean_us);
    json_number(out, ", ", "p99_us", perf_p99(row));
    json_number(out, ", ", "p99_9_us", perf_p999(row));
    json_number(out, ", ", "max_us", row->most_us);
    fprintf(out, ",\n     \"stages_us\": {");
    for (unsigned i = 0; i < PERF_STAGE_COUNT; i++)
        json_number(out, i != 0 ? ", " : "", perf_stage_list[i].key, row->stages[i]);
    fprintf(out, "}}");
}

static void json_end(FILE *out, const struct perf_result *result)
{
    struct perf_total total = perf_total(result);

    fprintf(out, "\n  ],\n");
    json_text(out, "incomplete_because", result->why);
    fprintf(out, "  \"complete\": %s,\n", result->complete ? "true" : "false");
    fprintf(out, "  \"verified_iterations\": %llu,\n  \"verified_bytes\": %.0f\n}\n",
            (unsigned long long)total.iterations, total.bytes);
}

const struct perf_form perf_json = {json_begin, json_row, json_end};
