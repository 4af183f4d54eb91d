/* The requests of a comm: a table of a fixed size, and how a request ends. */
#ifndef TCPX_NET_COMM_REQUEST_H
#define TCPX_NET_COMM_REQUEST_H

#include "net/comm/comm_state.h"

MUST_CHECK int requests_create(struct net_comm *comm);
void requests_destroy(struct net_comm *comm);

bool request_is_free(const struct net_comm *comm);
/* One that was free; NULL: all are in use. */
struct net_request *request_take(struct net_comm *comm);
/* Also without the lock. */
void request_free(struct net_request *request);

/* Neither done nor failed. */
static inline bool request_is_outstanding(const struct net_request *request)
{
    return request->state == REQUEST_WAITING || request->state == REQUEST_MOVING;
}

/* A place whose number is in the order in which places are opened. */
static inline bool request_is_in_order(const struct net_request *request)
{
    return request->is_place && request->sequence < NET_OPEN_PLACE;
}

/* Ends one request; the comm goes on. The text of a failure is error_text(). */
void request_done(struct net_request *request);
void request_fail(struct net_request *request, int result);

/*
 * Whether test() may report how it ended: no system call and no copy touches its data any more. A
 * receive that was cancelled has ended for its caller then.
 */
bool request_has_ended(const struct net_request *request);

/* The caller may ask again. */
void request_notify(struct net_request *request);

/* Around a system call or copy that touches its data. NULL is allowed. */
void request_hold(struct net_request *request);
void request_let_go(struct net_request *request);

#endif
