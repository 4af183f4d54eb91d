/* Callers and I/O threads move lanes. */
#include "net/comm/progress.h"

#include "base/log.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/request.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_end.h"
#include "net/comm/rx_lane.h"
#include "net/comm/tx_lane.h"
#include "net/comm/tx_reverse.h"
#include "net/comm/tx_work.h"

#include <sched.h>
#include <sys/epoll.h>

/* --- one lane ------------------------------------------------------------------------------ */

static enum lane_wait lane_move_busy(struct net_comm *comm, unsigned lane)
{
    bool reverse = lane == comm_reverse_lane(comm);

    if (comm->side == NET_SENDER)
        return reverse ? tx_read_reverse(comm) : tx_send(comm, (uint16_t)lane);
    return reverse ? rx_write_reverse(comm) : rx_receive(comm, (uint16_t)lane);
}

/* The thread that moved the lane also sets the events that its I/O thread waits for. */
static enum lane_wait lane_move(struct net_comm *comm, unsigned number)
{
    struct lane *lane = &comm->lanes[number];
    enum lane_wait wait;

    COMM_LOCKED(comm);
    if (lane->busy)
        return LANE_BUSY;
    if (comm->result != TCPX_SUCCESS)
        return LANE_IDLE;
    lane->busy = true;
    wait = lane_move_busy(comm, number);
    lane->busy = false;
    lane->wait = wait;
    if (comm->result != TCPX_SUCCESS)
        comm_abort(comm);
    else if (comm->watched || !lane_is_callers(comm, number))
        lane_wait_for(comm, number, lane_events(comm, number, wait));
    return wait;
}

/* --- all lanes ----------------------------------------------------------------------------- */

bool progress_waits_for_gpu(const struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->mover == NULL)
        return false;
    if (comm->mover->has_copies(comm))
        return true;
    /* A comm that has failed begins no more. */
    if (comm->result != TCPX_SUCCESS)
        return false;
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->lanes[lane].wait == LANE_SOON)
            return true;
    return comm->mover->has_gated_sends(comm);
}

/* Resumes lanes that hold a record for a receive, when no receives are being posted. */
static void progress_stalled_lanes(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->rx.incoming[lane].stalled && !rx_announce_is_posting(comm)) {
            if (comm->watched || !lane_is_callers(comm, lane))
                lane_wake(comm, lane);
            else
                lane_move(comm, lane);
        }
}

/* Moves the lanes that no I/O thread moves. */
static void progress_callers_lanes(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->own_lanes; lane++)
        lane_move(comm, lane);
}

/* Sends first: a small message does not wait for a read. */
static void progress_sender(struct net_comm *comm)
{
    tx_work_wake_lanes(comm);
    progress_callers_lanes(comm);
    lane_move(comm, comm_reverse_lane(comm));
    comm_fail_if_lost_for_long(comm);
    if (!comm->tx.can_send_more)
        return;
    comm->tx.can_send_more = false;
    tx_work_wake_lanes(comm);
    progress_callers_lanes(comm);
}

static void progress_receiver(struct net_comm *comm, bool announce_now)
{
    if (comm->mover != NULL)
        comm->mover->deliver_unexpected(comm);
    if (comm->rx.stalled > 0)
        progress_stalled_lanes(comm);
    progress_callers_lanes(comm);
    comm_fail_if_lost_for_long(comm);
    if (comm->result == TCPX_SUCCESS && rx_announce_is_due(comm, announce_now))
        lane_move(comm, comm_reverse_lane(comm));
}

/* GPU completions do not wake I/O threads, so every thread that makes progress retries these. */
static void progress_lanes_of_gpu(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        if (comm->lanes[lane].wait == LANE_SOON)
            lane_move(comm, lane);
}

/* Continues what waited for the GPU. */
static void progress_gpu(struct net_comm *comm)
{
    if (comm->side == NET_SENDER) {
        comm->mover->prepare(comm);
        tx_work_wake_lanes(comm);
    } else {
        comm->mover->deliver_unexpected(comm);
    }
    progress_lanes_of_gpu(comm);
}

