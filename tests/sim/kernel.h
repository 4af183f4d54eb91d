/* What sockets.c and network.c share: descriptors, and the two streams of a connection. */
#ifndef TCPX_TESTS_SIM_KERNEL_H
#define TCPX_TESTS_SIM_KERNEL_H

#include "sim.h"

#include <netinet/in.h>
#include <sys/epoll.h>

/*
 * One direction of a connection. Bytes are counted from its beginning: written, then arrived at the
 * other kernel, which acknowledges them, then read.
 */
struct stream {
    uint8_t *bytes; /* a ring of `capacity` */
    uint64_t capacity;
    uint64_t send_buffer;
    uint64_t receive_buffer;
    uint64_t written;
    uint64_t arrived;
    uint64_t read;
    bool shut;             /* the writer has ended it: the FIN follows the last byte */
    bool ended;            /* the FIN has arrived */
    uint64_t moves_at;     /* the next segment arrives; SIM_NEVER: nothing is on the way */
    uint64_t silent_since; /* nothing was acknowledged since; SIM_NEVER: nothing has to be */
};

enum file_kind { FILE_FREE, FILE_SOCKET, FILE_LISTENER, FILE_CONNECTION, FILE_EVENT, FILE_EPOLL };

enum { MOST_FILES = 512, FIRST_DESCRIPTOR = 4096, MOST_BACKLOG = 64, MOST_INTERESTS = 64 };

struct interest {
    struct file *file; /* NULL: free */
    uint32_t events;
    uint64_t data;
    bool reported; /* edge-triggered: since its file has changed */
};

struct file {
    enum file_kind kind;
    int process;
    bool closed;      /* by its process; the kernel still has work with it */
    uint64_t waiting; /* threads that wait for a change */

    /* sockets */
    struct sockaddr_storage local;
    struct sockaddr_storage remote;
    bool bound;
    int user_timeout_ms;
    int keep_idle_s;
    int keep_interval_s;
    bool keep_alive;
    int defer_s;

    /* listeners */
    struct file **backlog;
    unsigned backlog_count;

    /* connections */
    struct file *listener; /* until it is accepted: whose backlog it is in */
    struct file *peer;     /* NULL: it knows nothing of this connection (any more) */
    struct stream *in;
    struct stream *out;
    bool connecting;
    uint64_t connects_at;
    bool over; /* reset or timed out: no packet comes or goes any more */
    bool read_shut;
    int error; /* SO_ERROR */
    uint64_t heard_at;
    uint64_t accepted_at; /* when it came into the backlog */

    /* eventfd */
    uint64_t counter;

    /* epoll */
    struct interest *interests; /* MOST_INTERESTS */
    unsigned first_interest; /* where the next wait begins to look, so that all have their turn */
};

extern struct file files[MOST_FILES];
extern unsigned file_count;

struct file *file_open(enum file_kind kind, int process);
/* Its state has changed: whoever waits for it looks again. */
void file_changed(struct file *file);
/* Gives the place back once nobody needs it. */
void file_release(struct file *file);

/* Looks for a listener and connects to it after the latency of the network. */
void network_connect(struct file *file);
/* There is something to send, or room for what was sent. */
void network_kick(struct stream *stream);
/* The state of a connection has changed: its timers are looked at again. */
void network_look(void);
/* The process has closed the connection. */
void network_close(struct file *file);

#endif
