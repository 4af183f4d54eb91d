/*
 * Stands in for error_keep() (by the linker's --wrap): a text that quotes a peer and has an address
 * in it ends the program, which the runner counts as a failed test.
 */
#include "tests/support/peer_text.h"

#include "base/error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void __real_error_keep(const char *format, ...) __attribute__((format(printf, 1, 2)));
void __wrap_error_keep(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool peer_text_has_address(const char *text)
{
    for (const char *at = strchr(text, '0'); at != NULL; at = strchr(at + 1, '0')) {
        size_t digits = 0;

        while (tolower((unsigned char)at[1]) == 'x' && isxdigit((unsigned char)at[2 + digits]))
            digits++;
        if (digits > 4)
            return true;
    }
    return false;
}

/* What comes behind these words was sent by the peer. */
static const char *words_of_peer(const char *text)
{
    static const char *const before[] = {" gave up with TCPX_", " refused: "};
    const char *words = NULL;

    for (size_t i = 0; i < sizeof before / sizeof *before && words == NULL; i++)
        words = strstr(text, before[i]);
    return words;
}

void __wrap_error_keep(const char *format, ...)
{
    char text[1024];
    const char *words;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    words = words_of_peer(text);
    if (words != NULL && peer_text_has_address(words)) {
        printf("# a text that travelled has an address: %s\n", text);
        fflush(stdout);
        abort();
    }
    __real_error_keep("%s", text);
}
