/*
 * tcpx: GPU memory between hosts, over TCP.
 *
 * There are two ways to use it:
 *
 *   - A session reaches a peer and moves any amount of memory, GPU or host, in both directions. It
 *     looks for the best path by itself. Start here: examples/session_receive.c and
 *     examples/session_send.c.
 *   - The calls of a network plugin (tcpx_listen, tcpx_isend, tcpx_test, ...) are for programs that
 *     want to post each message and to unpack what was received themselves.
 *
 * Every function that can fail returns one of enum tcpx_result; its outputs are written only on
 * TCPX_SUCCESS, unless it is said otherwise. The exact cause of a failure is the text of
 * tcpx_last_error(). Every wait ends: the time is an argument, in milliseconds, and
 * TCPX_DEFAULT_TIMEOUT stands for UCCL_TCPX_TIMEOUT_MS.
 *
 * Every function may be called from any thread, and several threads may use one object, unless it
 * is said otherwise. Nobody may use an object that is being closed, freed or destroyed. In a child
 * made by fork() all of them return TCPX_INVALID_USAGE: a GPU, its threads and the connections do
 * not survive a fork.
 */
#ifndef TCPX_H
#define TCPX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TCPX_VERSION_MAJOR 0
#define TCPX_VERSION_MINOR 2
#define TCPX_VERSION_PATCH 0

#if defined(__GNUC__)
#define TCPX_API   __attribute__((visibility("default")))
#define TCPX_CHECK __attribute__((warn_unused_result))
#else
#define TCPX_API
#define TCPX_CHECK
#endif

/* Below 100 they are those of ncclResult_t, so that a result can cross a network plugin's table. */
enum tcpx_result {
    TCPX_SUCCESS = 0,
    TCPX_CUDA_ERROR = 1,       /* the GPU or its driver refused */
    TCPX_SYSTEM_ERROR = 2,     /* a system call failed: no memory, a broken connection, ... */
    TCPX_INTERNAL_ERROR = 3,   /* a promise inside tcpx was broken: a bug */
    TCPX_INVALID_ARGUMENT = 4, /* an argument or a variable of the environment is not understood */
    TCPX_INVALID_USAGE = 5,    /* a call that is right by itself, but not here or not now */
    TCPX_REMOTE_ERROR = 6,     /* the peer failed */
    TCPX_IN_PROGRESS = 7,      /* a deadline passed; the operation itself goes on */
    TCPX_CANCELLED = 100       /* the caller has cancelled it; never crosses a plugin's table */
};

/* Of a wait: as long as UCCL_TCPX_TIMEOUT_MS says, 60 s without it. */
#define TCPX_DEFAULT_TIMEOUT (-1)

/* The version of the library that is running, as "0.2.0". Never fails. */
TCPX_API const char *tcpx_version(void);

/* The name of a result, as "TCPX_SYSTEM_ERROR"; "unknown result" for any other number. */
TCPX_API const char *tcpx_result_name(int result);

/*
 * Why the latest failed call of this thread failed, in one line; "" if none has. The text stays
 * valid and unchanged until the next failure in this thread.
 */
TCPX_API const char *tcpx_last_error(void);

/*
 * GPUs. Where there is no CUDA driver or no device, tcpx works on emulated GPUs whose memory is
 * ordinary memory (environment variable UCCL_TCPX_GPU).
 */
struct tcpx_gpu_properties {
    char name[256];     /* "NVIDIA H200", "emulated GPU 0" */
    char backend[16];   /* "cuda" or "host" (emulated) */
    char pci_path[256]; /* its folder under /sys/devices; "" if it is not on a PCI bus */
    int numa_node;      /* -1: unknown */
    int dmabuf;         /* 1: its memory can be exported as a dma-buf, for devmem TCP */
    int compute_major;  /* compute capability; 0 when emulated */
    int compute_minor;
    uint64_t memory_bytes; /* all of its memory, free or not */
};

/* How many GPUs there are; at least one on success. */
TCPX_API TCPX_CHECK int tcpx_gpu_count(int *count);

/* Describes GPU `index`, 0 to count - 1. */
TCPX_API TCPX_CHECK int tcpx_gpu_get_properties(int index, struct tcpx_gpu_properties *properties);

