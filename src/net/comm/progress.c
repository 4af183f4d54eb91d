/*
 * Who moves a comm's sockets on. The calls on a comm move the first and the reverse lane
 * themselves, so that a small message is not handed over between threads; the further lanes belong
 * to the I/O threads. Those also watch the calls' own lanes when no call has come for a few
 * milliseconds, whether or not requests are under way: a program that is late must not look like a
 * lost peer, which is what TCP makes of a socket that nobody reads. Without I/O threads, or where
 * there are hardly CPUs for them, all lanes are the calls' own.
 */
#include "base/clock.h"
#include "base/fork.h"
#include "base/log.h"
#include "net/comm/comm_state.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static bool is_callers(const struct net_comm *comm, unsigned lane)
{
    return lane < comm->own_lanes || lane == comm_reverse_lane(comm);
}

static int descriptor_of(const struct net_comm *comm, unsigned lane)
{
    return lane == comm_reverse_lane(comm) ? comm->link.reverse : comm->link.forward[lane];
}

static bool reads(const struct net_comm *comm, unsigned lane)
{
    return (comm->side == NET_RECEIVER) == (lane != comm_reverse_lane(comm));
}

/* --- what an I/O thread waits for ---------------------------------------------------------- */

static unsigned place_of(const struct net_comm *comm, unsigned lane)
{
    return lane == 0 || lane == comm_reverse_lane(comm) ? 0 : lane - 1;
}

static void wait_for(struct net_comm *comm, unsigned number, uint32_t events)
{
    struct lane *lane = &comm->lanes[number];

    if (comm->io.crew == NULL || lane->unwatched || lane->events == events)
        return;
    lane->events = events;
    io_change(&comm->io, descriptor_of(comm, number), number, place_of(comm, number), events);
}

static void forget(struct net_comm *comm, unsigned number)
{
    struct lane *lane = &comm->lanes[number];

    if (comm->io.crew == NULL || lane->unwatched)
        return;
    lane->unwatched = true;
    io_remove(&comm->io, descriptor_of(comm, number), place_of(comm, number));
}

void progress_forget(struct net_comm *comm)
{
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++)
        forget(comm, lane);
}

static uint32_t events_for(const struct net_comm *comm, unsigned lane, enum lane_wait wait)
{
    switch (wait) {
    case LANE_FOR_INPUT:
        return EPOLLIN;
    case LANE_FOR_ROOM:
        return EPOLLOUT;
    case LANE_MORE:
        return reads(comm, lane) ? EPOLLIN : EPOLLOUT;
    default:
        return 0;
    }
}

void progress_wake(struct net_comm *comm, unsigned lane)
{
    if (!comm->lanes[lane].busy && (comm->watched || !is_callers(comm, lane)))
        wait_for(comm, lane, reads(comm, lane) ? EPOLLIN : EPOLLOUT);
}

/* --- moving -------------------------------------------------------------------------------- */

static enum lane_wait move_busy(struct net_comm *comm, unsigned lane)
{
    if (comm->side == NET_SENDER)
        return lane == comm_reverse_lane(comm) ? sender_hear(comm)
                                               : sender_send(comm, (uint16_t)lane);
    return lane == comm_reverse_lane(comm) ? receiver_speak(comm)
                                           : receiver_receive(comm, (uint16_t)lane);
}

/* Whoever moved a lane on also says what an I/O thread has to wait for. */
static enum lane_wait move(struct net_comm *comm, unsigned number)
{
    struct lane *lane = &comm->lanes[number];
    enum lane_wait wait;

    if (lane->busy)
        return LANE_BUSY;
    if (comm->result != TCPX_SUCCESS)
        return LANE_IDLE;
    lane->busy = true;
    wait = move_busy(comm, number);
    lane->busy = false;
    lane->wait = wait;
    if (comm->result != TCPX_SUCCESS)
        comm_give_up(comm);
    else if (comm->watched || !is_callers(comm, number))
        wait_for(comm, number, events_for(comm, number, wait));
    return wait;
}

static uint64_t slices_to_take(const struct net_comm *comm)
{
    uint64_t smallest = sender_smallest_slice(comm);

    return (sender_bytes_to_slice(comm) + smallest - 1) / smallest;
}

/* Lanes of I/O threads that have been woken, and will take a slice each. */
static unsigned coming(const struct net_comm *comm)
{
    unsigned count = 0;

    for (unsigned i = comm->own_lanes; i < comm->link.sockets; i++)
        count += comm->lanes[i].events != 0 && !comm->lanes[i].unwatched && !comm->lanes[i].busy &&
                 sender_is_idle(comm, i);
    return count;
}

bool progress_is_shared_out(const struct net_comm *comm)
{
    return !comm->watched && slices_to_take(comm) <= coming(comm);
}

