/*
 * Requests: lists of pieces that are read or written as one, any number of times. Pieces on several
 * GPUs, and those beyond what an access takes, become several accesses ("operations"), each over
 * its link; the notice then goes by itself when all are done.
 *
 * A request that is not done in its time is cancelled. If the peer does not even confirm that, it
 * counts as lost. Giving a request up never needs the peer: first this side's memory is quiet, then
 * the peer is told, and the service thread keeps the transfer until it has answered.
 */
#include "nixl_plugin/request_list.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONFIRM_MS = 1000,      /* in which a peer that is there confirms a cancel */
    LIBRARY_LATER_MS = 5000 /* the library's own deadline, for a program that does not ask */
};

/* --- operations ---------------------------------------------------------------------------- */

static bool operation_begin(struct operation *operation);
static void operation_silence(struct operation *operation);
static void operation_end(struct operation *operation, enum nixl_status status);

static const struct operation_calls calls = {operation_begin, operation_silence, operation_end};

static void operation_enlist(struct operation *operation, struct link *link)
{
    operation->calls = &calls;
    operation->link = link;
    operation->next = NULL;
    operation->here = link->last_operation;
    *link->last_operation = operation;
    link->last_operation = &operation->next;
}

static void operation_unlist(struct operation *operation)
{
    *operation->here = operation->next;
    if (operation->next != NULL)
        operation->next->here = operation->here;
    else
        operation->link->last_operation = operation->here;
    operation->link = NULL;
}

static int operation_find_parts(const struct operation *operation, struct tcpx_part *parts)
{
    const struct item *items = operation->request->items + operation->first;
    struct nixl_remote *latest = NULL;
    struct tcpx_remote *remote = NULL;
    int result = TCPX_SUCCESS;

    for (size_t i = 0; i < operation->count && result == TCPX_SUCCESS; i++) {
        const struct item *item = &items[i];

        if (item->remote != latest)
            result = link_open_remote(operation->link, item->remote, &remote);
        if (result == TCPX_SUCCESS && item->region->window == NULL)
            result = error_set(TCPX_INVALID_USAGE, "memory of this side was deregistered");
        latest = item->remote;
        parts[i] = (struct tcpx_part){item->region->window, item->offset, remote,
                                      item->remote_offset, item->bytes};
    }
    return result;
}

static int operation_access(struct operation *operation)
{
    const struct nixl_request *request = operation->request;
    struct tcpx_session *session = operation->link->session;
    struct tcpx_part *parts = calloc(operation->count, sizeof *parts);
    struct tcpx_access access = {.parts = parts,
                                 .part_count = operation->count,
                                 .note = request->note.bytes,
                                 .note_bytes = request->note.length,
                                 .timeout_ms = (int)request->agent->timeout_ms + LIBRARY_LATER_MS};
    int result;

    if (parts == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "no memory for %zu descriptors", operation->count);
    result = operation_find_parts(operation, parts);
    if (result == TCPX_SUCCESS)
        result = request->is_read ? tcpx_read(session, &access, &operation->transfer)
                                  : tcpx_write(session, &access, &operation->transfer);
    free(parts);
    return result;
}

static void operation_complain(const struct operation *operation)
{
    const struct nixl_request *request = operation->request;
    const struct nixl_text name = {request->peer->name, request->peer->name_length};
    char shown[128];

    agent_say(request->agent, "a %s with the agent %s has failed: %s",
              request->is_read ? "read" : "write", agent_shown(name, shown), error_text());
}

static bool operation_begin(struct operation *operation)
{
    if (operation_access(operation) == TCPX_SUCCESS)
        return true;
    operation_complain(operation);
    if (link_is_broken(operation->link))
        return false;
    operation_end(operation, NIXL_ERR_BACKEND);
    return true;
}

static void operation_silence(struct operation *operation)
{
    const uint64_t deadline = deadline_after_ms(operation->request->agent->timeout_ms);

    if (operation->transfer == NULL)
        return;
    /* A call waits up to a second for a copy of the GPU. */
    while (tcpx_transfer_cancel(operation->transfer) == TCPX_IN_PROGRESS)
        if (deadline_passed(deadline)) {
            agent_say(operation->request->agent, "memory of a cancelled transfer: %s",
                      error_text());
            return;
        }
}

