/*
 * The result of a measurement as a page that needs nothing else: tools/perf_page.html, which the
 * assembler takes into the program, with the result as JSON in it. The page's script draws it.
 */
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
    complete = fclose(memory) == 0 && complete;
    if (complete)
        page_print(out, perf_page, json);
    free(json);
    return complete;
}
