/*
 * One-sided access: this side reads and writes windows of the peer (accesses.c), and serves the
 * peer's accesses of its own (serve.c), without a call of the program. docs/protocol.md has the
 * rules. What is asked and answered goes over the control connection; the bytes go through the
 * channels, to places (net/comm/comm.h). Everything here is guarded by the session's lock, where a
 * comment does not differ.
 *
 * An access ends in two steps: it is *quiet* when no byte of this side's memory is touched any
 * more, which needs no peer, and *over* when both sides know how it ended.
 *
 * Calls go down only: transfer_calls; access_calls; accesses_step; accesses and serve; bindings and
 * notes; access_list and access_wire.
 */
#ifndef TCPX_SESSION_ACCESS_H
#define TCPX_SESSION_ACCESS_H

#include "session/access_wire.h"
#include "session/session.h"
#include "window/window.h"

enum {
    MOST_ACCESSES = NET_PLACES, /* of one side under way */
    MOST_PARTS = 1 << 20,       /* of one access, */
    MOST_PARTS_HELD = 1 << 21,  /* and of all that are under way */
    MOST_NUMBERS = 1 << 16,     /* of bindings */
    MOST_NOTES = 1 << 20,       /* bytes of notes that the peer's program has not taken, */
    NOTE_CHARGE = 64,           /* with so many more for each */
    MOST_TRIED = 64, /* of those that wait: so many are looked at whether they can begin */
    ACCESS_ROWS = 1024,
};

/* --- windows in a session -------------------------------------------------------------------- */

/* A window of this process that the session uses: for accesses of this side, or of the peer. */
struct binding {
    struct window_use use; /* first; use.window NULL: a key of the peer that was refused */
    struct tcpx_session *session;
    struct binding *next;         /* of those for this side, in its row */
    unsigned accesses;            /* that are not quiet */
    const struct access *seen_by; /* the latest access that has it in its list */
    bool is_unbound;              /* the peer has given the number up */
    char refusal[120];
};

struct tcpx_remote {
    struct tcpx_remote *next;  /* of the session; */
    struct tcpx_remote **here; /* what points to this one */
    struct tcpx_session *session;
    struct window_key key;
    bool is_numbered; /* it has a number for the window, in this session, */
    bool is_bound;    /* which the peer knows */
    uint32_t number;
    unsigned accesses;            /* that are not over */
    bool is_closed;               /* by the caller */
    const struct access *seen_by; /* the latest access that has it in its list, */
    uint32_t seen_as;             /* under this index */
};

/* --- accesses -------------------------------------------------------------------------------- */

struct access {
    struct access *next; /* in its row or list */
    struct access *previous;
    struct access *next_of_id;
    struct tcpx_session *session;
    struct tcpx_transfer *transfer; /* NULL: it is the peer's */
    uint64_t id;
    bool is_read;
    unsigned channel;
    uint32_t place;
    uint64_t bytes;
    struct net_part *parts; /* of this side's memory, joined where they touch */
    uint32_t part_count;
    struct binding **bindings; /* of the parts, each once; none when it is quiet */
    uint32_t binding_count;
    struct net_request *request; /* NULL: none, or it has ended */
    uint8_t *note;
    uint32_t note_bytes;
    bool has_note;
    bool is_inline;  /* its bytes go over the control connection, so that it has no request */
    bool is_stopped; /* its request is cancelled, or will be */

    /* Of this side. */
    struct access_item *items; /* parts of the peer's memory */
    uint32_t item_count;
    uint32_t items_sent;
    struct tcpx_remote **remotes; /* of the items, each once */
    uint32_t remote_count;
    uint64_t deadline; /* of the access; of the peer's answer when it is cancelled */
    bool is_begun;     /* the peer knows it, */
    bool is_answered;  /* has said how it ended, */
    bool cancel_sent;  /* was asked to give it up, */
    bool is_confirmed; /* and has */
    bool has_arrived;  /* a read: all bytes are here */
    bool has_data;     /* of an inline read: they have come, and were dropped if it was cancelled */

    /* Of the peer. */
    const uint8_t *data; /* of an inline write, in the message that is being read */
    uint32_t items_read;
    uint64_t listed_bytes; /* of those */
    bool has_begun;        /* its list is whole, and it has its place */
    bool peer_cancelled;   /* CANCELLED is its answer */
    bool peer_finished;    /* a read: its bytes have arrived there */

    /* How it ends, unless with success: a result and its text. */
    int result;
    char why[400];
};

/* A list of them, in order. */
struct access_list {
    struct access *first;
    struct access *last;
};

struct note {
    struct note *next;
    size_t bytes;
    uint8_t data[];
};

enum { OURS, THEIRS };

