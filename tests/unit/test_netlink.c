/*
 * Shows that requests have the bytes that netlink wants and nothing beyond their room, that answers
 * are read as from a stranger (acknowledgements, errors with the kernel's words, dumps, messages
 * that are cut or not for us), that texts say what to do, and that the real kernel is understood.
 */
#include "net/nic/netlink.h"
#include "tests/skip.h"
#include "tests/unit/checks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEQUENCE = 77 };

static struct netlink open_netlink(void)
{
    struct netlink netlink;

    assert_int_equal(netlink_open(NETLINK_GENERIC, false, &netlink), 0);
    return netlink;
}

/* --- requests ------------------------------------------------------------------------------ */

TEST(test_request_bytes)
{
    struct netlink_request request;
    struct nlmsghdr head;
    size_t nest;
    /* genlmsghdr; nest of 16 bytes: u8 of 5 bytes and 3 of padding, text "ab"; u32. */
    static const uint8_t expected[] = {9, 1, 0, 0, 20, 0, 3,    0x80, 5,    0,   1,
                                       0, 7, 0, 0, 0,  7, 0,    2,    0,    'a', 'b',
                                       0, 0, 8, 0, 4,  0, 0x11, 0x11, 0x11, 0x11};

    netlink_begin_generic(&request, 30, 9, NLM_F_DUMP);
    nest = netlink_nest(&request, 3);
    netlink_put_u8(&request, 1, 7);
    netlink_put_text(&request, 2, "ab");
    netlink_nest_end(&request, nest);
    netlink_put_u32(&request, 4, 0x11111111);
    assert_false(request.too_long);
    assert_int_equal(request.head_bytes, GENL_HDRLEN);
    assert_int_equal(request.length, NLMSG_HDRLEN + sizeof expected);
    memcpy(&head, request.bytes, sizeof head);
    assert_int_equal(head.nlmsg_type, 30);
    assert_int_equal(head.nlmsg_flags, NLM_F_REQUEST | NLM_F_ACK | NLM_F_DUMP);
    assert_memory_equal(request.bytes + NLMSG_HDRLEN, expected, sizeof expected);
}

static unsigned put_queues(struct netlink_request *request, unsigned most)
{
    unsigned count = 0;

    netlink_begin_generic(request, 30, 13, 0);
    while (count < most && !request->too_long) {
        size_t nest = netlink_nest(request, 2);

        netlink_put_u32(request, 1, count);
        netlink_put_u32(request, 3, 0);
        netlink_nest_end(request, nest);
        count += !request->too_long;
    }
    return count;
}

/* As many queues as a bind can have fit; what does not is refused, and writes nothing outside. */
TEST(test_request_room)
{
    struct {
        struct netlink_request request;
        uint8_t behind[64];
    } box;
    struct netlink_verdict verdict;
    struct netlink netlink = open_netlink();

    memset(&box, 0x5a, sizeof box);
    assert_int_equal(put_queues(&box.request, 1024), 1024);
    assert_false(box.request.too_long);
    assert_in_range(put_queues(&box.request, 5000), 1100, 2000);
    assert_true(box.request.too_long);
    assert_in_range(box.request.length, 1, NETLINK_REQUEST_BYTES);
    expect_untouched(box.behind, sizeof box.behind);
    assert_int_equal(netlink_ask(&netlink, &box.request, NULL, NULL, &verdict), E2BIG);
    netlink_close(&netlink);
    netlink_begin_generic(&box.request, 30, 1, 0);
    netlink_put(&box.request, 1, box.behind, UINT16_MAX);
    assert_true(box.request.too_long);
}

/* --- attributes ---------------------------------------------------------------------------- */

/* A block of exactly its size, so that a sanitizer sees a read beyond the end. */
static struct netlink_span copy_of(const void *bytes, size_t length)
{
    uint8_t *copy = malloc(length > 0 ? length : 1);

    assert_non_null(copy);
    memcpy(copy, bytes, length);
    return (struct netlink_span){copy, length};
}

TEST(test_attributes)
{
    static const uint8_t bytes[] = {5,    0, 1, 0, 0xaa, 0, 0, 0,  6, 0, 2, 0x80, 0x34,
                                    0x12, 0, 0, 4, 0,    3, 0, 12, 0, 4, 0, 1,    2,
                                    3,    4, 5, 6, 7,    8, 7, 0,  5, 0, 1, 2,    3};
    struct netlink_span span = copy_of(bytes, sizeof bytes);
    struct netlink_span rest = span;
    struct netlink_attribute attribute;
    struct netlink_span value;
    uint64_t number = 4711;
    int count = 0;

    while (netlink_next(&rest, &attribute))
        count++;
    assert_int_equal(count, 5); /* the last one has no padding, and need not */
    assert_int_equal(rest.length, 0);
    assert_true(netlink_find_number(span, 1, &number));
    assert_int_equal(number, 0xaa);
    assert_true(netlink_find_number(span, 2, &number)); /* the flag of nests is no part of a type */
    assert_int_equal(number, 0x1234);
    assert_true(netlink_find(span, 3, &value));
    assert_int_equal(value.length, 0);
    assert_true(netlink_find_number(span, 4, &number));
    assert_int_equal(number, 0x0807060504030201);
    number = 4711;
    assert_false(netlink_find_number(span, 3, &number));
    assert_false(netlink_find_number(span, 5, &number));
    assert_false(netlink_find_number(span, 6, &number));
    assert_int_equal(number, 4711);
    free((void *)span.bytes);
}

