/*
 * Shows what is asked of a NIC: ordinary traffic that avoids queues and comes back, rules that are
 * added where there is room and removed only if they are still the same, on a NIC that exists in
 * ioctl() only; header split, bindings and pages, with answers that a kernel with such a NIC would
 * give; and that the real kernel's refusals, on loopback, end in texts that say enough.
 */
#include "tests/unit/fake_nic.h"

#include "net/nic/nic.h"
#include "net/socket/socket.h"
#include "tests/skip.h"
#include "tests/unit/checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <stdio.h>

static struct sockaddr_storage address(const char *text, uint16_t port)
{
    union socket_address any = {0};

    if (inet_pton(AF_INET, text, &any.ipv4.sin_addr) == 1) {
        any.ipv4.sin_family = AF_INET;
        any.ipv4.sin_port = htons(port);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &any.ipv6.sin6_addr), 1);
        any.ipv6.sin6_family = AF_INET6;
        any.ipv6.sin6_port = htons(port);
    }
    return any.storage;
}

static struct nic_rule make_rule(const char *from, const char *to, unsigned queue)
{
    return (struct nic_rule){.from = address(from, 4000), .to = address(to, 5000), .queue = queue};
}

/* --- the hash ------------------------------------------------------------------------------ */

static void expect_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                        const bool avoid[NIC_MOST_QUEUES], const uint32_t *expected)
{
    uint32_t planned[FAKE_ENTRIES];

    assert_true(nic_hash_plan(table, entries, queues, avoid, planned));
    assert_memory_equal(planned, expected, entries * sizeof *planned);
}

TEST(test_hash_plan)
{
    static const uint32_t even[] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const uint32_t some[] = {0, 1, 0, 1, 0, 1, 0, 1};
    static const uint32_t one[] = {5, 5, 5, 5};
    static const uint32_t odd[] = {0, 4000000000u, NIC_MOST_QUEUES, 1};
    bool avoid[NIC_MOST_QUEUES] = {false};
    uint32_t planned[8];

    expect_plan(even, 8, 4, avoid, even);
    avoid[2] = true;
    expect_plan(even, 8, 4, avoid, (const uint32_t[]){0, 1, 3, 3, 0, 1, 1, 3});
    expect_plan(some, 8, 4, avoid, some);
    avoid[1] = true; /* queue 3 is there, but somebody has left it out already */
    expect_plan(some, 8, 4, avoid, (const uint32_t[]){0, 0, 0, 0, 0, 0, 0, 0});
    avoid[5] = true; /* all that the table uses: then any other */
    expect_plan(one, 4, 6, avoid, (const uint32_t[]){4, 3, 0, 4});
    expect_plan(odd, 4, 4, avoid, (const uint32_t[]){0, 4000000000u, NIC_MOST_QUEUES, 0});
    avoid[0] = avoid[3] = avoid[4] = true;
    assert_false(nic_hash_plan(one, 4, 6, avoid, planned));
    assert_false(nic_hash_plan(even, 8, 4, avoid, planned));
}

static const bool none[NIC_MOST_QUEUES];

/* NULL: nothing had to be changed. */
static struct nic_hash *hash_avoid(const bool avoid[NIC_MOST_QUEUES])
{
    struct nic_hash *before;

    assert_int_equal(nic_hash_avoid(FAKE_NIC, avoid, &before), TCPX_SUCCESS);
    return before;
}

static uint32_t kept_table[FAKE_ENTRIES];

static void keep_table(void)
{
    memcpy(kept_table, fake_nic->table, sizeof kept_table);
}

/* The NIC has the table that was kept; `was_set`: as the choice of a program. */
static void expect_kept_table(bool was_set)
{
    assert_memory_equal(fake_nic->table, kept_table, sizeof kept_table);
    assert_int_equal(fake_nic->was_set, was_set);
}

TEST(test_hash_is_restored)
{
    bool avoid[NIC_MOST_QUEUES] = {[2] = true, [3] = true};

    for (int round = 0; round < 2; round++) {
        struct nic_hash *before;

        fake_nic_reset(4);
        fake_nic->transform = (uint8_t)round;
        keep_table();
        before = hash_avoid(avoid);
        assert_non_null(before);
        assert_true(fake_nic->was_set);
        for (int i = 0; i < FAKE_ENTRIES; i++)
            assert_true(fake_nic->table[i] < 2);
        assert_null(hash_avoid(avoid));
        nic_hash_restore(FAKE_NIC, before, none);
        expect_kept_table(false); /* the kernel chooses again, as it did */
        assert_int_equal(fake_nic->changes, 2);
    }
}

