/* Names under which some tests still know tests/support/child.h. */
#ifndef TCPX_TESTS_NURSERY_H
#define TCPX_TESTS_NURSERY_H

#include "tests/support/child.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { NURSERY_ARGUMENT = CHILD_BYTES };

#define nursery_shared child_shared
#define nursery_run    child_run
#define nursery_start  child_begin
#define nursery_fork   child_fork
#define nursery_wait   child_wait

#endif