/* An attribute that ends beyond what is there, or before itself, ends the list. */
TEST(test_bad_attributes)
{
    static const struct {
        size_t length;
        uint8_t bytes[12];
    } cases[] = {
        {12, {4, 0, 1, 0, 9, 0, 2, 0, 1, 2, 3, 4}}, /* too long */
        {12, {4, 0, 1, 0, 3, 0, 2, 0, 1, 2, 3, 4}}, /* too short */
        {8, {4, 0, 1, 0, 0, 0, 2, 0}},
        {7, {4, 0, 1, 0, 4, 0, 2}}, /* half a header */
    };
    struct netlink_span value;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct netlink_span span = copy_of(cases[i].bytes, cases[i].length);

        assert_true(netlink_find(span, 1, &value));
        assert_false(netlink_find(span, 2, &value));
        free((void *)span.bytes);
    }
}

/* --- answers ------------------------------------------------------------------------------- */

struct datagram {
    uint8_t bytes[2048];
    size_t length;
};

static void add_message(struct datagram *datagram, uint16_t type, uint16_t flags, uint32_t sequence,
                        const void *body, size_t length)
{
    const struct nlmsghdr head = {.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + length),
                                  .nlmsg_type = type,
                                  .nlmsg_flags = flags,
                                  .nlmsg_seq = sequence};

    assert_true(datagram->length + NLMSG_ALIGN(head.nlmsg_len) <= sizeof datagram->bytes);
    memcpy(datagram->bytes + datagram->length, &head, sizeof head);
    memcpy(datagram->bytes + datagram->length + sizeof head, body, length);
    datagram->length += NLMSG_ALIGN(head.nlmsg_len);
}

/* `echo`: bytes of the request that stand between the error and its words; 0: they are left out. */
static void add_error(struct datagram *datagram, int code, size_t echo, const char *words,
                      size_t words_length)
{
    uint8_t body[1024] = {0};
    struct nlmsgerr error = {
        .error = code, .msg = {.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + (echo > 0 ? echo : 100))}};
    struct nlattr attribute = {.nla_len = (uint16_t)(NLA_HDRLEN + words_length),
                               .nla_type = NLMSGERR_ATTR_MSG};
    size_t used = sizeof error + NLMSG_ALIGN(echo);
    uint16_t flags = echo == 0 ? NLM_F_CAPPED : 0;

    memcpy(body, &error, sizeof error);
    memset(body + sizeof error, 0xee, echo);
    if (words != NULL) {
        memcpy(body + used, &attribute, sizeof attribute);
        memcpy(body + used + NLA_HDRLEN, words, words_length);
        used += NLA_ALIGN(attribute.nla_len);
        flags |= NLM_F_ACK_TLVS;
    }
    add_message(datagram, NLMSG_ERROR, flags, SEQUENCE, body, used);
}

struct heard {
    int count;
    size_t bytes;
    int answer; /* what to say to the next */
};

static int hear(void *owner, struct netlink_span attributes)
{
    struct heard *heard = owner;

    heard->count++;
    heard->bytes += attributes.length;
    return heard->answer;
}

static bool read_datagram(const struct datagram *datagram, struct heard *heard,
                          struct netlink_verdict *verdict)
{
    const struct netlink_reading reading = {.sequence = SEQUENCE,
                                            .head_bytes = GENL_HDRLEN,
                                            .each = hear,
                                            .owner = heard,
                                            .verdict = verdict};
    struct netlink_span copy = copy_of(datagram->bytes, datagram->length);
    bool ended;

    *verdict = (struct netlink_verdict){0};
    ended = netlink_read(&reading, copy.bytes, copy.length);
    free((void *)copy.bytes);
    return ended;
}

static void expect_end(const struct datagram *datagram, int error, const char *words)
{
    struct netlink_verdict verdict;
    struct heard heard = {0};

    assert_true(read_datagram(datagram, &heard, &verdict));
    assert_int_equal(verdict.error, error);
    assert_string_equal(verdict.words, words);
}

