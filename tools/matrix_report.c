/* The result of a matrix as a table for people, as JSON, and as a page with heat maps. */
#include "base/json.h"
#include "tools/matrix.h"
#include "tools/page.h"
#include "tools/perf.h"

#include <stdlib.h>
#include <string.h>

__asm__(".pushsection .rodata\n"
        ".global matrix_page\n"
        ".hidden matrix_page\n"
        ".type matrix_page, @object\n"
        "matrix_page:\n"
        ".incbin \"tools/matrix_page.html\"\n"
        ".byte 0\n"
        ".size matrix_page, . - matrix_page\n"
        ".popsection\n");

extern const char matrix_page[];

/* --- what all have ------------------------------------------------------------------------- */

static bool took_part(const struct matrix_result *result, unsigned rank)
{
    return result->rank[rank].why[0] == '\0';
}

static unsigned count_measured(const struct matrix_result *result, enum matrix_phase phase,
                               double *sum)
{
    unsigned count = 0;

    *sum = 0;
    for (unsigned i = 0; i < result->ranks; i++)
        for (unsigned k = 0; k < result->ranks; k++)
            if (result->rates[phase].list[i][k] >= 0) {
                *sum += result->rates[phase].list[i][k];
                count++;
            }
    return count;
}

static unsigned count_missing(const struct matrix_result *result)
{
    unsigned count = 0;

    for (unsigned i = 0; i < result->ranks; i++)
        count += !took_part(result, i);
    return count;
}

static double overall_median(const struct matrix_result *result, enum matrix_phase phase)
{
    static double list[MATRIX_MOST_RANKS * MATRIX_MOST_RANKS];
    unsigned count = 0;

    for (unsigned i = 0; i < result->ranks; i++)
        for (unsigned k = 0; k < result->ranks; k++)
            list[count++] = result->rates[phase].list[i][k];
    return matrix_median(list, count);
}

/* --- for people ---------------------------------------------------------------------------- */

static void print_ranks(FILE *out, const struct matrix_result *result)
{
    for (unsigned i = 0; i < result->ranks; i++) {
        const struct matrix_rank *rank = &result->rank[i];

        fprintf(out, "rank %-3u %s%s%s\n", i, rank->host, rank->memory[0] != '\0' ? ", " : "",
                rank->memory);
    }
}

static void print_phase(FILE *out, const struct matrix_result *result, enum matrix_phase phase)
{
    char text[PERF_NAME];
    double sum;
    unsigned count = count_measured(result, phase, &sum);

    fprintf(out, "\n%s:", phase == MATRIX_ALONE ? "one pair at a time" : "all pairs at once");
    if (count == 0) {
        fprintf(out, " nothing was measured\n");
        return;
    }
    fprintf(out, " median %s", perf_number(overall_median(result, phase), text));
    if (phase == MATRIX_ALL_AT_ONCE)
        fprintf(out, ", together %s", perf_number(sum, text));
    fprintf(out, " GB/s; measured twice, differs by %d %%\n%6s", result->noise_percent[phase], "");
    for (unsigned k = 0; k < result->ranks; k++)
        fprintf(out, " %7u", k);
    fprintf(out, "\n");
    for (unsigned i = 0; i < result->ranks; i++) {
        fprintf(out, "%6u", i);
        for (unsigned k = 0; k < result->ranks; k++)
            fprintf(out, " %7s", i == k ? "" : perf_number(result->rates[phase].list[i][k], text));
        fprintf(out, "\n");
    }
}

static void print_failures(FILE *out, const struct matrix_result *result)
{
    char one[96];
    char other[96];

    for (unsigned i = 0; i < result->ranks; i++)
        if (!took_part(result, i))
            fprintf(out, "FAILED: %s: %s\n", matrix_rank_name(result, i, one), result->rank[i].why);
    for (unsigned i = 0; i < result->failure_count; i++) {
        const struct matrix_failure *failure = &result->failures[i];

        fprintf(out, "FAILED: %s from %s: %s\n", matrix_rank_name(result, failure->reader, one),
                matrix_rank_name(result, failure->source, other), failure->why);
    }
}

static bool has_findings(const struct matrix_result *result, enum matrix_phase phase)
{
    for (unsigned i = 0; i < result->finding_count; i++)
        if (result->findings[i].phase == phase)
            return true;
    return false;
}

static void print_findings(FILE *out, const struct matrix_result *result)
{
    for (unsigned i = 0; i < result->finding_count; i++)
        fprintf(out, "slow: %s\n", result->findings[i].text);
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        if (!has_findings(result, (enum matrix_phase)phase))
            fprintf(out,
                    "balanced: %s: no rank is below %d %% of the others, no link below %d %% of "
                    "the other links of both its ends\n",
                    matrix_phase_name((enum matrix_phase)phase), result->rank_percent[phase],
                    result->link_percent[phase]);
}