/*
 * Wakes as many idle lanes of a sender as there are slices worth one. A lane that is busy or waits
 * takes the next slice by itself, and so does the caller's; but in a stream every slice has an idle
 * lane woken for it, and the caller's takes what is left.
 */
void progress_share_out(struct net_comm *comm)
{
    uint64_t slices;
    unsigned first = comm->watched ? 0 : comm->own_lanes;
    unsigned active = comm->link.framing == WIRE_INLINE || first == 0 ? first : first - 1;

    if (first == comm->link.sockets || comm->link.sockets == 1)
        return;
    slices = slices_to_take(comm);
    if (slices == 0)
        return;
    if (comm->streams && !comm->watched)
        active = coming(comm);
    else
        for (unsigned i = first; i < comm->link.sockets; i++)
            active += comm->lanes[i].busy || comm->lanes[i].events != 0;
    for (unsigned i = first; i < comm->link.sockets && active < slices; i++)
        if (!comm->lanes[i].busy && comm->lanes[i].events == 0 &&
            comm->lanes[i].wait != LANE_FOR_ARRIVALS) {
            progress_wake(comm, i);
            active++;
        }
}

/* Lanes that wait for a receive, when none is being posted any more. */
static void move_stalled(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->incoming[lane].stalled && !receiver_posts(comm)) {
            if (comm->watched || !is_callers(comm, lane))
                progress_wake(comm, lane);
            else
                move(comm, lane);
        }
}

/* The lanes that an I/O thread does not move by itself. */
static void move_forward_lanes(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->own_lanes; lane++)
        move(comm, lane);
}

/* What can be sent already goes first: a small message does not wait for news. */
static void move_sender(struct net_comm *comm)
{
    progress_share_out(comm);
    move_forward_lanes(comm);
    move(comm, comm_reverse_lane(comm));
    comm_fail_if_lost_for_long(comm);
    if (!comm->news)
        return;
    comm->news = false;
    progress_share_out(comm);
    move_forward_lanes(comm);
}

static void move_receiver(struct net_comm *comm, bool speak_now)
{
    land_all_put_aside(comm);
    if (comm->stalled > 0)
        move_stalled(comm);
    move_forward_lanes(comm);
    comm_fail_if_lost_for_long(comm);
    if (comm->result == TCPX_SUCCESS && receiver_has_to_speak(comm, speak_now))
        move(comm, comm_reverse_lane(comm));
}

/* No event tells a lane's I/O thread that the GPU has done what it waited for: whoever comes does.
 */
static void move_late_lanes(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->lanes[lane].wait == LANE_SOON)
            move(comm, lane);
}

/* What the GPU has done in the meantime, and the lanes that waited for it. */
static void follow_gpu(struct net_comm *comm)
{
    if (comm->side == NET_SENDER) {
        stage_ahead(comm);
        progress_share_out(comm);
    } else {
        land_all_put_aside(comm);
    }
    move_late_lanes(comm);
}

static void move_all(struct net_comm *comm, bool speak_now)
{
    if (comm->side == NET_SENDER)
        move_sender(comm);
    else
        move_receiver(comm, speak_now);
    if (comm->gpu.stream != NULL)
        move_late_lanes(comm);
}

void progress(struct net_comm *comm)
{
    if (comm->result != TCPX_SUCCESS) {
        /* What has come before the end still gets to its place. */
        if (comm->side == NET_RECEIVER)
            land_all_put_aside(comm);
        copies_poll(comm);
        return;
    }
    comm->polls++;
    move_all(comm, comm->watched);
    devmem_watch(comm);
    if (comm->watched)
        io_nudge(&comm->io);
}

/* --- watching ------------------------------------------------------------------------------ */

static void watch(struct net_comm *comm)
{
    comm->watched = true;
    comm->polls_at_watch = comm->polls;
    move_all(comm, true);
}

static void unwatch(struct net_comm *comm)
{
    comm->watched = false;
    for (unsigned lane = 0; lane < comm->own_lanes; lane++)
        wait_for(comm, lane, 0);
    wait_for(comm, comm_reverse_lane(comm), 0);
}

/* The calls have come back. */
static bool need_not_watch(const struct net_comm *comm)
{
    return comm->polls != comm->polls_at_watch;
}

/* What moving a lane on has made possible. Saying it here spares the calling thread that. */
static void follow_up(struct net_comm *comm)
{
    if (comm->side == NET_SENDER)
        progress_share_out(comm);
    else if (comm->result == TCPX_SUCCESS && receiver_has_to_speak(comm, true))
        move(comm, comm_reverse_lane(comm));
}

/* By its I/O thread, from the last call on: are there further ones that look after the comm? */
static enum io_again tick(void *owner)
{
    struct net_comm *comm = owner;
    enum io_again again = IO_LATER;
    bool left_alone;

