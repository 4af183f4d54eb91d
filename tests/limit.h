/*
 * Limits of time that grow with how busy the machine is: limit_ms(2000) is two seconds on a machine
 * that is idle, and more where everything takes longer. The runner measures while it runs and
 * writes what it finds to a file, in percent; without a runner the number of runnable threads
 * tells. A limit that is computed when the time is over takes into account what happened meanwhile.
 */
#ifndef TCPX_TESTS_LIMIT_H
#define TCPX_TESTS_LIMIT_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The variables that the runner gives to each suite; METER is the path of the file. */
#define LIMIT_METER    "TCPX_TEST_METER"
#define LIMIT_SLOWNESS "TCPX_TEST_SLOWNESS" /* a factor that is never fallen short of, e.g. 2.5 */

enum {
    LIMIT_PERCENT_MOST = 1000, /* so that what hangs ends in bounded time */
    LIMIT_METER_BYTES = 8      /* a number with spaces before it, and the end of a line */
};

static inline unsigned limit_clamp(double percent)
{
    if (!(percent > 100))
        return 100;
    return percent < LIMIT_PERCENT_MOST ? (unsigned)percent : LIMIT_PERCENT_MOST;
}

/* The factor of the environment, in percent. */
static inline unsigned limit_least(void)
{
    const char *text = getenv(LIMIT_SLOWNESS);

    return text != NULL ? limit_clamp(strtod(text, NULL) * 100) : 100;
}

/* How many threads want a CPU, for each CPU there is, in percent. */
static inline unsigned limit_of_runnable(void)
{
    char text[128] = "";
    int runnable = 0;
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        ssize_t length = read(fd, text, sizeof text - 1);

        close(fd);
        text[length > 0 ? length : 0] = '\0';
    }
    if (sscanf(text, "%*s %*s %*s %d", &runnable) != 1)
        return 100;
    return limit_clamp(100.0 * runnable / (double)sysconf(_SC_NPROCESSORS_ONLN));
}

/* The runner's file, mapped once: no test has to have a descriptor to spare for it. */
static inline const volatile char *limit_meter(void)
{
    static _Atomic(const volatile char *) meter;
    const char *path = getenv(LIMIT_METER);
    const volatile char *mapped = atomic_load(&meter);
    void *fresh;
    int fd;

    if (mapped != NULL || path == NULL)
        return mapped;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    fresh = mmap(NULL, LIMIT_METER_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (fresh == MAP_FAILED)
        return NULL;
    atomic_store(&meter, fresh);
    return fresh;
}

/* How much longer than on an idle machine everything takes, in percent; 100 at least. */
static inline unsigned limit_percent(void)
{
    const volatile char *meter = limit_meter();
    unsigned least = limit_least();
    unsigned percent = 0;

    if (meter == NULL)
        percent = limit_of_runnable();
    for (int i = 0; meter != NULL && i < LIMIT_METER_BYTES; i++)
        if (meter[i] >= '0' && meter[i] <= '9')
            percent = percent * 10 + (unsigned)(meter[i] - '0');
    percent = limit_clamp(percent);
    return percent > least ? percent : least;
}

/* Milliseconds, and any other unit. */
static inline unsigned limit_ms(unsigned ms)
{
    uint64_t limit = (uint64_t)ms * limit_percent() / 100;

    return limit < INT32_MAX ? (unsigned)limit : INT32_MAX;
}

static inline uint64_t limit_ns(uint64_t ns)
{
    return ns / 100 * limit_percent();
}

enum { LIMIT_STATUS = 3 }; /* of a program whose time is over */

static inline void limit_is_over(int signal_number)
{
    static const char text[] = ": the time limit is over\n";

    (void)signal_number;
    (void)!write(STDERR_FILENO, program_invocation_short_name,
                 strlen(program_invocation_short_name));
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(LIMIT_STATUS);
}

/* This process ends when the time is over, even where a call does not return. */
static inline void limit_process(unsigned seconds)
{
    signal(SIGALRM, limit_is_over);
    alarm(limit_ms(seconds));
}

#endif
