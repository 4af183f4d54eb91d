/*
 * Runs simulations: an episode is one seed, in a child process of its own, so that the library
 * begins with fresh variables and a crash is a finding like any other. Prints TAP.
 *
 *   SIM_STEPS=n     at least so many steps in all; default 2000000, of each scenario
 *   SIM_SEED=n      only this seed, which every finding names
 *   SIM_SCENARIO=s  only this scenario
 *   SIM_TRACE=1     every simulated call on standard error; with SIM_SEED
 *   SIM_ALL=1       goes on after a finding, and counts them
 *
 * One half of the seeds is the same in every run, the other half is new each time.
 */
#include "tests/support/basics.h"

#include "sim.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SECONDS = 100, DEFAULT_STEPS = 2000000 };

struct report {
    uint64_t steps;
    uint64_t simulated_ns;
    char finding[2048];
};

static struct report *report; /* shared with the child */
bool sim_tracing;

void sim_trace_line(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%12.6f ", (double)(sim_now() - 1000 * SIM_S) / 1e9);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static void leave_report(void)
{
    report->steps = sim_steps();
    report->simulated_ns = sim_now() - 1000 * SIM_S;
}

void sim_found(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(report->finding, sizeof report->finding, format, arguments);
    va_end(arguments);
    leave_report();
    fflush(NULL);
    _exit(1);
}

static void run_child(const struct sim_scenario *scenario, uint64_t seed)
{
    alarm(MOST_SECONDS);
    sim_seed(seed);
    scenario->body(scenario);
    leave_report();
    fflush(NULL);
    _exit(0);
}

/* False: it has found something. */
static bool run_episode(const struct sim_scenario *scenario, uint64_t seed)
{
    int status;
    pid_t child;

    memset(report, 0, sizeof *report);
    fflush(NULL);
    child = fork();
    if (child == 0)
        run_child(scenario, seed);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        snprintf(report->finding, sizeof report->finding, "cannot run a child: %s",
                 strerror(errno));
        return false;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    if (report->finding[0] == '\0' && WIFSIGNALED(status))
        snprintf(report->finding, sizeof report->finding, "signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": the episode does not end" : "");
    else if (report->finding[0] == '\0')
        snprintf(report->finding, sizeof report->finding, "it exited with %d", status);
    return false;
}

static void say_finding(const struct sim_scenario *scenario, uint64_t seed, const char *program)
{
    printf("# %s, seed %llu, after %llu steps and %.3f s: %s\n", scenario->name,
           (unsigned long long)seed, (unsigned long long)report->steps,
           (double)report->simulated_ns / 1e9, report->finding);
    printf("# again: SIM_SCENARIO=%s SIM_SEED=%llu %s\n", scenario->name, (unsigned long long)seed,
           program);
}

/* The number of findings. */
static unsigned run_scenario(const struct sim_scenario *scenario, uint64_t most_steps,
                             const char *program)
{
    bool all = number_of("SIM_ALL", 0) != 0;
    bool single = getenv("SIM_SEED") != NULL;
    uint64_t chance = (uint64_t)time(NULL) * 1000003 % 1000000007 * 1000;
    uint64_t steps = 0;
    uint64_t episodes = 0;
    unsigned findings = 0;
    double begun = seconds_now();

    do {
        uint64_t seed = single                   ? number_of("SIM_SEED", 0)
                        : steps < most_steps / 2 ? episodes + 1
                                                 : chance + episodes;

        episodes++;
        if (!run_episode(scenario, seed)) {
            findings++;
            say_finding(scenario, seed, program);
        }
        steps += report->steps + 1;
    } while (steps < most_steps && !single && (all || findings == 0));
    printf("# %s: %llu episodes, %llu steps, %.0f thousand steps per second\n", scenario->name,
           (unsigned long long)episodes, (unsigned long long)steps,
           (double)steps / 1e3 / (seconds_now() - begun));
    return findings;
}

int sim_main(const struct sim_scenario *scenarios, size_t count)
{
    const char *only = getenv("SIM_SCENARIO");
    uint64_t most_steps = number_of("SIM_STEPS", DEFAULT_STEPS);
    bool failed = false;

    sim_tracing = number_of("SIM_TRACE", 0) != 0;
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED)
        return 1;
    printf("1..%zu\n", count);
    for (size_t i = 0; i < count; i++) {
        unsigned findings;

        if (only != NULL && strcmp(only, scenarios[i].name) != 0) {
            printf("ok %zu - %s # SKIP SIM_SCENARIO=%s\n", i + 1, scenarios[i].name, only);
            continue;
        }
        findings = run_scenario(&scenarios[i], most_steps, program_invocation_name);
        failed = failed || findings > 0;
        printf("%s %zu - %s: done is delivered, or a named failure in bounded time\n",
               findings > 0 ? "not ok" : "ok", i + 1, scenarios[i].name);
    }
    return failed ? 1 : 0;
}
