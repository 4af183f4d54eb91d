/*
 * The state of an agent, which the files of this folder share.
 *
 *   link      a session to one peer that this side has begun, for one GPU, or the host, at each
 * end; all reads, writes and notices of this side go over links incoming  a session that a peer has
 * begun: it is served, and brings notices acceptor  listens on a port for sessions that peers
 * begin, for one GPU or the host
 *
 * One lock for each agent guards all of it. Sessions are made, accepted and closed without the
 * lock: a link is made by a thread of its own, an incoming session by the threads of its acceptor,
 * and both are closed by the agent's service thread, when nothing refers to them any more.
 */
#ifndef TCPX_NIXL_PLUGIN_AGENT_H
#define TCPX_NIXL_PLUGIN_AGENT_H

#include "base/error.h"
#include "base/thread.h"
#include "nixl_plugin/nixl_plugin.h"
#include "tcpx.h"

#include <netinet/in.h>
#include <stdatomic.h>

enum { HOST = -1, ACCEPTOR_THREADS = 4, ENDPOINT_ADDRESSES = 16, ENDPOINT_BYTES = 1024 };

/* --- endpoint.c: texts that other agents get ------------------------------------------------ */

/* The name of the sessions of an agent: new for each, so that nobody is taken for another one. */
enum { IDENTITY_BYTES = 40 };

struct endpoint {
    char identity[IDENTITY_BYTES];
    int port; /* for host memory */
    unsigned address_count;
    char addresses[ENDPOINT_ADDRESSES][INET6_ADDRSTRLEN];
};

struct region_key {
    int gpu;
    int port; /* for memory of this GPU */
    uint64_t address;
    uint64_t bytes;
    uint8_t key[TCPX_KEY_BYTES];
};

enum { REGION_KEY_BYTES = 24 + TCPX_KEY_BYTES };

/* A fresh identity and the addresses of this host, or `advertise` if that is not "". */
MUST_CHECK int endpoint_find(const char *advertise, struct endpoint *endpoint);
void endpoint_write(const struct endpoint *endpoint, char text[ENDPOINT_BYTES]);
MUST_CHECK int endpoint_read(struct nixl_text text, struct endpoint *endpoint);
void region_key_write(const struct region_key *key, uint8_t out[REGION_KEY_BYTES]);
MUST_CHECK int region_key_read(struct nixl_text text, struct region_key *key);

/* --- options.c ------------------------------------------------------------------------------- */

struct nixl_options {
    int channels;
    int timeout_ms; /* of a request; 0: that of the library */
    char *secret_file;
};

/* --- agent_state.c --------------------------------------------------------------------------- */

struct acceptor {
    struct acceptor *next;
    struct nixl_agent *agent;
    int gpu;
    int port;
    struct tcpx_session_listener *listener;
    pthread_t threads[ACCEPTOR_THREADS];
    unsigned thread_count;
};

struct nixl_agent {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the service thread */
    pthread_t service_thread;
    unsigned references; /* the owner's, and one of each thread that makes a link */
    bool is_closing;
    uint64_t asked_at; /* when the program has asked in vain */

    char *name;
    size_t name_length;
    struct nixl_options *options;
    struct endpoint endpoint;
    char endpoint_text[ENDPOINT_BYTES];
    uint64_t timeout_ms;

    struct acceptor *acceptors;
    struct peer *peers;
    struct incoming *incoming;
    struct nixl_region *regions;
    struct nixl_request *composed; /* under way, in several accesses, with a notice */

    struct retired *retired; /* sessions that the service thread closes */
    struct nixl_notice *inbox;
    struct nixl_notice **last_in_inbox;
    size_t inbox_bytes;
    uint8_t *room; /* for one note */
};

/* Takes the lock. False in a forked child, where an agent is of no use. */
MUST_CHECK bool agent_enter(struct nixl_agent *agent);
void agent_leave(struct nixl_agent *agent);
/*
 * After a question to which the answer was "not yet". A program that does nothing but ask gets in
 * the way of the threads that move the bytes where CPUs are few: they have the CPU first.
 */
void agent_leave_empty_handed(struct nixl_agent *agent);

/* With the lock. Soon, the service thread looks after everything. */
void agent_wake_service(struct nixl_agent *agent);
/* With the lock, which it gives back; the last one frees the agent. */
void agent_release(struct nixl_agent *agent);

/* With the lock. Nothing refers to the session any more. */
void agent_retire_session(struct nixl_agent *agent, struct tcpx_session *session);
/* With the lock, which is free meanwhile. */
void agent_close_retired(struct nixl_agent *agent);

void agent_session_options(const struct nixl_agent *agent, int gpu,
                           struct tcpx_session_options *options);

/* --- say.c ----------------------------------------------------------------------------------- */