/* Of a session over the built-in transport. */
struct accesses {
    struct tcpx_session *session;
    bool allowed[2];                       /* [OURS]: windows of this side may be used */
    uint8_t nonces[2][16];                 /* of the session, so that no proof fits another one */
    uint32_t next_place[2][MOST_CHANNELS]; /* of writes: [OURS] that this side begins */
    atomic_bool takes_gpu_memory;          /* with release and acquire, so that these are seen: */
    struct net_memory *gpu_memory[2][MOST_CHANNELS]; /* [sending] */

    uint32_t next_read;      /* place of a read */
    uint64_t inline_bytes;   /* accesses of host memory up to so many go inline */
    uint64_t next_check;     /* of deadlines, */
    uint64_t first_deadline; /* of which none is earlier */
    uint8_t *message;        /* CONTROL_LARGEST bytes: what is being written */

    /* bindings.c */
    struct binding *rows[BUCKETS]; /* for this side's accesses, by window */
    struct binding **numbered;     /* for the peer's, by number; NULL: the number is free */
    uint32_t numbers;              /* that there is room for */
    struct tcpx_remote *remotes;
    uint32_t *free_numbers; /* of remotes that were closed */
    uint32_t free_number_count;
    uint32_t next_number;
    pthread_mutex_t wake_lock; /* guards is_gone, and waking; the only lock that closing() takes */
    bool is_gone;              /* the session is being closed: its worker is not woken any more */
    atomic_bool windows_close; /* a window that is used here is being closed; release and acquire:
                                  its flag is seen */

    /* accesses.c */
    struct access_list waiting; /* not begun */
    struct access *listed;      /* whose list is being sent */
    struct access_list ours;    /* begun and not over */
    uint64_t next_id;
    unsigned count[2]; /* that are not over */
    uint64_t parts_held[2];
    struct access *by_id[2][ACCESS_ROWS];

    /* serve.c */
    struct access *assembled;   /* whose list is coming */
    struct access_list pending; /* its request was not taken yet, nor those behind it */
    struct access_list theirs;  /* begun and not over */
    uint64_t next_served;

    /* notes.c */
    uint64_t notes_charged; /* of this side's, */
    uint64_t notes_freed;   /* as the peer has said */
    bool notes_are_awaited; /* one was refused for want of room */
    struct note *first_note;
    struct note **last_note;
    uint64_t charged_here; /* of the peer's */
    uint64_t taken_here;
    uint64_t taken_said;
};

/* --- access_calls.c ------------------------------------------------------------------------- */

/* Cancels a read or a write. *is_quiet: nothing of this side's memory is touched any more. */
MUST_CHECK int accesses_cancel_call(struct tcpx_transfer *transfer, bool *is_quiet);

/* --- accesses_step.c: all of a session's ---------------------------------------------------- */

MUST_CHECK int accesses_create(struct tcpx_session *session);
/*
 * Windows of the session's GPU can be used from now on. Called without the lock, since the driver
 * may let it wait for kernels.
 */
MUST_CHECK int accesses_take_gpu_memory(struct tcpx_session *session);
/* No window is asked to end its use any more: the worker is about to be stopped. */
void accesses_stop(struct tcpx_session *session);
/* The session has no channels any more. */
void accesses_free(struct tcpx_session *session);

bool accesses_is_message(const struct tcpx_session *session, uint8_t type);
MUST_CHECK int accesses_on_message(struct tcpx_session *session, uint8_t type, const uint8_t *bytes,
                                   size_t length);
/* Moves all of them on. A failure is the session's; the second is for a session that has failed:
 * whether nothing is touched any more, and all have ended. */
MUST_CHECK int accesses_step(struct tcpx_session *session, bool *moved);
MUST_CHECK bool accesses_step_failed(struct tcpx_session *session);
/* Whether the worker has to look again without being woken; and as soon as possible. */
bool accesses_are_underway(const struct tcpx_session *session);
bool accesses_wait_for_gpu(const struct tcpx_session *session);

