/*
 * The NIXL backend "TCPX", in C; engine.cpp is what NIXL sees of it. An agent of NIXL is a
 * process's place in the network: it has memory that peers may access (regions), knows memory of
 * peers (remotes), and has requests, which are lists of both that are moved any number of times.
 * Each call returns at once, unless it is said otherwise, and may come from any thread; one thread
 * at a time uses a request. Who fails says why on standard error, in one line.
 */
#ifndef TCPX_NIXL_PLUGIN_NIXL_PLUGIN_H
#define TCPX_NIXL_PLUGIN_NIXL_PLUGIN_H

#include "abi/nixl_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Any bytes; names of agents and texts of notices are such. */
struct nixl_text {
    const char *bytes;
    size_t length;
};

/* --- interface_check.c ----------------------------------------------------------------------- */

/*
 * Whether the NIXL that has called, of which `caller` is an instruction, has the interface that
 * this plugin is made for; if not, it is said why.
 */
bool nixl_interface_is_known(const void *caller);

/* --- options.c ------------------------------------------------------------------------------- */

struct nixl_options;

/* For a list of all: false behind the last. `value` is the default. */
bool nixl_option_at(size_t index, const char **name, const char **value);

/* NULL: there is no memory. */
struct nixl_options *nixl_options_create(void);
/* False, and it is said why: no such option, or no such value. */
bool nixl_options_set(struct nixl_options *options, const char *name, const char *value);
void nixl_options_free(struct nixl_options *options);

/* --- agent.c --------------------------------------------------------------------------------- */

struct nixl_agent;

/* Takes the options over, also on failure: NULL. It listens from now on. */
struct nixl_agent *nixl_agent_create(struct nixl_text name, struct nixl_options *options);

/* Ends all that is under way. It waits for its threads, a fraction of a second. */
void nixl_agent_destroy(struct nixl_agent *agent);

/* What peers need to reach this agent; valid as long as the agent. */
struct nixl_text nixl_agent_endpoint(const struct nixl_agent *agent);

/* --- peers.c --------------------------------------------------------------------------------- */

/* Knows the peer of this name from now on by its nixl_agent_endpoint(). */
enum nixl_status nixl_peer_load(struct nixl_agent *agent, struct nixl_text name,
                                struct nixl_text text);
/* Begins to connect, in the background. */
enum nixl_status nixl_peer_connect(struct nixl_agent *agent, struct nixl_text name);
/* What is under way with it is cancelled, and its name is free. */
enum nixl_status nixl_peer_forget(struct nixl_agent *agent, struct nixl_text name);

/* --- regions.c ------------------------------------------------------------------------------- */

struct nixl_region;
struct nixl_remote;

/* gpu -1: memory of the host. */
enum nixl_status nixl_region_open(struct nixl_agent *agent, int64_t gpu, uintptr_t address,
                                  size_t bytes, struct nixl_region **out);
/* When it has returned, nobody touches the memory; that takes about a millisecond. */
enum nixl_status nixl_region_close(struct nixl_region *region);

/* What peers need to access it; valid as long as the region. */
struct nixl_text nixl_region_key(const struct nixl_region *region);

/* A region of a peer of this name that is known, by its key, or one of the agent itself. */
enum nixl_status nixl_remote_open(struct nixl_agent *agent, struct nixl_text name,
                                  struct nixl_text text, struct nixl_remote **out);
enum nixl_status nixl_remote_open_own(struct nixl_agent *agent, const struct nixl_region *region,
                                      struct nixl_remote **out);
void nixl_remote_close(struct nixl_remote *remote);

/* --- requests.c ------------------------------------------------------------------------------ */

struct nixl_request;

struct nixl_piece {
    struct nixl_region *region;
    uintptr_t address;
    struct nixl_remote *remote;
    uintptr_t remote_address;
    size_t bytes;
};

/* With the peer of this name, of `count` pieces, which are added one by one. */
enum nixl_status nixl_request_create(struct nixl_agent *agent, struct nixl_text name, bool is_read,
                                     size_t count, struct nixl_request **out);
enum nixl_status nixl_request_add(struct nixl_request *request, const struct nixl_piece *piece);
/* All pieces are there. Begins to connect, in the background. */
enum nixl_status nixl_request_prepare(struct nixl_request *request);

/* `notice` is told to the peer's program when all bytes have been moved; NULL: nothing is. */
enum nixl_status nixl_request_post(struct nixl_request *request, const struct nixl_text *notice);
enum nixl_status nixl_request_check(struct nixl_request *request);

/* When it has returned, no byte of this side's memory is read or written for it. */
void nixl_request_free(struct nixl_request *request);

/* --- notices.c ------------------------------------------------------------------------------- */

/* What a peer has told this program, of an access or by itself. */
struct nixl_notice {
    struct nixl_notice *next;
    struct nixl_text from;
    struct nixl_text text;
};

/* All that have come; the caller frees each of them by free(). NULL: none. */
struct nixl_notice *nixl_notices_take(struct nixl_agent *agent);

enum nixl_status nixl_notice_send(struct nixl_agent *agent, struct nixl_text to,
                                  struct nixl_text text);

#ifdef __cplusplus
}
#endif

#endif
