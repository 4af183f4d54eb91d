/* The threads, their epoll sets and their inboxes. */
#include "net/io/io.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/io/placement.h"
#include "net/io/processes.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_THREADS = 64, /* bits of io_group.threads */
    EVENTS = 32,       /* fetched at once */
    TICK_MS = 2,
    HOT_NS = 50000,   /* that it stays awake after work: more may follow */
    PAUSE_NS = 20000, /* between polls, and what the kernel adds to so short a sleep */
};

struct io_thread {
    unsigned number;
    bool started;
    bool was_refused;    /* it could not be started, and the log has it */
    struct io_plan plan; /* when it was started */
    int numa_node;       /* that it stays near; -1: anywhere */
    pthread_t thread;
    int epoll;
    int wake_up; /* an eventfd */

    /* Any thread: */
    _Atomic(struct io_task *) inbox
        __attribute__((aligned(64))); /* woken tasks, the latest one first */
    /*
     * Sequentially consistent: the thread sets `asleep` and then looks into its inbox; another puts
     * a task there and then reads `asleep`. One of them sees what the other has done.
     */
    atomic_bool asleep;
    atomic_bool stop;
    atomic_uint keepers; /* tasks for which it stays awake after work; 1 more if CPUs are plenty */

    /* The thread itself, in a line of its own: */
    struct io_task *listed __attribute__((aligned(64))); /* tasks that run again */
    uint64_t hot_until;
    uint64_t next_tick;
};

struct io_crew {
    struct io_thread threads[MOST_THREADS];
    unsigned group_count;
    bool is_counted; /* among the processes that have I/O threads */
    unsigned next_home;
};

/* Guards the crew: which threads run, and how many groups there are. Not on the data path. */
static pthread_mutex_t crew_lock = PTHREAD_MUTEX_INITIALIZER;
static struct io_crew *crew;

/* --- running tasks ------------------------------------------------------------------------- */

static void io_thread_run_task(struct io_thread *thread, struct io_task *task, uint32_t events)
{
    if (atomic_load(&task->is_removed))
        return;
    task->again = task->run(task, events);
    if (task->again == IO_IDLE || task->is_listed)
        return;
    task->is_listed = true;
    task->next_listed = thread->listed;
    thread->listed = task;
}

/*
 * A thread gets one before a group leaves: then it has run or dropped all that it knew of the
 * group's tasks. Events that it had fetched come before its inbox.
 */
struct io_barrier {
    struct io_task task;
    pthread_mutex_t lock;
    pthread_cond_t passed;
    bool has_passed;
};

static enum io_again io_barrier_pass(struct io_task *task, uint32_t events)
{
    (void)task;
    (void)events;
    return IO_IDLE;
}

static void io_thread_drop_removed(struct io_thread *thread)
{
    struct io_task **at = &thread->listed;

    while (*at != NULL)
        if (atomic_load(&(*at)->is_removed))
            *at = (*at)->next_listed;
        else
            at = &(*at)->next_listed;
}

static void io_thread_pass(struct io_thread *thread, struct io_barrier *barrier)
{
    io_thread_drop_removed(thread);
    pthread_mutex_lock(&barrier->lock);
    barrier->has_passed = true;
    pthread_cond_signal(&barrier->passed);
    pthread_mutex_unlock(&barrier->lock);
}

/* In the order in which they were woken. */
static bool io_thread_run_woken(struct io_thread *thread)
{
    struct io_task *latest = atomic_load_explicit(&thread->inbox, memory_order_relaxed) != NULL
                                 ? atomic_exchange(&thread->inbox, NULL)
                                 : NULL;
    struct io_task *first = NULL;
    bool any = latest != NULL;

    while (latest != NULL) {
        struct io_task *earlier = latest->next_woken;

        latest->next_woken = first;
        first = latest;
        latest = earlier;
    }
    while (first != NULL) {
        struct io_task *task = first;

        first = task->next_woken;
        if (task->run == io_barrier_pass) {
            io_thread_pass(thread, (struct io_barrier *)task);
            continue;
        }
        atomic_store(&task->is_woken, false); /* from now on it can be woken again */
        io_thread_run_task(thread, task, 0);
    }
    return any;
}

