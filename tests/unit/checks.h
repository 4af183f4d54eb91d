/* What many tests check. */
#ifndef TCPX_TESTS_UNIT_CHECKS_H
#define TCPX_TESTS_UNIT_CHECKS_H

#include "base/error.h"

#include "tests/support/basics.h"
#include "tests/support/suite.h"

#include <string.h>

static inline void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* The latest error's. */
static inline void expect_text(const char *part)
{
    expect_part(error_text(), part);
}

/* Bytes that were set to 0x5a, and that a failure must not have written to. */
static inline void expect_untouched(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        assert_int_equal(((const uint8_t *)bytes)[i], 0x5a);
}

#endif
