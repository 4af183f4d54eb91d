/*
 * What tests see and set inside of a comm that its calls do not show. Only comm_inside.c knows the
 * fields: a change of src/net/comm or src/net/gpu is followed there, and in no test. Every function
 * takes the comm's lock where it needs one.
 */
#ifndef TCPX_TESTS_SUPPORT_COMM_INSIDE_H
#define TCPX_TESTS_SUPPORT_COMM_INSIDE_H

#include "net/transport.h"

/* --- any comm -------------------------------------------------------------------------------- */

/* Moves the comm on as any call would, also where there is no request to test. */
void inside_move_on(struct net_comm *comm);

/* TCPX_SUCCESS, or why no request can go on; error_text() is the comm's text then. */
int inside_result(struct net_comm *comm);

/* Whether test() would say how the request ended; it is not called. */
bool inside_has_ended(struct net_comm *comm, const struct net_request *request);

/* The comm's end of the link, which stays the comm's. */
const struct net_link *inside_link(const struct net_comm *comm);

/* What one turn moves over one socket at most. */
uint64_t inside_most_turn_bytes(void);
unsigned inside_most_turn_calls(void);

/* As after so many receives. */
void inside_jump_to(struct net_comm *comm, uint64_t receives);
/* Only the count of requests jumps, not the number of the next receive. */
void inside_set_next_order(struct net_comm *comm, uint64_t order);

/* Bytes that a socket or copy has moved for the request. */
uint64_t inside_moved(struct net_comm *comm, const struct net_request *request);

/*
 * NULL, or which rule the state of the comm breaks: all that is counted twice agrees, memory and
 * credit are bounded, and a failed comm has a text and no request that goes on. `reported`:
 * completions that test() has reported. *most_kept is the caller's, 0 at first.
 */
const char *inside_broken_rule(struct net_comm *comm, uint64_t reported, uint64_t *most_kept);

/* --- a sender -------------------------------------------------------------------------------- */

/* Credit that was ever charged. */
uint64_t inside_charged(struct net_comm *comm);

/* Bytes of the request that were given to a socket. */
uint64_t inside_handed_out(struct net_comm *comm, const struct net_request *request);

/* Whether all of the request's records were written. */
bool inside_has_said_all(struct net_comm *comm, const struct net_request *request);

bool inside_sends_by_reference(struct net_comm *comm);
/* From now on the sockets take sends by reference. */
MUST_CHECK int inside_allow_references(struct net_comm *comm);
/* The send, of which nothing has gone out, goes by reference to this dma-buf; false: too late. */
bool inside_refer(struct net_comm *comm, struct net_request *send, uint32_t source_id);
/* Bytes of the send that sockets have taken, by reference or not. */
uint64_t inside_taken_by_sockets(struct net_comm *comm, const struct net_request *send);

/* --- a receiver ------------------------------------------------------------------------------ */

/* Credit of unexpected messages that are held now, and credit that was ever given back. */
uint64_t inside_held(struct net_comm *comm);
uint64_t inside_given_back(struct net_comm *comm);

/* Memory of unexpected messages that are kept by their number, and memory that waits for others. */
uint64_t inside_kept_memory(struct net_comm *comm);

/* Whether a message of this tag is there without its receive. */
bool inside_has_unexpected(struct net_comm *comm, uint64_t tag);

/* Sockets that hold back a record whose receive is not posted. */
unsigned inside_stalled(struct net_comm *comm);

/* As if the latest receive had been posted just now, whenever the comm asks; or long ago. */
void inside_keep_posting(struct net_comm *comm, bool just_now);
/* The same as long ago, and a POST that may wait has waited for long. */
void inside_let_time_pass(struct net_comm *comm);

/* Whether calls move this socket on, not only I/O threads. */
bool inside_calls_move(const struct net_comm *comm, unsigned socket);

/* Bytes that came on a forward socket, records included. */
uint64_t inside_received(struct net_comm *comm, unsigned socket);

/* --- staging slots --------------------------------------------------------------------------- */

/* Slots that the comm has now. */
unsigned inside_slots_used(const struct net_comm *comm);

/* Keeps the pool of GPU 0 while it is open; one at a time. */
MUST_CHECK int inside_slots_open(unsigned most);
void inside_slots_close(void);
/*
 * Host addresses of the slots that the next comm would get, at most `most`, the first one first:
 * the one that was given back last.
 */
unsigned inside_free_slots(const uint8_t **hosts, unsigned most);

/* Receives that the sender has ever heard of, and those without a send; messages moved whole. */
uint64_t inside_posts_heard(struct net_comm *comm);
unsigned inside_posts_waiting(struct net_comm *comm);
uint64_t inside_messages(struct net_comm *comm);

#endif