/*
 * Memory of a GPU, for programs that do not use CUDA themselves, and for emulated GPUs, whose
 * memory only these calls reach. With CUDA, memory of cudaMalloc, cuMemAlloc and the VMM calls is
 * as good. The two copies have finished when they return.
 */
TCPX_API TCPX_CHECK int tcpx_gpu_alloc(int gpu, uint64_t bytes, void **address);
TCPX_API TCPX_CHECK int tcpx_gpu_free(void *address); /* NULL is allowed */
TCPX_API TCPX_CHECK int tcpx_gpu_write(void *to_gpu, const void *from_host, uint64_t bytes);
TCPX_API TCPX_CHECK int tcpx_gpu_read(void *to_host, const void *from_gpu, uint64_t bytes);

/* --- sessions ------------------------------------------------------------------------------- */

/*
 * A session is the connection to one peer process. Both sides can send and receive, at the same
 * time, any number of transfers. It goes through the network plugin of the machine, or through the
 * built-in transport where there is none; both ends must have the same.
 *
 * One side listens (tcpx_session_listen, tcpx_session_accept), the other connects
 * (tcpx_session_connect).
 */
struct tcpx_session;
struct tcpx_session_listener;
struct tcpx_memory;
struct tcpx_transfer;

#define TCPX_SESSION_PORT 12345

/* Fill it by tcpx_session_options_init(), then change what should be different. */
struct tcpx_session_options {
    size_t size;             /* of this struct, as the caller knows it */
    int gpu;                 /* whose memory will be moved; -1: host memory only */
    int channels;            /* 0: UCCL_TCPX_NUM_CHANNELS. The same at both ends */
    uint64_t chunk_bytes;    /* 0: UCCL_TCPX_CHUNK_BYTES. The same at both ends */
    const char *plugin_path; /* NULL: as UCCL_TCPX_PLUGIN_PATH; "builtin"; or a file */
    const char *secret_file; /* NULL: none. Both ends must know its content; needs libsodium */
    int windows;      /* 1: the peer may read and write windows of this process whose keys it has */
    const char *name; /* of this process, for the peer: tcpx_session_peer(). At most 63 printable
                         characters of ASCII. NULL: none */
    int no_kernels;   /* 1: transfers wait for no kernel of the program, also not for one that waits
                         for them: tcpx moves GPU memory by copy engines only. Lists of many small
                         pieces take longer. Not over a plugin; nor, over several channels, lists of
                         pieces of GPU memory. A transfer of a single byte may wait all the same */
};

/* GPU 0, and everything else as the environment says. */
static inline void tcpx_session_options_init(struct tcpx_session_options *options)
{
    static const struct tcpx_session_options initial = {
        sizeof(struct tcpx_session_options), 0, 0, 0, NULL, NULL, 0, NULL, 0};

    *options = initial;
}

/*
 * Waits on a TCP port for peers; several may come, one after the other. `address`: NULL for all,
 * else the name or number of one of this machine. Port 0: *port of tcpx_session_port() says which
 * one it became. The options are those of all its sessions;
 * GPU and plugin are looked at when a peer has come.
 */
TCPX_API TCPX_CHECK int tcpx_session_listen(const char *address, int port,
                                            const struct tcpx_session_options *options,
                                            struct tcpx_session_listener **listener);
TCPX_API TCPX_CHECK int tcpx_session_port(const struct tcpx_session_listener *listener, int *port);

/* Waits for one peer; strangers are turned away meanwhile. */
TCPX_API TCPX_CHECK int tcpx_session_accept(struct tcpx_session_listener *listener, int timeout_ms,
                                            struct tcpx_session **session);

/* Its sessions go on. NULL is allowed. */
TCPX_API void tcpx_session_stop_listening(struct tcpx_session_listener *listener);

/* Reaches a peer that listens, or begins to do so before the time is over. */
TCPX_API TCPX_CHECK int tcpx_session_connect(const char *host, int port,
                                             const struct tcpx_session_options *options,
                                             int timeout_ms, struct tcpx_session **session);