/* A line on standard error: say() always, tell() if NIXL's log or ours has such lines. */
void agent_say(const struct nixl_agent *agent, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void agent_tell(const struct nixl_agent *agent, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The name of an agent as it is shown. */
const char *agent_shown(struct nixl_text name, char shown[128]);

/* --- acceptors.c ---------------------------------------------------------------------------- */

/* Where memory of this GPU is reached. With the lock. */
MUST_CHECK int agent_open_acceptor(struct nixl_agent *agent, int gpu, int *port);

/* The list is nobody else's any more. Without the lock: it waits for their threads. */
void acceptors_close(struct acceptor *acceptors);

/* --- peer_table.c, peers.c ------------------------------------------------------------------ */

struct peer {
    struct peer *next;
    unsigned references; /* that of the table, of remotes, requests and links */
    struct nixl_agent *agent;
    bool is_forgotten;
    char *name;
    size_t name_length;
    struct endpoint endpoint;
    struct link *links;
    struct link *notice_link; /* NULL: none yet; notices by themselves keep their order */
    bool *slots;              /* in use by a remote; its number is its place in each link */
    size_t slot_count;
};

struct peer *peer_find(const struct nixl_agent *agent, struct nixl_text name);
/* With the lock: forgets all of them. */
void peers_end(struct nixl_agent *agent);
void peer_hold(struct peer *peer);
void peer_release(struct peer *peer);

/* --- links.c --------------------------------------------------------------------------------- */

struct link {
    struct link *next; /* of its peer */
    struct peer *peer;
    int gpu_here;
    int gpu_there;
    int port;
    bool is_open;
    bool is_ours;             /* the thread that connects is through with it */
    atomic_bool is_abandoned; /* before that: the thread frees it */
    struct tcpx_session *session;
    struct operation *operations; /* that wait for it, or are under way, the oldest first */
    struct operation **last_operation;
    struct ending *endings; /* cancelled, but not confirmed */
    struct unsent *unsent;
    struct unsent **last_unsent;
    size_t unsent_bytes;
    uint32_t notices_in_pieces;   /* so far */
    struct tcpx_remote **remotes; /* by slot; NULL: not opened */
    size_t remote_count;
};

/*
 * All with the lock. The one between these, which is begun if there is none, or if it broke while
 * nobody used it; NULL: that failed.
 */
struct link *link_get(struct peer *peer, int gpu_here, int gpu_there, int port);
/* Of one that is used, the operations tell. */
bool link_drop_if_broken(struct link *link);

/* Whether its session has failed; error_text() is the reason. */
bool link_is_broken(struct link *link);

/* Ends it, and what is under way over it, with this status. `why` is NULL if there is nothing to
 * say. */
void link_end(struct link *link, enum nixl_status status, const char *why);

/* A note by itself, behind the earlier ones; it waits if it must. False: there is no room. */
MUST_CHECK bool link_send_note(struct link *link, const void *head, size_t head_bytes,
                               const void *body, size_t body_bytes);

MUST_CHECK int link_open_remote(struct link *link, struct nixl_remote *remote,
                                struct tcpx_remote **out);
void link_close_slot(struct link *link, size_t slot);

/* It has been cancelled: the service thread asks until it has ended. */
void link_keep_ending(struct link *link, struct tcpx_transfer *transfer);

/* What the service thread does; true: again soon. */
MUST_CHECK bool link_service(struct link *link);

/* --- regions.c ------------------------------------------------------------------------------- */

struct nixl_region {
    struct nixl_region *next;
    struct nixl_agent *agent;
    unsigned references;        /* the owner's, and one of each piece of a request */
    struct tcpx_window *window; /* NULL: closed */
    struct region_key key;
    uint8_t key_bytes[REGION_KEY_BYTES];
};

struct nixl_remote {
    struct peer *peer;
    unsigned references;
    struct region_key key;
    size_t slot;
};

void region_release(struct nixl_region *region);
void remote_release(struct nixl_remote *remote);
/* Of all regions that are left. */
void regions_close(struct nixl_agent *agent);

/* --- requests.c ------------------------------------------------------------------------------ */

/* What a link does with one. All with the lock. */
struct operation_calls {
    /* The link is open: begins it, or ends it. False, and error_text(): the session has failed. */
    bool (*begin)(struct operation *operation);
    /* From now on nothing touches its memory. */
    void (*silence)(struct operation *operation);
    /* It is over. */
    void (*end)(struct operation *operation, enum nixl_status status);
};

/* One access of a request: over one link, of pieces that lie behind each other. */
struct operation {
    const struct operation_calls *calls;
    struct operation *next; /* in its link */
    struct operation **here;
    struct nixl_request *request;
    int gpu_here;
    int gpu_there;
    int port;
    size_t first;
    size_t count;
    struct link *link;              /* NULL: not under way */
    struct tcpx_transfer *transfer; /* NULL: waits for the link */
};

/* What the service thread does for requests with a notice behind several accesses. */
void requests_service(struct nixl_agent *agent);

/* --- notices_send.c, notices_receive.c ------------------------------------------------------ */

struct notice_note {
    uint8_t *bytes;
    size_t length;
    uint32_t number; /* 0: it is whole */
};

struct incoming {
    struct incoming *next;
    struct nixl_agent *agent;
    struct tcpx_session *session;
    char *name; /* NULL: it has not said who it is */
    size_t name_length;
    struct partial *partials; /* notices of which pieces are missing, */
    unsigned partial_count;   /* so many */
    struct held *held;        /* notes that came before the name, */
    struct held **last_held;
    size_t held_bytes; /* with so many bytes */
};

struct held {
    struct held *next;
    size_t bytes;
    uint8_t note[];
};

/* All with the lock. By itself. */
MUST_CHECK bool notice_send(struct link *link, struct nixl_text text);
/*
 * With an access. The pieces of a long one but the last go before; *note is the note of the access,
 * which the caller frees. If the access does not take place, notice_withdraw() makes the peer
 * forget the pieces.
 */
MUST_CHECK bool notice_begin(struct link *link, struct nixl_text text, struct notice_note *note);
void notice_withdraw(struct link *link, const struct notice_note *note);

/* A note that an incoming session has brought. False: it is none of ours, or there is no memory. */
MUST_CHECK bool notice_receive(struct incoming *incoming, const uint8_t *note, size_t bytes);

void notices_forget(struct incoming *incoming);

/* --- incoming.c ----------------------------------------------------------------------------- */

/*
 * All with the lock. Takes notes of all, as long as there is room for notices that the program has
 * not asked for; those whose sessions have ended are gone then.
 */
void incoming_listen(struct nixl_agent *agent);
void incoming_add(struct nixl_agent *agent, struct tcpx_session *session);
void incoming_end(struct nixl_agent *agent);

#endif