/* What becomes of one message. */
static void expect_message_end(uint16_t type, uint16_t flags, const void *body, size_t length,
                               int error)
{
    struct datagram datagram = {0};

    add_message(&datagram, type, flags, SEQUENCE, body, length);
    expect_end(&datagram, error, "");
}

/* What becomes of an error with these words, which may be NULL. */
static void expect_error(int code, size_t echo, const char *words, size_t length, int error,
                         const char *kept)
{
    struct datagram datagram = {0};

    add_error(&datagram, code, echo, words, length);
    expect_end(&datagram, error, kept);
}

TEST(test_acknowledgement)
{
    expect_error(0, 0, NULL, 0, 0, "");
    expect_error(0, 0, "a warning", 10, 0, "a warning");
}

TEST(test_error_words)
{
    char longest[600];
    char kept[NETLINK_WORDS_BYTES];

    expect_error(-EINVAL, 0, "tcp-data-split is disabled", 27, EINVAL,
                 "tcp-data-split is disabled");
    expect_error(-EEXIST, 37, "behind the request", 19, EEXIST, "behind the request");
    expect_error(-EPERM, 12, NULL, 0, EPERM, "");
    expect_error(-EINVAL, 0, "without its zero", 16, EINVAL, "without its zero");
    memset(longest, 'x', sizeof longest);
    memset(kept, 'x', sizeof kept);
    kept[sizeof kept - 1] = '\0';
    expect_error(-EINVAL, 0, longest, sizeof longest, EINVAL, kept);
}

TEST(test_bad_errors)
{
    struct datagram datagram = {0};
    static const int32_t alone = -EINVAL;

    expect_error(EINVAL, 0, NULL, 0, EPROTO, ""); /* the kernel's errors are negative numbers */
    expect_error(INT32_MIN, 0, NULL, 0, EPROTO, "");
    expect_message_end(NLMSG_ERROR, 0, &alone, sizeof alone, EPROTO);
    add_error(&datagram, -EINVAL, 4, "words", 6);
    /* The request that is said to be repeated is longer than everything. */
    memset(datagram.bytes + NLMSG_HDRLEN + offsetof(struct nlmsgerr, msg), 0xff, 4);
    expect_end(&datagram, EINVAL, "");
}

/* Several parts; messages of other questions, and empty ones, are passed over. */
TEST(test_dump)
{
    static const uint8_t body[] = {10, 1, 0, 0, 8, 0, 1, 0, 1, 2, 3, 4};
    static const int32_t done = 0;
    static const int32_t broke = -EMSGSIZE;
    struct datagram datagram = {0};
    struct netlink_verdict verdict;
    struct heard heard = {0};

    add_message(&datagram, 30, NLM_F_MULTI, SEQUENCE, body, sizeof body);
    add_message(&datagram, 30, NLM_F_MULTI, SEQUENCE + 1, body, sizeof body);
    add_message(&datagram, NLMSG_NOOP, 0, SEQUENCE, body, 0);
    add_message(&datagram, 30, NLM_F_MULTI, SEQUENCE, body, sizeof body);
    assert_false(read_datagram(&datagram, &heard, &verdict));
    assert_int_equal(heard.count, 2);
    assert_int_equal(heard.bytes, 2 * (sizeof body - GENL_HDRLEN));
    assert_int_equal(verdict.error, 0);
    add_message(&datagram, NLMSG_DONE, NLM_F_MULTI, SEQUENCE + 1, &done, sizeof done);
    assert_false(read_datagram(&datagram, &heard, &verdict));
    add_message(&datagram, NLMSG_DONE, NLM_F_MULTI, SEQUENCE, &done, sizeof done);
    add_message(&datagram, 30, NLM_F_MULTI, SEQUENCE, body, sizeof body);
    heard = (struct heard){0};
    assert_true(read_datagram(&datagram, &heard, &verdict));
    assert_int_equal(heard.count, 2); /* nothing behind the end */
    assert_int_equal(verdict.error, 0);
    expect_message_end(NLMSG_DONE, NLM_F_MULTI, &broke, sizeof broke, EMSGSIZE);
}

TEST(test_listener_ends)
{
    static const uint8_t body[] = {10, 1, 0, 0};
    struct datagram datagram = {0};
    struct netlink_verdict verdict;
    struct heard heard = {.answer = ENOSPC};

    add_message(&datagram, 30, 0, SEQUENCE, body, sizeof body);
    add_message(&datagram, 30, 0, SEQUENCE, body, sizeof body);
    assert_true(read_datagram(&datagram, &heard, &verdict));
    assert_int_equal(heard.count, 1);
    assert_int_equal(verdict.error, ENOSPC);
}