static bool leads_to(unsigned queue)
{
    for (int i = 0; i < FAKE_ENTRIES; i++)
        if (fake_nic->table[i] == queue)
            return true;
    return false;
}

/* Three that come and go in any order, or are killed: never does it lead to a queue that is bound.
 */
TEST(test_hash_of_several_users)
{
    static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}};

    for (unsigned turn = 0; turn < 2 * COUNT_OF(orders); turn++) {
        const int *order = orders[turn / 2];
        bool one_is_killed = turn % 2 == 1;
        bool bound[NIC_MOST_QUEUES] = {false};
        struct nic_hash *before[3] = {NULL};

        fake_nic_reset(4);
        keep_table();
        for (int i = 0; i < 3; i++) {
            bound[3 - i] = true;
            before[i] = hash_avoid(bound);
        }
        for (int i = 0; i < 3; i++) {
            bound[3 - order[i]] = false;
            if (i == 0 && one_is_killed)
                continue;
            nic_hash_restore(FAKE_NIC, before[order[i]], bound);
            for (unsigned queue = 0; queue < 4; queue++)
                assert_false(bound[queue] && leads_to(queue));
        }
        expect_kept_table(false);
        if (one_is_killed) /* its memory is the process's */
            nic_hash_restore(FAKE_NIC, before[order[0]], bound);
    }
}

TEST(test_hash_of_others)
{
    bool avoid[NIC_MOST_QUEUES] = {[3] = true};
    bool still[NIC_MOST_QUEUES] = {[2] = true};
    struct nic_hash *before;

    /* Chosen by another program before: it comes back as a choice. */
    fake_nic_reset(4);
    fake_nic->table[0] = 3;
    keep_table();
    nic_hash_restore(FAKE_NIC, hash_avoid(avoid), none);
    expect_kept_table(true);
    /* Not as long as a queue is bound that it leads to. */
    before = hash_avoid(avoid);
    keep_table();
    nic_hash_restore(FAKE_NIC, before, still);
    expect_kept_table(true);
    /* Evenly over half of the queues: a program's choice, too. */
    fake_nic_reset(4);
    for (int i = 0; i < FAKE_ENTRIES; i++)
        fake_nic->table[i] = (uint32_t)i % 2;
    fake_nic->was_set = true;
    keep_table();
    nic_hash_restore(FAKE_NIC, hash_avoid(avoid), none);
    expect_kept_table(true);
    /* Changed by another program since: it stays. */
    fake_nic_reset(4);
    fake_nic->table[0] = 3;
    before = hash_avoid(avoid);
    fake_nic->table[5] = 2;
    keep_table();
    nic_hash_restore(FAKE_NIC, before, none);
    expect_kept_table(true);
}

TEST(test_hash_refusals)
{
    bool avoid[NIC_MOST_QUEUES] = {[0] = true, [1] = true};
    struct nic_hash *before = (struct nic_hash *)&avoid;

    fake_nic_reset(2);
    assert_int_equal(nic_hash_avoid(FAKE_NIC, avoid, &before), TCPX_INVALID_USAGE);
    expect_text("fake0: of its 2 receive queues none would be left");
    avoid[0] = false;
    fake_nic->refusal = EPERM;
    assert_int_equal(nic_hash_avoid(FAKE_NIC, avoid, &before), TCPX_SYSTEM_ERROR);
    expect_text("fake0: cannot lead ordinary traffic away from queues: Operation not permitted; "
                "CAP_NET_ADMIN is needed");
    fake_nic->has_no_hash = true;
    assert_int_equal(nic_hash_avoid(FAKE_NIC, avoid, &before), TCPX_SYSTEM_ERROR);
    expect_text("fake0: cannot read how its hash spreads packets over queues: ");
    assert_ptr_equal(before, &avoid);
    assert_int_equal(fake_nic->changes, 0);
}

/* --- rules --------------------------------------------------------------------------------- */

TEST(test_ipv4_spec)
{
    struct nic_rule rule = make_rule("192.0.2.1", "192.0.2.2", 3);
    struct nic_rule mapped = make_rule("::ffff:192.0.2.1", "::ffff:192.0.2.2", 3);
    const struct ethtool_rx_flow_spec expected = {
        .flow_type = TCP_V4_FLOW,
        .h_u.tcp_ip4_spec = {htonl(0xc0000201), htonl(0xc0000202), htons(4000), htons(5000), 0},
        .m_u.tcp_ip4_spec = {0xffffffff, 0xffffffff, 0xffff, 0xffff, 0},
        .ring_cookie = 3,
        .location = 9};
    struct ethtool_rx_flow_spec spec;

    rule.location = mapped.location = 9;
    assert_true(nic_rule_to_spec(&rule, &spec));
    assert_memory_equal(&spec, &expected, sizeof spec);
    assert_true(nic_rule_to_spec(&mapped, &spec));
    assert_memory_equal(&spec, &expected, sizeof spec);
    assert_true(nic_rule_is_spec(&rule, &spec));
    assert_true(nic_rule_is_spec(&mapped, &spec));
}

