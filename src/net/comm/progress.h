/*
 * Which thread moves a comm's lanes.
 *
 * Usually each lane's socket is owned by one of the I/O threads (net/io), which moves it on when
 * the socket has events and when it is woken. Only the owner reads. A call posts, and sends small
 * messages and records itself if no other thread is sending on that socket at the moment, so that
 * they are not handed over between threads. test() only looks at the request.
 *
 * Without I/O threads, calls move all lanes. So they do with few CPUs; there the I/O threads own
 * the lanes only when no call has come for a few milliseconds, even if no request is in flight: a
 * late program must not look like a lost peer, as a socket that is not read does to TCP.
 */
#ifndef TCPX_NET_COMM_PROGRESS_H
#define TCPX_NET_COMM_PROGRESS_H

#include "net/comm/comm_state.h"

/* Adds the comm to the I/O threads, if any. This and the next are called without the lock. */
void progress_start(struct net_comm *comm);
/* No I/O thread is in the comm when it returns. */
void progress_stop(struct net_comm *comm);

/* Makes I/O threads own the lanes for good, even with few CPUs. No effect without I/O threads. */
void progress_leave_to_threads(struct net_comm *comm);

/* The part of a call. `now`: receives that could be announced a little later are announced. */
void progress(struct net_comm *comm, bool now);

/* The end of a call: I/O threads look again whether calls move the lanes. */
void progress_after_call(struct net_comm *comm);

/* Whether a thread should poll soon: the GPU has work, and its completion wakes no thread. */
bool progress_waits_for_gpu(const struct net_comm *comm);

#endif
