/* JSON for scripts that read our output: the one part that printf cannot do. */
#ifndef TCPX_BASE_JSON_H
#define TCPX_BASE_JSON_H

#include <stdio.h>

/* Prints the text between quotes, escaped. Bytes that are not UTF-8 become '?'. */
void json_string(FILE *out, const char *text);

#endif
