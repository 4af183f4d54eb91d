/*
 * I/O threads around epoll. An event names its member by slot and generation, never by a pointer,
 * so that an event that was fetched before its member left is ignored.
 */
#include "net/io/io.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/topology.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_THREADS = 64,
    MOST_AUTOMATIC = 8,
    FEW_CPUS = 4,
    EVENTS = 16, /* fetched at once */
    TICK_MS = 2,
    AWAKE_NS = 30000, /* after an event, where there are CPUs for it: another one may follow */
    HURRY_NS = 20000, /* and what the kernel adds to so short a sleep */
    LAST_TICKS = 50,  /* without work, until the thread sleeps */
};

/* The event of a thread's own descriptor; no slot has this number. */
#define WAKE_UP UINT64_MAX

struct io_thread {
    struct io_crew *crew;
    unsigned number;
    bool started;
    struct io_thread *stand_in; /* does its work, because it could not be started; NULL: none */
    pthread_t thread;
    int epoll;
    int wake_up; /* an eventfd */
    /*
     * Written without a lock. Sequentially consistent: a thread sets `asleep` and then looks for
     * work; a caller makes work and then reads `asleep`. One must see the other's write. For the
     * other two any order would do: a wake-up follows the write.
     */
    atomic_bool asleep; /* does not tick */
    atomic_bool hurry;  /* ticks as often as it can without using much CPU */
    atomic_bool stop;
};

struct slot {
    struct io_member *member; /* NULL: free */
    uint64_t generation;
};

struct io_crew {
    struct io_plan plan;
    struct io_thread threads[MOST_THREADS];
    struct slot *slots;
    unsigned slot_count;
    unsigned member_count;
    unsigned next_home;
};

/* Guards the crew, its slots and members; not the threads' own fields. */
static pthread_mutex_t crew_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t member_left = PTHREAD_COND_INITIALIZER; /* `inside` of a member is 0 */
static struct io_crew *crew;

/* --- events -------------------------------------------------------------------------------- */

/* slot: 20 bits, number: 8, generation: 36. */
static uint64_t io_event_of(const struct io_member *member, unsigned number)
{
    return (uint64_t)member->slot << 44 | (uint64_t)number << 36 | member->generation;
}

static struct io_member *member_enter(struct io_crew *ours, uint64_t event)
{
    struct io_member *member = NULL;
    uint64_t slot = event >> 44;

    pthread_mutex_lock(&crew_lock);
    if (slot < ours->slot_count &&
        ours->slots[slot].generation == (event & (((uint64_t)1 << 36) - 1))) {
        member = ours->slots[slot].member;
        if (member != NULL)
            member->inside++;
    }
    pthread_mutex_unlock(&crew_lock);
    return member;
}

static void member_leave(struct io_member *member)
{
    pthread_mutex_lock(&crew_lock);
    if (--member->inside == 0)
        pthread_cond_broadcast(&member_left);
    pthread_mutex_unlock(&crew_lock);
}

/* The thread that does this one's work. With the lock, or if it has a descriptor of the caller. */
static struct io_thread *io_thread_serving(struct io_thread *thread)
{
    return thread->stand_in != NULL ? thread->stand_in : thread;
}

/* --- a thread ------------------------------------------------------------------------------ */

/* The next member of this thread, from *slot on; *slot becomes the one behind it. NULL: none. */
static struct io_member *member_enter_next(struct io_thread *thread, unsigned *slot)
{
    struct io_crew *ours = thread->crew;
    struct io_member *found = NULL;

    pthread_mutex_lock(&crew_lock);
    for (; *slot < ours->slot_count && found == NULL; ++*slot) {
        struct io_member *member = ours->slots[*slot].member;

        if (member != NULL && io_thread_serving(&ours->threads[member->home]) == thread)
            found = member;
    }
    if (found != NULL)
        found->inside++;
    pthread_mutex_unlock(&crew_lock);
    return found;
}

/* Returns the earliest next tick that a member of this thread asks for. */
static enum io_again io_thread_tick_members(struct io_thread *thread)
{
    struct io_member *member;
    unsigned slot = 0;
    enum io_again again = IO_NEVER;

    while ((member = member_enter_next(thread, &slot)) != NULL) {
        enum io_again wanted = member->calls->tick(member->owner);

        again = wanted > again ? wanted : again;
        member_leave(member);
    }
    return again;
}

/*
 * A thread without work for a while first sets `asleep` and then ticks all members once more. That
 * tick sees work that was started before; a caller that starts work later sees the flag and wakes
 * the thread. Each member's own lock orders the two.
 */
