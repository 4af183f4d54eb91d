/*
 * Threads of the simulation: coroutines on their own stacks. A thread runs until it waits, or until
 * a step lets another one go on. At most 64 exist at once, so that a set of them is a word.
 * Mutexes, conditions and the like keep their state in the memory of the real object, whose initial
 * value is all zeros.
 */
#include "tests/support/basics.h"

#include "libc.h"
#include "redirected.h"
#include "sim.h"

#include <errno.h>
#include <sys/mman.h>
#include <ucontext.h>

/* ASan has to know when another stack is used. Nothing else does. */
#if SANITIZED
#include <sanitizer/common_interface_defs.h>
#define leave_fiber __sanitizer_start_switch_fiber
#define enter_fiber __sanitizer_finish_switch_fiber
#else
static inline void leave_fiber(void **fake_stack, const void *next, size_t next_bytes)
{
}

static inline void enter_fiber(void *fake_stack, const void **last, size_t *last_bytes)
{
}
#endif

enum { MOST_STEPS = 30000000 }; /* of an episode: far more than any needs */
enum { MOST_THREADS = 64, STACK_BYTES = 256 << 10, ERROR_BYTES = 1024 };

struct thread {
    ucontext_t context;
    uint8_t *stack;
    int process;
    bool used;
    bool ended;
    bool detached;
    bool daemon; /* made by the library: the run does not wait for it */
    uint64_t until;
    uint64_t joiners;
    void (*body)(void *);
    void *(*start)(void *);
    void *argument;
    int error_number;
    char error_text[ERROR_BYTES];
    char name[16];
    void *fake_stack;
};

static struct thread threads[MOST_THREADS];
static unsigned thread_count;
static struct thread *current;
static ucontext_t scheduler;
static uint64_t runnable;
static uint64_t of_process[SIM_PROCESSES];
static uint64_t halted; /* threads of processes that are stopped or dead */
static bool dead[SIM_PROCESSES];
static uint64_t stopped_until[SIM_PROCESSES];
static uint64_t next_timer = SIM_NEVER; /* no thread waits for an earlier moment */
static uint64_t next_event;             /* of the network, as far as it is known */
static unsigned programs;               /* threads that the run waits for */
static uint64_t now = 1000 * SIM_S;
static uint64_t steps;

struct sim_world sim_world;

/* --- chance ---------------------------------------------------------------------------------- */

static uint64_t random_state;