/* A rule of the NIC with this change is another one. */
#define DIFFERS(change)                                                                            \
    do {                                                                                           \
        struct ethtool_rx_flow_spec other = spec;                                                  \
                                                                                                   \
        other.change;                                                                              \
        assert_false(nic_rule_is_spec(&rule, &other));                                             \
    } while (0)

TEST(test_ipv6_spec)
{
    struct nic_rule rule = make_rule("2001:db8::1", "2001:db8::2", 1);
    struct ethtool_rx_flow_spec spec;
    const union socket_address from = {.storage = rule.from};
    const union socket_address to = {.storage = rule.to};

    assert_true(nic_rule_to_spec(&rule, &spec));
    assert_int_equal(spec.flow_type, TCP_V6_FLOW);
    assert_memory_equal(spec.h_u.tcp_ip6_spec.ip6src, &from.ipv6.sin6_addr, 16);
    assert_memory_equal(spec.h_u.tcp_ip6_spec.ip6dst, &to.ipv6.sin6_addr, 16);
    assert_int_equal(ntohs(spec.h_u.tcp_ip6_spec.psrc), 4000);
    assert_int_equal(ntohs(spec.h_u.tcp_ip6_spec.pdst), 5000);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(spec.m_u.tcp_ip6_spec.ip6src[i], 0xffffffff);
        assert_int_equal(spec.m_u.tcp_ip6_spec.ip6dst[i], 0xffffffff);
    }
    assert_true(nic_rule_is_spec(&rule, &spec));
    DIFFERS(h_u.tcp_ip6_spec.ip6dst[3] ^= htonl(1));
    DIFFERS(m_u.tcp_ip6_spec.ip6src[0] = 0);
}

TEST(test_no_spec)
{
    struct nic_rule rules[] = {make_rule("192.0.2.1", "2001:db8::2", 1),
                               make_rule("2001:db8::1", "::ffff:192.0.2.2", 1),
                               make_rule("192.0.2.1", "192.0.2.2", 1),
                               make_rule("2001:db8::1", "2001:db8::2", 1),
                               {.queue = 1}};
    struct ethtool_rx_flow_spec spec;

    rules[2].from = address("192.0.2.1", 0);
    rules[3].to = address("2001:db8::2", 0);
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        assert_false(nic_rule_to_spec(&rules[i], &spec));
    fake_nic_reset(4);
    assert_int_equal(nic_rule_add(FAKE_NIC, &rules[0]), TCPX_INVALID_ARGUMENT);
    expect_text("fake0: no rule can lead TCP from 192.0.2.1:4000 to [2001:db8::2]:5000 to queue 1");
    assert_int_equal(fake_nic->changes, 0);
}

/* A rule that differs in anything is somebody else's. */
TEST(test_other_specs)
{
    struct nic_rule rule = make_rule("192.0.2.1", "192.0.2.2", 3);
    struct ethtool_rx_flow_spec spec;

    assert_true(nic_rule_to_spec(&rule, &spec));
    DIFFERS(flow_type = UDP_V4_FLOW);
    DIFFERS(flow_type |= FLOW_RSS);
    DIFFERS(flow_type |= FLOW_EXT);
    DIFFERS(ring_cookie = 2);
    DIFFERS(ring_cookie |= (uint64_t)1 << 32); /* of a virtual function */
    DIFFERS(ring_cookie = RX_CLS_FLOW_DISC);
    DIFFERS(location = 1);
    DIFFERS(h_u.tcp_ip4_spec.ip4src++);
    DIFFERS(h_u.tcp_ip4_spec.ip4dst++);
    DIFFERS(h_u.tcp_ip4_spec.psrc++);
    DIFFERS(h_u.tcp_ip4_spec.pdst++);
    DIFFERS(m_u.tcp_ip4_spec.ip4src = 0);
    DIFFERS(m_u.tcp_ip4_spec.ip4dst--);
    DIFFERS(m_u.tcp_ip4_spec.psrc = 0);
    DIFFERS(m_u.tcp_ip4_spec.pdst--);
    DIFFERS(m_u.tcp_ip4_spec.tos = 255);
}

