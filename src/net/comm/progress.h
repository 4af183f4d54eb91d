/*
 * Which thread moves a comm's lanes. Callers move the first and the reverse lane, so that a small
 * message is not handed over between threads; the other lanes belong to the I/O threads (net/io).
 * When no call has come for a few milliseconds, the I/O threads also watch the callers' lanes, even
 * if no request is in flight: a late program must not look like a lost peer, as a socket that is
 * not read does to TCP. Without I/O threads, or with few CPUs, callers move all lanes.
 */
#ifndef TCPX_NET_COMM_PROGRESS_H
#define TCPX_NET_COMM_PROGRESS_H

#include "net/comm/comm_state.h"

/* Adds the comm to the I/O threads, if any. This and the next are called without the lock. */
void progress_start(struct net_comm *comm);
/* No I/O thread is in the comm when it returns. */
void progress_stop(struct net_comm *comm);

/* Called by every call on the comm: moves the callers' lanes. */
void progress(struct net_comm *comm);
/* As progress(), before the caller sleeps: also announces receives that could wait. */
void progress_before_sleep(struct net_comm *comm);

/* Whether a thread should poll soon: the GPU has work, and its completion wakes no thread. */
bool progress_waits_for_gpu(const struct net_comm *comm);

#endif