static void io_thread_tick(struct io_thread *thread, unsigned *quiet)
{
    enum io_again again;

    atomic_store(&thread->hurry, false);
    again = io_thread_tick_members(thread);
    if (again == IO_NEVER && ++*quiet >= LAST_TICKS) {
        atomic_store(&thread->asleep, true);
        again = io_thread_tick_members(thread);
    }
    /* Also if a caller woke it for a tick in between: that member may have been ticked before. */
    if (again != IO_NEVER) {
        atomic_store(&thread->asleep, false);
        *quiet = 0;
    }
    if (again == IO_SOON)
        atomic_store(&thread->hurry, true);
}

static void io_thread_handle(struct io_thread *thread, const struct epoll_event *event)
{
    struct io_member *member;
    uint64_t ignored;

    if (event->data.u64 == WAKE_UP) {
        if (read(thread->wake_up, &ignored, sizeof ignored) < 0)
            log_debug("an I/O thread was woken without a reason");
        return;
    }
    member = member_enter(thread->crew, event->data.u64);
    if (member == NULL)
        return;
    member->calls->ready(member->owner, (unsigned)(event->data.u64 >> 36) & 0xff, event->events);
    member_leave(member);
}

static void *io_thread_run(void *argument)
{
    struct io_thread *thread = argument;
    struct epoll_event events[EVENTS];
    bool may_stay_awake = thread->crew->plan.cpus_are_plenty;
    uint64_t awake_until = 0;
    uint64_t next_tick = 0;
    unsigned quiet = 0;
    char name[16];

    snprintf(name, sizeof name, "tcpx-io-%u", thread->number);
    pthread_setname_np(pthread_self(), name);
    while (!atomic_load(&thread->stop)) {
        bool asleep = atomic_load(&thread->asleep);
        bool hurry = atomic_load(&thread->hurry);
        bool awake = may_stay_awake && !deadline_passed(awake_until);
        int count = epoll_wait(thread->epoll, events, EVENTS,
                               hurry || awake ? 0
                               : asleep       ? -1
                                              : TICK_MS);

        for (int i = 0; i < count; i++)
            io_thread_handle(thread, &events[i]);
        if (count > 0)
            awake_until = clock_now() + AWAKE_NS;
        if (hurry && count == 0)
            nanosleep(&(struct timespec){.tv_nsec = HURRY_NS}, NULL);
        if (hurry || (!atomic_load(&thread->asleep) && deadline_passed(next_tick))) {
            io_thread_tick(thread, &quiet);
            next_tick = deadline_after_ms(TICK_MS);
        } else if (asleep) {
            quiet = 0;
        }
    }
    return NULL;
}

/* --- the crew ------------------------------------------------------------------------------ */

static void io_thread_wake(struct io_thread *thread)
{
    const uint64_t one = 1;

    if (write(thread->wake_up, &one, sizeof one) < 0)
        log_debug("an I/O thread is being woken already");
}

static int io_thread_open(struct io_thread *thread)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = WAKE_UP};

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
    atomic_store(&thread->asleep, true);
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

static void io_crew_end(struct io_crew *ours)
{
    for (unsigned i = 0; i < ours->plan.threads; i++)
        if (ours->threads[i].started) {
            atomic_store(&ours->threads[i].stop, true);
            io_thread_wake(&ours->threads[i]);
        }
    for (unsigned i = 0; i < ours->plan.threads; i++)
        if (ours->threads[i].started) {
            pthread_join(ours->threads[i].thread, NULL);
            fork_close(ours->threads[i].wake_up);
            fork_close(ours->threads[i].epoll);
        }
    free(ours->slots);
    free(ours);
}

int io_plan(struct io_plan *plan)
{
    const struct config *config;
    struct topology topology;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    result = topology_read("", &topology);
    if (result != TCPX_SUCCESS)
        return result;
    *plan = (struct io_plan){.threads = (unsigned)config->threads,
                             .cpus_are_plenty = topology.usable_cpus >= FEW_CPUS};
    if (config->threads != CONFIG_AUTO)
        return TCPX_SUCCESS;
    plan->cpus_are_scarce = !plan->cpus_are_plenty;
    plan->threads = topology.usable_cpus < 4 ? 1 : (unsigned)topology.usable_cpus / 4;
    if (plan->threads > MOST_AUTOMATIC)
        plan->threads = MOST_AUTOMATIC;
    return TCPX_SUCCESS;
}

bool io_cpus_are_scarce(const struct io_member *member)
{
    return member->crew->plan.cpus_are_scarce;
}

/* Makes the crew, unless it exists or threads are switched off. Called with the lock. */
static int io_crew_make(void)
{
    struct io_plan plan;
    int result;

    if (crew != NULL)
        return TCPX_SUCCESS;
    result = io_plan(&plan);
    if (result != TCPX_SUCCESS || plan.threads == 0)
        return result;
    crew = calloc(1, sizeof *crew);
    if (crew == NULL)
        return error_system(ENOMEM, "I/O threads");
    crew->plan = plan;
    return TCPX_SUCCESS;
}

/* --- members ------------------------------------------------------------------------------- */

