/*
 * Which thread moves a comm's lanes on. Callers move the first and the reverse lane themselves, so
 * that a small message is not handed over between threads; the further lanes belong to the I/O
 * threads (net/io). Those also watch the callers' lanes when no call has come for a few
 * milliseconds, whether or not requests are under way: a program that is late must not look like a
 * lost peer, which is what TCP makes of a socket that is not read. Without I/O threads, or where
 * there are hardly CPUs for them, all lanes are the callers'.
 */
#ifndef TCPX_NET_COMM_PROGRESS_H
#define TCPX_NET_COMM_PROGRESS_H

#include "net/comm/comm_state.h"

/* Adds the comm to the I/O threads, if there can be any. Without the lock, as is the next. */
void progress_start(struct net_comm *comm);
/* No I/O thread is in the comm when it returns. */
void progress_stop(struct net_comm *comm);

/* By a call on the comm: moves the caller's lanes on. */
void progress(struct net_comm *comm);
/* The same before the caller sleeps: also announces receives that could wait. */
void progress_before_sleep(struct net_comm *comm);

/* Whether a thread should come back soon: the GPU works, and wakes no thread when it has ended. */
bool progress_waits_for_gpu(const struct net_comm *comm);

#endif
