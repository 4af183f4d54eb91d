/* The number of I/O threads, and why it is that: a line of `tcpx devices` and of `tcpx doctor`. */
#ifndef TCPX_TOOLS_IO_THREADS_H
#define TCPX_TOOLS_IO_THREADS_H

#include "net/io/plan.h"

#include <stddef.h>

enum { IO_THREADS_TEXT_BYTES = 192 };

void io_threads_describe(const struct io_plan *plan, char text[IO_THREADS_TEXT_BYTES]);

/* The members of a JSON object, on standard output. */
void io_threads_print_json(const struct io_plan *plan);

#endif