TEST(test_places)
{
    static const uint32_t used[] = {7, 5, 4};
    static const struct {
        uint32_t used;
        uint32_t places;
        uint32_t place; /* the one that is found */
    } cases[] = {{0, 8, 7}, {3, 8, 6}, {3, 6, 3}, {3, UINT32_MAX, UINT32_MAX - 1}};
    uint32_t place = 4711;

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_true(nic_rule_place(used, cases[i].used, cases[i].places, &place));
        assert_int_equal(place, cases[i].place);
    }
    place = 4711;
    assert_false(nic_rule_place(used, 3, 0, &place));
    assert_false(nic_rule_place((const uint32_t[]){1, 0}, 2, 2, &place));
    assert_int_equal(place, 4711);
}

/* Whether it was removed. */
static bool remove_rule(const char *interface, const struct nic_rule *rule)
{
    bool removed = false;

    assert_int_equal(nic_rule_remove(interface, rule, &removed), TCPX_SUCCESS);
    return removed;
}

static void add_and_remove(void)
{
    struct nic_rule one = make_rule("192.0.2.1", "192.0.2.2", 3);
    struct nic_rule two = make_rule("2001:db8::1", "2001:db8::2", 2);

    assert_int_equal(nic_rule_add(FAKE_NIC, &one), TCPX_SUCCESS);
    assert_int_equal(nic_rule_add(FAKE_NIC, &two), TCPX_SUCCESS);
    assert_int_not_equal(one.location, two.location);
    assert_int_equal(fake_nic_rules(), 2);
    assert_int_equal(fake_nic->rules[one.location].ring_cookie, 3);
    assert_int_equal(fake_nic->rules[two.location].flow_type, TCP_V6_FLOW);
    assert_true(remove_rule(FAKE_NIC, &one));
    assert_false(remove_rule(FAKE_NIC, &one));
    one.location = two.location; /* there is another one now */
    assert_int_equal(nic_rule_remove(FAKE_NIC, &one, NULL), TCPX_SUCCESS);
    assert_int_equal(fake_nic_rules(), 1);
    assert_true(remove_rule(FAKE_NIC, &two));
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(fake_nic->overwritten, 0);
}

TEST(test_rules)
{
    bool has_rules = false;

    fake_nic_reset(4);
    assert_int_equal(nic_has_rules(FAKE_NIC, &has_rules), TCPX_SUCCESS);
    assert_true(has_rules);
    add_and_remove();
    fake_nic->chooses = true;
    add_and_remove();
}

TEST(test_rule_refusals)
{
    struct nic_rule rule = make_rule("192.0.2.1", "192.0.2.2", 3);
    bool has_rules = true;
    bool removed = true;

    fake_nic_reset(4);
    assert_int_equal(nic_rule_add(FAKE_NIC, &rule), TCPX_SUCCESS);
    fake_nic->refusal = EPERM;
    assert_int_equal(nic_rule_remove(FAKE_NIC, &rule, &removed), TCPX_SYSTEM_ERROR);
    expect_text("fake0: cannot remove rule 63: Operation not permitted; CAP_NET_ADMIN is needed");
    assert_int_equal(nic_rule_add(FAKE_NIC, &rule), TCPX_SYSTEM_ERROR);
    expect_text("fake0: cannot add a rule for TCP from 192.0.2.1:4000 to 192.0.2.2:5000 to queue "
                "3: Operation not permitted; CAP_NET_ADMIN is needed: run as root, or setcap");
    assert_int_equal(rule.location, 63);
    fake_nic->refusal = 0;
    for (int i = 0; i < FAKE_PLACES; i++)
        fake_nic->is_used[i] = true;
    assert_int_equal(nic_rule_add(FAKE_NIC, &rule), TCPX_SYSTEM_ERROR);
    expect_text(strerror(ENOSPC));
    fake_nic->rules_on = false;
    assert_int_equal(nic_rule_add(FAKE_NIC, &rule), TCPX_SYSTEM_ERROR);
    expect_text("'ethtool -K fake0 ntuple on'");
    assert_int_equal(nic_has_rules(FAKE_NIC, &has_rules), TCPX_SUCCESS);
    assert_false(has_rules);
    assert_true(removed);
}

/* --- answers of a kernel with such a NIC ---------------------------------------------------- */

/* What was asked, besides which number a family has, and what is to be told. */
static struct {
    bool is_on;
    bool was_asked;
    uint8_t asked[1024];
    size_t asked_length;
    uint32_t sequence;
    uint8_t told[1024];
    size_t told_length;
} kernel;

/* Instead of the library's. */
ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    struct nlmsghdr head;

    memcpy(&head, buf, sizeof head);
    kernel.was_asked = kernel.is_on && head.nlmsg_type != GENL_ID_CTRL;
    if (!kernel.was_asked)
        return syscall(SYS_sendto, fd, buf, n, flags, NULL, 0);
    assert_true(n <= sizeof kernel.asked);
    memcpy(kernel.asked, buf, n);
    kernel.asked_length = n;
    return (ssize_t)n;
}

