/* Keeps the account of stages.h for one comm. */
#include "net/comm/accounting.h"

void account_written(struct net_comm *comm, unsigned socket, ssize_t sent, uint64_t wanted)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    bool full = sent < 0 || (uint64_t)sent < wanted;

    COMM_LOCKED(comm);
    stages_call_ended(&comm->calling, sent > 0);
    comm->tx.full += full - outgoing->full;
    outgoing->full = full;
    comm->calling.waits = comm->tx.full > 0 && comm->result == TCPX_SUCCESS;
}

static void account_wait(struct net_comm *comm, uint64_t now)
{
    stages_wait(&comm->calling, comm->rx.unsatisfied > 0 && comm->rx.unread == 0, now);
}

void account_posted(struct net_comm *comm, uint64_t now)
{
    COMM_LOCKED(comm);
    comm->rx.unsatisfied++;
    account_wait(comm, now);
}

/* Most often right behind the call that brought the bytes. */
void account_satisfied(struct net_comm *comm, struct net_request *request)
{
    COMM_LOCKED(comm);
    comm->rx.unsatisfied -= !request->satisfied;
    request->satisfied = true;
    account_wait(comm, comm->calling.since);
}

/* The call has accounted for the time until now. */
void account_read(struct net_comm *comm, unsigned socket, bool unread)
{
    struct incoming *incoming = &comm->rx.incoming[socket];

    COMM_LOCKED(comm);
    comm->rx.unread += unread - incoming->unread;
    incoming->unread = unread;
    account_wait(comm, comm->calling.since);
}

void account_no_memory(struct net_comm *comm, unsigned socket)
{
    struct incoming *incoming = &comm->rx.incoming[socket];

    COMM_LOCKED(comm);
    if (incoming->unread)
        return;
    comm->rx.unread++;
    incoming->unread = true;
    account_wait(comm, clock_now());
}

void account_throttle(struct net_comm *comm, enum config_throttle stage, ssize_t bytes)
{
    uint64_t until;

    COMM_LOCKED(comm);
    until = bytes > 0 ? stages_slow_until(&comm->throttle, stage, (uint64_t)bytes) : 0;
    if (until == 0)
        return;
    comm_lock_release(&comm->lock);
    stages_sleep(until);
    comm_lock_take(&comm->lock);
}

void net_get_stages(struct net_comm *comm, struct stage_times *times)
{
    bool sends = comm->side == NET_SENDER;
    uint64_t now;

    comm_lock_take(&comm->lock);
    if (comm->mover != NULL)
        comm->mover->poll(comm);
    now = clock_now();
    stages_account(&comm->calling, now, comm->calling.under_way > 0);
    *times = (struct stage_times){
        .copy_out_ns = sends ? stages_copies_until(&comm->copying, now) : 0,
        .write_ns = sends ? comm->calling.work_ns : 0,
        .write_wait_ns = sends ? comm->calling.wait_ns : 0,
        .read_ns = sends ? 0 : comm->calling.work_ns,
        .read_wait_ns = sends ? 0 : comm->calling.wait_ns,
        .copy_in_ns = sends ? 0 : stages_copies_until(&comm->copying, now),
    };
    comm_lock_release(&comm->lock);
}

void net_get_unpack_counts(struct net_comm *comm, struct unpack_counts *counts)
{
    comm_lock_take(&comm->lock);
    *counts = comm->unpack_counts;
    comm_lock_release(&comm->lock);
}