/* Gives it up, whether it is under way or not; the peer confirms that later. */
static void operation_give_up(struct operation *operation)
{
    operation_silence(operation);
    if (operation->transfer != NULL)
        link_keep_ending(operation->link, operation->transfer);
}

static void request_finish(struct nixl_request *request);

static void operation_end(struct operation *operation, enum nixl_status status)
{
    struct nixl_request *request = operation->request;

    operation_unlist(operation);
    operation->transfer = NULL;
    request->left--;
    if (status != NIXL_SUCCESS && request->outcome == NIXL_SUCCESS) {
        request->outcome = status;
        for (size_t i = 0; i < request->operation_count; i++) {
            struct operation *other = &request->operations[i];

            if (other->link == NULL)
                continue;
            operation_give_up(other);
            operation_end(other, status);
        }
    }
    if (request->left == 0 && request->status == NIXL_IN_PROG)
        request_finish(request);
}

/* --- being under way ----------------------------------------------------------------------- */

static void request_leave_composed(struct nixl_request *request)
{
    struct nixl_request **at = &request->agent->composed;

    if (!request->is_composed)
        return;
    while (*at != request)
        at = &(*at)->next_composed;
    *at = request->next_composed;
    request->is_composed = false;
}

static void request_drop_notice(struct nixl_request *request)
{
    free(request->note.bytes);
    free(request->notice);
    request->note = (struct notice_note){.bytes = NULL};
    request->notice = NULL;
}

static void request_finish(struct nixl_request *request)
{
    const struct operation *first = request->operations;
    const struct nixl_text notice = {request->notice, request->notice_length};
    struct link *link = NULL;

    request->status = request->outcome;
    request_leave_composed(request);
    if (request->notice != NULL && request->outcome == NIXL_SUCCESS) {
        link = link_get(request->peer, first->gpu_here, first->gpu_there, first->port);
        if (link == NULL || !notice_send(link, notice))
            request->status = NIXL_ERR_BACKEND;
    }
    request_drop_notice(request);
}

/* Its only operation's link is there: what goes before the access, and its note. */
static bool request_take_notice(struct nixl_request *request, const struct nixl_text *notice)
{
    if (notice == NULL)
        return true;
    if (request->operation_count == 1)
        return notice_begin(request->operations[0].link, *notice, &request->note);
    request->notice = malloc(notice->length + 1);
    if (request->notice == NULL)
        return false;
    if (notice->length > 0)
        memcpy(request->notice, notice->bytes, notice->length);
    request->notice_length = notice->length;
    return true;
}

/* Each operation waits at its link, or is begun. False: there is no way to the peer. */
static bool request_enlist(struct nixl_request *request)
{
    for (size_t i = 0; i < request->operation_count; i++) {
        struct operation *operation = &request->operations[i];
        struct link *link =
            link_get(request->peer, operation->gpu_here, operation->gpu_there, operation->port);

        if (link == NULL)
            return false;
        operation_enlist(operation, link);
        request->left++;
    }
    return true;
}

static void request_start(struct nixl_request *request)
{
    for (size_t i = 0; i < request->operation_count; i++) {
        struct operation *operation = &request->operations[i];

        if (operation->link != NULL && operation->link->is_open && !operation_begin(operation))
            link_end(operation->link, NIXL_ERR_REMOTE_DISCONNECT, error_text());
    }
}

static void request_abandon(struct nixl_request *request, enum nixl_status status)
{
    for (size_t i = 0; i < request->operation_count; i++) {
        struct operation *operation = &request->operations[i];

        if (operation->link == NULL)
            continue;
        operation_give_up(operation);
        if (request->note.bytes != NULL)
            notice_withdraw(operation->link, &request->note);
        operation_end(operation, status);
    }
}

/* With the lock. */
static enum nixl_status request_post(struct nixl_request *request, const struct nixl_text *notice)
{
    if (request->status == NIXL_IN_PROG)
        return NIXL_ERR_REPOST_ACTIVE;
    if (request->peer->is_forgotten)
        return NIXL_ERR_REMOTE_DISCONNECT;
    request->status = NIXL_IN_PROG;
    request->outcome = NIXL_SUCCESS;
    request->is_late = false;
    request->deadline = deadline_after_ms(request->agent->timeout_ms);
    request->left = 0;
    if (!request_enlist(request) || !request_take_notice(request, notice)) {
        agent_say(request->agent, "a transfer of %zu descriptors cannot begin", request->count);
        request->outcome = NIXL_ERR_BACKEND;
        request_abandon(request, NIXL_ERR_BACKEND);
        request->status = NIXL_ERR_BACKEND;
        return request->status;
    }
    if (request->notice != NULL) {
        request->is_composed = true;
        request->next_composed = request->agent->composed;
        request->agent->composed = request;
        agent_wake_service(request->agent);
    }
    request_start(request);
    return request->status;
}

