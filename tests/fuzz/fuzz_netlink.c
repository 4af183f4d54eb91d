/*
 * Fuzzes what is made of the kernel's netlink answers. The first byte of an input chooses: 0 and 1
 * read the rest as one datagram, for generic netlink and for routes, and a second reading by the
 * rules of netlink(7) decides what must come out; higher ones ask a question about a NIC, and the
 * rest is the answer, which may be anything but must end in a result or in words. A broken promise
 * ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "net/nic/netlink.h"
#include "net/nic/nic.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

enum { SEQUENCE = 2 };

static size_t align(size_t length)
{
    return (length + 3) / 4 * 4;
}

/* --- attributes: what is found lies inside, and is the first ------------------------------- */

static void check_number(struct netlink_span attributes, const struct netlink_attribute *attribute)
{
    struct netlink_span value;
    uint64_t found = UNTOUCHED;

    PROMISE(netlink_find(attributes, attribute->type, &value));
    if (value.bytes != attribute->value.bytes)
        return; /* not the first of its type */
    if (value.length == 1 || value.length == 2 || value.length == 4 || value.length == 8) {
        PROMISE(netlink_find_number(attributes, attribute->type, &found));
        PROMISE(found == number(value.bytes, 0, value.length));
    } else {
        PROMISE(!netlink_find_number(attributes, attribute->type, &found) && found == UNTOUCHED);
    }
}

static void check_attributes(struct netlink_span attributes, int depth)
{
    struct netlink_span rest = attributes;
    struct netlink_attribute attribute;
    size_t offset = 0;

    while (netlink_next(&rest, &attribute)) {
        size_t length;

        PROMISE(attributes.length - offset >= 4);
        length = (size_t)number(attributes.bytes, offset, 2);
        PROMISE(length >= 4 && length <= attributes.length - offset);
        PROMISE(attribute.type == (number(attributes.bytes, offset + 2, 2) & 0x3fff));
        PROMISE(attribute.value.bytes == attributes.bytes + offset + 4);
        PROMISE(attribute.value.length == length - 4);
        check_number(attributes, &attribute);
        if (depth > 0)
            check_attributes(attribute.value, depth - 1);
        offset += align(length);
        if (offset > attributes.length)
            offset = attributes.length;
    }
    if (attributes.length - offset >= 4) {
        uint64_t length = number(attributes.bytes, offset, 2);

        PROMISE(length < 4 || length > attributes.length - offset);
    }
}

/* --- one datagram -------------------------------------------------------------------------- */

struct outcome {
    bool ended;
    int error;
    bool has_words;
    size_t messages;
    size_t bytes; /* of attributes */
};

static int listen_to(void *owner, struct netlink_span attributes)
{
    struct outcome *outcome = owner;
    struct netlink_family family;

    check_attributes(attributes, 3);
    memset(&family, UNTOUCHED, sizeof family);
    if (netlink_read_family(&family, attributes) == 0)
        PROMISE(family.id >= 16);
    outcome->messages++;
    outcome->bytes += attributes.length;
    return 0;
}

static int judge_code(const uint8_t *bytes)
{
    int32_t code = (int32_t)number(bytes, 0, 4);

    return code == 0 ? 0 : code < 0 && code >= -4095 ? -code : EPROTO;
}

/* One message; true: it is the last. */
static bool judge_message(const uint8_t *bytes, size_t length, size_t head, struct outcome *outcome)
{
    uint64_t type = number(bytes, 4, 2);
    size_t body = length - 16;

    if (number(bytes, 8, 4) != SEQUENCE || type == 1)
        return false;
    outcome->error = EPROTO;
    if (type == 2) {
        if (body >= 20)
            outcome->error = judge_code(bytes + 16);
        outcome->has_words = body > 20 && (number(bytes, 6, 2) & 0x200) != 0;
        return true;
    }
    if (type == 3) {
        outcome->error = body >= 4 ? judge_code(bytes + 16) : 0;
        outcome->has_words = body > 4 && (number(bytes, 6, 2) & 0x200) != 0;
        return true;
    }
    if (type < 16 || body < head)
        return true;
    outcome->error = 0;
    outcome->messages++;
    outcome->bytes += body - (align(head) < body ? align(head) : body);
    return false;
}

static void judge(const uint8_t *bytes, size_t size, size_t head, struct outcome *outcome)
{
    size_t offset = 0;

    while (!outcome->ended && size - offset >= 16) {
        uint64_t length = number(bytes, offset, 4);

        if (length < 16 || length > size - offset) {
            outcome->ended = true;
            outcome->error = EPROTO;
            return;
        }
        outcome->ended = judge_message(bytes + offset, (size_t)length, head, outcome);
        offset += align((size_t)length);
        if (offset > size)
            offset = size;
    }
}

static void check_datagram(const uint8_t *bytes, size_t size, size_t head)
{
    struct outcome expected = {0};
    struct outcome seen = {0};
    struct netlink_verdict verdict = {0};
    const struct netlink_reading reading = {.sequence = SEQUENCE,
                                            .head_bytes = head,
                                            .each = listen_to,
                                            .owner = &seen,
                                            .verdict = &verdict};

    judge(bytes, size, head, &expected);
    seen.ended = netlink_read(&reading, bytes, size);
    PROMISE(seen.ended == expected.ended);
    PROMISE(verdict.error == expected.error);
    PROMISE(seen.messages == expected.messages && seen.bytes == expected.bytes);
    PROMISE(memchr(verdict.words, '\0', sizeof verdict.words) != NULL);
    PROMISE(expected.has_words || *verdict.words == '\0');
}

