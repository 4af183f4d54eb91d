/*
 * A cmocka test that cannot run here: skip_because("no IPv6: %s", why). The runner takes a skip
 * without a reason for a failure.
 */
#ifndef TCPX_TESTS_SKIP_H
#define TCPX_TESTS_SKIP_H

#define skip_because(...)                                                                          \
    do {                                                                                           \
        print_message("# skip: ");                                                                 \
        print_message(__VA_ARGS__);                                                                \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#endif