static void progress_all(struct net_comm *comm, bool announce_now)
{
    if (comm->side == NET_SENDER)
        progress_sender(comm);
    else
        progress_receiver(comm, announce_now);
    if (comm->mover != NULL)
        progress_lanes_of_gpu(comm);
}

static void progress_watch_memory(struct net_comm *comm)
{
    if (comm->mover != NULL)
        comm->mover->watch(comm);
}

void progress(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->result == TCPX_SUCCESS) {
        comm->polls++;
        progress_all(comm, comm->watched);
        progress_watch_memory(comm);
        if (comm->watched)
            io_nudge(&comm->io);
    } else if (comm->mover != NULL) {
        /* Bytes that arrived before the failure are still copied to their place. */
        if (comm->side == NET_RECEIVER)
            comm->mover->deliver_unexpected(comm);
        comm->mover->poll(comm);
    }
}

void progress_before_sleep(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    comm->polls++;
    progress_all(comm, true);
    progress_watch_memory(comm);
}

/* --- I/O threads --------------------------------------------------------------------------- */

static void progress_watch(struct net_comm *comm)
{
    comm->watched = true;
    comm->polls_at_watch = comm->polls;
    progress_all(comm, true);
}

static void progress_unwatch(struct net_comm *comm)
{
    comm->watched = false;
    for (unsigned lane = 0; lane < comm->own_lanes; lane++)
        lane_wait_for(comm, lane, 0);
    lane_wait_for(comm, comm_reverse_lane(comm), 0);
}

static bool progress_callers_are_back(const struct net_comm *comm)
{
    return comm->polls != comm->polls_at_watch;
}

/* Continues what the lane has made possible, so that the calling thread need not. */
static void progress_follow_up(struct net_comm *comm)
{
    if (comm->side == NET_SENDER)
        tx_work_wake_lanes(comm);
    else if (comm->result == TCPX_SUCCESS && rx_announce_is_due(comm, true))
        lane_move(comm, comm_reverse_lane(comm));
}

/* When to tick again. Watches the callers' lanes if no call has come since the last tick. */
static enum io_again progress_next_tick(struct net_comm *comm)
{
    if (comm->result != TCPX_SUCCESS)
        return progress_waits_for_gpu(comm) ? IO_LATER : IO_NEVER;
    if (!comm->watched && comm->sleepers == 0) {
        if (comm->polls != comm->polls_at_tick) {
            comm->polls_at_tick = comm->polls;
            return IO_LATER;
        }
        progress_watch(comm);
    }
    return comm->lost_at != 0 ? IO_LATER : IO_NEVER;
}

/* Called by the comm's I/O thread, to see whether callers still move the comm. */
static enum io_again progress_tick(void *owner)
{
    struct net_comm *comm = owner;
    enum io_again again;
    bool left_alone;

    if (!comm_lock_try(&comm->lock))
        return IO_LATER;
    left_alone = comm->polls == comm->polls_at_tick && comm->sleepers == 0;
    if (progress_waits_for_gpu(comm))
        progress_gpu(comm);
    if (comm->rx.stalled > 0 && comm->result == TCPX_SUCCESS)
        progress_stalled_lanes(comm);
    if (left_alone && comm->side == NET_RECEIVER)
        progress_follow_up(comm);
    comm_fail_if_lost_for_long(comm);
    if (comm->watched && progress_callers_are_back(comm))
        progress_unwatch(comm);
    again = progress_next_tick(comm);
    if ((left_alone && progress_waits_for_gpu(comm)) ||
        (comm->rx.stalled > 0 && comm->result == TCPX_SUCCESS))
        again = IO_SOON;
    comm_lock_release(&comm->lock);
    return again;
}

static bool progress_connection_has_failed(struct net_comm *comm, unsigned lane)
{
    return comm->side == NET_SENDER ? tx_connection_has_failed(comm, lane)
                                    : rx_connection_has_failed(comm, lane);
}

