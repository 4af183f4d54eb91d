/*
 * Linked into every cmocka program: TCPX_TEST_CASE='test_a_*' leaves out all tests but those. It
 * works before main(), so that no program has to know of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose_cases(void)
{
    const char *pattern = getenv("TCPX_TEST_CASE");

    if (pattern != NULL && *pattern != '\0')
        cmocka_set_test_filter(pattern);
}