/*
 * Ends a session and all of its transfers and memories. It does not wait for the peer's program,
 * only shortly for its host and for copies on the GPU: what was sent and is done arrives. A
 * transfer of the peer that is not done fails there. NULL is allowed.
 */
TCPX_API void tcpx_session_close(struct tcpx_session *session);

/* In one line: the peer, and by which path bytes travel. Valid until the session is closed. */
TCPX_API const char *tcpx_session_path(const struct tcpx_session *session);

/* The name in the peer's options, "" if it has none. Valid until the session is closed. */
TCPX_API const char *tcpx_session_peer(const struct tcpx_session *session);

/*
 * Memory that is sent from or received into: of the session's GPU, or of the host. Registered once,
 * it is valid on all channels, in both directions. It must stay allocated until it is deregistered,
 * which its transfers must have ended before; closing the session deregisters it. After a failure
 * the network may have it until the session is closed, and it cannot be deregistered before.
 */
TCPX_API TCPX_CHECK int tcpx_session_register(struct tcpx_session *session, void *address,
                                              uint64_t bytes, struct tcpx_memory **memory);
TCPX_API TCPX_CHECK int tcpx_session_deregister(struct tcpx_session *session,
                                                struct tcpx_memory *memory);

/* What must have happened on the GPU before a transfer touches its memory. */
enum tcpx_after {
    TCPX_AFTER_NOTHING = 0, /* the caller has waited for everything that concerns the memory */
    TCPX_AFTER_STREAM = 1,  /* all work that is on a stream, a CUstream, now */
    TCPX_AFTER_EVENT = 2    /* an event, a CUevent, as it was last recorded */
};

/*
 * One part of a memory. The bytes of a list are sent in its order as one transfer, and cut again by
 * the receiver's list: only the sums must be equal.
 */
struct tcpx_piece {
    uint64_t offset; /* in the memory */
    uint64_t bytes;
};

/*
 * What to move. With `pieces` NULL it is `bytes` from `offset` on, else the sum of the pieces,
 * which are copied. The k-th receive of a tag takes the k-th send of that tag, whatever happens on
 * other tags. Both must have the same number of bytes: otherwise both fail in words, but over one
 * channel of the built-in transport only the receive does. The two sides need not cut it into the
 * same pieces. Many small pieces of GPU memory are copied by a kernel, which may wait for other
 * kernels (but options.no_kernels); larger ones by copy engines, which do not. The same is true of
 * the parts of reads and writes.
 */
struct tcpx_move {
    struct tcpx_memory *memory;
    uint64_t offset;
    uint64_t bytes; /* 0 is a transfer, too */
    const struct tcpx_piece *pieces;
    size_t piece_count;
    uint64_t tag; /* below TCPX_TAG_END */
    enum tcpx_after after;
    void *after_what; /* the stream or event */
};

#define TCPX_TAG_END ((uint64_t)1 << 62)

/*
 * Both begin a transfer and return at once. The memory belongs to it until it has ended; if it has
 * failed, until the session is closed. Of those that wait for their other side, 4096 sends and 4096
 * receives are known to the peer; further ones wait for them.
 */
TCPX_API TCPX_CHECK int tcpx_send(struct tcpx_session *session, const struct tcpx_move *move,
                                  struct tcpx_transfer **transfer);
TCPX_API TCPX_CHECK int tcpx_receive(struct tcpx_session *session, const struct tcpx_move *move,
                                     struct tcpx_transfer **transfer);

/*
 * *done: whether it has ended. A send is done when its memory may be changed, a receive when all of
 * its bytes are there, for the CPU or for work that is started on the GPU from now on. An ended
 * transfer is gone: done, or failed with any result but TCPX_IN_PROGRESS. One thread at a time may
 * ask about a transfer.
 */
TCPX_API TCPX_CHECK int tcpx_transfer_test(struct tcpx_transfer *transfer, int *done);

/*
 * The same, but a receive may be done earlier: for work put on this stream, a CUstream, from now
 * on. If the stream cannot be made to wait, the transfer fails: when nothing is written to its
 * memory any more, so later than the first call.
 */
TCPX_API TCPX_CHECK int tcpx_transfer_test_on_stream(struct tcpx_transfer *transfer, void *stream,
                                                     int *done);

