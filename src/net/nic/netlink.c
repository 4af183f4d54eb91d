/* Netlink without a library: headers and attributes, the socket, and the names of families. */
#include "net/nic/netlink.h"

#include "base/clock.h"
#include "base/fork.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PATIENCE_MS = 1000,
    ANSWER_BYTES = 32 << 10, /* the kernel makes no part of a dump longer */
};

int netlink_refused(const struct netlink_verdict *verdict, const char *format, ...)
{
    bool privilege = verdict->error == EPERM || verdict->error == EACCES;
    char reason[ERROR_REASON_BYTES];
    char what[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(TCPX_SYSTEM_ERROR, "%s: %s%s%s%s%s", what,
                     error_reason(verdict->error, reason), *verdict->words != '\0' ? ": \"" : "",
                     verdict->words, *verdict->words != '\0' ? "\"" : "",
                     privilege ? "; CAP_NET_ADMIN is needed: run as root, or setcap "
                                 "cap_net_admin+ep on the program"
                               : "");
}

/* --- what is in an answer ------------------------------------------------------------------ */

static struct netlink_span span_skip(struct netlink_span span, size_t bytes)
{
    size_t skipped = bytes < span.length ? bytes : span.length;

    return (struct netlink_span){span.bytes + skipped, span.length - skipped};
}

bool netlink_next(struct netlink_span *rest, struct netlink_attribute *attribute)
{
    struct nlattr head;

    if (rest->length < sizeof head)
        return false;
    memcpy(&head, rest->bytes, sizeof head);
    if (head.nla_len < NLA_HDRLEN || head.nla_len > rest->length)
        return false;
    attribute->type = head.nla_type & NLA_TYPE_MASK;
    attribute->value =
        (struct netlink_span){rest->bytes + NLA_HDRLEN, (size_t)head.nla_len - NLA_HDRLEN};
    *rest = span_skip(*rest, NLA_ALIGN((size_t)head.nla_len));
    return true;
}

bool netlink_find(struct netlink_span attributes, uint16_t type, struct netlink_span *value)
{
    struct netlink_attribute attribute;

    while (netlink_next(&attributes, &attribute)) {
        if (attribute.type != type)
            continue;
        *value = attribute.value;
        return true;
    }
    return false;
}

bool netlink_find_number(struct netlink_span attributes, uint16_t type, uint64_t *number)
{
    struct netlink_span value;
    uint64_t read = 0;
    size_t at;

    if (!netlink_find(attributes, type, &value) ||
        (value.length != 1 && value.length != 2 && value.length != 4 && value.length != 8))
        return false;
    at = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof read - value.length : 0;
    memcpy((uint8_t *)&read + at, value.bytes, value.length);
    *number = read;
    return true;
}

/* --- a request ----------------------------------------------------------------------------- */

/* An attribute has 16 bits for its length, so that none can be too long for them. */
_Static_assert(NETLINK_REQUEST_BYTES <= UINT16_MAX && NETLINK_REQUEST_BYTES % NLMSG_ALIGNTO == 0,
               "the room of a request");

/* Room for `bytes`, zeroed up to the next border; NULL: there is none. */
static uint8_t *request_extend(struct netlink_request *request, size_t bytes)
{
    uint8_t *at = request->bytes + request->length;

    /* What is left always ends at a border, too. */
    if (request->too_long || bytes > sizeof request->bytes - request->length) {
        request->too_long = true;
        return NULL;
    }
    memset(at, 0, NLMSG_ALIGN(bytes));
    request->length += NLMSG_ALIGN(bytes);
    return at;
}

void netlink_begin(struct netlink_request *request, uint16_t type, uint16_t flags, const void *head,
                   size_t head_bytes)
{
    /* Every request is acknowledged, so that every answer has an end: a dump has one anyway. */
    const struct nlmsghdr message = {
        .nlmsg_type = type,
        .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags),
    };
    uint8_t *at;

    request->length = 0;
    request->too_long = false;
    request->head_bytes = head_bytes;
    at = request_extend(request, sizeof message);
    if (at != NULL)
        memcpy(at, &message, sizeof message);
    at = request_extend(request, head_bytes);
    if (at != NULL)
        memcpy(at, head, head_bytes);
}

void netlink_begin_generic(struct netlink_request *request, uint16_t family, uint8_t command,
                           uint16_t flags)
{
    const struct genlmsghdr head = {.cmd = command, .version = 1};

    netlink_begin(request, family, flags, &head, sizeof head);
}

void netlink_put(struct netlink_request *request, uint16_t type, const void *value, size_t bytes)
{
    const struct nlattr head = {.nla_len = (uint16_t)(NLA_HDRLEN + bytes), .nla_type = type};
    uint8_t *at = request_extend(request, NLA_HDRLEN + bytes);

    if (at == NULL)
        return;
    memcpy(at, &head, sizeof head);
    if (bytes > 0)
        memcpy(at + NLA_HDRLEN, value, bytes);
}

void netlink_put_u8(struct netlink_request *request, uint16_t type, uint8_t value)
{
    netlink_put(request, type, &value, sizeof value);
}