ssize_t recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *addr, socklen_t *addr_len)
{
    if (!kernel.was_asked)
        return syscall(SYS_recvfrom, fd, buf, n, flags, addr, addr_len);
    assert_true(kernel.told_length <= n);
    memcpy(buf, kernel.told, kernel.told_length);
    memset(addr, 0, *addr_len);
    return (ssize_t)kernel.told_length;
}

static void tell_message(uint16_t type, const void *body, size_t length)
{
    const struct nlmsghdr head = {.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + length),
                                  .nlmsg_type = type,
                                  .nlmsg_seq = kernel.sequence};

    assert_true(kernel.told_length + head.nlmsg_len <= sizeof kernel.told);
    memcpy(kernel.told + kernel.told_length, &head, sizeof head);
    memcpy(kernel.told + kernel.told_length + sizeof head, body, length);
    kernel.told_length += NLMSG_ALIGN(head.nlmsg_len);
}

/* Attributes of 4 bytes: pairs of type and value, which end with type 0. */
static void tell_numbers(const uint32_t *pairs)
{
    uint8_t body[256] = {0};
    size_t used = GENL_HDRLEN;

    for (; *pairs != 0; pairs += 2) {
        const struct nlattr head = {.nla_len = 8, .nla_type = (uint16_t)pairs[0]};

        memcpy(body + used, &head, sizeof head);
        memcpy(body + used + sizeof head, &pairs[1], sizeof pairs[1]);
        used += 8;
    }
    tell_message(30, body, used);
}

static void tell_end(int code)
{
    const struct nlmsgerr end = {.error = code};

    tell_message(NLMSG_ERROR, &end, sizeof end);
}

static void begin_telling(void)
{
    memset(&kernel, 0, sizeof kernel);
    kernel.is_on = true;
    kernel.sequence = 2; /* the first question of a socket is about the family */
}

/* The next answer: numbers, unless they are NULL, and how it ends. */
static void tell(const uint32_t *pairs, int code)
{
    begin_telling();
    if (pairs != NULL)
        tell_numbers(pairs);
    tell_end(code);
}

/* The kernel of this machine has to have the commands; then what it would say is made up. */
static void need_devmem(void)
{
    bool receives = false;
    bool sends = false;

    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(nic_kernel_binds(&receives, &sends), TCPX_SUCCESS);
    if (!receives || !sends)
        skip_because("this kernel has no device-memory TCP");
    begin_telling();
}

static void need_ethtool(void)
{
    struct nic_rings rings;
    int error = 0;

    if (nic_get_rings("lo", &rings, &error) == TCPX_SUCCESS || error != EOPNOTSUPP)
        skip_because("this kernel has no ethtool over netlink");
}

static int stop_telling(void **state)
{
    (void)state;
    memset(&kernel, 0, sizeof kernel);
    return 0;
}

static void expect_asked(uint8_t command, const uint32_t *words, size_t count)
{
    assert_int_equal(kernel.asked_length, NLMSG_HDRLEN + GENL_HDRLEN + count * sizeof *words);
    assert_int_equal(kernel.asked[NLMSG_HDRLEN], command);
    assert_memory_equal(kernel.asked + NLMSG_HDRLEN + GENL_HDRLEN, words, count * sizeof *words);
}

/* An attribute's header as one word. */
#define HEAD(length, type) ((uint32_t)(length) | (uint32_t)(type) << 16)

#define TELLING(name) TEST_WITH(name, NULL, stop_telling)

