/* Requests of a comm, and its end. */
#include "net/comm.h"

#include "base/log.h"
#include "net/comm_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int net_comm_create(const struct net_link *link, enum net_side side, struct net_comm **out)
{
    struct net_comm *comm = calloc(1, sizeof *comm);
    struct net_link sockets = *link;
    int result;

    if (comm == NULL) {
        net_link_close(&sockets);
        return error_system(ENOMEM, "a comm");
    }
    comm->link = *link;
    comm->side = side;
    result = side == NET_SENDER ? sender_create(comm) : receiver_create(comm);
    if (result != TCPX_SUCCESS) {
        net_link_close(&comm->link);
        free(comm);
        return result;
    }
    pthread_mutex_init(&comm->lock, NULL);
    for (int i = 0; i < COMM_REQUESTS; i++)
        comm->requests[i].comm = comm;
    *out = comm;
    return TCPX_SUCCESS;
}

/* --- ends ---------------------------------------------------------------------------------- */

void request_done(struct net_request *request)
{
    request->state = REQUEST_DONE;
    request->comm->messages++;
}

void request_fail(struct net_request *request, int result)
{
    request->state = REQUEST_FAILED;
    request->result = result;
    snprintf(request->text, sizeof request->text, "%s", error_text());
}

/* Why we give up, as far as the socket takes it at once, and then the end of every stream. */
static void give_up(struct net_comm *comm)
{
    uint8_t bytes[WIRE_ABORT_BYTES];
    size_t length = wire_abort_write((enum tcpx_result)comm->result, comm->text, bytes);
    bool sender = comm->side == NET_SENDER;

    if ((sender ? sender_is_between_records(comm) : receiver_is_between_records(comm)) &&
        send(sender ? comm->link.forward[0] : comm->link.reverse, bytes, length,
             MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("%s could not be told why", comm->link.peer);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        shutdown(comm->link.forward[i], SHUT_RDWR);
    shutdown(comm->link.reverse, SHUT_RDWR);
}

void comm_fail(struct net_comm *comm, int result)
{
    if (comm->result != TCPX_SUCCESS)
        return;
    comm->result = result;
    snprintf(comm->text, sizeof comm->text, "%s", error_text());
    log_debug("comm with %s failed: %s", comm->link.peer, comm->text);
    give_up(comm);
    for (int i = 0; i < COMM_REQUESTS; i++) {
        struct net_request *request = &comm->requests[i];

        if (request->state != REQUEST_WAITING && request->state != REQUEST_MOVING)
            continue;
        error_keep("%s: %s of %llu bytes with tag %llu had moved %llu; %llu messages before it had "
                   "been moved whole",
                   comm->text, comm->side == NET_SENDER ? "a send" : "a receive",
                   (unsigned long long)request->bytes, (unsigned long long)request->tag,
                   (unsigned long long)request->moved, (unsigned long long)comm->messages);
        request_fail(request, result);
    }
}

void net_comm_close(struct net_comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->side == NET_SENDER) {
        sender_close(comm);
        sender_destroy(comm);
    } else {
        receiver_destroy(comm);
    }
    net_link_close(&comm->link);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

/* --- requests ------------------------------------------------------------------------------ */

static struct net_request *free_request(struct net_comm *comm)
{
    for (int i = 0; i < COMM_REQUESTS; i++)
        if (comm->requests[i].state == REQUEST_FREE)
            return &comm->requests[i];
    return NULL;
}

static void progress(struct net_comm *comm)
{
    if (comm->result != TCPX_SUCCESS)
        return;
    if (comm->side == NET_SENDER)
        sender_progress(comm);
    else
        receiver_progress(comm);
}

static int start(struct net_comm *comm, enum net_side side, void *data, uint64_t bytes,
                 uint64_t tag, struct net_request **out)
{
    struct net_request *request;
    int result = TCPX_SUCCESS;

    if (comm->side != side)
        return error_set(TCPX_INVALID_USAGE, "a %s on the %s's end of a comm",
                         side == NET_SENDER ? "send" : "receive",
                         side == NET_SENDER ? "receiver" : "sender");
    pthread_mutex_lock(&comm->lock);
    *out = NULL;
    request = free_request(comm);
    tag = comm->link.match == WIRE_MATCH_TAG ? tag : 0;
    /* What came before the comm ended is still there to be received. */
    if (comm->result != TCPX_SUCCESS &&
        (side == NET_SENDER || !receiver_has_put_aside(comm, tag))) {
        result = error_set(comm->result, "%s", comm->text);
    } else if (request != NULL && (side == NET_SENDER || receiver_has_room(comm))) {
        *request = (struct net_request){.comm = comm,
                                        .state = REQUEST_WAITING,
                                        .order = comm->next_order++,
                                        .data = data,
                                        .bytes = bytes,
                                        .room = bytes,
                                        .tag = tag};
        if (side == NET_SENDER)
            sender_start(comm, request);
        else
            receiver_start(comm, request);
        *out = request;
    }
    /* A small message may come before its receive is announced, which can wait for the next test.
     */
    if (side == NET_SENDER || bytes > comm->link.eager_limit)
        progress(comm);
    pthread_mutex_unlock(&comm->lock);
    return result;
}

int net_isend(struct net_comm *comm, const void *data, uint64_t bytes, uint64_t tag,
              struct net_request **request)
{
    /* A sender never writes to its data. */
    return start(comm, NET_SENDER, (void *)(uintptr_t)data, bytes, tag, request);
}

int net_irecv(struct net_comm *comm, void *data, uint64_t room, uint64_t tag,
              struct net_request **request)
{
    return start(comm, NET_RECEIVER, data, room, tag, request);
}

int net_test(struct net_request *request, bool *done, uint64_t *bytes)
{
    struct net_comm *comm = request->comm;
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&comm->lock);
    if (request->state != REQUEST_DONE && request->state != REQUEST_FAILED)
        progress(comm);
    *done = request->state == REQUEST_DONE;
    if (request->state == REQUEST_FREE)
        result = error_set(TCPX_INVALID_USAGE, "a test of a request that has ended already");
    else if (request->state == REQUEST_FAILED)
        result = error_set(request->result, "%s", request->text);
    else if (*done && bytes != NULL)
        *bytes = request->bytes;
    if (request->state == REQUEST_DONE || request->state == REQUEST_FAILED)
        request->state = REQUEST_FREE;
    pthread_mutex_unlock(&comm->lock);
    return result;
}
