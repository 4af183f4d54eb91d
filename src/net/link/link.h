/*
 * A link: the connected sockets of one comm, and what both ends have agreed on. This is the header
 * of the room: listen and accept (listener.c), connect (connect.c) and what both share (link.c). No
 * call waits: each moves its side on as far as possible now, so that one thread can drive both ends
 * by turns. The comm owns the sockets afterwards.
 */
#ifndef TCPX_NET_LINK_LINK_H
#define TCPX_NET_LINK_LINK_H

#include "net/device/device.h"
#include "net/devmem/devmem.h"
#include "net/socket/socket.h"
#include "net/wire/wire.h"

struct net_link {
    int forward[WIRE_MOST_SOCKETS]; /* sender to receiver; the first `sockets` */
    int reverse;                    /* receiver to sender */
    uint8_t sockets;
    unsigned version;      /* of the protocol, */
    uint32_t capabilities; /* and what both sides can do besides: wire.h */
    enum wire_match match;
    enum wire_framing framing;
    uint64_t eager_limit;   /* the longest message that may travel before its receive is posted */
    uint64_t eager_credit;  /* bytes of such messages that the receiver keeps */
    uint64_t largest_slice; /* bytes in one slice, at most; of host memory see NET_HOST_SHARE */
    unsigned requests;      /* of its comm, at once; 0: as many as usual */
    bool no_kernels;        /* as in the options */
    char peer[SOCKET_NAME_BYTES];
    uint64_t process; /* the peer's, and how much of its budget this link has taken */
    unsigned budgeted;
    struct devmem_link *devmem; /* accepted ones: where its payload arrives; NULL: host memory */
    struct net_device device;   /* connected ones: what it leaves through; ifindex 0: any */
    int numa_node;              /* of the device at this end; -1: unknown */
};

/*
 * Slices of host memory are smaller than the largest by this factor, so that all sockets have work.
 * Slices of GPU memory are as large as possible: each copy from or to a GPU costs a driver call.
 */
enum { NET_HOST_SHARE = 4 };

/* What one end wants of its links; both ends must want the same match. */
struct net_link_options {
    uint8_t sockets; /* forward ones; the connecting side decides, and may get fewer: budget.h */
    enum wire_match match;
    enum wire_framing framing; /* the accepting side decides, and devmem TCP for it */
    int gpu; /* a listener's: whose memory will be received into; -1: none's, or not known */
    /*
     * The caller's kernels may wait for what is sent or received, so nothing is used that waits for
     * kernels: no kernels of this library, no copies inside the GPU, only copy engines.
     */
    bool no_kernels;
    uint64_t eager_limit; /* these three the accepting side decides */
    uint64_t eager_credit;
    uint64_t largest_slice;
    unsigned requests;     /* that the comm can have at once, the same at both ends; 0: the usual */
    uint64_t timeout_ms;   /* until a peer whose host is gone is an error */
    uint64_t handshake_ms; /* until a half-open connection is dropped */
    /*
     * A connect's: until a path that does not answer is left for one that does; 0: as usual, which
     * is 2 s or the timeout if that is shorter.
     */
    uint64_t answer_ms;
    const void *owner; /* of a connect, for net_connect_cancel_all() */
    /*
     * All devices of the process, spare ones too, the best first; they stay until the listener is
     * closed and the connect has ended. A listener can be reached at all of them, unless payload
     * arrives by devmem TCP; a connect that cannot leave through its device leaves through others.
     */
    const struct net_device *devices;
    int device_count;
};

/* From the environment. */
MUST_CHECK int net_link_defaults(enum wire_match match, struct net_link_options *options);

/* Closes all sockets of a link. */
void net_link_close(struct net_link *link);

struct net_listener;

/*
 * Listens on the device's address and on those of the options, on a port that the kernel chooses;
 * writes the handle.
 */
MUST_CHECK int net_listen(const struct net_device *device, const struct net_link_options *options,
                          uint8_t handle[NET_HANDLE_BYTES], struct net_listener **listener);

/*
 * *accepted: whether `link` was written: one link per call. A connection without the token, of
 * another protocol or without a hello in time is dropped without effect on the others. The program
 * may pause between calls: peers wait.
 */
MUST_CHECK int net_accept(struct net_listener *listener, struct net_link *link, bool *accepted);

/* Connections that are not accepted yet are closed. NULL is allowed. */
void net_listener_close(struct net_listener *listener);

/*
 * *connected: whether `link` was written; if not, call again with the same handle bytes, which name
 * the attempt. A failure ends the attempt; a pause between calls does not. The device may be NULL:
 * any. If the listener does not answer on this path, others are tried (path.h), and link->device is
 * the device that was used. The text of a failure then has all tries.
 */
MUST_CHECK int net_connect(const struct net_device *device, const struct net_link_options *options,
                           uint8_t handle[NET_HANDLE_BYTES], struct net_link *link,
                           bool *connected);

/* What the attempt of this handle waits for, for texts; "" without one. */
void net_connect_describe(const uint8_t handle[NET_HANDLE_BYTES], char *text, size_t size);

/* Ends the attempt of this handle; no effect without one. */
void net_connect_cancel(uint8_t handle[NET_HANDLE_BYTES]);

/* Ends all attempts of an owner. */
void net_connect_cancel_all(const void *owner);

#endif
