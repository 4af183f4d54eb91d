/*
 * Texts from and for other processes. What is shown has no control characters, whatever its source;
 * what is sent has no addresses of this process either. A character of UTF-8 is never cut.
 */
#ifndef TCPX_BASE_TEXT_H
#define TCPX_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* The character at `text`, with at least a byte left, and how many bytes it has; 0: no UTF-8. */
size_t text_decode(const char *text, size_t left, uint32_t *character);

/*
 * Copies the characters that fit into `room` bytes, with a zero behind them; the value is how many
 * bytes that are. '?' stands for each control character, each one that breaks a line or changes the
 * direction of writing, and each byte that is not UTF-8. `out` may be `text`.
 */
size_t text_printable(const char *text, size_t length, char *out, size_t room);

/*
 * text_printable() for a text that leaves this process: "0x..." replaces every hexadecimal number
 * of more than 4 digits. Nothing is mapped at smaller addresses, so no address is left.
 */
size_t text_for_peer(const char *text, char *out, size_t room);

#endif