void sim_seed(uint64_t seed)
{
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

/* splitmix64 */
uint64_t sim_random(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t sim_below(uint64_t below)
{
    return below <= 1 ? 0 : (uint64_t)(((unsigned __int128)sim_random() * below) >> 64);
}

uint64_t sim_between(uint64_t from, uint64_t to)
{
    return from + sim_below(to - from + 1);
}

bool sim_one_in(uint64_t times)
{
    return times != 0 && sim_below(times) == 0;
}

/* --- switching ------------------------------------------------------------------------------- */

/* The two copies of the library have one error text each, by thread: see redirected.h. */
static char *error_text_of(int process)
{
    return (char *)(uintptr_t)(process == 0 ? a_error_text() : b_error_text());
}

static void scheduler_to(struct thread *thread)
{
    void *fake_stack = NULL;

    current = thread;
    errno = thread->error_number;
    memcpy(error_text_of(thread->process), thread->error_text, ERROR_BYTES);
    leave_fiber(&fake_stack, thread->stack, STACK_BYTES);
    swapcontext(&scheduler, &thread->context);
    enter_fiber(fake_stack, NULL, NULL);
    thread->error_number = errno;
    memcpy(thread->error_text, error_text_of(thread->process), ERROR_BYTES);
    current = NULL;
}

static const void *main_stack;
static size_t main_stack_bytes;

static void to_scheduler(void)
{
    struct thread *self = current;

    leave_fiber(self->ended ? NULL : &self->fake_stack, main_stack, main_stack_bytes);
    swapcontext(&self->context, &scheduler);
    enter_fiber(self->fake_stack, NULL, NULL);
}

static uint64_t mask_of(const struct thread *thread)
{
    return UINT64_C(1) << (thread - threads);
}

/* Its place may be used by another one. */
static void forget(struct thread *thread)
{
    of_process[thread->process] &= ~mask_of(thread);
    halted &= ~mask_of(thread);
    thread->used = false;
}

static noreturn void begin(void)
{
    struct thread *self = current;

    enter_fiber(NULL, &main_stack, &main_stack_bytes);
    if (self->start != NULL)
        self->start(self->argument);
    else
        self->body(self->argument);
    self->ended = true;
    runnable &= ~mask_of(self);
    if (!self->daemon)
        programs--;
    sim_wake(self->joiners);
    if (self->detached)
        forget(self);
    to_scheduler();
    abort();
}

static struct thread *spawn(int process, const char *name, bool daemon)
{
    struct thread *thread = NULL;

    for (unsigned i = 0; i < MOST_THREADS && thread == NULL; i++)
        if (!threads[i].used)
            thread = &threads[i];
    if (thread == NULL)
        sim_found("the simulation has more than %d threads", MOST_THREADS);
    if (thread >= threads + thread_count)
        thread_count = (unsigned)(thread - threads) + 1;
    if (thread->stack == NULL)
        thread->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (thread->stack == MAP_FAILED)
        sim_found("no memory for a stack");
    mprotect(thread->stack, 4096, PROT_NONE);
    *thread = (struct thread){.stack = thread->stack,
                              .process = process,
                              .used = true,
                              .daemon = daemon,
                              .until = SIM_NEVER};
    snprintf(thread->name, sizeof thread->name, "%s", name);
    getcontext(&thread->context);
    thread->context.uc_stack = (stack_t){.ss_sp = thread->stack, .ss_size = STACK_BYTES};
    makecontext(&thread->context, begin, 0);
    /* ASan would forget about the whole stack at every switch; it knows the fibers. */
    thread->context.uc_stack.ss_size = 0;
    of_process[process] |= mask_of(thread);
    runnable |= mask_of(thread);
    if (dead[process] || stopped_until[process] != 0)
        halted |= mask_of(thread);
    return thread;
}

void sim_spawn(int process, const char *name, void (*body)(void *), void *argument)
{
    struct thread *thread = spawn(process, name, false);

    thread->body = body;
    thread->argument = argument;
    programs++;
}

int sim_process(void)
{
    return current->process;
}

/* --- time and the scheduler ------------------------------------------------------------------- */

uint64_t sim_now(void)
{
    return now;
}

uint64_t sim_steps(void)
{
    return steps;
}

uint64_t sim_self_mask(void)
{
    return mask_of(current);
}

void sim_wake(uint64_t mask)
{
    runnable |= mask;
}

/* Wakes the threads whose moment has come, and processes that were stopped. */
static void run_timers(void)
{
    next_timer = SIM_NEVER;
    for (int i = 0; i < SIM_PROCESSES; i++) {
        if (stopped_until[i] != 0 && stopped_until[i] <= now) {
            stopped_until[i] = 0;
            halted &= ~of_process[i];
        }
        if (stopped_until[i] != 0 && stopped_until[i] < next_timer)
            next_timer = stopped_until[i];
    }
    for (unsigned i = 0; i < thread_count; i++) {
        if (!threads[i].used || threads[i].until == SIM_NEVER || dead[threads[i].process])
            continue;
        if (threads[i].until <= now)
            runnable |= UINT64_C(1) << i;
        else if (threads[i].until < next_timer)
            next_timer = threads[i].until;
    }
}

static void pass(uint64_t to)
{
    now = to;
    if (now >= next_event) {
        network_run(now);
        next_event = network_next();
    }
    if (now >= next_timer)
        run_timers();
}

void sim_step(void)
{
    if (current == NULL)
        return;
    if (++steps > MOST_STEPS)
        sim_found("the episode does not end");
    next_event = network_next();
    pass(now + 50 + sim_below(sim_world.step_ns));
    if (sim_one_in(sim_world.switch_one_in) || (halted & mask_of(current)) != 0)
        to_scheduler();
}

static uint64_t timer_of(uint64_t until)
{
    if (until < next_timer)
        next_timer = until;
    return until;
}

bool sim_block(uint64_t until)
{
    struct thread *self = current;

    if (until <= now)
        return false;
    self->until = timer_of(until);
    runnable &= ~mask_of(self);
    to_scheduler();
    self->until = SIM_NEVER;
    return now < until;
}

void sim_sleep(uint64_t ns)
{
    uint64_t until = now + ns;

    sim_step();
    while (sim_block(until))
        ;
}

static void describe_threads(char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < thread_count && used < size; i++)
        if (threads[i].used && !threads[i].ended)
            used += (size_t)snprintf(text + used, size - used, " %d/%s%s", threads[i].process,
                                     threads[i].name, dead[threads[i].process] ? " (dead)" : "");
}

/* The number of one of these threads, by chance. */
static int one_of(uint64_t among)
{
    uint64_t which = sim_below((uint64_t)__builtin_popcountll(among));

    while (which-- > 0)
        among &= among - 1;
    return __builtin_ctzll(among);
}

static struct thread *choose(void)
{
    uint64_t among = runnable & ~halted;

    while (among == 0) {
        uint64_t event = network_next();
        uint64_t next = event < next_timer ? event : next_timer;

        next_event = event;
        if (next == SIM_NEVER) {
            char who[1024];

            describe_threads(who, sizeof who);
            sim_found("every thread waits for ever:%s", who);
        }
        pass(next > now ? next : now);
        among = runnable & ~halted;
    }
    return &threads[one_of(among)];
}

void sim_run(void)
{
    while (programs > 0)
        scheduler_to(choose());
}

void sim_stop(int process, uint64_t until)
{
    if (dead[process])
        return;
    sim_trace("process %d is stopped until %llu", process, (unsigned long long)until);
    stopped_until[process] = timer_of(until);
    halted |= of_process[process];
}

void sim_kill(int process)
{
    if (dead[process])
        return;
    sim_trace("process %d dies", process);
    dead[process] = true;
    halted |= of_process[process];
    for (unsigned i = 0; i < thread_count; i++)
        if (threads[i].used && !threads[i].ended && !threads[i].daemon &&
            threads[i].process == process)
            programs--;
    sockets_close_all(process);
}

bool sim_is_alive(int process)
{
    return !dead[process];
}

/* --- the library's calls: threads ------------------------------------------------------------- */

int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                       void *argument)
{
    struct thread *made;
    char name[16];
    int state = PTHREAD_CREATE_JOINABLE;

    sim_step();
    if (attributes != NULL)
        pthread_attr_getdetachstate(attributes, &state);
    snprintf(name, sizeof name, "lib-%u", thread_count);
    made = spawn(sim_process(), name, true);
    made->start = start;
    made->argument = argument;
    made->detached = state == PTHREAD_CREATE_DETACHED;
    *thread = (pthread_t)(made - threads) + 1;
    return 0;
}