/* Of a peer that lies: TCPX_REMOTE_ERROR, with the peer's name before the text. */
MUST_CHECK int accesses_violation(const struct tcpx_session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- bindings.c ------------------------------------------------------------------------------ */

/* A window of this side in an access of this side; registers it when it is first used. */
MUST_CHECK int bindings_use_window(struct tcpx_session *session, struct tcpx_window *window,
                                   struct binding **out);

/* The access uses it from now on; none any more. */
MUST_CHECK int bindings_hold(struct access *access, struct binding *binding);
void bindings_release(struct access *access);

/* To those of its session. */
void bindings_add_remote(struct tcpx_remote *remote);
/* Tells the peer which window the remote's number stands for, once. */
MUST_CHECK int bindings_bind_remote(struct tcpx_remote *remote);
/* An access uses the remote from now on; none of its remotes any more. */
MUST_CHECK int bindings_hold_remote(struct access *access, struct tcpx_remote *remote,
                                    uint32_t *index);
void bindings_release_remotes(struct access *access);
/* It goes when it is closed and no access uses it. */
void bindings_drop_remote(struct tcpx_remote *remote);

/* Messages of the peer. */
MUST_CHECK int bindings_on_bind(struct tcpx_session *session, const uint8_t *bytes, size_t length);
MUST_CHECK int bindings_on_unbind(struct tcpx_session *session, uint64_t number);
/* NULL: the number stands for no window. */
struct binding *bindings_numbered(struct tcpx_session *session, uint32_t number);

/* Ends the uses of windows that are being closed and quiet; whether that is all of them. */
bool bindings_let_go(struct tcpx_session *session);
/* The session has no channels any more. */
void bindings_free(struct tcpx_session *session);

/* --- notes.c --------------------------------------------------------------------------------- */

/* Whether a note can be sent now; it is. */
bool notes_have_room(const struct tcpx_session *session, size_t bytes);
void notes_charge(struct tcpx_session *session, size_t bytes);
/* A note of the peer has begun to come; it is for the program; it is for nobody. */
MUST_CHECK int notes_expect(struct tcpx_session *session, size_t bytes);
MUST_CHECK int notes_keep(struct tcpx_session *session, const uint8_t *bytes, size_t length);
MUST_CHECK int notes_drop(struct tcpx_session *session, size_t bytes);
MUST_CHECK int notes_on_note(struct tcpx_session *session, const uint8_t *bytes, size_t length);
MUST_CHECK int notes_on_taken(struct tcpx_session *session, uint64_t sum);
void notes_free(struct tcpx_session *session);

/* --- lists of accesses, access_list.c ------------------------------------------------------- */

void access_list_add(struct access_list *list, struct access *access);
void access_list_remove(struct access_list *list, struct access *access);
void access_id_add(struct tcpx_session *session, int side, struct access *access);
void access_id_remove(struct tcpx_session *session, int side, struct access *access);
struct access *access_by_id(struct tcpx_session *session, int side, uint64_t id);
/* Memory of this side behind the parts that it has; for as many parts as it has items there is
 * room.
 */
void access_add_part(struct access *access, uint8_t *data, uint64_t bytes);
/* Its place in the channel, with all of its parts. */
struct net_buffer access_buffer(const struct access *access);
/* The bytes of an inline access, out of its parts and into them. */
void access_gather(const struct access *access, uint8_t *bytes);
void access_scatter(const struct access *access, const uint8_t *bytes);
/* Any number of accesses may wait, so that deadlines are looked at when the first one is over. */
void access_expect_deadline(const struct access *access);
/* Why it ends; the first reason counts. The text is error_text(). */
void access_set_result(struct access *access, int result);
/* It has no bindings any more. */
void access_free(struct access *access);

/* --- accesses.c: of this side ---------------------------------------------------------------- */

/* Begins it, or lets it wait for its turn. A failure is the session's. */
MUST_CHECK int accesses_start(struct access *access);
MUST_CHECK int accesses_start_more(struct tcpx_session *session, bool *moved);
/* Gives up; with TCPX_CANCELLED and error_text(), unless it ends before. */
MUST_CHECK int accesses_cancel(struct access *access);
/* No more messages: its memory becomes quiet, and it ends with the session's failure. */
bool accesses_abandon(struct tcpx_session *session);
/* Cancels those whose time is over, and those whose windows are being closed. */
MUST_CHECK int accesses_check(struct tcpx_session *session, bool windows_close, bool *moved);
/* Its request has ended with this result. */
MUST_CHECK int accesses_request_ended(struct access *access, int result);
MUST_CHECK int accesses_on_answer(struct tcpx_session *session, const uint8_t *bytes,
                                  size_t length);
MUST_CHECK int accesses_on_cancelled(struct tcpx_session *session, uint64_t id);
MUST_CHECK int accesses_on_data(struct tcpx_session *session, const uint8_t *bytes, size_t length);

/* --- serve.c: of the peer -------------------------------------------------------------------- */

MUST_CHECK int serve_on_access(struct tcpx_session *session, const uint8_t *bytes, size_t length);
MUST_CHECK int serve_on_more(struct tcpx_session *session, const uint8_t *bytes, size_t length);
MUST_CHECK int serve_on_finished(struct tcpx_session *session, uint64_t id);
MUST_CHECK int serve_on_cancel(struct tcpx_session *session, uint64_t id);
MUST_CHECK int serve_start_pending(struct tcpx_session *session, bool *moved);
MUST_CHECK int serve_request_ended(struct access *access, int result);
/* Ends those that use windows which are being closed. */
MUST_CHECK int serve_stop_closing(struct tcpx_session *session);
/* As accesses_abandon(). */
bool serve_abandon(struct tcpx_session *session);

#endif
