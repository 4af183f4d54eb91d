/* Limits of unsent bytes, adapted to the speed of each socket. */
#include "net/comm/unsent.h"

#include "base/log.h"

enum {
    LEAST_UNSENT = 128 << 10,
    FIRST_UNSENT = 256 << 10,
    MOST_UNSENT = 4 << 20,
    LEAST_SAMPLE = 128 << 10, /* fewer bytes are too few to measure the speed */
};
#define UNSENT_NS 5000000u

/* On failure the sockets only share less evenly. */
static void unsent_limit(struct net_comm *comm, unsigned socket, int bytes)
{
    comm->tx.outgoing[socket].unsent_limit = bytes;
    if (socket_limit_unsent(comm->link.forward[socket], bytes) != TCPX_SUCCESS)
        log_debug("%s", error_text());
}

void unsent_limit_all(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets && comm->link.sockets > 1; i++)
        unsent_limit(comm, i, FIRST_UNSENT);
}

void unsent_adapt(struct net_comm *comm, unsigned socket)
{
    struct outgoing *outgoing = &comm->tx.outgoing[socket];
    uint64_t now;
    uint64_t span;
    uint64_t bytes;

    if (comm->link.sockets == 1)
        return;
    now = clock_now();
    span = now - outgoing->loaded_at + 1;
    outgoing->loaded_at = now;
    if (outgoing->counts < LEAST_SAMPLE)
        return;
    bytes = outgoing->counts * UNSENT_NS / span;
    bytes = bytes < LEAST_UNSENT ? LEAST_UNSENT : bytes > MOST_UNSENT ? MOST_UNSENT : bytes;
    if (bytes >= 2 * (uint64_t)outgoing->unsent_limit ||
        2 * bytes <= (uint64_t)outgoing->unsent_limit)
        unsent_limit(comm, socket, (int)bytes);
}