TELLING(test_binds)
{
    static const uint32_t receive[] = {HEAD(8, 1), 7, HEAD(8, 3), 99, HEAD(20, 0x8002),
                                       HEAD(8, 1), 4, HEAD(8, 3), 0,  HEAD(20, 0x8002),
                                       HEAD(8, 1), 6, HEAD(8, 3), 0};
    static const uint32_t send_only[] = {HEAD(8, 1), 7, HEAD(8, 3), 98};
    struct nic_binding binding = {.socket = -1};
    int error = 0;

    need_devmem();
    tell((const uint32_t[]){4, 41, 0}, 0);
    assert_int_equal(nic_bind_receive(7, (const unsigned[]){4, 6}, 2, 99, &binding, &error),
                     TCPX_SUCCESS);
    expect_asked(13, receive, COUNT_OF(receive));
    assert_int_equal(binding.id, 41);
    assert_true(fcntl(binding.socket, F_GETFD) >= 0);
    nic_unbind(&binding);
    assert_int_equal(binding.socket, -1);
    tell((const uint32_t[]){4, 42, 0}, 0);
    assert_int_equal(nic_bind_send(7, 98, &binding, &error), TCPX_SUCCESS);
    expect_asked(15, send_only, COUNT_OF(send_only));
    assert_int_equal(binding.id, 42);
    nic_unbind(&binding);
    assert_int_equal(error, 0);
    /* Fine, but no number: that cannot be used. */
    tell(NULL, 0);
    assert_int_equal(nic_bind_send(7, 98, &binding, &error), TCPX_SYSTEM_ERROR);
    assert_int_equal(error, EPROTO);
    tell(NULL, -EEXIST);
    assert_int_equal(nic_bind_receive(1, (const unsigned[]){4, 6}, 2, 99, &binding, &error),
                     TCPX_SYSTEM_ERROR);
    assert_int_equal(error, EEXIST);
    expect_text(": cannot bind device memory to receive queues 4, 6: File exists");
    assert_int_equal(binding.socket, -1);
}

TELLING(test_bound_queues)
{
    bool bound[NIC_MOST_QUEUES];

    need_devmem();
    tell_numbers((const uint32_t[]){1, 0, 3, 0, 2, 7, 4, 900, 0}); /* a queue with nothing */
    tell_numbers((const uint32_t[]){1, 1, 3, 0, 2, 7, 5, 41, 0});  /* a dma-buf */
    tell_numbers((const uint32_t[]){1, 2, 3, 0, 2, 7, 6, 0, 0});   /* io_uring */
    tell_numbers((const uint32_t[]){1, 3, 3, 0, 2, 7, 7, 0, 0});   /* AF_XDP */
    tell_numbers((const uint32_t[]){1, 4, 3, 1, 2, 7, 5, 41, 0});  /* it sends */
    tell_numbers((const uint32_t[]){1, 5, 3, 0, 2, 8, 5, 41, 0});  /* of another NIC */
    tell_numbers((const uint32_t[]){1, NIC_MOST_QUEUES, 3, 0, 2, 7, 5, 41, 0});
    tell_end(0);
    assert_int_equal(nic_find_bound_queues(7, bound), TCPX_SUCCESS);
    expect_asked(10, (const uint32_t[]){HEAD(8, 2), 7}, 2);
    for (int i = 0; i < NIC_MOST_QUEUES; i++)
        assert_int_equal(bound[i], i >= 1 && i <= 3);
}

TELLING(test_pages_out)
{
    uint64_t pages = 0;

    need_devmem();
    tell_numbers((const uint32_t[]){1, 1, 2, 7, 4, 1000, 0});           /* ordinary pages */
    tell_numbers((const uint32_t[]){1, 2, 2, 7, 4, 20, 7, 41, 0});      /* ours */
    tell_numbers((const uint32_t[]){1, 3, 2, 7, 4, 300, 7, 42, 0});     /* another binding's */
    tell_numbers((const uint32_t[]){1, 4, 2, 7, 4, 5, 6, 9, 7, 41, 0}); /* of a queue that is off */
    tell_end(0);
    assert_int_equal(nic_count_pages_out(7, 41, &pages), TCPX_SUCCESS);
    expect_asked(5, NULL, 0);
    assert_int_equal(pages, 25);
}

static void expect_split(const uint32_t *answer, enum nic_split split, bool has_threshold,
                         uint32_t threshold)
{
    struct nic_rings rings = {.threshold = 4711};

    tell(answer, 0);
    assert_int_equal(nic_get_rings("eth0", &rings, NULL), TCPX_SUCCESS);
    assert_int_equal(rings.split, split);
    assert_int_equal(rings.has_threshold, has_threshold);
    assert_int_equal(rings.threshold, threshold);
}

TELLING(test_rings)
{
    struct nic_rings rings;
    int error = 0;

    need_ethtool();
    expect_split((const uint32_t[]){6, 256, 11, 2, 17, 64, 0}, NIC_SPLIT_ON, true, 64);
    expect_asked(15, (const uint32_t[]){HEAD(16, 0x8001), HEAD(9, 2), 0x30687465, 0}, 4);
    expect_split((const uint32_t[]){11, 1, 0}, NIC_SPLIT_OFF, false, 0);
    expect_split((const uint32_t[]){11, 7, 0}, NIC_SPLIT_UNKNOWN, false, 0);
    expect_split((const uint32_t[]){17, 0, 0}, NIC_SPLIT_UNKNOWN, true, 0);
    tell((const uint32_t[]){6, 256, 0}, 0);
    assert_int_equal(nic_get_rings("eth0", &rings, &error), TCPX_SYSTEM_ERROR);
    assert_int_equal(error, EOPNOTSUPP);
    expect_text("eth0: its driver does not know header split");
}

