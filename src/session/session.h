/*
 * The state of a session, which its files share, and what they call of each other. A transfer goes
 * one of two ways:
 *
 *   whole.c   over one channel of the built-in transport, as one message; the caller's own thread
 *             moves it along
 *   chunks.c  everything else: matched with the peer's side over the control connection
 *             (matching.c), then cut into chunks that go round the channels; the session's worker
 *             (worker.c), a task of an I/O thread, moves them along
 *
 * One-sided access has a header of its own: access.h.
 *
 * Calls go down only: session, open, transfer_calls and access_calls; worker; worker_thread;
 * worker_step; whole, chunks and accesses_step; unpack_lane; gather and matching; slots, memory and
 * transfer; wake and session_state.
 */
#ifndef TCPX_SESSION_SESSION_H
#define TCPX_SESSION_SESSION_H

#include "base/thread.h"
#include "net/io/io.h"
#include "session/agreement.h"
#include "session/channel.h"
#include "session/control.h"

#include <stdatomic.h>

enum { RECEIVING, SENDING };

enum { MOST_CHANNELS = AGREEMENT_CHANNELS, LANE_CHUNKS = IMPORT_REQUESTS, BUCKETS = 256 };

/* --- memory -------------------------------------------------------------------------------- */

struct tcpx_memory {
    struct tcpx_memory *next;
    struct tcpx_session *session;
    uint8_t *address;
    uint64_t bytes;
    bool on_gpu;
    bool staged;    /* the transport does not take it: it goes through slots */
    bool is_lost;   /* the network may have it until the session is closed */
    unsigned users; /* transfers */

    /* Overlapping parts, each as long as the transport can register, and one chunk more. */
    uint64_t stride;
    size_t regions;
    struct channel_memory *registered[2]; /* [sending][channel * regions + region] */
};

/* --- staging: memory between the network and what it cannot reach in one piece --------------- */

enum { SLOT_DESCRIPTORS = 4096 };

struct slot {
    struct slot *next; /* free ones */
    uint8_t *host;
    gpu_address device;
    gpu_address landing;                   /* in GPU memory; 0: not allocated */
    struct unpack_descriptor *descriptors; /* NULL without a GPU */
    gpu_address descriptors_device;
};

struct slots {
    struct slot *all;
    unsigned count; /* 0: not made yet */
    struct slot *free;
    struct gpu_pinned pinned;
    struct gpu_pinned descriptors;
    void *plain; /* without a GPU */
    struct channel_memory memory[MOST_CHANNELS];

    /* Receives of GPU memory over channels that are steered: whole pages of GPU memory. */
    struct gpu_memory landing;
    struct channel_memory landing_memory[MOST_CHANNELS];
};

/* --- transfers ----------------------------------------------------------------------------- */

struct piece_cursor {
    size_t index;
    uint64_t within; /* the piece */
};

/* An element of a table of matching.c: a FIFO for each key. */
struct keyed {
    struct keyed *next;
    uint64_t key;
};

struct keyed_row {
    struct keyed *first;
    struct keyed **last; /* where the next one is put, unless the row is empty */
};

struct tcpx_transfer {
    struct keyed keyed; /* in the table where it waits: a send by id, a receive by tag */
    struct tcpx_session *session;
    struct tcpx_transfer *newer; /* all of the session's */
    struct tcpx_transfer *older;
    struct tcpx_transfer *next; /* in the list that it waits in */
    bool sending;
    bool is_whole;
    bool announced; /* its end was counted, and waiting threads were woken */
    struct tcpx_memory *memory;
    struct tcpx_piece one; /* the only piece, mostly */
    struct tcpx_piece *pieces;
    size_t piece_count;
    uint64_t total;
    uint64_t tag;
    struct gpu_event *after; /* NULL: nothing to wait for any more */
    bool after_stalled;
    uint64_t since; /* when the latest stage began */

