/* Owners and callers move lanes. */
#include "net/comm/progress.h"

#include "base/log.h"
#include "net/comm/fail.h"
#include "net/comm/lanes.h"
#include "net/comm/request.h"
#include "net/comm/rx_announce.h"
#include "net/comm/rx_end.h"
#include "net/comm/rx_lane.h"
#include "net/comm/sleeper.h"
#include "net/comm/tx_lane.h"
#include "net/comm/tx_reverse.h"
#include "net/comm/tx_work.h"

#include <sys/epoll.h>

/* --- one lane ------------------------------------------------------------------------------ */

static enum lane_wait lane_move_busy(struct net_comm *comm, unsigned lane)
{
    bool reverse = lane == comm_reverse_lane(comm);

    if (comm->side == NET_SENDER)
        return reverse ? tx_read_reverse(comm) : tx_send(comm, (uint16_t)lane);
    return reverse ? rx_write_reverse(comm) : rx_receive(comm, (uint16_t)lane);
}

/* Events that came while the lane was busy are not reported again, so its owner is woken. */
static void lane_release(struct net_comm *comm, struct lane *lane, enum lane_wait wait)
{
    lane->busy = false;
    comm->waits_changed |= lane->wait != wait;
    lane->wait = wait;
    if (lane->missed)
        lane_wake(comm, lane->number);
    lane->missed = false;
    if (comm->tx.reverse_ended)
        lane_wake(comm, comm_reverse_lane(comm));
    if (comm->result != TCPX_SUCCESS)
        comm_abort(comm);
}

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
    lane_release(comm, lane, wait);
    return wait;
}

/*
 * By a thread that does not own the lane. Its owner goes on with what is left: also if the socket
 * is full, since no event follows if the kernel had no memory for it.
 */
static void lane_move_for_owner(struct net_comm *comm, unsigned number)
{
    enum lane_wait wait = lane_move(comm, number);

    if (wait == LANE_MORE || wait == LANE_SOON || wait == LANE_FOR_ROOM)
        lane_wake(comm, number);
}

/* --- the GPU ------------------------------------------------------------------------------- */

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

/*
 * Continues what waited for the GPU. A receiver delivers after it has polled, also bytes that
 * arrived before a failure: a message for which there was no slot then waits for a copy that is
 * still in flight.
 */
static void progress_gpu(struct net_comm *comm)
{
    if (comm->side == NET_RECEIVER)
        comm->mover->deliver_unexpected(comm);
    else if (comm->result != TCPX_SUCCESS)
        comm->mover->poll(comm);
    else
        comm->mover->prepare(comm);
    if (comm->result == TCPX_SUCCESS)
        comm->mover->watch(comm);
}

/* GPU completions wake no thread: the owner of the reverse lane polls while there are any. */
static void progress_poll_gpu(struct net_comm *comm)
{
    if (comm->mover != NULL && !comm->gpu_is_polled && progress_waits_for_gpu(comm))
        lane_wake(comm, comm_reverse_lane(comm));
}

/* --- calls, when I/O threads own the lanes ------------------------------------------------- */

/*
 * Small messages. Slices are for the owners, and the records about them go together with a slice.
 */
static void progress_send_small(struct net_comm *comm)
{
    struct outgoing *outgoing = &comm->tx.outgoing[0];
    const struct lane *lane = &comm->lanes[0];

    if (queue_length(&comm->tx.planned) == 0 || comm->tx.oldest_untaken != NULL || lane->busy ||
        lane->wait == LANE_FOR_ROOM || !outgoing_is_idle(outgoing))
        return;
    outgoing->records_only = true;
    lane_move_for_owner(comm, 0);
    outgoing->records_only = false;
}

/* An owner that is awake announces receives that can wait, several of them together. */
static void progress_announce(struct net_comm *comm, bool now)
{
    unsigned reverse = comm_reverse_lane(comm);

    if (rx_announce_is_due(comm, now || !io_is_awake(&comm->lanes[reverse].task)))
        lane_move_for_owner(comm, reverse);
    else if (queue_length(&comm->rx.queued) > 0 &&
             (comm->rx.announce_soon || !comm->rx.announce_is_planned))
        lane_wake(comm, reverse);
}

static void progress_beside_owners(struct net_comm *comm, bool now)
{
    if (comm->mover != NULL)
        progress_gpu(comm);
    if (comm->result != TCPX_SUCCESS)
        return;
    if (comm->side == NET_SENDER) {
        progress_send_small(comm);
        tx_work_wake_lanes(comm);
    } else {
        progress_announce(comm, now);
    }
    progress_poll_gpu(comm);
}

/* --- calls that move all lanes ------------------------------------------------------------- */

static void progress_forward_lanes(struct net_comm *comm)
{
    for (unsigned lane = 0; lane < comm->link.sockets; lane++)
        lane_move(comm, lane);
    /* Records of the slices that other lanes have taken. */
    if (comm->side == NET_SENDER && comm->link.framing == WIRE_SEPARATE &&
        queue_length(&comm->tx.planned) > 0)
        lane_move(comm, 0);
}