void matrix_print_table(FILE *out, const struct matrix_result *result)
{
    char size[24];

    fprintf(out,
            "tcpx %s: %u ranks; GB/s at which the rank of a row reads from that of a column, %s a "
            "read, verified\n\n",
            result->version, result->ranks, perf_size_name(result->plan.bytes, size));
    print_ranks(out, result);
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        print_phase(out, result, (enum matrix_phase)phase);
    fprintf(out, "\n");
    print_failures(out, result);
    print_findings(out, result);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static const char *const phase_keys[] = {
    [MATRIX_ALONE] = "alone", [MATRIX_ALL_AT_ONCE] = "all_at_once"};

static void print_text(FILE *out, const char *name, const char *text)
{
    fprintf(out, "\"%s\": ", name);
    json_string(out, text);
}

static void print_rates(FILE *out, const char *name, const struct matrix_result *result,
                        enum matrix_phase phase)
{
    fprintf(out, "  \"%s\": [", name);
    for (unsigned i = 0; i < result->ranks; i++) {
        fprintf(out, "%s\n    [", i > 0 ? "," : "");
        for (unsigned k = 0; k < result->ranks; k++) {
            double rate = result->rates[phase].list[i][k];

            fprintf(out, rate >= 0 ? "%s%.6g" : "%snull", k > 0 ? ", " : "", rate);
        }
        fprintf(out, "]");
    }
    fprintf(out, "\n  ],\n");
}

static void print_rank_json(FILE *out, const struct matrix_rank *rank)
{
    fprintf(out, "    {");
    print_text(out, "host", rank->host);
    fprintf(out, ", ");
    print_text(out, "memory", rank->memory);
    fprintf(out, ", ");
    if (rank->why[0] != '\0')
        print_text(out, "failure", rank->why);
    else
        fprintf(out, "\"failure\": null");
    fprintf(out, "}");
}

static void print_finding_json(FILE *out, const struct matrix_finding *finding)
{
    static const char *const kinds[] = {
        [MATRIX_SLOW_HOST] = "host", [MATRIX_SLOW_RANK] = "rank", [MATRIX_SLOW_LINK] = "link"};

    fprintf(out, "    {\"phase\": \"%s\", \"slow\": \"%s\", \"rank\": %u, ",
            matrix_phase_name(finding->phase), kinds[finding->kind], finding->rank);
    if (finding->kind == MATRIX_SLOW_LINK)
        fprintf(out, "\"source\": %u, ", finding->source);
    else
        fprintf(out, "\"sends\": %s, \"receives\": %s, ", finding->sends ? "true" : "false",
                finding->receives ? "true" : "false");
    fprintf(out, "\"rate\": %.6g, \"usual\": %.6g, ", finding->rate, finding->usual);
    print_text(out, "text", finding->text);
    fprintf(out, "}");
}

void matrix_print_json(FILE *out, const struct matrix_result *result)
{
    fprintf(out, "{\n  ");
    print_text(out, "version", result->version);
    fprintf(out, ",\n  ");
    print_text(out, "date", result->date);
    fprintf(out,
            ",\n  \"bytes\": %llu,\n  \"reads\": %u,\n  \"seconds\": %g,\n"
            "  \"margins\": {",
            (unsigned long long)result->plan.bytes, result->plan.reads,
            (double)result->plan.span_ms / 1000);
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        fprintf(out,
                "%s\"%s\": {\"noise_percent\": %d, \"rank_percent\": %d, \"link_percent\": %d}",
                phase > 0 ? ", " : "", phase_keys[phase], result->noise_percent[phase],
                result->rank_percent[phase], result->link_percent[phase]);
    fprintf(out, "},\n  \"ranks\": [\n");
    for (unsigned i = 0; i < result->ranks; i++) {
        print_rank_json(out, &result->rank[i]);
        fprintf(out, "%s\n", i + 1 < result->ranks ? "," : "");
    }
    fprintf(out, "  ],\n");
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        print_rates(out, phase_keys[phase], result, (enum matrix_phase)phase);
    fprintf(out, "  \"failures\": [");
    for (unsigned i = 0; i < result->failure_count; i++) {
        fprintf(out, "%s\n    {\"reader\": %u, \"source\": %u, ", i > 0 ? "," : "",
                result->failures[i].reader, result->failures[i].source);
        print_text(out, "text", result->failures[i].why);
        fprintf(out, "}");
    }
    fprintf(out, "],\n  \"slow\": [");
    for (unsigned i = 0; i < result->finding_count; i++) {
        fprintf(out, "%s\n", i > 0 ? "," : "");
        print_finding_json(out, &result->findings[i]);
    }
    fprintf(out, "],\n  \"missing\": %u\n}\n", count_missing(result));
}

/* --- the page ------------------------------------------------------------------------------ */

bool matrix_print_html(FILE *out, const struct matrix_result *result)
{
    struct page_text json;
    bool complete = page_text_begin(&json);

    if (complete) {
        matrix_print_json(json.out, result);
        complete = page_text_end(&json);
    }
    if (complete)
        page_print(out, matrix_page, json.text);
    free(json.text);
    return complete;
}