    /* As chunks. */
    uint64_t id;  /* the sender's number */
    bool granted; /* a send: the peer has posted its receive */
    struct piece_cursor cursor;
    uint64_t begun;
    uint64_t moved;
    bool acknowledged; /* a send: the peer has all of it */

    /* As a whole message. */
    pthread_mutex_t lock;   /* of a whole message: guards these and its end */
    struct net_part *parts; /* the pieces; NULL: there is one */
    bool started;
    bool is_cancelled;
    enum net_after after_kind;
    void *after_what;
    struct tcpx_transfer *next_active; /* whole messages in flight */
    struct tcpx_transfer *previous_active;
    struct net_request *request; /* NULL: not started, or ended */
    uint64_t request_number;
    bool is_waited_for; /* a thread waits for the request, and only that thread tests it */

    /* As a read or a write: `sending` is true for a write. */
    bool is_access;
    struct access *access; /* NULL: it is over */

    /* Written last: a reader without the lock sees result and why. Release order would do. */
    atomic_bool ended;
    int result;
    char why[400];
};

struct transfer_row {
    struct tcpx_transfer *first;
    struct tcpx_transfer **last; /* where the next one is put, unless the row is empty */
};

/* --- chunks -------------------------------------------------------------------------------- */

enum chunk_state {
    CHUNK_FILLING,  /* sends: on its way from the memory into the slot */
    CHUNK_READY,    /* to be posted */
    CHUNK_POSTED,   /* the network has it */
    CHUNK_ARRIVED,  /* receives: to be unpacked */
    CHUNK_LANDING,  /* on its way from the bounce memory into the slot */
    CHUNK_EMPTYING, /* on its way into the memory */
    CHUNK_FREE,
};

struct chunk {
    enum chunk_state state;
    struct tcpx_transfer *transfer;
    struct piece_cursor at; /* where it begins */
    uint64_t bytes;
    uint64_t copied; /* of them, between slot and memory: given to the GPU */
    uint8_t *data;
    struct channel_memory memory;
    struct slot *slot; /* NULL: data is the memory itself */
    bool lands;        /* a receive: in the slot's GPU memory */
    channel_request request;
    uint64_t ticket; /* of the unpack engine; 0: none */
    uint64_t since;
};

/* Why nothing more is begun or posted. */
enum stall { NOT_STALLED, STALLED_BY_WINDOW, STALLED_BY_STAGING, STALLED_BY_NETWORK };

/* A channel and its chunks in flight: freed to begun - 1, in order. */
struct lane {
    struct channel channel;
    struct chunk ring[LANE_CHUNKS];
    uint64_t begun;
    uint64_t posted;
    uint64_t finished;
    uint64_t freed;
    enum stall stalled;
};

/* All that goes one way. */
struct direction {
    bool sending;
    struct lane *lanes;
    struct transfer_row whole;   /* whole messages that wait for a place in their comm, */
    atomic_uint in_flight;       /* and that have one; any order would do */
    struct transfer_row waiting; /* for their stream or event; then matched */
    struct transfer_row moving;  /* matched: cut into chunks, in this order on both sides */
    uint64_t next_chunk;
    enum stall stalled;
    struct slots slots;
};

/* --- a session ------------------------------------------------------------------------------- */

/* What moves the session on beside the calls on it. */
enum worker_kind {
    WORKER_NONE,
    WORKER_TASK,   /* of an I/O thread */
    WORKER_THREAD, /* over a plugin, or without I/O threads */
};

struct session_task {
    struct io_task io;
    struct tcpx_session *session;
    uint64_t yields_since; /* it leaves the lock to callers; 0: it does not */
};

/* A send of the peer without a posted receive. */
struct offer {
    struct keyed keyed;
    uint64_t id;
    uint64_t bytes;
};

struct access;
struct accesses;