/* Waits until it has ended. TCPX_IN_PROGRESS: the time is over, and the transfer goes on. */
TCPX_API TCPX_CHECK int tcpx_transfer_wait(struct tcpx_transfer *transfer, int timeout_ms);

/*
 * Ends a transfer early. TCPX_SUCCESS: no byte of this side's memory is read or written for it any
 * more. That takes about a millisecond, and never needs the peer. The transfer is still there: test
 * and wait report TCPX_CANCELLED, or its end if that came first. For a read or a write they report
 * it only when the peer has confirmed that its memory is not touched any more either, or is lost.
 *
 * The other side's part of a send or a receive fails, unless it is done. A message that was sent
 * before its receive was posted may arrive all the same.
 *
 * TCPX_IN_PROGRESS: a copy of the GPU still uses the memory; call again. TCPX_INVALID_USAGE: a
 * transfer in chunks cannot be cancelled. Where the network itself reads GPU memory (sends by
 * devmem TCP), cancelling ends the connection.
 */
TCPX_API TCPX_CHECK int tcpx_transfer_cancel(struct tcpx_transfer *transfer);

/*
 * An eventfd, non-blocking, that becomes readable whenever a transfer has ended or failed, a note
 * has come, or the session has failed, for programs with a loop of their own: read it, then test
 * the transfers and take the notes. It may be readable although there is nothing new. From the
 * first call on everything moves without a call. It belongs to the session.
 */
TCPX_API TCPX_CHECK int tcpx_session_event_fd(struct tcpx_session *session, int *fd);

/* --- one-sided access ----------------------------------------------------------------------- */

/*
 * A window is memory of this process that peers may read or write without a call of this process,
 * if they have its key and if their session allows it here (options.windows). It belongs to the
 * process, not to a session, and its key can be handed out before there is one. With access 0 it is
 * for this side's own reads and writes only.
 */
struct tcpx_window;

/* A window of a peer, by its key. */
struct tcpx_remote;

#define TCPX_KEY_BYTES  64
#define TCPX_NOTE_BYTES 32768 /* a note has at most as many */

enum tcpx_window_access { TCPX_WINDOW_READ = 1, TCPX_WINDOW_WRITE = 2 };

/*
 * `gpu`: whose memory it is, which has to be that of the sessions it is used in; -1: memory of the
 * host. `access`: what peers may do, a sum of the above. It must stay allocated until the window is
 * closed.
 */
TCPX_API TCPX_CHECK int tcpx_window_open(int gpu, void *address, uint64_t bytes, int access,
                                         struct tcpx_window **window);

/* Writes TCPX_KEY_BYTES. Who has them has the access; on the way they are a secret. */
TCPX_API TCPX_CHECK int tcpx_window_key(const struct tcpx_window *window, void *key);

/*
 * Refuses what comes, and cancels what is under way; both sides get a text that says so.
 * TCPX_SUCCESS: no byte of its memory is read or written any more, and the window is gone. That
 * takes about a millisecond, and never needs a peer. TCPX_IN_PROGRESS: a copy of the GPU still uses
 * it; call again. NULL is allowed.
 */
TCPX_API TCPX_CHECK int tcpx_window_close(struct tcpx_window *window, int timeout_ms);

/* Does not ask the peer: a key that it refuses fails the first read or write. */
TCPX_API TCPX_CHECK int tcpx_remote_open(struct tcpx_session *session, const void *key,
                                         size_t bytes, struct tcpx_remote **remote);
/* Accesses that are under way go on. NULL is allowed; closing the session closes it. */
TCPX_API TCPX_CHECK int tcpx_remote_close(struct tcpx_remote *remote);

/* As many bytes here as there. */
struct tcpx_part {
    struct tcpx_window *window;
    uint64_t offset;
    struct tcpx_remote *remote;
    uint64_t remote_offset;
    uint64_t bytes;
};

struct tcpx_access {
    const struct tcpx_part *parts; /* copied; all windows on one GPU, or all in host memory; so are
                                      those of the peer, all through remotes of the session */
    size_t part_count;             /* at most 1 << 20 */
    const void *note; /* is handed to the peer's program when all is done; may have no bytes;
                         NULL: none */
    size_t note_bytes;
    enum tcpx_after after; /* of this side's memory */
    void *after_what;
    int timeout_ms; /* then it is cancelled; 0 is TCPX_DEFAULT_TIMEOUT */
};

