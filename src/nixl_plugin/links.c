/*
 * Sessions that this side begins. A thread for each of them finds the peer at one of its addresses
 * and makes sure that it is the peer that was meant; what is posted meanwhile waits. A link whose
 * session fails is gone, and the next use begins another one.
 */
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONNECT_MS = 20000, /* at most: whoever gave its endpoint away has been listening since */
    FIRST_TRY_MS = 1000,
    TRY_MS = 5000,  /* at one address, where there are others */
    REFUSALS = 3,   /* of each address, in words of another process, not of the network */
    PAUSE_MS = 100, /* after one of them */
    MOST_UNSENT = 64 << 20,
};

/* A note that the peer has had no room for, or that waits for the link. */
struct unsent {
    struct unsent *next;
    size_t bytes;
    uint8_t note[];
};

struct ending {
    struct ending *next;
    struct tcpx_transfer *transfer;
};

/* --- connecting ---------------------------------------------------------------------------- */

static int link_try(const struct link *link, unsigned address, int timeout_ms,
                    struct tcpx_session **out)
{
    const struct endpoint *endpoint = &link->peer->endpoint;
    struct tcpx_session_options options;
    struct tcpx_session *session;
    char other[64];
    int result;

    agent_session_options(link->peer->agent, link->gpu_here, &options);
    result = tcpx_session_connect(endpoint->addresses[address], link->port, &options, timeout_ms,
                                  &session);
    if (result != TCPX_SUCCESS)
        return result;
    if (strcmp(tcpx_session_peer(session), endpoint->identity) != 0) {
        text_printable(tcpx_session_peer(session), strlen(tcpx_session_peer(session)), other,
                       sizeof other);
        tcpx_session_close(session);
        return error_set(TCPX_REMOTE_ERROR, "another agent answers at %s, port %d: %s",
                         endpoint->addresses[address], link->port, other);
    }
    *out = session;
    return TCPX_SUCCESS;
}