/* Sends first: a small message does not wait for a read. */
static void progress_sender(struct net_comm *comm)
{
    progress_forward_lanes(comm);
    lane_move(comm, comm_reverse_lane(comm));
    comm_fail_if_lost_for_long(comm);
    if (!comm->tx.can_send_more)
        return;
    comm->tx.can_send_more = false;
    progress_forward_lanes(comm);
}

static void progress_receiver(struct net_comm *comm, bool now)
{
    if (comm->mover != NULL)
        comm->mover->deliver_unexpected(comm);
    progress_forward_lanes(comm);
    comm_fail_if_lost_for_long(comm);
    if (comm->result == TCPX_SUCCESS && rx_announce_is_due(comm, now))
        lane_move(comm, comm_reverse_lane(comm));
}

static void progress_all_lanes(struct net_comm *comm, bool now)
{
    if (comm->side == NET_SENDER)
        progress_sender(comm);
    else
        progress_receiver(comm, now);
    if (comm->mover != NULL)
        comm->mover->watch(comm);
    /* A sleeper may poll for less than what the lanes wait for now. */
    if (comm->waits_changed)
        sleeper_wake(comm->sleeping);
}

/* --- few CPUs: who moves the lanes --------------------------------------------------------- */

enum { ALONE_NS = 2000000, COUNT_FOR_NS = 100000000 };

/*
 * The reverse lane's task counts time. Returns whether it has to: as long as calls move the lanes,
 * but not while one of them sleeps for long, which moves them itself.
 */
static bool progress_choose_owner(struct net_comm *comm)
{
    uint64_t now = clock_now();

    if (comm->polls != comm->polls_seen) {
        comm->polls_seen = comm->polls;
        comm->called_at = now;
        if (comm->owned) {
            lanes_own(comm, false);
            io_wake(&comm->lanes[comm_reverse_lane(comm)].task);
        }
    } else if (!comm->owned && comm->sleeping == NULL && now >= comm->called_at + ALONE_NS) {
        lanes_own(comm, true);
    }
    return !comm->owned && (comm->sleeping == NULL || now < comm->called_at + COUNT_FOR_NS);
}

void progress_leave_to_threads(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->io.crew == NULL || !comm->callers_move)
        return;
    comm->callers_move = false;
    comm->time_is_counted = false;
    lanes_own(comm, true);
    /* A call may have left something that no event reports, a full socket for one. */
    for (unsigned lane = 0; lane <= comm_reverse_lane(comm); lane++) {
        io_keep_awake(&comm->lanes[lane].task);
        lane_wake(comm, lane);
    }
}

/* A call was made: I/O threads that own the lanes leave them to calls, and count time again. */
void progress_after_call(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    if (comm->callers_move && (comm->owned || !comm->time_is_counted)) {
        comm->time_is_counted = true;
        io_wake(&comm->lanes[comm_reverse_lane(comm)].task);
    }
}

/* --- any call ------------------------------------------------------------------------------ */

void progress(struct net_comm *comm, bool now)
{
    COMM_LOCKED(comm);
    if (comm->result == TCPX_SUCCESS && comm->callers_move) {
        comm->polls++;
        progress_all_lanes(comm, now || comm->owned);
        progress_after_call(comm);
    } else if (comm->result == TCPX_SUCCESS) {
        progress_beside_owners(comm, now);
    } else if (comm->mover != NULL) {
        progress_gpu(comm);
        progress_poll_gpu(comm);
    }
}

/* --- owners -------------------------------------------------------------------------------- */

static bool progress_connection_has_failed(struct net_comm *comm, unsigned lane)
{
    return comm->side == NET_SENDER ? tx_connection_has_failed(comm, lane)
                                    : rx_connection_has_failed(comm, lane);
}

/* A connection has ended or failed, and moving its lane has not shown that. */
static void progress_look_into(struct net_comm *comm, struct lane *lane)
{
    bool forward = lane->number != comm_reverse_lane(comm);

    /* What has arrived before is read first. */
    if (lane->busy || lane->wait == LANE_MORE || lane->wait == LANE_SOON ||
        (comm->side == NET_RECEIVER && forward && comm->rx.incoming[lane->number].stalled))
        return;
    if (forward && comm->side == NET_RECEIVER)
        lane_move(comm, lane->number); /* up to its end, which a read returns */
    if (lane->wait == LANE_MORE || lane->wait == LANE_SOON)
        return;
    lane->has_error = false;
    if (forward && comm->result == TCPX_SUCCESS &&
        progress_connection_has_failed(comm, lane->number))
        log_debug("a connection with %s has failed", comm->link.peer);
}

/* The reverse lane of a receiver is written when there is something to announce. */
static bool lane_has_to_move(struct net_comm *comm, const struct lane *lane)
{
    return comm->side == NET_SENDER || lane->number != comm_reverse_lane(comm) ||
           rx_announce_is_due(comm, false);
}