    if (pthread_mutex_trylock(&comm->lock) != 0)
        return IO_LATER;
    left_alone = comm->polls == comm->polls_at_tick && comm->sleepers == 0;
    if (copies_are_under_way(comm))
        follow_gpu(comm);
    if (comm->stalled > 0 && comm->result == TCPX_SUCCESS)
        move_stalled(comm);
    if (left_alone && comm->side == NET_RECEIVER)
        follow_up(comm);
    comm_fail_if_lost_for_long(comm);
    if (comm->watched && need_not_watch(comm))
        unwatch(comm);
    if (comm->result != TCPX_SUCCESS)
        again = copies_are_under_way(comm) ? IO_LATER : IO_NEVER;
    else if (comm->watched || comm->sleepers > 0)
        again = comm->lost_at != 0 ? IO_LATER : IO_NEVER;
    else if (comm->polls != comm->polls_at_tick)
        comm->polls_at_tick = comm->polls;
    else {
        watch(comm);
        again = comm->lost_at != 0 ? IO_LATER : IO_NEVER;
    }
    if ((left_alone && copies_are_under_way(comm)) ||
        (comm->stalled > 0 && comm->result == TCPX_SUCCESS))
        again = IO_SOON;
    pthread_mutex_unlock(&comm->lock);
    return again;
}

/* A connection has ended or broken, and moving its lane on has not shown that. */
static void look_into(struct net_comm *comm, unsigned lane, uint32_t events)
{
    bool forward = lane != comm_reverse_lane(comm);

    /* What has come before is read first. */
    if (comm->lanes[lane].busy || comm->lanes[lane].wait == LANE_MORE ||
        comm->lanes[lane].wait == LANE_SOON ||
        (comm->side == NET_RECEIVER && forward && comm->incoming[lane].stalled))
        return;
    if (forward && comm->side == NET_RECEIVER)
        move(comm, lane); /* up to its end, which a read tells */
    if (comm->result != TCPX_SUCCESS || (forward && comm_has_broken(comm, lane)))
        return;
    /* Notices of what was sent by reference have been read by now, and further ones will come. */
    if (forward && comm->sends_by_reference && (events & EPOLLHUP) == 0)
        return;
    forget(comm, lane);
}

/* By an I/O thread: a copy takes less time than it takes to come back for it. */
static enum lane_wait move_patiently(struct net_comm *comm, unsigned lane)
{
    enum { PATIENCE_NS = 50000 };
    enum lane_wait wait = move(comm, lane);
    uint64_t until = wait == LANE_SOON ? clock_now() + PATIENCE_NS : 0;

    while (wait == LANE_SOON && clock_now() < until) {
        pthread_mutex_unlock(&comm->lock);
        sched_yield();
        pthread_mutex_lock(&comm->lock);
        wait = move(comm, lane);
    }
    return wait;
}

static void ready(void *owner, unsigned lane, uint32_t events)
{
    struct net_comm *comm = owner;

    pthread_mutex_lock(&comm->lock);
    if (comm->watched && is_callers(comm, lane) && need_not_watch(comm)) {
        unwatch(comm);
        io_nudge(&comm->io);
    } else if (comm->watched && is_callers(comm, lane)) {
        /* Whoever is at it now says afterwards what to wait for. */
        if (comm->lanes[lane].busy)
            wait_for(comm, lane, 0);
        else
            move_all(comm, true);
    } else if (move_patiently(comm, lane) != LANE_BUSY) {
        follow_up(comm);
    }
    if ((comm->polls == comm->polls_at_ready && copies_are_under_way(comm)) ||
        (comm->stalled > 0 && comm->result == TCPX_SUCCESS))
        io_hurry(&comm->io);
    comm->polls_at_ready = comm->polls;
    if (comm->result == TCPX_SUCCESS && (events & (EPOLLERR | EPOLLHUP)) != 0)
        look_into(comm, lane, events);
    pthread_mutex_unlock(&comm->lock);
}

/* --- sleeping ------------------------------------------------------------------------------ */

/* An eventfd, from the first sleep on; without one a sleep only has to look up more often. */
static void open_alarm(struct net_comm *comm)
{
    if (comm->alarm >= 0)
        return;
    fork_hold();
    comm->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!fork_release(comm->alarm))
        comm->alarm = -1;
}

void progress_alarm(struct net_comm *comm)
{
    const uint64_t one = 1;

    if (comm->sleepers > 0 && comm->alarm >= 0 && write(comm->alarm, &one, sizeof one) < 0)
        log_debug("a sleeper is being woken already");
}

static short poll_events(uint32_t events)
{
    return (short)(events == 0 ? 0 : events == EPOLLIN ? POLLIN : POLLOUT);
}

