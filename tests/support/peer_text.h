/*
 * No text that travels contains an address. assert_no_address() is for a text at hand; peer_text.c
 * looks at every text of a peer that the library reports, in every suite that is linked with it.
 */
#ifndef TCPX_TESTS_PEER_TEXT_H
#define TCPX_TESTS_PEER_TEXT_H

#include <stdbool.h>

/* A hexadecimal number of more than 4 digits. */
bool peer_text_has_address(const char *text);

#define assert_no_address(text)                                                                    \
    do {                                                                                           \
        if (peer_text_has_address(text))                                                           \
            fail_msg("a text that travels has an address: %s", text);                              \
    } while (0)

#endif