/*
 * Both begin an access and return at once; the transfer is tested, waited for and cancelled as
 * others are. The peer's program takes no part. A read is done when its bytes are here, a write
 * when they are there: visible to the CPU, and to GPU work that is started afterwards. A note of a
 * write comes when its bytes are there, a note of a read when this side has them; notes come in the
 * order in which accesses are completed. An access that ends with TCPX_CANCELLED hands out no note.
 * Accesses have no order among each other, nor with sends and receives. When a session breaks, its
 * accesses fail; those of which the peer has not said that they are done may have happened or not.
 * Any number can be begun; 1024 are under way, and the others wait for them.
 *
 * The time counts from the call. When it is over, the access is cancelled: it ends with
 * TCPX_CANCELLED as soon as the peer confirms that. A peer that does not within
 * UCCL_TCPX_TIMEOUT_MS, since it is stopped or lost, ends the session.
 */
TCPX_API TCPX_CHECK int tcpx_read(struct tcpx_session *session, const struct tcpx_access *access,
                                  struct tcpx_transfer **transfer);
TCPX_API TCPX_CHECK int tcpx_write(struct tcpx_session *session, const struct tcpx_access *access,
                                   struct tcpx_transfer **transfer);

/*
 * A note by itself, behind those that were sent by this call before; it may come before the notes
 * of accesses that are under way. TCPX_IN_PROGRESS: 1 MiB of notes, of which each counts 64 bytes
 * more, waits for the peer's program; try again later. The eventfd is readable when there is room.
 */
TCPX_API TCPX_CHECK int tcpx_note_send(struct tcpx_session *session, const void *note,
                                       size_t bytes);

/*
 * Hands out the oldest note of the peer, of accesses and others alike. *there is 0: there is none.
 * A `room` of TCPX_NOTE_BYTES is always enough; a note that does not fit is an error, and stays.
 */
TCPX_API TCPX_CHECK int tcpx_note_take(struct tcpx_session *session, void *note, size_t room,
                                       size_t *bytes, int *there);

/* Since the session was made. Times are in nanoseconds, summed over whatever was going on at once.
 */
struct tcpx_session_statistics {
    size_t size; /* of this struct, as the caller knows it; set it before the call */
    uint64_t sends;
    uint64_t receives; /* transfers that are done */
    uint64_t failures;
    uint64_t sent_bytes;
    uint64_t received_bytes;
    /* Of what goes in chunks: over a plugin, and over several channels. */
    uint64_t sent_chunks;
    uint64_t received_chunks;
    uint64_t fragments;       /* that were unpacked by the session */
    uint64_t unpack_launches; /* each for one or several chunks */
    uint64_t matching_ns;     /* until the peer's side of a transfer was there */
    uint64_t gathering_ns;    /* chunks: copied out of the memory, where that is needed */
    uint64_t sending_ns;      /* chunks: handed to the network until it was done with them */
    uint64_t receiving_ns;    /* chunks: posted until their bytes were there */
    uint64_t unpacking_ns;    /* chunks: from there into the memory */
    uint64_t window_stalls;   /* how often nothing more could be posted: all requests in use, */
    uint64_t staging_stalls;  /* no staging memory free, */
    uint64_t busy_stalls;     /* the network did not take it, */
    uint64_t after_stalls;    /* or a stream or event had not been reached */
    /*
     * In the built-in transport, whose stages go on at the same time: how long each was at work, as
     * a whole, however many sockets and copies there were at once; on average of the channels. Over
     * a plugin 0.
     */
    uint64_t copy_out_ns;   /* copies out of GPU memory, until they were seen to have ended */
    uint64_t write_ns;      /* system calls that hand bytes to sockets */
    uint64_t write_wait_ns; /* bytes were ready, and no socket took any: a slow network or peer */
    uint64_t read_ns;       /* system calls that take bytes from sockets */
    uint64_t read_wait_ns;  /* receives were ready, and no socket had bytes: as above */
    uint64_t copy_in_ns;    /* copies and unpacks into GPU memory, as copy_out_ns */
    /* Of this side's accesses. Those that failed are among the failures. */
    uint64_t reads;
    uint64_t writes;
    uint64_t read_bytes;
    uint64_t written_bytes;
    uint64_t cancelled; /* transfers of any kind */
    /* Of the peer's accesses. */
    uint64_t served_reads;
    uint64_t served_writes;
    uint64_t served_bytes;
    uint64_t served_refusals; /* and those that it or tcpx_window_close() has cancelled */
    uint64_t notes_sent;      /* with accesses, too, */
    uint64_t notes_taken;     /* and by the program */
};