struct tcpx_session {
    /* Constant. */
    const struct import_plugin *plugin; /* NULL: the built-in transport */
    unsigned channels;
    uint64_t chunk_bytes;
    int gpu_number;  /* -1: none */
    bool no_kernels; /* as in its options */
    struct gpu *gpu;
    bool takes_gpu_memory; /* the transport does */
    bool has_io_threads;   /* the channels move on without calls; threads may fail to start */
    char path[512];
    char peer_name[AGREEMENT_NAME_BYTES];
    struct accesses *accesses; /* NULL: over a plugin there are none */

    atomic_bool waits_are_long; /* the latest wait for an access had to sleep; any order would do */
    atomic_uint callers;        /* wait for the lock: the worker yields; any order would do */
    pthread_mutex_t lock;       /* guards everything below */
    pthread_cond_t changed;     /* a transfer has ended */
    struct direction directions[2]; /* [sending] */
    struct tcpx_memory *memories;
    struct tcpx_transfer *transfers; /* the newest one */
    struct tcpx_transfer *active;    /* whole messages that are started */
    struct control *control;
    struct unpack_engine *engine; /* NULL until it is needed */
    struct gpu_stream *order;     /* waits for callers' streams and events; NULL until needed */

    struct keyed_row offered[BUCKETS];  /* sends until they are acknowledged, by id */
    struct keyed_row expected[BUCKETS]; /* receives, by tag */
    struct keyed_row offers[BUCKETS];   /* struct offer, by tag */
    uint64_t next_id;
    unsigned offered_count;
    unsigned offer_count;

    int failure; /* of everything that goes as chunks, from now on */
    char why[400];
    bool why_is_unsent;      /* after a failure: the peer's socket has not taken the reason yet */
    bool is_drained;         /* after a failure: chunks are over, and their transfers have ended */
    uint64_t draining_since; /* 0: not yet */

    enum worker_kind worker;
    struct io_group io; /* of the task */
    struct session_task task;
    bool channels_are_watched;  /* the ends of their requests wake the task */
    uint64_t copied_in_turn[2]; /* bytes, by the CPU in this step of the worker: [gathering] */
    pthread_t thread;
    int wake_fd;             /* for the thread */
    bool closing;            /* the thread ends */
    int event_fd;            /* for the caller; -1: never asked for */
    bool has_signalled;      /* something has ended, whether there was an eventfd or not */
    bool end_is_due;         /* a transfer has ended: those who wait are told of it, */
    bool signal_is_due;      /* and the eventfd is written, when the lock is free */
    atomic_bool note_is_due; /* tcpx_note_take() has a note or a failure to report */
    struct tcpx_session_statistics statistics;
};

/* Makes the caller's eventfd readable, if it has asked for one, when the lock is free. With it. */
void session_signal(struct tcpx_session *session);

/* For callers: the worker yields the lock to them. */
void session_lock(struct tcpx_session *session);
/* For the worker: whether it leaves the lock to callers now. *since is its own, and 0 at first. */
bool session_yields(struct tcpx_session *session, uint64_t *since);
/* For all. Tells what is due: who is woken by it needs the lock, and would wait for it. */
void session_unlock(struct tcpx_session *session);

/*
 * The result is the session's from now on. All transfers in chunks end with it as soon as the
 * worker has drained what the GPU and the network still have. With the lock.
 */
void session_fail(struct tcpx_session *session, int result);

static inline struct channel *session_channel(struct tcpx_session *session, bool sending,
                                              unsigned number)
{
    return &session->directions[sending].lanes[number].channel;
}

static inline struct chunk *lane_chunk(struct lane *lane, uint64_t number)
{
    return &lane->ring[number % LANE_CHUNKS];
}

/* Adds the time that a stage of the chunk has taken, which ends now. */
static inline void chunk_count_time(struct chunk *chunk, uint64_t *sum)
{
    uint64_t now = clock_now();

    *sum += now - chunk->since;
    chunk->since = now;
}

/* --- transfer.c: its pieces, what it waits for on the GPU, the lists that it is in, its end --- */

/* All functions need the session's lock, except where a comment differs. */

