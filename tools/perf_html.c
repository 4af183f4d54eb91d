/*
 * Results of measurements as a page that needs nothing else: tools/perf_page.html, which the
 * assembler takes into the program, with the results as JSON in it. The page's script draws them.
 */
#include "base/json.h"
#include "tools/page.h"
#include "tools/perf.h"

#include <stdlib.h>

__asm__(".pushsection .rodata\n"
        ".global perf_page\n"
        ".hidden perf_page\n"
        ".type perf_page, @object\n"
        "perf_page:\n"
        ".incbin \"tools/perf_page.html\"\n"
        ".byte 0\n"
        ".size perf_page, . - perf_page\n"
        ".popsection\n");

extern const char perf_page[];

/* As one JSON text. */
static void html_runs(FILE *out, const struct perf_run *runs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fputs(i == 0 ? "[{\"name\": " : ",\n{\"name\": ", out);
        json_string(out, runs[i].name);
        fputs(", \"result\": ", out);
        fwrite(runs[i].json, 1, runs[i].length, out);
        fputs("}", out);
    }
    fputs("]\n", out);
}

bool perf_print_page(FILE *out, const struct perf_run *runs, size_t count)
{
    char *json = NULL;
    size_t length;
    FILE *memory = open_memstream(&json, &length);
    bool complete;

    if (memory == NULL)
        return false;
    html_runs(memory, runs, count);
    complete = !ferror(memory);
    complete = fclose(memory) == 0 && complete;
    if (complete)
        page_print(out, perf_page, json);
    free(json);
    return complete;
}

bool perf_print_html(FILE *out, const struct perf_result *result)
{
    char *json = NULL;
    size_t length;
    FILE *memory = open_memstream(&json, &length);
    bool complete;

    if (memory == NULL)
        return false;
    perf_print(memory, &perf_json, result);
    complete = !ferror(memory);
    complete =
        fclose(memory) == 0 && complete &&
        perf_print_page(out, &(struct perf_run){.name = "", .json = json, .length = length}, 1);
    free(json);
    return complete;
}