int sim_pthread_join(pthread_t thread, void **value)
{
    struct thread *other = &threads[(size_t)thread - 1];

    sim_step();
    if (value != NULL)
        *value = NULL;
    while (!other->ended) {
        other->joiners |= sim_self_mask();
        sim_block(SIM_NEVER);
    }
    forget(other);
    return 0;
}

pthread_t sim_pthread_self(void)
{
    return current == NULL ? 0 : (pthread_t)(current - threads) + 1;
}

int sim_pthread_setname_np(pthread_t thread, const char *name)
{
    snprintf(threads[(size_t)thread - 1].name, sizeof threads[0].name, "%s", name);
    return 0;
}

int sim_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    return 0;
}

int sim_sched_yield(void)
{
    sim_step();
    to_scheduler();
    return 0;
}

int sim_pthread_once(pthread_once_t *once, void (*routine)(void))
{
    enum { NOT_YET = 0, RUNNING = 1, DONE = 2 };
    int *state = (int *)once;

    while (*state == RUNNING)
        sim_sched_yield();
    if (*state == DONE)
        return 0;
    *state = RUNNING;
    routine();
    *state = DONE;
    return 0;
}

/* --- the library's calls: locks --------------------------------------------------------------- */

/* A mutex, which is always locked as a writer would, or a lock of readers and a writer. */
struct lock {
    uint64_t waiters;
    uint32_t writer; /* a thread's number + 1; 0: none */
    uint32_t readers;
};
_Static_assert(sizeof(struct lock) <= sizeof(pthread_mutex_t), "it fits");
_Static_assert(sizeof(struct lock) <= sizeof(pthread_rwlock_t), "it fits");