/* --- questions ----------------------------------------------------------------------------- */

/* The answers to come, in place of the kernel. */
static const uint8_t *answer;
static size_t answer_length;
static bool asks_for_family;

/* "netdev" and "ethtool" as one: family 30 with every command that is asked for. */
static size_t write_family(void *bytes)
{
#define COMMAND(index, id)                                                                         \
    {                                                                                              \
        12, index, 8, CTRL_ATTR_OP_ID, id                                                          \
    }
    static const struct {
        struct nlmsghdr head;
        struct genlmsghdr generic;
        uint16_t id[4];
        struct nlattr list;
        uint16_t commands[4][6]; /* the number of a command has 4 bytes */
        struct nlmsghdr done;
        int32_t error;
    } family = {
        .head = {.nlmsg_len = 80, .nlmsg_type = GENL_ID_CTRL, .nlmsg_seq = 1},
        .id = {6, CTRL_ATTR_FAMILY_ID, 30},
        .list = {.nla_len = 52, .nla_type = CTRL_ATTR_OPS},
        .commands = {COMMAND(1, 5), COMMAND(2, 10), COMMAND(3, 13), COMMAND(4, 15)},
        .done = {.nlmsg_len = 20, .nlmsg_type = NLMSG_DONE, .nlmsg_seq = 1},
    };

    memcpy(bytes, &family, sizeof family);
    return sizeof family;
}

/* Instead of the library's. */
ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    const uint8_t *message = buf;

    (void)fd;
    (void)flags;
    PROMISE(n >= 16 && number(message, 0, 4) == n);
    asks_for_family = number(message, 4, 2) == GENL_ID_CTRL;
    return (ssize_t)n;
}

/* A datagram is at most 255 bytes, behind its length. */
ssize_t recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *addr, socklen_t *addr_len)
{
    size_t length;

    (void)fd;
    (void)flags;
    memset(addr, 0, *addr_len);
    if (asks_for_family) {
        asks_for_family = false;
        return (ssize_t)write_family(buf);
    }
    if (answer_length == 0) {
        errno = ENOBUFS;
        return -1;
    }
    length = *answer < answer_length - 1 ? *answer : answer_length - 1;
    PROMISE(length <= n);
    memcpy(buf, answer + 1, length);
    answer += length + 1;
    answer_length -= length + 1;
    return (ssize_t)length;
}

/* Outputs are written on success only, and a failure has its words. */
static void ask(unsigned question)
{
    enum { RINGS, TO_RECEIVE, TO_SEND, QUEUES, PAGES };
    static const unsigned queues[] = {1, 2};
    const struct sockaddr_storage place = {.ss_family = AF_INET};
    union {
        struct nic_rings rings;
        struct nic_binding binding;
        bool bound[NIC_MOST_QUEUES];
        uint64_t pages;
        unsigned ifindex;
    } told;
    int error = 0;
    int result;

    memset(&told, UNTOUCHED, sizeof told);
    if (question == RINGS)
        result = nic_get_rings("lo", &told.rings, &error);
    else if (question == TO_RECEIVE)
        result = nic_bind_receive(1, queues, 2, 0, &told.binding, &error);
    else if (question == TO_SEND)
        result = nic_bind_send(1, 0, &told.binding, &error);
    else if (question == QUEUES)
        result = nic_find_bound_queues(1, told.bound);
    else if (question == PAGES)
        result = nic_count_pages_out(1, 1, &told.pages);
    else
        result = nic_of_route(&place, &place, &told.ifindex);
    PROMISE(result == TCPX_SUCCESS || result == TCPX_SYSTEM_ERROR);
    PROMISE(question > TO_SEND || (result == TCPX_SUCCESS) == (error == 0));
    if (!is_taken(result == TCPX_SUCCESS, &told, sizeof told))
        return;
    PROMISE(question != RINGS || told.rings.split <= NIC_SPLIT_ON);
    PROMISE(question <= PAGES || told.ifindex != 0);
    for (int i = 0; i < NIC_MOST_QUEUES && question == QUEUES; i++)
        PROMISE(*(uint8_t *)&told.bound[i] <= 1);
    if (question == TO_RECEIVE || question == TO_SEND) {
        PROMISE(told.binding.socket >= 0 && told.binding.id != 0);
        nic_unbind(&told.binding);
        PROMISE(told.binding.socket == -1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes;
    unsigned kind;

    if (size == 0)
        return 0;
    kind = data[0] % 8;
    bytes = exact(data + 1, size - 1, size - 1);
    error_keep("%s", "");
    answer = bytes;
    answer_length = size - 1;
    if (kind < 2)
        check_datagram(bytes, size - 1, kind == 0 ? GENL_HDRLEN : sizeof(struct rtmsg));
    else
        ask(kind - 2);
    free(bytes);
    return 0;
}
