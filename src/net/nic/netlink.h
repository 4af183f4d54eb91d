/*
 * Requests to the kernel by netlink: a request is built with checked bounds, and the answer is not
 * trusted. One request at a time, each answered within a second. The text with which the kernel
 * explains a refusal (its "extack") is kept.
 */
#ifndef TCPX_NET_NIC_NETLINK_H
#define TCPX_NET_NIC_NETLINK_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NETLINK_REQUEST_BYTES = 24 << 10, /* a bind of 1024 queues fits */
    NETLINK_WORDS_BYTES = 200,
};

/* How a request ended. */
struct netlink_verdict {
    int error; /* an errno; 0: fine */
    char words[NETLINK_WORDS_BYTES];
};

/*
 * "WHAT: Invalid argument: "the kernel's text"", and what to do where a privilege is missing. Also
 * for ioctls, which have no text.
 */
MUST_CHECK int netlink_refused(const struct netlink_verdict *verdict, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- what is in an answer ------------------------------------------------------------------ */

struct netlink_span {
    const uint8_t *bytes;
    size_t length;
};

struct netlink_attribute {
    uint16_t type; /* without the flags of nests and byte order */
    struct netlink_span value;
};

/* Takes the next attribute off; false at the end, or at one that does not fit in what is there. */
bool netlink_next(struct netlink_span *rest, struct netlink_attribute *attribute);

/* The first attribute of this type. */
bool netlink_find(struct netlink_span attributes, uint16_t type, struct netlink_span *value);

/* As a number of 1, 2, 4 or 8 bytes. */
bool netlink_find_number(struct netlink_span attributes, uint16_t type, uint64_t *number);

/* --- a request ----------------------------------------------------------------------------- */

/* netlink_ask() fails with E2BIG if something did not fit. */
struct netlink_request {
    _Alignas(8) uint8_t bytes[NETLINK_REQUEST_BYTES];
    size_t length;
    size_t head_bytes; /* of the family's own header, which answers have too */
    bool too_long;
};

/* `flags` besides NLM_F_REQUEST: NLM_F_DUMP, or 0. */
void netlink_begin(struct netlink_request *request, uint16_t type, uint16_t flags, const void *head,
                   size_t head_bytes);
void netlink_begin_generic(struct netlink_request *request, uint16_t family, uint8_t command,
                           uint16_t flags);

void netlink_put(struct netlink_request *request, uint16_t type, const void *value, size_t bytes);
void netlink_put_u8(struct netlink_request *request, uint16_t type, uint8_t value);
void netlink_put_u32(struct netlink_request *request, uint16_t type, uint32_t value);
void netlink_put_text(struct netlink_request *request, uint16_t type, const char *text);

/* What is put between the two calls is nested; the second takes the value of the first. */
size_t netlink_nest(struct netlink_request *request, uint16_t type);
void netlink_nest_end(struct netlink_request *request, size_t nest);

/* --- asking -------------------------------------------------------------------------------- */

struct netlink {
    int fd;
    uint32_t sequence;
    bool lasts;
};

/*
 * NETLINK_GENERIC or NETLINK_ROUTE; 0, or an errno. `lasts`: something in the kernel lives as long
 * as the socket, so a forked child closes its copy (base/fork.h).
 */
MUST_CHECK int netlink_open(int protocol, bool lasts, struct netlink *netlink);

void netlink_close(struct netlink *netlink); /* fd of -1 is allowed */

/* Called for each message of an answer. 0, or an errno that ends the request. */
typedef int netlink_each(void *owner, struct netlink_span attributes);

/* verdict->error is the value, too. `each` may be NULL. */
int netlink_ask(struct netlink *netlink, struct netlink_request *request, netlink_each *each,
                void *owner, struct netlink_verdict *verdict);

/* A family of generic netlink. */
struct netlink_family {
    uint16_t id;
    uint64_t commands; /* bit n: command n is there */
};

/* ENOENT if the kernel has no family of this name. */
int netlink_find_family(struct netlink *netlink, const char *name, struct netlink_family *family,
                        struct netlink_verdict *verdict);

/* Both at once, and nothing is open after a failure. verdict->error is the value, too. */
int netlink_open_family(const char *name, bool lasts, struct netlink *netlink,
                        struct netlink_family *family, struct netlink_verdict *verdict);

/* --- inside, for tests --------------------------------------------------------------------- */

struct netlink_reading {
    uint32_t sequence; /* of the request; messages with another one are not for us */
    size_t head_bytes;
    netlink_each *each;
    void *owner;
    struct netlink_verdict *verdict; /* zero before the first datagram */
};

/* Reads one datagram. True: the answer is complete, and the verdict says how it ended. */
bool netlink_read(const struct netlink_reading *reading, const void *datagram, size_t length);

/* The netlink_each of netlink_find_family(). */
int netlink_read_family(void *family, struct netlink_span attributes);

#endif