struct condition {
    uint64_t waiters;
};
_Static_assert(sizeof(struct condition) <= sizeof(pthread_cond_t), "it fits");

static uint32_t self_number(void)
{
    return current == NULL ? MOST_THREADS + 1 : (uint32_t)(current - threads) + 1;
}

static void wake_all(uint64_t *waiters)
{
    sim_wake(*waiters);
    *waiters = 0;
}

static int take(void *of, bool to_write)
{
    struct lock *lock = of;

    sim_step();
    if (lock->writer == self_number())
        sim_found("a thread takes a lock that it has");
    while (lock->writer != 0 || (to_write && lock->readers > 0)) {
        lock->waiters |= sim_self_mask();
        sim_block(SIM_NEVER);
    }
    if (to_write)
        lock->writer = self_number();
    else
        lock->readers++;
    return 0;
}

static int give(void *of)
{
    struct lock *lock = of;

    if (lock->writer == self_number())
        lock->writer = 0;
    else if (lock->writer == 0 && lock->readers > 0)
        lock->readers--;
    else
        sim_found("a thread unlocks what it has not locked");
    wake_all(&lock->waiters);
    return 0;
}

int sim_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

int sim_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    if (((struct lock *)mutex)->writer != 0)
        sim_found("a mutex is destroyed while it is locked");
    return 0;
}

int sim_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    struct lock *lock = (struct lock *)mutex;

    sim_step();
    if (lock->writer != 0)
        return EBUSY;
    lock->writer = self_number();
    return 0;
}

int sim_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    return take(mutex, true);
}

int sim_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    return give(mutex);
}

int sim_pthread_rwlock_rdlock(pthread_rwlock_t *lock)
{
    return take(lock, false);
}

int sim_pthread_rwlock_wrlock(pthread_rwlock_t *lock)
{
    return take(lock, true);
}

int sim_pthread_rwlock_unlock(pthread_rwlock_t *lock)
{
    return give(lock);
}

int sim_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes)
{
    memset(condition, 0, sizeof *condition);
    return 0;
}

int sim_pthread_cond_destroy(pthread_cond_t *condition)
{
    return 0;
}

int sim_pthread_cond_broadcast(pthread_cond_t *condition)
{
    sim_step();
    wake_all(&((struct condition *)condition)->waiters);
    return 0;
}

/* Wakes one of those that wait, by chance. */
int sim_pthread_cond_signal(pthread_cond_t *real)
{
    struct condition *condition = (struct condition *)real;
    uint64_t among = condition->waiters;

    sim_step();
    if (among == 0)
        return 0;
    among = UINT64_C(1) << one_of(among);
    condition->waiters &= ~among;
    sim_wake(among);
    return 0;
}

static int wait_until(pthread_cond_t *real, pthread_mutex_t *mutex, uint64_t until)
{
    struct condition *condition = (struct condition *)real;
    uint64_t self = sim_self_mask();
    bool in_time = true;

    condition->waiters |= self;
    sim_pthread_mutex_unlock(mutex);
    while (in_time && (condition->waiters & self) != 0)
        in_time = sim_block(until);
    if ((condition->waiters & self) == 0)
        in_time = true;
    condition->waiters &= ~self;
    sim_pthread_mutex_lock(mutex);
    return in_time ? 0 : ETIMEDOUT;
}

int sim_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    return wait_until(condition, mutex, SIM_NEVER);
}

int sim_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                               const struct timespec *until)
{
    return wait_until(condition, mutex, (uint64_t)until->tv_sec * SIM_S + (uint64_t)until->tv_nsec);
}

/* --- the library's calls: time ---------------------------------------------------------------- */

int sim_clock_gettime(clockid_t clock, struct timespec *time)
{
    sim_step();
    *time = (struct timespec){.tv_sec = (time_t)(now / SIM_S), .tv_nsec = (long)(now % SIM_S)};
    return 0;
}

int sim_nanosleep(const struct timespec *time, struct timespec *left)
{
    sim_sleep((uint64_t)time->tv_sec * SIM_S + (uint64_t)time->tv_nsec);
    return 0;
}
