/*
 * For how long a comm's stages were at work, and for how long it waited (stages.h). A sender waits
 * while a socket is full; a receiver waits while a receive misses bytes and every socket was found
 * empty.
 */
#ifndef TCPX_NET_COMM_ACCOUNTING_H
#define TCPX_NET_COMM_ACCOUNTING_H

#include "net/comm/comm_state.h"

/* A system call that wanted to send so many bytes has returned `sent`. */
void account_written(struct net_comm *comm, unsigned socket, ssize_t sent, uint64_t wanted);

/* A receive was posted; a receive misses no bytes any more, or will never get them. */
void account_posted(struct net_comm *comm, uint64_t now);
void account_satisfied(struct net_comm *comm, struct net_request *request);

/* Right behind a system call: whether the socket may have more bytes. */
void account_read(struct net_comm *comm, unsigned socket, bool unread);
/* There may be bytes, but no memory for them, whether or not that took a call to see. */
void account_no_memory(struct net_comm *comm, unsigned socket);

/* Delays the calling thread if a test slows this stage down. Releases the lock during the delay. */
void account_throttle(struct net_comm *comm, enum config_throttle stage, ssize_t bytes);

#endif