void row_add(struct transfer_row *row, struct tcpx_transfer *transfer);
struct tcpx_transfer *row_take(struct transfer_row *row);
void row_remove(struct transfer_row *row, struct tcpx_transfer *transfer);

/* Of nothing yet. The functions that make and free one are called without the lock. */
struct tcpx_transfer *transfer_allocate(struct tcpx_session *session, bool sending);
/* Checks the move and copies its pieces; not yet one of the session's. */
MUST_CHECK int transfer_create(struct tcpx_session *session, const struct tcpx_move *move,
                               bool sending, struct tcpx_transfer **out);
void transfer_free(struct tcpx_transfer *transfer);
void transfer_free_all(struct tcpx_session *session);

/* Adds it to the session, whose memory it uses; removes it. */
void transfer_add(struct tcpx_transfer *transfer);
void transfer_drop(struct tcpx_transfer *transfer);

/* It begins after the caller's stream or event; *ready: whether the GPU has reached that. */
MUST_CHECK int transfer_order_after(struct tcpx_transfer *transfer, enum tcpx_after after,
                                    void *after_what);
MUST_CHECK int transfer_is_ready(struct tcpx_transfer *transfer, bool *ready);

/* How much of the current piece is left; passes over empty ones. */
uint64_t cursor_left(const struct tcpx_transfer *transfer, struct piece_cursor *cursor);
/* Passes over `bytes` of the pieces. */
void cursor_move(const struct tcpx_transfer *transfer, struct piece_cursor *cursor, uint64_t bytes);

/* A whole message: the transport has it. */
void transfer_join_active(struct tcpx_transfer *transfer);

/* Sets the result; the reason is error_text(). Called with the lock that guards the end. */
void transfer_set_result(struct tcpx_transfer *transfer, int result);
/* Counts the end and wakes waiting threads, once. */
void transfer_announce(struct tcpx_transfer *transfer);
/* transfer_set_result() and transfer_announce(). */
void transfer_end(struct tcpx_transfer *transfer, int result);

/* --- memory.c: registered with every channel, in parts where a plugin needs that -------------- */

/* The registration that covers a chunk at `offset`. */
struct channel_memory memory_at(const struct tcpx_memory *memory, bool sending, unsigned channel,
                                uint64_t offset);
void memory_free_all(struct tcpx_session *session);

/* --- slots.c: staging memory, one chunk each, that every channel of a direction can use ------- */

/* Makes them when they are first needed, for the lanes of one direction. */
MUST_CHECK int slots_prepare(struct tcpx_session *session, bool sending);
struct slot *slots_take(struct slots *slots); /* NULL: none is free */
void slots_give(struct slots *slots, struct slot *slot);
void slots_free(struct tcpx_session *session, struct slots *slots);

/* --- matching.c: the two sides of a transfer in chunks; with the session's lock --------------- */

MUST_CHECK int matching_begin(struct tcpx_transfer *transfer);
/* All bytes of a receive are in its memory. */
MUST_CHECK int matching_receive_done(struct tcpx_transfer *transfer);
/* Begins transfers whose stream or event was reached. A failure is the session's. */
MUST_CHECK int matching_step(struct tcpx_session *session, bool *moved);
/* A message that is about a transfer in chunks, or ends the session. */
MUST_CHECK int matching_on_message(struct tcpx_session *session, uint8_t type, const uint8_t *bytes,
                                   size_t length);
MUST_CHECK int matching_goodbye(struct tcpx_session *session);
void matching_free(struct tcpx_session *session);

/* --- gather.c: copies between slots and the pieces of a transfer ------------------------------ */

/* Makes the session's unpack engine if there is none. */
MUST_CHECK int gather_prepare_engine(struct tcpx_session *session);

/* Copies as much as possible now; *done: all of the chunk is copied. */
MUST_CHECK int gather_step(struct tcpx_session *session, struct chunk *chunk, bool gathering,
                           bool *done);