/* A connection has ended or failed, and moving its lane has not shown that. */
static void progress_look_into(struct net_comm *comm, unsigned lane, uint32_t events)
{
    bool forward = lane != comm_reverse_lane(comm);

    /* What has arrived before is read first. */
    if (comm->lanes[lane].busy || comm->lanes[lane].wait == LANE_MORE ||
        comm->lanes[lane].wait == LANE_SOON ||
        (comm->side == NET_RECEIVER && forward && comm->rx.incoming[lane].stalled))
        return;
    if (forward && comm->side == NET_RECEIVER)
        lane_move(comm, lane); /* up to its end, which a read returns */
    if (comm->result != TCPX_SUCCESS || (forward && progress_connection_has_failed(comm, lane)))
        return;
    /* Completions of zero-copy sends have been read by now; more will come. */
    if (forward && comm->tx.zero_copy && (events & EPOLLHUP) == 0)
        return;
    lane_unwatch(comm, lane);
}

/* An I/O thread polls the GPU for a while: most copies end before it could come back. */
static enum lane_wait lane_move_polling(struct net_comm *comm, unsigned lane)
{
    enum { POLL_NS = 50000 };
    enum lane_wait wait = lane_move(comm, lane);
    uint64_t until = wait == LANE_SOON ? clock_now() + POLL_NS : 0;

    while (wait == LANE_SOON && clock_now() < until) {
        comm_lock_release(&comm->lock);
        sched_yield();
        comm_lock_take(&comm->lock);
        wait = lane_move(comm, lane);
    }
    return wait;
}

static void progress_ready(void *owner, unsigned lane, uint32_t events)
{
    struct net_comm *comm = owner;

    comm_lock_take(&comm->lock);
    if (comm->watched && lane_is_callers(comm, lane) && progress_callers_are_back(comm)) {
        progress_unwatch(comm);
        io_nudge(&comm->io);
    } else if (comm->watched && lane_is_callers(comm, lane)) {
        /* The thread that owns the lane sets the events when it releases it. */
        if (comm->lanes[lane].busy)
            lane_wait_for(comm, lane, 0);
        else
            progress_all(comm, true);
    } else if (lane_move_polling(comm, lane) != LANE_BUSY) {
        progress_follow_up(comm);
    }
    if ((comm->polls == comm->polls_at_ready && progress_waits_for_gpu(comm)) ||
        (comm->rx.stalled > 0 && comm->result == TCPX_SUCCESS))
        io_hurry(&comm->io);
    comm->polls_at_ready = comm->polls;
    if (comm->result == TCPX_SUCCESS && (events & (EPOLLERR | EPOLLHUP)) != 0)
        progress_look_into(comm, lane, events);
    comm_lock_release(&comm->lock);
}

/* --- beginning and end --------------------------------------------------------------------- */

void progress_start(struct net_comm *comm)
{
    static const struct io_calls calls = {.ready = progress_ready, .tick = progress_tick};
    unsigned places = comm->link.sockets > 1 ? comm->link.sockets - 1u : 1;
    int result;

    comm->wake_fd = -1;
    comm->notify_fd = -1;
    comm->own_lanes = comm->link.sockets;
    /* A running I/O thread may call into this comm at once. */
    comm_lock_take(&comm->lock);
    result = io_join(&comm->io, &calls, comm, places);
    if (result == TCPX_SUCCESS && comm->io.crew == NULL) {
        comm_lock_release(&comm->lock);
        return;
    }
    if (result == TCPX_SUCCESS) {
        comm->own_lanes = io_cpus_are_scarce(&comm->io) ? comm->link.sockets : 1;
        result = lanes_add(comm);
    }
    comm_lock_release(&comm->lock);
    if (result == TCPX_SUCCESS) {
        io_nudge(&comm->io); /* even if the program never calls */
        return;
    }
    log_warn("%s: data moves only while the program makes calls", error_text());
    io_leave(&comm->io);
    comm->own_lanes = comm->link.sockets;
    comm->watched = false;
}

void progress_stop(struct net_comm *comm)
{
    comm_lock_take(&comm->lock);
    lanes_unwatch(comm);
    comm_lock_release(&comm->lock);
    io_leave(&comm->io);
    wake_close(comm);
}
