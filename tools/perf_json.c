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

static void json_row(FILE *out, const struct perf_row *row)
{
    fprintf(out, "    {\"bytes\": %llu, \"iterations\": %llu", (unsigned long long)row->bytes,
            (unsigned long long)row->iterations);
    json_number(out, ", ", "gigabytes_per_second", row->gigabytes_per_second);
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

void perf_print_json(FILE *out, const struct perf_result *result)
{
    struct perf_total total = perf_total(result);

    fprintf(out, "{\n");
    json_text(out, "version", result->version);
    json_text(out, "date", result->date);
    json_text(out, "way", perf_way_name(result->way));
    json_text(out, "client", result->client);
    json_text(out, "server", result->server);
    json_text(out, "path", result->path);
    json_text(out, "memory", result->memory);
    json_text(out, "unpack", result->unpack);
    fprintf(out, "  \"channels\": %u,\n  \"sockets\": %u,\n  \"threads\": %u,\n", result->channels,
            result->sockets, result->threads);
    fprintf(out, "  \"chunk_bytes\": %llu,\n  \"pieces\": %u,\n",
            (unsigned long long)result->chunk_bytes, result->pieces);
    fprintf(out, "  \"operation\": \"%s\",\n  \"accesses\": %u",
            perf_operation_name(result->operation), result->accesses);
    json_number(out, ",\n  ", "barrier_us", result->barrier_us);
    fprintf(out, ",\n  \"verified_iterations\": %llu,\n  \"verified_bytes\": %.0f,\n",
            (unsigned long long)total.iterations, total.bytes);
    fprintf(out, "  \"rows\": [");
    for (unsigned i = 0; i < result->row_count; i++) {
        fprintf(out, "%s\n", i != 0 ? "," : "");
        json_row(out, &result->rows[i]);
    }
    fprintf(out, "\n  ]\n}\n");
}
