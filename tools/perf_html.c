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
    struct page_text json;
    bool complete = page_text_begin(&json);

    if (complete) {
        html_runs(json.out, runs, count);
        complete = page_text_end(&json);
    }
    if (complete)
        page_print(out, perf_page, json.text);
    free(json.text);
    return complete;
}

bool perf_print_html(FILE *out, const struct perf_result *result)
{
    struct page_text json;
    bool complete = page_text_begin(&json);

    if (complete) {
        perf_print(json.out, &perf_json, result);
        complete = page_text_end(&json);
    }
    complete =
        complete &&
        perf_print_page(
            out, &(struct perf_run){.name = "", .json = json.text, .length = json.length}, 1);
    free(json.text);
    return complete;
}
