/* Errors of a sender's connections. */
#include "net/comm/tx_connection.h"

#include "net/comm/fail.h"

#include <errno.h>

/* Whether a peer that reset a connection may have sent its reason on the reverse socket. */
static bool tx_may_learn_why(int error)
{
    return error == EPIPE || error == ECONNRESET;
}

void tx_connection_failed(struct net_comm *comm, unsigned socket, int error)
{
    COMM_LOCKED(comm);
    error_keep_system(error, "the connection to %s broke", comm->link.peer);
    comm->tx.outgoing[socket].lost = true;
    comm_lose(comm);
    if (!tx_may_learn_why(error))
        comm_fail_lost(comm);
}

bool tx_connection_has_failed(struct net_comm *comm, unsigned socket)
{
    int error = comm_connection_error(comm, socket);

    COMM_LOCKED(comm);
    if (error == 0)
        return false;
    if (tx_may_learn_why(error))
        comm_lose(comm);
    else
        comm_fail(comm, TCPX_REMOTE_ERROR);
    return true;
}
