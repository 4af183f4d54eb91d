/* Host memory as a source: the socket calls read it where it is. */
#include "net/comm/source.h"

const struct source_ops source_host = {.in_host = true};