static struct io_thread *io_thread_place(const struct io_member *member, unsigned place)
{
    return &member->crew->threads[(member->home + place) % member->crew->plan.threads];
}

static struct io_thread *io_thread_at(const struct io_member *member, unsigned place)
{
    return io_thread_serving(io_thread_place(member, place));
}

static int io_take_slot(struct io_crew *ours, struct io_member *member)
{
    unsigned slot = 0;

    while (slot < ours->slot_count && ours->slots[slot].member != NULL)
        slot++;
    if (slot == ours->slot_count) {
        enum { MORE = 16, MOST_SLOTS = 1 << 20 };
        struct slot *grown =
            slot + MORE < MOST_SLOTS ? realloc(ours->slots, (slot + MORE) * sizeof *grown) : NULL;

        if (grown == NULL)
            return error_system(ENOMEM, "a comm");
        memset(grown + slot, 0, MORE * sizeof *grown);
        ours->slots = grown;
        ours->slot_count += MORE;
    }
    ours->slots[slot].member = member;
    member->slot = slot;
    member->generation = ours->slots[slot].generation;
    return TCPX_SUCCESS;
}

int io_join(struct io_member *member, const struct io_calls *calls, void *owner, unsigned places)
{
    int result;

    *member = (struct io_member){.calls = calls, .owner = owner};
    pthread_mutex_lock(&crew_lock);
    result = io_crew_make();
    if (result == TCPX_SUCCESS && crew != NULL)
        result = io_take_slot(crew, member);
    if (result == TCPX_SUCCESS && crew != NULL) {
        member->crew = crew;
        member->home = crew->next_home % crew->plan.threads;
        crew->next_home += places;
        crew->member_count++;
    }
    pthread_mutex_unlock(&crew_lock);
    return result;
}

void io_leave(struct io_member *member)
{
    struct io_crew *over = NULL;

    if (member->crew == NULL)
        return;
    pthread_mutex_lock(&crew_lock);
    crew->slots[member->slot].member = NULL;
    crew->slots[member->slot].generation++;
    while (member->inside > 0)
        pthread_cond_wait(&member_left, &crew_lock);
    if (--crew->member_count == 0) {
        over = crew;
        crew = NULL;
    }
    pthread_mutex_unlock(&crew_lock);
    member->crew = NULL;
    if (over != NULL)
        io_crew_end(over);
}

/*
 * A thread that runs already does the work of one that cannot be started. It stays so for as long
 * as this crew lives, since descriptors are known to the stand-in only.
 */
static int io_start_or_replace(struct io_crew *ours, struct io_thread *thread)
{
    int result;

    if (thread->started || thread->stand_in != NULL)
        return TCPX_SUCCESS;
    thread->crew = ours;
    thread->number = (unsigned)(thread - ours->threads);
    result = io_thread_start(thread);
    if (result == TCPX_SUCCESS)
        return TCPX_SUCCESS;
    for (unsigned i = 0; i < ours->plan.threads && thread->stand_in == NULL; i++)
        if (ours->threads[i].started)
            thread->stand_in = &ours->threads[i];
    if (thread->stand_in == NULL)
        return result;
    log_warn("%s: I/O thread %u does its work", error_text(), thread->stand_in->number);
    return TCPX_SUCCESS;
}

int io_add(struct io_member *member, int fd, unsigned number, unsigned place, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = io_event_of(member, number)};
    int result;

    pthread_mutex_lock(&crew_lock);
    result = io_start_or_replace(member->crew, io_thread_place(member, place));
    pthread_mutex_unlock(&crew_lock);
    if (result == TCPX_SUCCESS &&
        epoll_ctl(io_thread_at(member, place)->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        result = error_system(errno, "an I/O thread cannot wait for a socket");
    return result;
}

void io_change(struct io_member *member, int fd, unsigned number, unsigned place, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = io_event_of(member, number)};

    if (epoll_ctl(io_thread_at(member, place)->epoll, EPOLL_CTL_MOD, fd, &event) != 0)
        log_warn("an I/O thread cannot wait for a socket any more: %s", strerror(errno));
}

void io_remove(struct io_member *member, int fd, unsigned place)
{
    if (epoll_ctl(io_thread_at(member, place)->epoll, EPOLL_CTL_DEL, fd, NULL) != 0)
        log_debug("a socket was not waited for");
}

void io_nudge(struct io_member *member)
{
    struct io_thread *thread = member->crew != NULL ? io_thread_at(member, 0) : NULL;

    if (thread != NULL && atomic_load(&thread->asleep) && atomic_exchange(&thread->asleep, false))
        io_thread_wake(thread);
}

void io_hurry(struct io_member *member)
{
    struct io_thread *thread = member->crew != NULL ? io_thread_at(member, 0) : NULL;

    if (thread != NULL && !atomic_exchange(&thread->hurry, true))
        io_thread_wake(thread);
}