/* The endpoint of a peer stays as it is, apart from its port, which a link has for itself. */
static int link_reach(const struct link *link, struct tcpx_session **session)
{
    const unsigned count = link->peer->endpoint.address_count;
    const uint64_t most = link->peer->agent->timeout_ms;
    const uint64_t deadline = deadline_after_ms(most < CONNECT_MS ? most : CONNECT_MS);
    unsigned refusals = 0;
    int result;

    if (count == 0)
        return error_set(TCPX_INTERNAL_ERROR, "a peer without an address");
    for (unsigned i = 0;; i++) {
        int most_ms = count == 1 ? CONNECT_MS : i < count ? FIRST_TRY_MS : TRY_MS;
        int left_ms = deadline_poll_ms(deadline);

        result = link_try(link, i % count, left_ms < most_ms ? left_ms : most_ms, session);
        if (result == TCPX_SUCCESS || atomic_load(&link->is_abandoned) || deadline_passed(deadline))
            return result;
        if (result == TCPX_IN_PROGRESS)
            refusals = 0;
        else if (++refusals == REFUSALS * count)
            return result;
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
}

/* With the lock, in the order in which they were posted. One that fails takes its request's others
 * along. */
static void link_begin_waiting(struct link *link)
{
    struct operation *operation = link->operations;

    while (operation != NULL) {
        struct operation *next = operation->next;

        if (operation->transfer == NULL && !operation->calls->begin(operation)) {
            link_end(link, NIXL_ERR_REMOTE_DISCONNECT, error_text());
            return;
        }
        operation = next == NULL || next->link == link ? next : link->operations;
    }
}

/* With the lock. */
static void link_free(struct link *link)
{
    while (link->unsent != NULL) {
        struct unsent *unsent = link->unsent;

        link->unsent = unsent->next;
        free(unsent);
    }
    while (link->endings != NULL) {
        struct ending *ending = link->endings;

        link->endings = ending->next;
        free(ending);
    }
    free(link->remotes);
    peer_release(link->peer);
    free(link);
}

/* Its first note: who this side is. */
static bool link_introduce(struct link *link)
{
    const struct nixl_agent *agent = link->peer->agent;
    uint8_t *note = agent->room;

    note_head_write(note, NOTE_NAME, 0, agent->name_length, 0);
    memcpy(note + NOTE_HEAD_BYTES, agent->name, agent->name_length);
    return tcpx_note_send(link->session, note, NOTE_HEAD_BYTES + agent->name_length) ==
           TCPX_SUCCESS;
}

static void link_opened(struct link *link, struct tcpx_session *session)
{
    struct nixl_agent *agent = link->peer->agent;
    char shown[128];

    link->session = session;
    link->is_ours = true;
    link->is_open = true;
    agent_tell(agent, "connected to the agent %s: %s",
               agent_shown((struct nixl_text){link->peer->name, link->peer->name_length}, shown),
               tcpx_session_path(session));
    if (!link_introduce(link)) {
        link_end(link, NIXL_ERR_REMOTE_DISCONNECT, error_text());
        return;
    }
    link_begin_waiting(link);
    agent_wake_service(agent);
}

static void *link_run(void *argument)
{
    struct link *link = argument;
    struct nixl_agent *agent = link->peer->agent;
    struct tcpx_session *session = NULL;
    int result = link_reach(link, &session);

    pthread_mutex_lock(&agent->lock);
    if (atomic_load(&link->is_abandoned)) {
        link_free(link);
        if (session != NULL)
            agent_retire_session(agent, session);
    } else if (result == TCPX_SUCCESS) {
        link_opened(link, session);
    } else {
        link->is_ours = true;
        link_end(link, NIXL_ERR_REMOTE_DISCONNECT, error_text());
    }
    agent_release(agent);
    return NULL;
}

/* --- making and ending --------------------------------------------------------------------- */

static struct link *link_begin(struct peer *peer, int gpu_here, int gpu_there, int port)
{
    struct link *link = calloc(1, sizeof *link);
    int error;

    if (link == NULL)
        return NULL;
    *link = (struct link){.peer = peer, .gpu_here = gpu_here, .gpu_there = gpu_there, .port = port};
    link->last_unsent = &link->unsent;
    link->last_operation = &link->operations;
    error = thread_start(NULL, link_run, link);
    if (error != 0) {
        agent_say(peer->agent, "cannot connect: a thread: %s", strerror(error));
        free(link);
        return NULL;
    }
    peer_hold(peer);
    peer->agent->references++;
    link->next = peer->links;
    peer->links = link;
    return link;
}

bool link_is_broken(struct link *link)
{
    size_t bytes;
    int there = 1;

    /* A peer says nothing over a link; whatever it says is dropped. */
    while (there)
        if (tcpx_note_take(link->session, link->peer->agent->room, TCPX_NOTE_BYTES, &bytes,
                           &there) != TCPX_SUCCESS)
            return true;
    return false;
}

static void link_complain(const struct link *link, const char *why)
{
    const struct peer *peer = link->peer;
    char shown[128];

    if (peer->agent->is_closing || (why == NULL && link->unsent == NULL))
        return;
    agent_shown((struct nixl_text){peer->name, peer->name_length}, shown);
    if (why != NULL)
        agent_say(peer->agent, "the agent %s: %s", shown, why);
    if (link->unsent != NULL)
        agent_say(peer->agent, "the agent %s: notices of %zu bytes were not sent", shown,
                  link->unsent_bytes);
}

void link_end(struct link *link, enum nixl_status status, const char *why)
{
    struct peer *peer = link->peer;
    struct link **at = &peer->links;

    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    if (peer->notice_link == link)
        peer->notice_link = NULL;
    link_complain(link, why);
    while (link->operations != NULL) {
        struct operation *operation = link->operations;

        operation->calls->silence(operation);
        operation->calls->end(operation, status);
    }
    if (link->session != NULL)
        agent_retire_session(peer->agent, link->session);
    if (link->is_ours)
        link_free(link);
    else
        atomic_store(&link->is_abandoned, true);
}

bool link_drop_if_broken(struct link *link)
{
    if (!link->is_open || link->operations != NULL || !link_is_broken(link))
        return false;
    link_end(link, NIXL_ERR_REMOTE_DISCONNECT, NULL);
    return true;
}

struct link *link_get(struct peer *peer, int gpu_here, int gpu_there, int port)
{
    struct link *link = peer->links;

    while (link != NULL && (link->gpu_here != gpu_here || link->gpu_there != gpu_there))
        link = link->next;
    if (link == NULL || link_drop_if_broken(link))
        link = link_begin(peer, gpu_here, gpu_there, port);
    return link;
}

/* --- notes --------------------------------------------------------------------------------- */

static bool link_queue_note(struct link *link, const uint8_t *note, size_t bytes)
{
    struct unsent *unsent;

    if (link->unsent_bytes > MOST_UNSENT)
        return false;
    unsent = malloc(sizeof *unsent + bytes);
    if (unsent == NULL)
        return false;
    unsent->next = NULL;
    unsent->bytes = bytes;
    memcpy(unsent->note, note, bytes);
    *link->last_unsent = unsent;
    link->last_unsent = &unsent->next;
    link->unsent_bytes += bytes;
    agent_wake_service(link->peer->agent);
    return true;
}

bool link_send_note(struct link *link, const void *head, size_t head_bytes, const void *body,
                    size_t body_bytes)
{
    uint8_t *note = link->peer->agent->room;

    memcpy(note, head, head_bytes);
    if (body_bytes > 0)
        memcpy(note + head_bytes, body, body_bytes);
    if (link->is_open && link->unsent == NULL &&
        tcpx_note_send(link->session, note, head_bytes + body_bytes) == TCPX_SUCCESS)
        return true;
    return link_queue_note(link, note, head_bytes + body_bytes);
}

/* As many as the peer has room for. */
static void link_send_unsent(struct link *link)
{
    while (link->unsent != NULL) {
        struct unsent *unsent = link->unsent;

        if (tcpx_note_send(link->session, unsent->note, unsent->bytes) != TCPX_SUCCESS)
            return;
        link->unsent = unsent->next;
        link->unsent_bytes -= unsent->bytes;
        free(unsent);
    }
    link->last_unsent = &link->unsent;
}

/* --- remotes ------------------------------------------------------------------------------- */

int link_open_remote(struct link *link, struct nixl_remote *remote, struct tcpx_remote **out)
{
    size_t slot = remote->slot;
    int result = TCPX_SUCCESS;

    if (slot >= link->remote_count) {
        size_t count = remote->peer->slot_count;
        struct tcpx_remote **more = realloc(link->remotes, count * sizeof(struct tcpx_remote *));

        if (more == NULL)
            return error_set(TCPX_SYSTEM_ERROR, "no memory for %zu regions of a peer", count);
        memset(more + link->remote_count, 0,
               (count - link->remote_count) * sizeof(struct tcpx_remote *));
        link->remotes = more;
        link->remote_count = count;
    }
    if (link->remotes[slot] == NULL)
        result =
            tcpx_remote_open(link->session, remote->key.key, TCPX_KEY_BYTES, &link->remotes[slot]);
    if (result == TCPX_SUCCESS)
        *out = link->remotes[slot];
    return result;
}

void link_close_slot(struct link *link, size_t slot)
{
    if (slot >= link->remote_count || link->remotes[slot] == NULL)
        return;
    if (tcpx_remote_close(link->remotes[slot]) != TCPX_SUCCESS)
        agent_tell(link->peer->agent, "%s", error_text());
    link->remotes[slot] = NULL;
}

/* --- what is cancelled --------------------------------------------------------------------- */

void link_keep_ending(struct link *link, struct tcpx_transfer *transfer)
{
    struct ending *ending = malloc(sizeof *ending);

    if (ending == NULL) /* closing the session frees it */
        return;
    ending->transfer = transfer;
    ending->next = link->endings;
    link->endings = ending;
    agent_wake_service(link->peer->agent);
}

static void link_test_endings(struct link *link)
{
    struct ending **at = &link->endings;

    while (*at != NULL) {
        struct ending *ending = *at;
        int done = 0;

        if (tcpx_transfer_test(ending->transfer, &done) == TCPX_SUCCESS && !done) {
            at = &ending->next;
            continue;
        }
        *at = ending->next;
        free(ending);
    }
}

bool link_service(struct link *link)
{
    if (!link->is_open)
        return false;
    link_test_endings(link);
    link_send_unsent(link);
    return !link_drop_if_broken(link) && (link->endings != NULL || link->unsent != NULL);
}
