/* What small programs of tests/net and tests/vm share that use nothing of the library. */
#ifndef TCPX_TESTS_NET_PROGRAM_H
#define TCPX_TESTS_NET_PROGRAM_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* "NAME: why", and the end. */
__attribute__((format(printf, 2, 3))) static inline _Noreturn void die(int status,
                                                                       const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(status);
}

/* The finalizer of splitmix64: neighbouring inputs give unrelated outputs. */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* The value of an option, or the end with status 2. */
static inline uint64_t parse_number(const char *name, const char *text, uint64_t least,
                                    uint64_t most)
{
    char *end;
    unsigned long long value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most)
        die(2, "%s %s: expected a number from %ju to %ju", name, text, (uintmax_t)least,
            (uintmax_t)most);
    return value;
}

#endif
