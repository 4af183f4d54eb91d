/* Numbers and words in text that a person wrote. Only the whole text counts. */
#ifndef TCPX_BASE_PARSE_H
#define TCPX_BASE_PARSE_H

#include <stdbool.h>
#include <stdint.h>

/* Decimal digits only: no sign, no space. */
bool parse_number(const char *text, uint64_t *number);

/* Digits and at most one of K, M, G, T (of 1024, either case), which B or iB may follow. */
bool parse_size(const char *text, uint64_t *bytes);

/* Which one of `words`, which `separator` separates, from 0. */
bool parse_word(const char *text, const char *words, char separator, int *place);

#endif