TEST(test_bad_messages)
{
    static const uint8_t body[] = {10, 1, 0};
    static const uint32_t lengths[] = {0, 15, 21, 1000, UINT32_MAX};
    struct datagram datagram = {0};

    expect_message_end(30, 0, body, sizeof body, EPROTO); /* shorter than its header */
    expect_message_end(NLMSG_OVERRUN, 0, body, sizeof body, EPROTO);
    add_message(&datagram, 30, 0, SEQUENCE, "abcd", 4);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        memcpy(datagram.bytes, &lengths[i], sizeof lengths[i]);
        expect_end(&datagram, EPROTO, "");
    }
}

/* --- texts --------------------------------------------------------------------------------- */

TEST(test_texts)
{
    const struct netlink_verdict words = {EINVAL, "tcp-data-split is disabled"};
    const struct netlink_verdict privilege = {EPERM, ""};

    assert_int_equal(netlink_refused(&words, "%s: cannot bind", "eth0"), TCPX_SYSTEM_ERROR);
    assert_string_equal(error_text(),
                        "eth0: cannot bind: Invalid argument: \"tcp-data-split is disabled\"");
    assert_int_equal(netlink_refused(&privilege, "%s: cannot bind", "eth0"), TCPX_SYSTEM_ERROR);
    assert_string_equal(error_text(), "eth0: cannot bind: Operation not permitted; CAP_NET_ADMIN "
                                      "is needed: run as root, or setcap cap_net_admin+ep on the "
                                      "program");
}

/* --- the real kernel ----------------------------------------------------------------------- */

TEST(test_families)
{
    struct netlink_family family = {4711, 4711};
    struct netlink_verdict verdict;
    struct netlink netlink = open_netlink();

    for (int i = 0; i < 3; i++) { /* one socket, several questions */
        assert_int_equal(netlink_find_family(&netlink, "no-such-family", &family, &verdict),
                         ENOENT);
        assert_int_equal(family.id, 4711);
    }
    assert_int_equal(netlink_find_family(&netlink, "nlctrl", &family, &verdict), 0);
    assert_int_equal(family.id, GENL_ID_CTRL);
    assert_true((family.commands >> CTRL_CMD_GETFAMILY & 1) != 0);
    assert_int_equal(family.commands >> CTRL_CMD_DELFAMILY & 1, 0);
    netlink_close(&netlink);
    assert_int_equal(netlink.fd, -1);
    netlink_close(&netlink);
}

static int find_control(void *owner, struct netlink_span attributes)
{
    struct netlink_family family;

    if (netlink_read_family(&family, attributes) != 0)
        return EPROTO;
    *(int *)owner += family.id == GENL_ID_CTRL;
    return 0;
}

/* A dump of everything, which comes in several parts on most machines. */
TEST(test_real_dump)
{
    struct netlink_request request;
    struct netlink_verdict verdict;
    struct netlink netlink = open_netlink();
    int found = 0;

    netlink_begin_generic(&request, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, NLM_F_DUMP);
    assert_int_equal(netlink_ask(&netlink, &request, find_control, &found, &verdict), 0);
    assert_int_equal(found, 1);
    netlink_close(&netlink);
}

/* A stranger's datagram is in the way, and is not taken for the kernel's. */
TEST(test_strangers)
{
    struct datagram datagram = {0};
    struct netlink_family family;
    struct netlink_verdict verdict;
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof address;
    struct netlink netlink = open_netlink();
    struct netlink stranger = open_netlink();

    assert_int_equal(bind(netlink.fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(netlink.fd, (struct sockaddr *)&address, &length), 0);
    netlink.sequence = SEQUENCE - 1;
    add_error(&datagram, -EINVAL, 0, "not the kernel", 15);
    if (sendto(stranger.fd, datagram.bytes, datagram.length, 0, (struct sockaddr *)&address,
               length) < 0) {
        netlink_close(&netlink);
        netlink_close(&stranger);
        skip_because("without privileges processes cannot write to each other");
    }
    assert_int_equal(netlink_find_family(&netlink, "nlctrl", &family, &verdict), 0);
    netlink_close(&netlink);
    netlink_close(&stranger);
}

static bool child_has(int fd)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(fcntl(fd, F_GETFD) >= 0 ? 1 : 0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) != 0;
}

/* What lives by a socket must not live on in a child; its number is free for others later. */
TEST(test_children)
{
    struct netlink lasting;
    struct netlink other;
    int number;

    assert_int_equal(netlink_open(NETLINK_GENERIC, true, &lasting), TCPX_SUCCESS);
    assert_true((fcntl(lasting.fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_false(child_has(lasting.fd));
    assert_true(fcntl(lasting.fd, F_GETFD) >= 0);
    number = lasting.fd;
    netlink_close(&lasting);
    other = open_netlink();
    assert_int_equal(other.fd, number);
    assert_true(child_has(other.fd));
    netlink_close(&other);
}

SUITE(.name = "netlink");
