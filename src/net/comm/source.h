/*
 * Where the bytes of a send come from. The sending side (tx_lane.c) knows a source only by these
 * operations: host memory here, GPU memory that is staged or read by the NIC in net/gpu. All are
 * called with the comm's lock, except write().
 */
#ifndef TCPX_NET_COMM_SOURCE_H
#define TCPX_NET_COMM_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct net_comm;
struct net_request;

struct source_ops {
    /*
     * The message may travel in an EAGER record, before its receive is posted. The bytes are there
     * at once, and a slice is a part of the largest (NET_HOST_SHARE).
     */
    bool in_host;
    /* The mover copies it to host memory first; sockets send the pieces that are ready there. */
    bool by_pieces;
    /* Whether the bytes may be sent now. NULL: always. */
    bool (*is_ready)(const struct net_request *request);

    /*
     * A source that sends by itself, with records in a system call of their own: whether the socket
     * can take another send; a send of what `outgoing` has left, as sendmsg(); so many bytes were
     * taken, which count as moved when they arrive; explains an error, after which the comm has
     * failed (false: an error of the connection). NULL, all of them: payload is sent from memory.
     */
    bool (*has_room)(struct net_comm *comm, unsigned socket);
    ssize_t (*write)(const struct net_comm *comm, unsigned socket);
    void (*taken)(struct net_comm *comm, unsigned socket, uint64_t bytes);
    bool (*explain)(struct net_comm *comm, int error);
};

extern const struct source_ops source_host;

#endif