/* The same answer serves both questions: what is, and what shall be. */
TELLING(test_split_headers)
{
    need_ethtool();
    /* on already: nothing is changed, which could restart the NIC */
    tell((const uint32_t[]){11, 2, 17, 0, 0}, 0);
    assert_int_equal(nic_split_headers("eth0"), TCPX_SUCCESS);
    assert_int_equal(kernel.asked[NLMSG_HDRLEN], 15);
    tell((const uint32_t[]){11, 2, 17, 64, 0}, 0);
    assert_int_equal(nic_split_headers("eth0"), TCPX_SUCCESS);
    expect_asked(16,
                 (const uint32_t[]){HEAD(16, 0x8001), HEAD(9, 2), 0x30687465, 0, HEAD(5, 11), 2,
                                    HEAD(8, 17), 0},
                 8);
    tell((const uint32_t[]){11, 1, 0}, 0);
    assert_int_equal(nic_split_headers("eth0"), TCPX_SUCCESS);
    expect_asked(
        16, (const uint32_t[]){HEAD(16, 0x8001), HEAD(9, 2), 0x30687465, 0, HEAD(5, 11), 2}, 6);
}

static void expect_route_asked(const char *from, const char *to, unsigned scope,
                               const uint32_t *words, size_t count)
{
    union socket_address start = {.storage = address(from, 4000)};
    union socket_address end = {.storage = address(to, 5000)};
    unsigned ifindex = 4711;

    if (scope != 0)
        end.ipv6.sin6_scope_id = scope;
    begin_telling();
    kernel.sequence = 1;
    tell_end(-EHOSTUNREACH);
    assert_int_equal(nic_of_route(&start.storage, &end.storage, &ifindex), TCPX_SYSTEM_ERROR);
    expect_text(strerror(EHOSTUNREACH));
    assert_int_equal(ifindex, 4711);
    assert_int_equal(kernel.asked_length, NLMSG_HDRLEN + count * sizeof *words);
    assert_memory_equal(kernel.asked + NLMSG_HDRLEN, words, count * sizeof *words);
}

/* Both addresses, the interface of a link-local one, and the ports, which can decide. */
TELLING(test_route_requests)
{
    /* rtmsg: family, bits of the destination and of the source; then attributes. */
    static const uint32_t mapped[] = {2 | 32 << 8 | 32 << 16,
                                      0,
                                      0,
                                      HEAD(8, 1),
                                      0x020200c0,
                                      HEAD(8, 2),
                                      0x010200c0,
                                      HEAD(5, 27),
                                      6,
                                      HEAD(6, 28),
                                      0xa00f,
                                      HEAD(6, 29),
                                      0x8813};
    static const uint32_t link_local[] = {
        10 | 128 << 8, 0, 0,           HEAD(20, 1), 0x80fe,      0,      0,           0x02000000,
        HEAD(8, 4),    9, HEAD(5, 27), 6,           HEAD(6, 28), 0xa00f, HEAD(6, 29), 0x8813};

    expect_route_asked("::ffff:192.0.2.1", "192.0.2.2", 0, mapped, COUNT_OF(mapped));
    expect_route_asked("::", "fe80::2", 9, link_local, COUNT_OF(link_local));
}

/* --- the real kernel ----------------------------------------------------------------------- */

TEST(test_no_such_interface)
{
    struct nic_rule rule = make_rule("192.0.2.1", "192.0.2.2", 0);
    struct nic_rings rings;
    unsigned queues;
    bool has_rules;
    int error = 0;

    assert_int_equal(nic_get_rings("no-such-nic", &rings, &error), TCPX_SYSTEM_ERROR);
    expect_text("no-such-nic: cannot ask about header split");
    assert_true(error == ENODEV || error == ENOENT); /* a kernel without the family */
    assert_int_equal(nic_split_headers("no-such-nic"), TCPX_SYSTEM_ERROR);
    assert_int_equal(nic_count_queues("no-such-nic", &queues), TCPX_SYSTEM_ERROR);
    expect_text("no-such-nic: ");
    expect_text(strerror(ENODEV));
    assert_int_equal(nic_count_queues("a-name-longer-than-any", &queues), TCPX_SYSTEM_ERROR);
    assert_int_equal(nic_has_rules("no-such-nic", &has_rules), TCPX_SYSTEM_ERROR);
    assert_int_equal(nic_rule_add("no-such-nic", &rule), TCPX_SYSTEM_ERROR);
    /* Its rules have gone with it. */
    assert_int_equal(nic_rule_remove("no-such-nic", &rule, &has_rules), TCPX_SUCCESS);
    assert_false(has_rules);
}

