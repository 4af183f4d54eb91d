/*
 * The result of a measurement as a page that needs nothing else: tools/perf_page.html, which the
 * assembler takes into the program, with the result as JSON in it. The page's script draws it.
 */
#include "tools/perf.h"

#include <stdlib.h>
#include <string.h>

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

/* Names of hosts come from the peer: none of them ends the script that the JSON is in. */
static void html_json(FILE *out, const char *json)
{
    for (; *json != '\0'; json++) {
        if (*json == '<')
            fputs("\\u003c", out);
        else
            fputc(*json, out);
    }
}

bool perf_print_html(FILE *out, const struct perf_result *result)
{
    static const char mark[] = "@RESULT@\n";
    const char *place = strstr(perf_page, mark);
    char *json = NULL;
    size_t length;
    FILE *memory = open_memstream(&json, &length);
    bool complete;

    if (memory == NULL)
        return false;
    perf_print_json(memory, result);
    complete = !ferror(memory);
    complete = fclose(memory) == 0 && complete;
    if (complete) {
        fwrite(perf_page, 1, (size_t)(place - perf_page), out);
        html_json(out, json);
        fputs(place + strlen(mark), out);
    }
    free(json);
    return complete;
}
