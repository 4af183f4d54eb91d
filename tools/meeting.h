/*
 * How the two ends of a test find each other: a TCP port of the server, over which handles, what is
 * going to be sent, and the verdict travel. The peer is known to be a tcpx of the same kind.
 */
#ifndef TCPX_TOOLS_MEETING_H
#define TCPX_TOOLS_MEETING_H

#include "session/control.h"

enum { MEETING_HANDLE_BYTES = 128 };

/* Which test: both must be the same. */
enum meeting_test { MEETING_TRANSFER, MEETING_CONNECTION, MEETING_PERF };

struct meeting_options {
    enum meeting_test test;
    const char *host;    /* NULL: this is the server, */
    const char *address; /* which waits at this one; NULL: at all of its host */
    uint64_t port;
    int port_gpu;            /* whose number the port has in it: meeting_count_port(); -1: none */
    const char *secret_file; /* NULL: none */
    int timeout_ms;          /* for each step */
    bool announces;          /* a server says on standard error where it waits and who came */
    bool once;               /* it serves one client, and waits for that one timeout_ms */
};

struct meeting {
    struct meeting_options options;
    struct bootstrap_listener *listener; /* the server's */
    struct control *control;
    uint64_t deadline;
};

/* Rows of a table of options, for struct meeting_options. */
#define MEETING_OPTIONS(options)                                                                   \
    {.name = "--port",                                                                             \
     .number = &(options).port,                                                                    \
     .least = 1,                                                                                   \
     .most = 65535,                                                                                \
     .problem = "not a port from 1 to 65535:"},                                                    \
        {.name = "--secret", .text = &(options).secret_file, .problem = "not a file:"},            \
        {.name = "--once", .flag = &(options).once},                                               \
    {                                                                                              \
        .name = "--timeout", .read = meeting_read_timeout, .target = &(options).timeout_ms,        \
        .problem = "not a number of seconds from 1 to 3600:"                                       \
    }

bool meeting_read_timeout(void *timeout_ms, const char *value);

/* Without a port of its own, that of this GPU: the base and its number. */
void meeting_count_port(struct meeting_options *options, uint64_t base, int gpu);

/* The server listens; the client has nothing to do yet. */
MUST_CHECK int meeting_open(const struct meeting_options *options, struct meeting *meeting);

/*
 * Both wait for each other: a client for timeout_ms, a server for ever, or with `once` as long as a
 * client.
 */
MUST_CHECK int meeting_begin(struct meeting *meeting);

/*
 * Serves one client after the other, until a signal ends the program or no client can come any
 * more; with `once` one client. `serve` opens, begins and closes the meeting with one client, and
 * sets *met when meeting_begin() has succeeded. Returns the latest status of `serve`.
 */
int meeting_serve(const struct meeting_options *options, int (*serve)(void *argument, bool *met),
                  void *argument);

/* Time runs anew. */
void meeting_next_step(struct meeting *meeting);

/* How often, which the client decides, and the server gets; `most`: what the server takes. */
MUST_CHECK int meeting_pass_count(struct meeting *meeting, unsigned most, unsigned *count);

/*
 * The server's handle, which the client gets, and that both go through the same plugin and mean the
 * same `bytes`; as often as there are handles.
 */
MUST_CHECK int meeting_pass_handle(struct meeting *meeting, uint64_t bytes,
                                   uint8_t handle[MEETING_HANDLE_BYTES]);

/* Sends all of a message: what follows may be no message for a while. */
MUST_CHECK int meeting_say(struct meeting *meeting, uint8_t type, const void *payload,
                           size_t bytes);

/*
 * For a server that waits for something else than a message, while the client sends none: fails in
 * the client's words if it has given up.
 */
MUST_CHECK int meeting_check_client(struct meeting *meeting);

/* The server says that all is good, and the client hears it: a text instead is its failure. */
MUST_CHECK int meeting_pass_verdict(struct meeting *meeting);

/* With a reason, which the peer is told; NULL: there is none. */
void meeting_close(struct meeting *meeting, const char *reason);

#endif
