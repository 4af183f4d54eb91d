/*
 * A simulated machine for two processes of the library, in one real thread. Threads are coroutines
 * that a seeded scheduler switches at simulated calls; time, sockets and the network are simulated,
 * too. So a run is a function of its seed: the same seed gives the same trace.
 *
 * threads.c has coroutines, locks and the scheduler, network.c has connections and how bytes move
 * between them, sockets.c has descriptors, epoll and poll, process.c what else a process asks its
 * system for, episode.c runs one simulation per seed, each in a child process.
 */
#ifndef TCPX_TESTS_SIM_H
#define TCPX_TESTS_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

enum { SIM_PROCESSES = 2 };

#define SIM_NEVER UINT64_MAX
#define SIM_MS    UINT64_C(1000000)
#define SIM_S     UINT64_C(1000000000)

/* --- chance ---------------------------------------------------------------------------------- */

void sim_seed(uint64_t seed);
uint64_t sim_random(void);
/* 0 to below - 1. */
uint64_t sim_below(uint64_t below);
/* From and to included. */
uint64_t sim_between(uint64_t from, uint64_t to);
bool sim_one_in(uint64_t times);

/* --- what differs between runs ---------------------------------------------------------------- */

struct sim_world {
    uint64_t step_ns;          /* that a simulated call takes, at most */
    uint64_t switch_one_in;    /* a simulated call lets another thread go on */
    uint64_t short_one_in;     /* a read or write takes less than it could */
    uint64_t again_one_in;     /* a read or write says EAGAIN although it could go on */
    uint64_t interrupt_one_in; /* EINTR */
    uint64_t latency_ns;       /* at most, of a segment */
    uint64_t segment_bytes;    /* at most, that arrive at once */
    uint64_t send_buffer;      /* of a connection; both have some variation */
    uint64_t receive_buffer;
    unsigned cpus;
};
extern struct sim_world sim_world;

/* --- time and threads ------------------------------------------------------------------------- */

uint64_t sim_now(void);
uint64_t sim_steps(void);

/* One step: time passes, the network moves on, another thread may run. */
void sim_step(void);

/* A thread of a process. */
void sim_spawn(int process, const char *name, void (*body)(void *), void *argument);
int sim_process(void);
void sim_sleep(uint64_t ns);

/* Runs all threads until every thread that is not of a daemon kind has ended. */
void sim_run(void);

/* Threads of the process do not run until then. The kernel goes on. */
void sim_stop(int process, uint64_t until);
/* The process is gone: its descriptors are closed by the kernel. */
void sim_kill(int process);
bool sim_is_alive(int process);

/* For waits in sockets.c: bit i stands for thread i. */
uint64_t sim_self_mask(void);
void sim_wake(uint64_t mask);
/* Waits until woken or until the moment; false: the moment has come. */
bool sim_block(uint64_t until);

/* --- the network ------------------------------------------------------------------------------ */

/* From now on no packet passes between the two processes, until sim_mend(). */
void sim_cut(void);
void sim_mend(void);
/* Resets one established connection of those that are there, as a middlebox may. */
bool sim_reset_one(void);

/*
 * A peer that does not keep to the protocol: called once for a stream that has had 64 bytes, before
 * the next ones. Bytes that it writes, and returns the number of, go first. NULL: nobody lies.
 */
extern size_t (*sim_liar)(int process, const uint8_t first[64], uint8_t more[32]);

uint64_t network_next(void);
void network_run(uint64_t now);
/* Of a process that died. */
void sockets_close_all(int process);

/* --- a process -------------------------------------------------------------------------------- */

/* What getenv() of the library says. */
void sim_setenv(int process, const char *name, const char *value);

/* --- findings --------------------------------------------------------------------------------- */

/* Prints a line of the trace if SIM_TRACE is set. */
extern bool sim_tracing;
#define sim_trace(...)                                                                             \
    do {                                                                                           \
        if (sim_tracing)                                                                           \
            sim_trace_line(__VA_ARGS__);                                                           \
    } while (0)
void sim_trace_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The invariant is broken: ends the episode. */
noreturn void sim_found(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- episodes --------------------------------------------------------------------------------- */

/* One kind of run; the body builds a world by chance and calls sim_run(). */
struct sim_scenario {
    const char *name;
    void (*body)(const struct sim_scenario *scenario);
    void (*fault)(void *); /* body of a thread; NULL: programs may be slow, late, or close early */
};

/* main() of a simulation: TAP, one line per scenario. See episode.c for the environment. */
int sim_main(const struct sim_scenario *scenarios, size_t count);

#endif