/* Runs the tasks whose time has come. Returns the earliest that any of them wants. */
static enum io_again io_thread_run_listed(struct io_thread *thread, uint64_t now)
{
    struct io_task *task = thread->listed;
    bool tick = now >= thread->next_tick;
    enum io_again earliest = IO_IDLE;

    if (tick)
        thread->next_tick = now + (uint64_t)TICK_MS * 1000000;
    thread->listed = NULL;
    while (task != NULL) {
        struct io_task *next = task->next_listed;

        task->is_listed = false;
        if (task->again > IO_LATER || (task->again == IO_LATER && tick)) {
            io_thread_run_task(thread, task, 0);
        } else if (task->again == IO_LATER && !atomic_load(&task->is_removed)) {
            task->is_listed = true;
            task->next_listed = thread->listed;
            thread->listed = task;
        }
        task = next;
    }
    for (task = thread->listed; task != NULL; task = task->next_listed)
        earliest = task->again > earliest ? task->again : earliest;
    return earliest;
}

/* --- a thread ------------------------------------------------------------------------------ */

/* How long epoll may wait. Announces the sleep before a last look into the inbox. */
static int io_thread_timeout(struct io_thread *thread, enum io_again again)
{
    if (again == IO_MORE)
        return 0;
    if (atomic_load_explicit(&thread->keepers, memory_order_relaxed) > 0 &&
        clock_now() < thread->hot_until) {
        if (!thread->plan.cpus_are_plenty)
            sched_yield();
        return 0;
    }
    if (again == IO_SOON) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        return 0;
    }
    atomic_store(&thread->asleep, true);
    if (atomic_load(&thread->inbox) != NULL)
        return 0;
    return again == IO_LATER ? TICK_MS : -1;
}

static void io_thread_read_wake_up(const struct io_thread *thread)
{
    uint64_t ignored;

    if (read(thread->wake_up, &ignored, sizeof ignored) < 0)
        log_debug("an I/O thread was woken without a reason");
}

static void *io_thread_run(void *argument)
{
    struct io_thread *thread = argument;
    struct epoll_event events[EVENTS];
    enum io_again again = IO_IDLE;
    char name[16];

    snprintf(name, sizeof name, "tcpx-io-%u", thread->number);
    pthread_setname_np(pthread_self(), name);
    if (io_thread_stay_near("", thread->numa_node, &thread->plan))
        log_debug("I/O thread %u stays near NUMA node %d", thread->number, thread->numa_node);
    while (!atomic_load(&thread->stop)) {
        int count = epoll_wait(thread->epoll, events, EVENTS, io_thread_timeout(thread, again));
        bool worked = false;

        if (atomic_load_explicit(&thread->asleep, memory_order_relaxed))
            atomic_store(&thread->asleep, false);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == NULL) {
                io_thread_read_wake_up(thread);
                continue;
            }
            io_thread_run_task(thread, events[i].data.ptr, events[i].events);
            worked = true;
        }
        worked = io_thread_run_woken(thread) || worked;
        again = thread->listed != NULL ? io_thread_run_listed(thread, clock_now()) : IO_IDLE;
        if (worked || again == IO_MORE)
            thread->hot_until = clock_now() + HOT_NS;
    }
    return NULL;
}

static void io_thread_wake(struct io_thread *thread)
{
    const uint64_t one = 1;

    if (write(thread->wake_up, &one, sizeof one) < 0)
        log_debug("an I/O thread is being woken already");
}

static int io_thread_open(struct io_thread *thread)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    fork_hold();
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!fork_release(thread->epoll) || thread->epoll < 0)
        return error_system(errno, "an I/O thread");
    fork_hold();
    thread->wake_up = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fork_release(thread->wake_up) && thread->wake_up >= 0) {
        if (epoll_ctl(thread->epoll, EPOLL_CTL_ADD, thread->wake_up, &event) == 0)
            return TCPX_SUCCESS;
        fork_close(thread->wake_up);
    }
    fork_close(thread->epoll);
    return error_system(errno, "an I/O thread");
}