/* --- unpack_lane.c: chunks that have arrived in a lane ---------------------------------------- */

/* Chunks in bounce memory that are unpacked together. */
struct unpack_batch {
    struct unpack_list lists[GPU_UNPACK_LISTS];
    struct chunk *chunks[GPU_UNPACK_LISTS];
    uint32_t count;
    bool written_by_nic;
};

/* Adds to the batch, and frees chunks that are in their memory. */
MUST_CHECK int unpack_lane_step(struct tcpx_session *session, struct lane *lane,
                                struct unpack_batch *batch, bool *moved);
MUST_CHECK int unpack_lane_submit(struct tcpx_session *session, struct unpack_batch *batch);

/* --- chunks.c: all lanes of a session; with its lock ------------------------------------------ */

/* *moved: whether there was progress. A failure is the session's. */
MUST_CHECK int chunks_step(struct tcpx_session *session, bool *moved);

/*
 * Begins nothing more. False: sends that the peer has, or copies on the GPU, have not ended yet,
 * and their time is not over: call again. Memory that the network still uses is marked. Never
 * waits.
 */
MUST_CHECK bool chunks_drain_step(struct tcpx_session *session);

/* --- whole.c: whole messages of the built-in transport ---------------------------------------- */

/* With the session's lock: begins it, or those that wait for a place; steps all of them. */
void whole_begin(struct tcpx_transfer *transfer);
void whole_start_more(struct tcpx_session *session, bool *moved);
/* False: another thread was looking at some of them. */
bool whole_step(struct tcpx_session *session, bool *moved);

/* Called without the session's lock. `stream` is used only if `on_stream`. */
void whole_test(struct tcpx_transfer *transfer, bool on_stream, void *stream);
void whole_wait(struct tcpx_transfer *transfer, uint64_t deadline);
/* *is_quiet: nothing touches its memory any more, and it has ended. */
MUST_CHECK int whole_cancel(struct tcpx_transfer *transfer, bool *is_quiet);

/* --- wake.c; with the lock ---------------------------------------------------------------------
 */

/* Also without it, by whoever knows that the worker was started and is not stopped meanwhile. */
void worker_wake(struct tcpx_session *session);
/* The worker looks after transfers on the channels from now on; it does not any more. */
void worker_watch_channels(struct tcpx_session *session);
void worker_unwatch_channels(struct tcpx_session *session);

/* --- worker_step.c; with the lock ------------------------------------------------------------- */

/*
 * Returns whether anything has moved. *all_seen: false if another thread was looking at a transfer,
 * so that its end may have been missed.
 */
bool worker_step(struct tcpx_session *session, bool *all_seen);
/* Transfers in chunks, or messages about them. */
bool worker_has_chunks(const struct tcpx_session *session);

/* --- worker_thread.c: the worker as a thread -------------------------------------------------- */

MUST_CHECK int worker_thread_start(struct tcpx_session *session);
void worker_thread_stop(struct tcpx_session *session); /* without the lock */

/* --- worker.c; with the lock, where a comment does not differ --------------------------------- */

MUST_CHECK int worker_start(struct tcpx_session *session);
/* The session is open: the worker reads what the peer sends. */
void worker_listen(struct tcpx_session *session);
void worker_stop(struct tcpx_session *session); /* without the lock */

/* --- open.c and session.c: how a session begins ----------------------------------------------- */

/* Uses the caller's channels and chunks. The peer also gets the reason of a failure. */
MUST_CHECK int session_connect_channels(struct tcpx_session *session,
                                        const struct tcpx_session_options *options,
                                        uint64_t deadline);

/*
 * As tcpx_session_accept(), but with two deadlines: until when a peer may come, and until when the
 * session with it has to be open. For callers that have something else to look at meanwhile.
 */
MUST_CHECK int session_accept_until(struct tcpx_session_listener *listener, uint64_t peer_deadline,
                                    uint64_t open_deadline, struct tcpx_session **session);

#endif