enum nixl_status nixl_request_post(struct nixl_request *request, const struct nixl_text *notice)
{
    struct nixl_agent *agent = request->agent;
    enum nixl_status status;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    status = request_post(request, notice);
    agent_leave(agent);
    return status;
}

/* --- asking -------------------------------------------------------------------------------- */

static void operation_fail(struct operation *operation, int result)
{
    struct link *link = operation->link;
    const bool late = operation->request->is_late && result == TCPX_CANCELLED;

    if (!late)
        operation_complain(operation);
    if (!late && link_is_broken(link)) {
        operation->transfer = NULL; /* it is gone */
        link_end(link, NIXL_ERR_REMOTE_DISCONNECT, error_text());
        return;
    }
    operation_end(operation, NIXL_ERR_BACKEND);
}

static void operation_test(struct operation *operation)
{
    int done = 0;
    int result = tcpx_transfer_test(operation->transfer, &done);

    if (result != TCPX_SUCCESS)
        operation_fail(operation, result);
    else if (done)
        operation_end(operation, NIXL_SUCCESS);
}

/* Its time is over. */
static void request_expire(struct nixl_request *request)
{
    const struct nixl_text name = {request->peer->name, request->peer->name_length};
    char shown[128];

    agent_say(request->agent, "a %s with the agent %s has not ended in %llu ms",
              request->is_read ? "read" : "write", agent_shown(name, shown),
              (unsigned long long)request->agent->timeout_ms);
    request->is_late = true;
    request->deadline = deadline_after_ms(CONFIRM_MS);
    for (size_t i = 0; i < request->operation_count; i++) {
        struct operation *operation = &request->operations[i];

        if (operation->transfer != NULL)
            operation_silence(operation);
        else if (operation->link != NULL) /* there is no connection yet */
            operation_end(operation, NIXL_ERR_REMOTE_DISCONNECT);
    }
}

/* The peer has not even confirmed that. */
static void request_lose_peer(struct nixl_request *request)
{
    for (size_t i = 0; i < request->operation_count; i++)
        if (request->operations[i].link != NULL)
            link_end(request->operations[i].link, NIXL_ERR_REMOTE_DISCONNECT, "it does not answer");
}

static void request_step(struct nixl_request *request)
{
    for (size_t i = 0; i < request->operation_count; i++)
        if (request->operations[i].transfer != NULL)
            operation_test(&request->operations[i]);
    if (request->status != NIXL_IN_PROG || !deadline_passed(request->deadline))
        return;
    if (request->is_late)
        request_lose_peer(request);
    else
        request_expire(request);
}

enum nixl_status nixl_request_check(struct nixl_request *request)
{
    struct nixl_agent *agent = request->agent;
    enum nixl_status status;

    if (!agent_enter(agent))
        return NIXL_ERR_BACKEND;
    if (request->status == NIXL_IN_PROG)
        request_step(request);
    status = request->status;
    if (status == NIXL_IN_PROG)
        agent_leave_empty_handed(agent);
    else
        agent_leave(agent);
    return status;
}

void requests_service(struct nixl_agent *agent)
{
    struct nixl_request *request = agent->composed;

    while (request != NULL) {
        struct nixl_request *next = request->next_composed;

        request_step(request);
        request = next;
    }
}

/* --- giving up ----------------------------------------------------------------------------- */

void nixl_request_free(struct nixl_request *request)
{
    struct nixl_agent *agent = request->agent;

    if (!agent_enter(agent))
        return;
    if (request->status == NIXL_IN_PROG)
        request_abandon(request, NIXL_ERR_BACKEND);
    for (size_t i = 0; i < request->count && request->operations != NULL; i++) {
        region_release(request->items[i].region);
        remote_release(request->items[i].remote);
    }
    request_drop_notice(request);
    peer_release(request->peer);
    agent_leave(agent);
    free(request->operations);
    free(request->items);
    free(request);
}