TCPX_API TCPX_CHECK int tcpx_session_get_statistics(struct tcpx_session *session,
                                                    struct tcpx_session_statistics *statistics);

/* --- network plugins ------------------------------------------------------------------------ */

/*
 * The calls of NCCL's network plugin interface, over the plugin that UCCL_TCPX_PLUGIN_PATH names,
 * else the one at /usr/local/tcpx/lib64/libnccl-net-tcpx.so, else the built-in transport. None of
 * them waits but tcpx_wait_request(), and loading a plugin, which takes what it takes.
 *
 * A comm has one direction. Messages match receives in order; tags are passed on, but no plugin
 * looks at them. At most 16 requests are in flight in each comm. Receives into GPU memory end in a
 * bounce buffer: tcpx_unpack_submit() gets them to their destination, then tcpx_irecv_consumed()
 * gives the place back; until then they count as in flight.
 */

/* As in NCCL's headers, beside which this one can be included. */
#ifndef NCCL_PTR_HOST
#define NCCL_PTR_HOST 0x1
#endif
#ifndef NCCL_PTR_CUDA
#define NCCL_PTR_CUDA 0x2
#endif

#define TCPX_HANDLE_BYTES 128

#ifndef TCPX_OWN_NCCL_NET_HANDLE_V7 /* defined by whoever has this struct already */
struct ncclNetHandle_v7 {
    char data[TCPX_HANDLE_BYTES];
};
#endif

/*
 * Works through this plugin from now on, in the whole process; "builtin" is the built-in transport,
 * NULL the choice above. The first of the calls below does it by itself. What is open already stays
 * with its plugin.
 */
TCPX_API TCPX_CHECK int tcpx_load_plugin(const char *plugin_path);

/* How many devices, NICs, the plugin has; -1 on failure. */
TCPX_API TCPX_CHECK int tcpx_get_device_count(void);

struct tcpx_net_properties {
    const char *name;
    const char *pci_path; /* NULL: not on a PCI bus */
    uint64_t guid;
    int ptr_support; /* NCCL_PTR_HOST, NCCL_PTR_CUDA */
    int speed;       /* Mbit/s */
    int port;
    float latency;
    int max_comms;
    int max_recvs;
    int net_device_type;    /* 0: none, 1: receives into GPU memory have to be unpacked */
    int net_device_version; /* 7 */
};

/* Texts stay valid for the life of the process. */
TCPX_API TCPX_CHECK int tcpx_get_properties(int dev, struct tcpx_net_properties *properties);

/* Writes 128 bytes to `handle`, for the peer's tcpx_connect_v5(), and takes one or more peers. */
TCPX_API TCPX_CHECK int tcpx_listen(int dev, void *handle, void **listen_comm);

/*
 * *send_comm is NULL: not yet, call again with the same bytes at the same place.
 * `send_dev_handle` may be NULL; nothing is written there.
 */
TCPX_API TCPX_CHECK int tcpx_connect_v5(int dev, void *handle, void **send_comm,
                                        void **send_dev_handle);

/*
 * *recv_comm is NULL: not yet, call again. `recv_dev_handle` may be NULL.
 * Otherwise *recv_dev_handle may point to 32 bytes of the caller's, which get NCCL's
 * ncclNetDeviceHandle; if it is NULL, it is set to a copy that lives as long as the comm. The GPU
 * is the one that is current in the calling thread. One thread at a time for each listener.
 */
TCPX_API TCPX_CHECK int tcpx_accept_v5(void *listen_comm, void **recv_comm, void **recv_dev_handle);