/* Continues what the lane has made possible. */
static void progress_follow_up(struct net_comm *comm)
{
    if (comm->side == NET_SENDER) {
        if (comm->tx.can_send_more && comm->mover != NULL)
            comm->mover->prepare(comm);
        comm->tx.can_send_more = false;
        tx_work_wake_lanes(comm);
    } else if (comm->result == TCPX_SUCCESS && rx_announce_is_due(comm, false)) {
        lane_move_for_owner(comm, comm_reverse_lane(comm));
    }
}

static void progress_owned_lane(struct net_comm *comm, struct lane *lane)
{
    bool is_home = lane->number == comm_reverse_lane(comm);

    if (is_home && comm->mover != NULL)
        progress_gpu(comm);
    if (lane_has_to_move(comm, lane) && lane_move(comm, lane->number) == LANE_BUSY)
        lane->missed = true;
    if (lane->has_error && comm->result == TCPX_SUCCESS)
        progress_look_into(comm, lane);
    if (comm->result == TCPX_SUCCESS)
        progress_follow_up(comm);
    comm_fail_if_lost_for_long(comm);
    if (!is_home)
        progress_poll_gpu(comm);
}

static bool lane_is_stalled(const struct net_comm *comm, const struct lane *lane)
{
    return comm->side == NET_RECEIVER && lane->number < comm->link.sockets &&
           comm->rx.incoming[lane->number].stalled;
}

/* When its owner runs the lane again. The owner of the reverse lane also serves the whole comm. */
static enum io_again progress_run_again(struct net_comm *comm, const struct lane *lane)
{
    bool is_home = lane->number == comm_reverse_lane(comm);
    bool is_alive = comm->result == TCPX_SUCCESS;

    if (is_home) {
        comm->gpu_is_polled = progress_waits_for_gpu(comm);
        comm->rx.announce_is_planned = is_alive && !lane->busy && lane->wait != LANE_FOR_ROOM &&
                                       queue_length(&comm->rx.queued) > 0;
    }
    if (is_alive && lane->wait == LANE_MORE && !lane->busy)
        return IO_MORE;
    if (is_alive && lane->wait == LANE_SOON)
        return IO_SOON;
    /* A stall ends by itself. No event follows if the kernel had no memory for the socket. */
    if (is_alive && (lane_is_stalled(comm, lane) || (lane->wait == LANE_FOR_ROOM && !lane->busy)))
        return IO_LATER;
    if (!is_home)
        return IO_IDLE;
    if (comm->gpu_is_polled || (comm->rx.announce_is_planned && comm->rx.announce_soon))
        return IO_SOON;
    return comm->rx.announce_is_planned || (is_alive && comm->lost_at != 0) ? IO_LATER : IO_IDLE;
}

static enum io_again progress_run(struct io_task *task, uint32_t events)
{
    struct lane *lane = (struct lane *)task;
    struct net_comm *comm = lane->comm;
    bool is_home = lane->number == comm_reverse_lane(comm);
    enum io_again again = IO_IDLE;

    comm_lock_take(&comm->lock);
    lane->is_woken = false;
    lane->has_error |= (events & (EPOLLERR | EPOLLHUP)) != 0;
    lane->peer_has_ended |= (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
    if (comm->callers_move && comm->result == TCPX_SUCCESS) {
        bool has_to_count = progress_choose_owner(comm);

        if (is_home)
            comm->time_is_counted = has_to_count;
    }
    if (comm->owned || lane->has_error) {
        progress_owned_lane(comm, lane);
        again = progress_run_again(comm, lane);
    }
    if (is_home && again == IO_IDLE && comm->time_is_counted)
        again = IO_LATER;
    comm_lock_release(&comm->lock);
    return again;
}

/* --- beginning and end --------------------------------------------------------------------- */

void progress_start(struct net_comm *comm)
{
    int result;

    for (unsigned i = 0; i <= comm_reverse_lane(comm); i++) {
        comm->lanes[i].comm = comm;
        comm->lanes[i].number = i;
    }
    /* A running I/O thread may call into this comm at once. */
    comm_lock_take(&comm->lock);
    result = io_join(&comm->io, comm->link.sockets, comm->link.numa_node);
    comm->callers_move = comm->io.crew == NULL || comm->io.plan.cpus_are_scarce;
    comm->owned = !comm->callers_move;
    comm->lock.spins = comm->io.crew != NULL && comm->io.plan.cpus_are_plenty;
    if (result == TCPX_SUCCESS && comm->io.crew != NULL) {
        result = lanes_add(comm, progress_run);
        io_wake(&comm->lanes[comm_reverse_lane(comm)].task); /* even if the program never calls */
    }
    if (result != TCPX_SUCCESS) {
        comm->callers_move = true;
        comm->owned = false;
    }
    comm_lock_release(&comm->lock);
    if (result == TCPX_SUCCESS)
        return;
    log_warn("%s: data moves only while the program makes calls", error_text());
    io_leave(&comm->io);
}

void progress_stop(struct net_comm *comm)
{
    comm_lock_take(&comm->lock);
    lanes_remove(comm);
    comm_lock_release(&comm->lock);
    io_leave(&comm->io);
}