TEST(test_loopback)
{
    struct nic_rings rings = {.threshold = 4711};
    struct nic_rule rule = make_rule("127.0.0.1", "127.0.0.1", 0);
    bool has_rules = true;
    int error = 0;

    if (if_nametoindex("lo") == 0)
        skip_because("there is no loopback device");
    assert_int_equal(nic_get_rings("lo", &rings, &error), TCPX_SYSTEM_ERROR);
    expect_text("lo: ");
    assert_true(error == EOPNOTSUPP || error == ENOENT);
    assert_int_equal(rings.threshold, 4711);
    assert_int_equal(nic_split_headers("lo"), TCPX_SYSTEM_ERROR);
    assert_int_equal(nic_has_rules("lo", &has_rules), TCPX_SUCCESS);
    assert_false(has_rules);
    assert_int_equal(nic_rule_add("lo", &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(nic_rule_remove("lo", &rule, &has_rules), TCPX_SUCCESS);
}

/* Loopback takes no device memory, and a file in memory is none. */
TEST(test_bindings)
{
    struct nic_binding binding = {.socket = -1, .id = 4711};
    const unsigned queue = 0;
    bool bound[NIC_MOST_QUEUES];
    unsigned lo = if_nametoindex("lo");
    bool receives = false;
    bool sends = false;
    uint64_t pages = 4711;
    int error = 0;
    int memory = memfd_create("not a dma-buf", MFD_CLOEXEC);

    assert_true(memory >= 0);
    assert_int_equal(nic_kernel_binds(&receives, &sends), TCPX_SUCCESS);
    assert_int_equal(nic_bind_receive(lo, &queue, 1, memory, &binding, &error), TCPX_SYSTEM_ERROR);
    assert_true(error == EPERM || error == EOPNOTSUPP || (!receives && error == ENOENT));
    expect_text(receives ? "lo: cannot bind device memory to receive queue 0: " : "kernel cannot");
    assert_int_equal(nic_bind_send(lo, memory, &binding, NULL), TCPX_SYSTEM_ERROR);
    expect_text(sends ? "lo: cannot bind device memory for sending: " : "kernel cannot");
    assert_int_equal(binding.socket, -1);
    assert_int_equal(binding.id, 4711);
    nic_unbind(&binding);
    close(memory);
    if (!receives)
        skip_because("this kernel has no device-memory TCP");
    memset(bound, 1, sizeof bound);
    assert_int_equal(nic_find_bound_queues(lo, bound), TCPX_SUCCESS);
    for (int i = 0; i < NIC_MOST_QUEUES; i++)
        assert_false(bound[i]);
    assert_int_equal(nic_count_pages_out(lo, 1, &pages), TCPX_SUCCESS);
    assert_int_equal(pages, 0);
}

static void expect_route(const char *from, const char *to, uint16_t port)
{
    struct sockaddr_storage start = address(from, port);
    struct sockaddr_storage end = address(to, port);
    unsigned ifindex = 0;

    if (nic_of_route(&start, &end, &ifindex) != TCPX_SUCCESS)
        fail_msg("%s", error_text());
    assert_int_equal(ifindex, if_nametoindex("lo"));
}

static bool has_ipv6(void)
{
    struct sockaddr_storage any = address("::1", 0);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof(struct sockaddr_in6)) == 0;

    if (fd >= 0)
        close(fd);
    return has;
}

TEST(test_routes)
{
    struct sockaddr_storage here = address("127.0.0.1", 1);
    struct sockaddr_storage strange = address("203.0.113.7", 1);
    struct sockaddr_storage ipv6 = address("::1", 1);
    unsigned ifindex = 4711;

    expect_route("127.0.0.1", "127.0.0.1", 4000);
    expect_route("127.0.0.1", "127.0.0.2", 0);
    expect_route("0.0.0.0", "127.0.0.1", 4000);
    expect_route("::ffff:127.0.0.1", "::ffff:127.0.0.1", 4000);
    if (has_ipv6())
        expect_route("::1", "::1", 4000);
    assert_int_equal(nic_of_route(&strange, &here, &ifindex), TCPX_SYSTEM_ERROR);
    expect_text("cannot find the route from 203.0.113.7:1 to 127.0.0.1:1: ");
    assert_int_equal(nic_of_route(&here, &ipv6, &ifindex), TCPX_INVALID_ARGUMENT);
    expect_text("no route leads from 127.0.0.1:1 to [::1]:1: both must be IPv4 or both IPv6");
    assert_int_equal(ifindex, 4711);
}

SUITE(.name = "nic");
