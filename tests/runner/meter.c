/*
 * A process of the runner's that does the same small piece of work every second. How long that
 * takes, compared with the CPU time it takes and with the best time so far, is how much longer
 * everything takes; the largest of the last half minute counts.
 */
#include "tests/runner/meter.h"

#include "tests/limit.h"
#include "tests/runner/common.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { METER_SAMPLES = 30, METER_WORK_NS = 15000000, METER_PAUSE_NS = 1000000000 };

static pid_t meter;
static char meter_path[PATH_MAX];

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void meter_work(unsigned long turns)
{
    volatile unsigned long sum = 0;

    for (unsigned long i = 0; i < turns; i++)
        sum = sum * 2862933555777941757ul + i;
}

/* As many turns as take that much CPU time. */
static unsigned long calibrated_turns(void)
{
    enum { TURNS = 200000 };
    uint64_t start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t spent;

    meter_work(TURNS);
    spent = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start;
    return (unsigned long)((double)TURNS * METER_WORK_NS / (double)(spent > 0 ? spent : 1)) + 1;
}

static double sample_percent(unsigned long turns, double *best)
{
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    double spent;

    meter_work(turns);
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    spent = (double)(clock_ns(CLOCK_MONOTONIC) - start);
    if (*best == 0 || spent < *best)
        *best = spent;
    return 100 * (spent / *best > spent / (double)cpu ? spent / *best : spent / (double)cpu);
}

static void meter_write(int fd, double percent)
{
    char text[LIMIT_METER_BYTES + 1];

    snprintf(text, sizeof text, "%*u\n", LIMIT_METER_BYTES - 1, limit_clamp(percent));
    if (pwrite(fd, text, LIMIT_METER_BYTES, 0) != LIMIT_METER_BYTES)
        die("%s: %s", meter_path, strerror(errno));
}

static void meter_run(int fd, pid_t runner)
{
    double samples[METER_SAMPLES] = {0};
    unsigned long turns = calibrated_turns();
    double best = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; getppid() == runner; i++) {
        double most = 0;

        samples[i % METER_SAMPLES] = sample_percent(turns, &best);
        for (size_t j = 0; j < METER_SAMPLES; j++)
            if (samples[j] > most)
                most = samples[j];
        meter_write(fd, most);
        nanosleep(&(struct timespec){.tv_sec = METER_PAUSE_NS / 1000000000}, NULL);
    }
    _exit(0);
}

void meter_start(const char *folder)
{
    pid_t runner = getpid();
    char whole[PATH_MAX];
    double best = 0;
    int fd;

    if (realpath(folder, whole) == NULL ||
        (size_t)snprintf(meter_path, sizeof meter_path, "%s/.meter", whole) >= sizeof meter_path)
        die("%s: %s", folder, strerror(errno));
    fd = open(meter_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        die("%s: %s", meter_path, strerror(errno));
    meter_write(fd, sample_percent(calibrated_turns(), &best));
    if (setenv(LIMIT_METER, meter_path, 1) < 0)
        die("setenv: %s", strerror(errno));
    fflush(NULL);
    meter = fork();
    if (meter < 0)
        die("fork: %s", strerror(errno));
    if (meter == 0)
        meter_run(fd, runner);
    close(fd);
}

void meter_stop(void)
{
    kill(meter, SIGKILL);
    waitpid(meter, NULL, 0);
    unlink(meter_path);
}