/* What a call that sleeps has to wait for; `left_ms` is 0 if something can be moved at once. */
static unsigned gather(struct net_comm *comm, struct pollfd *all, uint64_t *left_ms)
{
    unsigned count = 0;

    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++) {
        uint32_t events = events_for(comm, lane, comm->lanes[lane].wait);

        if (!is_callers(comm, lane))
            continue;
        if (comm->lanes[lane].wait == LANE_MORE)
            *left_ms = 0;
        /* What was sent by reference is told as an error, which needs no asking for. */
        if (events != 0 || (lane < comm->link.sockets && devmem_send_is_flying(comm, lane)))
            all[count++] =
                (struct pollfd){.fd = descriptor_of(comm, lane), .events = poll_events(events)};
    }
    if (copies_are_under_way(comm) || comm->stalled > 0)
        *left_ms = 0;
    if (comm->alarm >= 0)
        all[count++] = (struct pollfd){.fd = comm->alarm, .events = POLLIN};
    return count;
}

/*
 * Whoever waits for a request waits for his own lanes, so that no other thread has to be woken
 * first, and for the alarm when an I/O thread has ended a request. Should several threads sleep,
 * one may take the alarm from another, who looks up after a while.
 */
void progress_sleep(struct net_request *request, uint64_t deadline)
{
    enum { LOOK_UP_MS = 50 };
    struct net_comm *comm = request->comm;
    struct pollfd all[WIRE_MOST_SOCKETS + 2];
    uint64_t now = clock_now();
    uint64_t left_ms = deadline <= now ? 0 : (deadline - now) / 1000000 + 1;
    uint64_t ignored;
    unsigned count;

    comm->polls++;
    move_all(comm, true);
    devmem_watch(comm);
    if (request_has_ended(request))
        return;
    open_alarm(comm);
    count = gather(comm, all, &left_ms);
    comm->sleepers++;
    pthread_mutex_unlock(&comm->lock);
    if (poll(all, count, (int)(left_ms < LOOK_UP_MS ? left_ms : LOOK_UP_MS)) < 0)
        log_debug("a wait was interrupted");
    pthread_mutex_lock(&comm->lock);
    comm->sleepers--;
    if (comm->alarm >= 0 && (all[count - 1].revents & POLLIN) != 0 &&
        read(comm->alarm, &ignored, sizeof ignored) < 0)
        log_debug("another sleeper has taken the alarm");
}

/* --- life ---------------------------------------------------------------------------------- */

/* Either all or none: one that stays behind would wake its thread again and again. */
static int add_lanes(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;
    unsigned lane;

    for (lane = 0; lane <= comm_reverse_lane(comm) && result == TCPX_SUCCESS; lane++) {
        /* Only a record tells that there is something for a further lane in the other framing. */
        bool at_once =
            !is_callers(comm, lane) && reads(comm, lane) && comm->link.framing == WIRE_INLINE;

        comm->lanes[lane].events = at_once ? EPOLLIN : 0;
        result = io_add(&comm->io, descriptor_of(comm, lane), lane, place_of(comm, lane),
                        comm->lanes[lane].events);
    }
    for (unsigned added = 0; result != TCPX_SUCCESS && added + 1 < lane; added++)
        io_remove(&comm->io, descriptor_of(comm, added), place_of(comm, added));
    return result;
}

void progress_start(struct net_comm *comm)
{
    static const struct io_calls calls = {.ready = ready, .tick = tick};
    unsigned places = comm->link.sockets > 1 ? comm->link.sockets - 1u : 1;
    int result;

    comm->alarm = -1;
    comm->own_lanes = comm->link.sockets;
    /* A thread that runs already may come to this comm at once. */
    pthread_mutex_lock(&comm->lock);
    result = io_join(&comm->io, &calls, comm, places);
    if (result == TCPX_SUCCESS && comm->io.crew == NULL) {
        pthread_mutex_unlock(&comm->lock);
        return;
    }
    if (result == TCPX_SUCCESS) {
        comm->own_lanes = io_cpus_are_scarce(&comm->io) ? comm->link.sockets : 1;
        result = add_lanes(comm);
    }
    pthread_mutex_unlock(&comm->lock);
    if (result == TCPX_SUCCESS) {
        io_nudge(&comm->io); /* also for a program that does not make any call */
        return;
    }
    log_warn("%s: data moves only while the program makes calls", error_text());
    io_leave(&comm->io);
    comm->own_lanes = comm->link.sockets;
    comm->watched = false;
}

void progress_stop(struct net_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    progress_forget(comm);
    pthread_mutex_unlock(&comm->lock);
    io_leave(&comm->io);
    if (comm->alarm >= 0)
        fork_close(comm->alarm);
}
