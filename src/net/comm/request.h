/*
 * The requests of a comm: a table of a fixed size, how a request ends, and how callers that sleep
 * until one has ended are woken.
 */
#ifndef TCPX_NET_COMM_REQUEST_H
#define TCPX_NET_COMM_REQUEST_H

#include "net/comm/comm_state.h"

MUST_CHECK int requests_create(struct net_comm *comm);
void requests_destroy(struct net_comm *comm);

/* One that is free, until it gets a state; NULL: all are in use. */
struct net_request *request_take(struct net_comm *comm);
void request_free(struct net_request *request);

/* Neither done nor failed. */
static inline bool request_is_outstanding(const struct net_request *request)
{
    return request->state == REQUEST_WAITING || request->state == REQUEST_MOVING;
}

/* Ends one request; the comm goes on. The text of a failure is error_text(). */
void request_done(struct net_request *request);
void request_fail(struct net_request *request, int result);

/* Whether test() may report how it ended: no system call and no copy touches its data any more. */
bool request_has_ended(const struct net_request *request);

/* Around a system call or copy that touches its data. NULL is allowed. */
void request_hold(struct net_request *request);
void request_let_go(struct net_request *request);

/* --- sleepers --- */

/* A request may have ended: sleepers look. */
void wake_sleepers(struct net_comm *comm);

/* Before a sleep. An eventfd, which stays; without one a sleeper only polls more often. */
void wake_open(struct net_comm *comm);
/* A sleeper was woken: the wake-up is used. */
void wake_clear(struct net_comm *comm);
void wake_close(struct net_comm *comm);

#endif