/* A program's signals are handled by its own threads. */
static int io_thread_start(struct io_thread *thread)
{
    sigset_t all;
    sigset_t before;
    int error;
    int result = io_thread_open(thread);

    if (result != TCPX_SUCCESS)
        return result;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread->thread, NULL, io_thread_run, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        thread->started = true;
        return TCPX_SUCCESS;
    }
    fork_close(thread->wake_up);
    fork_close(thread->epoll);
    return error_system(error, "cannot start an I/O thread");
}

/* --- the crew ------------------------------------------------------------------------------ */

static void io_crew_end(struct io_crew *ours)
{
    for (unsigned i = 0; i < MOST_THREADS; i++)
        if (ours->threads[i].started) {
            atomic_store(&ours->threads[i].stop, true);
            io_thread_wake(&ours->threads[i]);
        }
    for (unsigned i = 0; i < MOST_THREADS; i++)
        if (ours->threads[i].started) {
            pthread_join(ours->threads[i].thread, NULL);
            fork_close(ours->threads[i].wake_up);
            fork_close(ours->threads[i].epoll);
        }
    if (ours->is_counted)
        processes_leave();
    free(ours);
}

static struct io_crew *io_crew_create(void)
{
    struct io_crew *ours = aligned_alloc(_Alignof(struct io_crew), sizeof *ours);

    if (ours != NULL)
        memset(ours, 0, sizeof *ours);
    return ours;
}

/* With the lock. The plan may have changed since the last group joined. */
static int io_crew_join(struct io_group *group, unsigned places)
{
    if (crew == NULL)
        crew = io_crew_create();
    if (crew == NULL)
        return error_system(ENOMEM, "I/O threads");
    group->crew = crew;
    group->home = crew->next_home % group->plan.threads;
    crew->next_home = (group->home + places) % group->plan.threads;
    crew->group_count++;
    return TCPX_SUCCESS;
}

int io_join(struct io_group *group, unsigned places, int numa_node)
{
    int result;

    *group = (struct io_group){.numa_node = numa_node};
    result = io_plan(&group->plan);
    if (result != TCPX_SUCCESS || group->plan.threads == 0)
        return result;
    if (group->plan.threads > MOST_THREADS)
        group->plan.threads = MOST_THREADS;
    pthread_mutex_lock(&crew_lock);
    result = io_crew_join(group, places);
    pthread_mutex_unlock(&crew_lock);
    return result;
}

static int io_crew_start(struct io_crew *ours, const struct io_group *group,
                         struct io_thread *thread)
{
    int result;

    thread->number = (unsigned)(thread - ours->threads);
    thread->plan = group->plan;
    thread->keepers = group->plan.cpus_are_plenty;
    thread->numa_node = group->numa_node;
    result = io_thread_start(thread);
    if (result == TCPX_SUCCESS && !ours->is_counted) {
        ours->is_counted = true;
        processes_join();
    }
    return result;
}

/* With the lock. A running thread takes the task of one that cannot be started now. */
static int io_crew_thread(const struct io_group *group, unsigned place, struct io_thread **out)
{
    struct io_crew *ours = group->crew;
    struct io_thread *wanted = &ours->threads[(group->home + place) % group->plan.threads];
    struct io_thread *thread = wanted;
    int result = thread->started ? TCPX_SUCCESS : io_crew_start(ours, group, thread);

    for (unsigned i = 0; i < MOST_THREADS && !thread->started; i++)
        if (ours->threads[i].started)
            thread = &ours->threads[i];
    if (!thread->started)
        return result;
    if (result != TCPX_SUCCESS && !wanted->was_refused)
        log_warn("%s: I/O thread %u does its work", error_text(), thread->number);
    wanted->was_refused = result != TCPX_SUCCESS;
    *out = thread;
    return TCPX_SUCCESS;
}

