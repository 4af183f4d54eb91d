/*
 * The handle of a listener: 128 bytes that its owner passes to the processes that will connect. It
 * has the address and a random token: a connection that presents the token is a peer.
 */
#ifndef TCPX_NET_WIRE_HANDLE_H
#define TCPX_NET_WIRE_HANDLE_H

#include "base/error.h"
#include "net/wire/wire.h"

#include <stdint.h>
#include <sys/socket.h>

enum { NET_HANDLE_BYTES = 128 };

struct net_handle {
    struct sockaddr_storage address;
    uint8_t token[WIRE_TOKEN_BYTES];
    enum wire_framing framing; /* that the listener has chosen for its links */
    uint64_t process;          /* identifies the process of the listener */
    /*
     * A connect in progress, by its number; 0: none. Written by the connecting side into its own
     * copy, since a connect that is not finished is called again with the same bytes.
     */
    uint64_t attempt;
};

/* This process, by a number that no other one has. */
MUST_CHECK int net_handle_process(uint64_t *process);

void net_handle_write(const struct net_handle *handle, uint8_t bytes[NET_HANDLE_BYTES]);

/* Bytes that no listener of ours has written are refused with a text. */
MUST_CHECK int net_handle_read(const uint8_t bytes[NET_HANDLE_BYTES], struct net_handle *handle);

#endif