void netlink_put_u32(struct netlink_request *request, uint16_t type, uint32_t value)
{
    netlink_put(request, type, &value, sizeof value);
}

void netlink_put_text(struct netlink_request *request, uint16_t type, const char *text)
{
    netlink_put(request, type, text, strlen(text) + 1);
}

size_t netlink_nest(struct netlink_request *request, uint16_t type)
{
    size_t nest = request->length;

    netlink_put(request, type | NLA_F_NESTED, NULL, 0);
    return nest;
}

void netlink_nest_end(struct netlink_request *request, size_t nest)
{
    uint16_t length = (uint16_t)(request->length - nest);

    if (!request->too_long)
        memcpy(request->bytes + nest + offsetof(struct nlattr, nla_len), &length, sizeof length);
}

/* --- reading an answer --------------------------------------------------------------------- */

static bool reading_end(const struct netlink_reading *reading, int error)
{
    reading->verdict->error = error;
    return true;
}

static void reading_keep_words(const struct netlink_reading *reading,
                               struct netlink_span attributes)
{
    struct netlink_verdict *verdict = reading->verdict;
    struct netlink_span words;
    size_t length;

    if (!netlink_find(attributes, NLMSGERR_ATTR_MSG, &words))
        return;
    length = strnlen((const char *)words.bytes, words.length);
    if (length >= sizeof verdict->words)
        length = sizeof verdict->words - 1;
    memcpy(verdict->words, words.bytes, length);
    verdict->words[length] = '\0';
}

/* The kernel's errors are negative errnos; any other number is not one. */
static bool reading_end_by(const struct netlink_reading *reading, int32_t code)
{
    return reading_end(reading, code == 0 ? 0 : code < 0 && code >= -4095 ? -code : EPROTO);
}

/* NLMSG_ERROR, which without an error is the acknowledgement. */
static bool reading_read_error(const struct netlink_reading *reading, const struct nlmsghdr *head,
                               struct netlink_span body)
{
    struct nlmsgerr error;

    if (body.length < sizeof error)
        return reading_end(reading, EPROTO);
    memcpy(&error, body.bytes, sizeof error);
    body = span_skip(body, sizeof error);
    /* The rest of our request comes first, unless the kernel left it out as requested. */
    if ((head->nlmsg_flags & NLM_F_CAPPED) == 0 && error.msg.nlmsg_len > NLMSG_HDRLEN)
        body = span_skip(body, NLMSG_ALIGN((size_t)error.msg.nlmsg_len - NLMSG_HDRLEN));
    if ((head->nlmsg_flags & NLM_F_ACK_TLVS) != 0)
        reading_keep_words(reading, body);
    return reading_end_by(reading, error.error);
}

/* The end of a dump, which may carry an error. */
static bool reading_read_done(const struct netlink_reading *reading, const struct nlmsghdr *head,
                              struct netlink_span body)
{
    int32_t code = 0;

    if (body.length >= sizeof code)
        memcpy(&code, body.bytes, sizeof code);
    if ((head->nlmsg_flags & NLM_F_ACK_TLVS) != 0)
        reading_keep_words(reading, span_skip(body, NLMSG_ALIGN(sizeof code)));
    return reading_end_by(reading, code);
}

static bool reading_read_message(const struct netlink_reading *reading, const struct nlmsghdr *head,
                                 struct netlink_span body)
{
    int error;

    if (head->nlmsg_seq != reading->sequence || head->nlmsg_type == NLMSG_NOOP)
        return false;
    if (head->nlmsg_type == NLMSG_ERROR)
        return reading_read_error(reading, head, body);
    if (head->nlmsg_type == NLMSG_DONE)
        return reading_read_done(reading, head, body);
    if (head->nlmsg_type < NLMSG_MIN_TYPE || body.length < reading->head_bytes)
        return reading_end(reading, EPROTO);
    if (reading->each == NULL)
        return false;
    error = reading->each(reading->owner, span_skip(body, NLMSG_ALIGN(reading->head_bytes)));
    return error != 0 && reading_end(reading, error);
}

bool netlink_read(const struct netlink_reading *reading, const void *datagram, size_t length)
{
    struct netlink_span rest = {datagram, length};
    struct nlmsghdr head;

    while (rest.length >= sizeof head) {
        memcpy(&head, rest.bytes, sizeof head);
        if (head.nlmsg_len < sizeof head || head.nlmsg_len > rest.length)
            return reading_end(reading, EPROTO);
        if (reading_read_message(
                reading, &head,
                (struct netlink_span){rest.bytes + sizeof head, head.nlmsg_len - sizeof head}))
            return true;
        rest = span_skip(rest, NLMSG_ALIGN((size_t)head.nlmsg_len));
    }
    return false;
}

/* --- asking -------------------------------------------------------------------------------- */