/*
 * Memory is registered with each comm that uses it; only over the built-in transport, host memory
 * need not be: its mhandle may be NULL.
 */
TCPX_API TCPX_CHECK int tcpx_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
TCPX_API TCPX_CHECK int tcpx_dereg_mr(void *comm, void *mhandle);

/*
 * *request is NULL: the comm is busy, call again after some tests. `data` must lie in the memory
 * behind `mhandle`. n is 1: plugins take one receive at a time. `tags` may be NULL.
 */
TCPX_API TCPX_CHECK int tcpx_isend(void *comm, void *data, int size, int tag, void *mhandle,
                                   void **request);
TCPX_API TCPX_CHECK int tcpx_irecv(void *comm, int n, void **data, int *sizes, int *tags,
                                   void **mhandles, void **request);

/*
 * *done: whether it has ended; *size, which may be NULL: its bytes, where they are known: those of
 * a receive into GPU memory are. A request that is done or failed is gone, but a receive into GPU
 * memory that has to be unpacked is there until it is consumed, and may be tested again. One thread
 * at a time for each request.
 */
TCPX_API TCPX_CHECK int tcpx_test(void *request, int *done, int *size);

/*
 * In any order of the receives, of which the oldest ones count as in flight until all before them
 * are consumed. One that needs no unpacking is gone when it is done: to consume it at once has no
 * effect. n is 1.
 */
TCPX_API TCPX_CHECK int tcpx_irecv_consumed(void *comm, int n, void *request);

/*
 * Ends a comm, its requests and its registrations; what was sent and is done arrives. NULL is
 * allowed.
 *
 * Over a plugin that loses what its receiver has not looked at when the sender closes, as Google's
 * does, it arrives if the receiver takes it within UCCL_TCPX_TIMEOUT_MS: the connections of the
 * sender stay open that long, or until the receiver closes its end. A process that exits waits for
 * that up to 5 seconds; one that ends without exit() does not.
 */
TCPX_API TCPX_CHECK int tcpx_close_send(void *send_comm);
TCPX_API TCPX_CHECK int tcpx_close_recv(void *recv_comm);
TCPX_API TCPX_CHECK int tcpx_close_listen(void *listen_comm);

/* One piece of what was received: where it is in the bounce buffer, and where it belongs. */
struct tcpx_fragment {
    uint32_t source_offset;
    uint32_t length;
    uint64_t destination_offset;
};

struct tcpx_fragments {
    const struct tcpx_fragment *list; /* valid until the request is consumed */
    uint32_t count;                   /* 0: nothing has to be unpacked */
    const void *bounce;               /* what source_offset counts from, for the GPU */
};

/*
 * Tests until the request is done, at most `timeout_ms`; then TCPX_IN_PROGRESS, and it goes on.
 * `size` and `fragments` may be NULL.
 */
TCPX_API TCPX_CHECK int tcpx_wait_request(void *request, int timeout_ms, int *size,
                                          struct tcpx_fragments *fragments);

/* --- unpacking ------------------------------------------------------------------------------ */

/*
 * From the bounce buffer to the buffer that a receive was posted with, in the way that
 * UCCL_TCPX_UNPACK_IMPL names. One thread at a time for each of these objects.
 */
struct tcpx_unpack;

TCPX_API TCPX_CHECK int tcpx_unpack_create(int gpu, struct tcpx_unpack **unpack);
/* NULL is allowed. Tickets that are not done yet are waited for. */
TCPX_API void tcpx_unpack_destroy(struct tcpx_unpack *unpack);

/*
 * Begins to unpack up to 16 receives that are done, in one launch; those of host memory are
 * skipped. TCPX_IN_PROGRESS: too much is under way; poll, then try again. Consume the requests when
 * the ticket is done.
 */
TCPX_API TCPX_CHECK int tcpx_unpack_submit(struct tcpx_unpack *unpack, void *const *requests,
                                           size_t request_count, uint64_t *ticket);
TCPX_API TCPX_CHECK int tcpx_unpack_poll(struct tcpx_unpack *unpack, uint64_t ticket, int *done);
TCPX_API TCPX_CHECK int tcpx_unpack_wait(struct tcpx_unpack *unpack, uint64_t ticket,
                                         int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