static void io_thread_give(struct io_thread *thread, struct io_task *task)
{
    struct io_task *before = atomic_load_explicit(&thread->inbox, memory_order_relaxed);

    do
        task->next_woken = before;
    while (!atomic_compare_exchange_weak(&thread->inbox, &before, task));
    if (atomic_load(&thread->asleep) && atomic_exchange(&thread->asleep, false))
        io_thread_wake(thread);
}

static void io_thread_await(struct io_thread *thread)
{
    struct io_barrier barrier = {.task = {.run = io_barrier_pass},
                                 .lock = PTHREAD_MUTEX_INITIALIZER,
                                 .passed = PTHREAD_COND_INITIALIZER};

    io_thread_give(thread, &barrier.task);
    pthread_mutex_lock(&barrier.lock);
    while (!barrier.has_passed)
        pthread_cond_wait(&barrier.passed, &barrier.lock);
    pthread_mutex_unlock(&barrier.lock);
    pthread_mutex_destroy(&barrier.lock);
    pthread_cond_destroy(&barrier.passed);
}

void io_leave(struct io_group *group)
{
    struct io_crew *over = NULL;

    if (group->crew == NULL)
        return;
    for (unsigned i = 0; i < MOST_THREADS; i++)
        if ((group->threads >> i & 1) != 0)
            io_thread_await(&group->crew->threads[i]);
    pthread_mutex_lock(&crew_lock);
    if (--crew->group_count == 0) {
        over = crew;
        crew = NULL;
    }
    pthread_mutex_unlock(&crew_lock);
    group->crew = NULL;
    if (over != NULL)
        io_crew_end(over);
}

/* --- tasks --------------------------------------------------------------------------------- */

int io_add(struct io_group *group, struct io_task *task, io_run *run, int fd, unsigned place,
           uint32_t events)
{
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = task};
    struct io_thread *thread = NULL;
    int result;

    *task = (struct io_task){.run = run, .fd = fd, .events = events};
    pthread_mutex_lock(&crew_lock);
    result = io_crew_thread(group, place, &thread);
    pthread_mutex_unlock(&crew_lock);
    if (result != TCPX_SUCCESS)
        return result;
    task->thread = thread;
    group->threads |= (uint64_t)1 << thread->number;
    if (epoll_ctl(thread->epoll, EPOLL_CTL_ADD, fd, &event) == 0)
        return TCPX_SUCCESS;
    task->thread = NULL;
    return error_system(errno, "an I/O thread cannot wait for a socket");
}

void io_change(struct io_task *task, uint32_t events)
{
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = task};

    if (task->thread == NULL || task->is_removed || task->events == events)
        return;
    task->events = events;
    if (epoll_ctl(task->thread->epoll, EPOLL_CTL_MOD, task->fd, &event) != 0)
        log_warn("an I/O thread cannot wait for a socket any more: error %d", errno);
}

void io_keep_awake(struct io_task *task)
{
    if (task->thread == NULL || task->is_removed || task->keeps_awake)
        return;
    task->keeps_awake = true;
    atomic_fetch_add(&task->thread->keepers, 1);
}

void io_wake(struct io_task *task)
{
    if (task->thread == NULL || task->is_removed || atomic_exchange(&task->is_woken, true))
        return;
    io_thread_give(task->thread, task);
}

bool io_is_awake(const struct io_task *task)
{
    return task->thread != NULL && !atomic_load(&task->thread->asleep);
}

void io_remove(struct io_task *task)
{
    if (task->thread == NULL || task->is_removed)
        return;
    atomic_store(&task->is_removed, true);
    if (task->keeps_awake)
        atomic_fetch_sub(&task->thread->keepers, 1);
    if (epoll_ctl(task->thread->epoll, EPOLL_CTL_DEL, task->fd, NULL) != 0)
        log_debug("a socket was not waited for");
}