int netlink_open(int protocol, bool lasts, struct netlink *netlink)
{
    const int on = 1;
    int error;

    *netlink = (struct netlink){.fd = -1, .lasts = lasts};
    if (lasts && fork_watch() != TCPX_SUCCESS)
        return ENOMEM;
    if (lasts)
        fork_hold();
    netlink->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    error = netlink->fd < 0 ? errno : 0;
    if (lasts && !fork_release(netlink->fd)) {
        netlink->fd = -1;
        error = ENOMEM;
    }
    if (error != 0)
        return error;
    /* Ask for an explanation without the request; kernels that know neither still answer. */
    (void)setsockopt(netlink->fd, SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
    (void)setsockopt(netlink->fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
    return 0;
}

void netlink_close(struct netlink *netlink)
{
    if (netlink->fd >= 0 && netlink->lasts)
        fork_close(netlink->fd);
    else if (netlink->fd >= 0)
        close(netlink->fd);
    netlink->fd = -1;
}

/* 0, or an errno: ETIMEDOUT. */
static int netlink_wait(int fd, uint64_t deadline)
{
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    uint64_t now = clock_now();

    if (now >= deadline)
        return ETIMEDOUT;
    if (poll(&waited, 1, (int)((deadline - now) / 1000000 + 1)) < 0 && errno != EINTR)
        return errno;
    return 0;
}

/* Datagrams of the kernel only: other processes can write to this socket, too. */
static int netlink_receive(int fd, const struct netlink_reading *reading)
{
    _Alignas(struct nlmsghdr) uint8_t bytes[ANSWER_BYTES];
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    int error = 0;

    while (error == 0) {
        struct sockaddr_nl from = {0};
        socklen_t from_length = sizeof from;
        ssize_t got = recvfrom(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC,
                               (struct sockaddr *)&from, &from_length);

        if (got < 0 && errno != EAGAIN && errno != EINTR)
            error = errno;
        else if (got < 0 || from.nl_pid != 0)
            error = netlink_wait(fd, deadline);
        else if (got > (ssize_t)sizeof bytes)
            error = EMSGSIZE;
        else if (netlink_read(reading, bytes, (size_t)got))
            return reading->verdict->error;
        else if (deadline_passed(deadline))
            error = ETIMEDOUT;
    }
    return error;
}

int netlink_ask(struct netlink *netlink, struct netlink_request *request, netlink_each *each,
                void *owner, struct netlink_verdict *verdict)
{
    const struct netlink_reading reading = {
        .sequence = ++netlink->sequence,
        .head_bytes = request->head_bytes,
        .each = each,
        .owner = owner,
        .verdict = verdict,
    };
    uint32_t length = (uint32_t)request->length;

    *verdict = (struct netlink_verdict){0};
    if (request->too_long)
        return verdict->error = E2BIG;
    memcpy(request->bytes + offsetof(struct nlmsghdr, nlmsg_len), &length, sizeof length);
    memcpy(request->bytes + offsetof(struct nlmsghdr, nlmsg_seq), &reading.sequence,
           sizeof reading.sequence);
    /* The kernel works on it inside this call, however long that takes. */
    if (send(netlink->fd, request->bytes, request->length, 0) < 0)
        return verdict->error = errno;
    return verdict->error = netlink_receive(netlink->fd, &reading);
}

/* --- families of generic netlink ----------------------------------------------------------- */

static uint64_t family_commands(struct netlink_span list)
{
    struct netlink_attribute entry;
    uint64_t commands = 0;
    uint64_t command;

    while (netlink_next(&list, &entry))
        if (netlink_find_number(entry.value, CTRL_ATTR_OP_ID, &command) && command < 64)
            commands |= (uint64_t)1 << command;
    return commands;
}

int netlink_read_family(void *family, struct netlink_span attributes)
{
    struct netlink_family *read = family;
    struct netlink_span list;
    uint64_t id;

    if (!netlink_find_number(attributes, CTRL_ATTR_FAMILY_ID, &id) || id < NLMSG_MIN_TYPE ||
        id > UINT16_MAX)
        return EPROTO;
    read->id = (uint16_t)id;
    read->commands = netlink_find(attributes, CTRL_ATTR_OPS, &list) ? family_commands(list) : 0;
    return 0;
}

int netlink_find_family(struct netlink *netlink, const char *name, struct netlink_family *family,
                        struct netlink_verdict *verdict)
{
    struct netlink_family found = {0};
    struct netlink_request request;

    netlink_begin_generic(&request, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);
    netlink_put_text(&request, CTRL_ATTR_FAMILY_NAME, name);
    if (netlink_ask(netlink, &request, netlink_read_family, &found, verdict) != 0)
        return verdict->error;
    if (found.id == 0)
        return verdict->error = EPROTO;
    *family = found;
    return 0;
}

int netlink_open_family(const char *name, bool lasts, struct netlink *netlink,
                        struct netlink_family *family, struct netlink_verdict *verdict)
{
    *verdict = (struct netlink_verdict){.error = netlink_open(NETLINK_GENERIC, lasts, netlink)};
    if (verdict->error == 0 && netlink_find_family(netlink, name, family, verdict) != 0)
        netlink_close(netlink);
    return verdict->error;
}
