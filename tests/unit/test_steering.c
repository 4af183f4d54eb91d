/*
 * Shows that a connection's rule is the one for what arrives on it; that a process which is killed
 * leaves rules that the next one removes, and never those of the living or of others; that the
 * journal of rules survives every kind of rubbish in it, many writers at once, and its own absence.
 */
#include "base/clock.h"
#include "net/nic/nic.h"
#include "net/socket/socket.h"
#include "tests/skip.h"
#include "tests/support/check.h"
#include "tests/unit/journal.h"

#include <arpa/inet.h>
#include <sched.h>

static const char *check_detail(void)
{
    return error_text();
}

/* --- connections --------------------------------------------------------------------------- */

/* Two ends of a connection over loopback. */
static int ours = -1;
static int theirs = -1;

static void connect_pair(bool through_ipv6)
{
    union socket_address any = {0};
    socklen_t length = through_ipv6 ? sizeof any.ipv6 : sizeof any.ipv4;
    int listening = socket(through_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (through_ipv6) {
        any.ipv6.sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, "::ffff:127.0.0.1", &any.ipv6.sin6_addr), 1);
    } else {
        any.ipv4.sin_family = AF_INET;
        any.ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    assert_int_equal(bind(listening, (struct sockaddr *)&any, length), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&any, &length), 0);
    ours = socket(any.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(ours, (struct sockaddr *)&any, length), 0);
    theirs = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(theirs >= 0);
    close(listening);
}

static void close_pair(void)
{
    close(ours);
    close(theirs);
}

static uint16_t port_of(int socket)
{
    union socket_address any = {0};
    socklen_t length = sizeof any;

    assert_int_equal(getsockname(socket, (struct sockaddr *)&any, &length), 0);
    return ntohs(any.storage.ss_family == AF_INET ? any.ipv4.sin_port : any.ipv6.sin6_port);
}

static struct nic_rule begin(int socket, unsigned queue)
{
    struct nic_rule rule;

    assert_int_equal(steering_begin(FAKE_NIC, socket, queue, 0, &rule), TCPX_SUCCESS);
    return rule;
}

static void end(const struct nic_rule *rule)
{
    steering_end(FAKE_NIC, rule);
}

static unsigned clean(void)
{
    return steering_clean(FAKE_NIC);
}

/* --- a folder of our own ------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    connect_pair(false);
    return journal_make();
}

static int tear_down(void **state)
{
    (void)state;
    close_pair();
    return tree_remove();
}

static void read_journal(char text[4096])
{
    FILE *file = fopen(journal_path(""), "r");

    text[file != NULL ? fread(text, 1, 4095, file) : 0] = '\0';
    if (file != NULL)
        fclose(file);
}

/* The first line, which has to be understood. */
static struct rule_line first_line(void)
{
    struct rule_line line;
    char text[4096];

    read_journal(text);
    assert_non_null(strchr(text, '\n'));
    *strchr(text, '\n') = '\0';
    assert_true(rule_line_parse(text, &line));
    return line;
}

/* How many rules the NIC has, and lines the journal. */
static void expect_counts(unsigned rules, unsigned lines)
{
    char text[4096];
    unsigned count = 0;

    read_journal(text);
    for (const char *at = text; *at != '\0'; at++)
        count += *at == '\n';
    assert_int_equal(fake_nic_rules(), rules);
    assert_int_equal(count, lines);
}

/* --- other processes ----------------------------------------------------------------------- */

/* A fork of this process that succeeds. */
static void run_child(child_run *work)
{
    child_judge(child_wait(child_fork_here(work, NULL)), "child");
}

static void add_rules_and_die(const uint8_t *nothing)
{
    struct nic_rule rule;

    (void)nothing;
    connect_pair(false);
    CHECK_SUCCESS(steering_begin(FAKE_NIC, ours, 1, 0, &rule));
    CHECK_SUCCESS(steering_begin(FAKE_NIC, theirs, 2, 0, &rule));
    raise(SIGKILL);
}

/* A child that makes two rules and is killed; still to be waited for. */
static pid_t kill_one(void)
{
    pid_t child = child_fork_here(add_rules_and_die, NULL);
    siginfo_t info;

    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(info.si_code, CLD_KILLED);
    return child;
}

static void kill_one_and_wait(void)
{
    child_wait(kill_one());
}

#define FOLDER_TEST(name) TEST_WITH(name, set_up, tear_down)

/* --- rules of connections ------------------------------------------------------------------ */

FOLDER_TEST(test_rule_of_a_connection)
{
    for (int through_ipv6 = 0; through_ipv6 < 2; through_ipv6++) {
        struct nic_rule rule;
        union socket_address from;
        union socket_address to;
        int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (probe < 0 && through_ipv6)
            break;
        close(probe);
        close_pair();
        connect_pair(through_ipv6);
        assert_int_equal(steering_describe(ours, &rule), TCPX_SUCCESS);
        from.storage = rule.from;
        to.storage = rule.to;
        assert_int_equal(from.storage.ss_family, AF_INET);
        assert_int_equal(to.storage.ss_family, AF_INET);
        assert_int_equal(ntohs(from.ipv4.sin_port), port_of(theirs));
        assert_int_equal(ntohs(to.ipv4.sin_port), port_of(ours));
        assert_int_equal(ntohl(from.ipv4.sin_addr.s_addr), INADDR_LOOPBACK);
        assert_int_equal(ntohl(to.ipv4.sin_addr.s_addr), INADDR_LOOPBACK);
    }
}

FOLDER_TEST(test_no_connection)
{
    int unconnected = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int pair[2];
    struct nic_rule rule;

    assert_int_equal(steering_begin(FAKE_NIC, unconnected, 1, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(steering_begin(FAKE_NIC, -1, 1, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair[0], 1, 0, &rule), TCPX_INVALID_ARGUMENT);
    close(pair[0]);
    close(pair[1]);
    close(unconnected);
    expect_counts(0, 0);
}

FOLDER_TEST(test_begin_and_end)
{
    struct nic_rule one = begin(ours, 3);
    struct nic_rule two;
    struct rule_line line = first_line();

    assert_int_equal(one.queue, 3);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(line.owner.pid, getpid());
    assert_false(rule_owner_is_gone(&line.owner));
    assert_int_equal(line.rule.queue, 3);
    assert_int_equal(line.rule.location, one.location);
    assert_memory_equal(&line.rule.from, &one.from, sizeof(struct sockaddr_in));
    assert_memory_equal(&line.rule.to, &one.to, sizeof(struct sockaddr_in));
    two = begin(theirs, 4);
    assert_int_equal(clean(), 0); /* the living keep theirs */
    expect_counts(2, 2);
    end(&one);
    expect_counts(1, 1);
    end(&two);
    expect_counts(0, 0);
}

FOLDER_TEST(test_refusal_leaves_nothing)
{
    struct nic_rule rule = {.location = 4711};

    fake_nic->refusal = EPERM;
    assert_int_equal(steering_begin(FAKE_NIC, ours, 3, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(rule.location, 4711);
    expect_counts(0, 0);
}

/* A rule that could not be removed stays in the journal, for a process that can. */
FOLDER_TEST(test_kept_for_later)
{
    struct nic_rule rule = begin(ours, 3);

    fake_nic->refusal = EPERM;
    end(&rule);
    expect_counts(1, 1);
    fake_nic->refusal = 0;
    end(&rule);
    expect_counts(0, 0);
}

/* The end of a rule that is not there any more leaves alone what is at its place. */
FOLDER_TEST(test_place_of_another)
{
    struct nic_rule one = begin(ours, 3);
    struct nic_rule two;

    fake_nic->is_used[one.location] = false; /* by hand */
    two = begin(theirs, 4);
    assert_int_equal(one.location, two.location);
    expect_counts(1, 1);
    end(&one);
    expect_counts(1, 1);
    end(&two);
    assert_int_equal(fake_nic_rules(), 0);
}

/* --- processes that are gone --------------------------------------------------------------- */

FOLDER_TEST(test_killed)
{
    struct nic_rule rule = begin(ours, 3);

    for (int waited = 0; waited < 2; waited++) {
        pid_t child = kill_one();

        expect_counts(3, 3);
        if (waited)
            child_wait(child);
        assert_int_equal(clean(), 2); /* dead, waited for or not */
        if (!waited)
            child_wait(child);
        assert_int_equal(clean(), 0);
        expect_counts(1, 1);
    }
    end(&rule);
}

/* The journal names a rule of the dead, but the NIC has another at this place: it stays. */
FOLDER_TEST(test_no_foreign_rule_is_removed)
{
    unsigned changes;

    kill_one_and_wait();
    for (int i = 0; i < FAKE_PLACES; i++)
        fake_nic->rules[i].ring_cookie = 7;
    changes = fake_nic->changes;
    assert_int_equal(clean(), 0);
    assert_int_equal(fake_nic->changes, changes);
    expect_counts(2, 0);
}

FOLDER_TEST(test_who_is_gone)
{
    struct nic_rule rule = begin(ours, 3);
    struct rule_line line = first_line();

    assert_false(rule_owner_is_gone(&line.owner));
    line.owner.started--; /* an earlier process of our number */
    assert_true(rule_owner_is_gone(&line.owner));
    line.owner.name_space++; /* in another container: it cannot be known */
    assert_false(rule_owner_is_gone(&line.owner));
    line.owner.name_space--;
    line.owner.pid = 0x7ffffff0; /* beyond all process ids */
    assert_true(rule_owner_is_gone(&line.owner));
    end(&rule);
}

/* --- the journal --------------------------------------------------------------------------- */

static const char good_line[] = "4194304 123 4026531836 192.0.2.1 4000 192.0.2.2 5000 3 17";
static const char good_ipv6[] = "1 0 1 2001:db8::1 1 fe80::2 65535 1023 4294967295";

TEST(test_lines)
{
    struct rule_line line;
    char text[RULE_LINE_BYTES];

    assert_true(rule_line_parse(good_line, &line));
    assert_int_equal(line.owner.pid, 4194304);
    assert_int_equal(line.owner.started, 123);
    assert_int_equal(line.owner.name_space, 4026531836);
    assert_int_equal(line.rule.queue, 3);
    assert_int_equal(line.rule.location, 17);
    rule_line_format(&line, text);
    assert_string_equal(text, good_line);
    assert_true(rule_line_parse(good_ipv6, &line));
    assert_int_equal(line.rule.from.ss_family, AF_INET6);
    rule_line_format(&line, text);
    assert_string_equal(text, good_ipv6);
}

TEST(test_bad_lines)
{
    static const char *const texts[] = {
        "",
        " ",
        "4711",
        "0 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "-1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "2147483648 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1 -123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1 18446744073709551616 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1 123 0 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1 123 1 192.0.2 4000 192.0.2.2 5000 3 17",
        "1 123 1 192.0.2.1 0 192.0.2.2 5000 3 17",
        "1 123 1 192.0.2.1 4000 192.0.2.2 65536 3 17",
        "1 123 1 192.0.2.1 4000 2001:db8::1 5000 3 17",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 1024 17",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 4294967296",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 3",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17 ",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17 1",
        " 1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1  123 1 192.0.2.1 4000 192.0.2.2 5000 3 17",
        "1 123 1 192.0.2.1 4000 192.0.2.2 5000 3 17\r",
        "1 123 1 host 4000 192.0.2.2 5000 3 17",
    };
    struct rule_line line;
    char longer[2 * RULE_LINE_BYTES];

    memset(&line, 0x5a, sizeof line);
    memset(longer, '0', sizeof longer); /* before a good line: the number is the same */
    memcpy(longer + sizeof longer - sizeof good_line, good_line, sizeof good_line);
    assert_false(rule_line_parse(longer, &line));
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (rule_line_parse(texts[i], &line))
            fail_msg("'%s' was taken", texts[i]);
    expect_untouched(&line, sizeof line);
}

/* Whatever is understood means the same when it is written and read again. */
TEST(test_spoilt_lines)
{
    static const char characters[] = "0123456789 .:af-\n\t\xff";
    uint64_t random = 20240607;
    unsigned taken = 0;

    for (int round = 0; round < 200000; round++) {
        struct rule_line line;
        struct rule_line again;
        char text[sizeof good_line + sizeof good_ipv6];
        char once[RULE_LINE_BYTES];
        char twice[RULE_LINE_BYTES];
        size_t length;

        snprintf(text, sizeof text, "%s", random_below(&random, 2) == 0 ? good_line : good_ipv6);
        length = strlen(text);
        for (uint64_t changes = random_below(&random, 3) + 1; changes > 0; changes--)
            text[random_below(&random, length)] =
                characters[random_below(&random, sizeof characters - 1)];
        if (random_below(&random, 8) == 0)
            text[random_below(&random, length)] = '\0';
        if (!rule_line_parse(text, &line))
            continue;
        taken++;
        rule_line_format(&line, once);
        assert_true(rule_line_parse(once, &again));
        rule_line_format(&again, twice);
        assert_string_equal(once, twice);
        assert_true(line.owner.pid >= 1 && line.rule.queue < NIC_MOST_QUEUES);
    }
    assert_in_range(taken, 1000, 199000);
}

/* Rubbish of every kind around a line of the dead and one of the living. */
FOLDER_TEST(test_rubbish)
{
    struct nic_rule rule = begin(ours, 3);
    char text[4096];
    char bytes[8192] = "\0\0\n\0zero\n";
    size_t length = 9;

    kill_one_and_wait();
    read_journal(text);
    length += (size_t)snprintf(bytes + length, sizeof bytes - length,
                               "\n\nrubbish\n%s%s 18\nhalf a li", text, good_line);
    memset(bytes + length, 'x', 3000); /* without an end */
    tree_put_bytes(journal_path(""), bytes, length + 3000);
    assert_int_equal(clean(), 2);
    expect_counts(1, 1);
    end(&rule);
    assert_int_equal(fake_nic_rules(), 0);
}

/* Random bytes as a whole journal. */
FOLDER_TEST(test_random_record)
{
    uint64_t random = 7;
    uint8_t bytes[3000];

    for (int round = 0; round < 200; round++) {
        size_t length = random_below(&random, sizeof bytes);

        for (size_t i = 0; i < length; i++)
            bytes[i] = random_below(&random, 4) == 0 ? (uint8_t)(random_next(&random) >> 32)
                                                     : (uint8_t) "0 1\n"[random_below(&random, 4)];
        tree_put_bytes(journal_path(""), bytes, length);
        assert_int_equal(clean(), 0);
    }
    assert_int_equal(fake_nic->changes, 0);
}

/* Where nothing can be recorded, rules work all the same. */
FOLDER_TEST(test_without_record)
{
    char below[PATH_MAX];
    struct nic_rule rule;

    snprintf(below, sizeof below, "%s", tree_path("/file/no-folder"));
    assert_int_equal(rmdir(tree_path("/file")), 0);
    tree_put(tree_path("/file"), "");
    rule_journal_use(below, NULL);
    assert_int_equal(clean(), 0);
    rule = begin(ours, 3);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(clean(), 0);
    end(&rule);
    assert_int_equal(fake_nic_rules(), 0);
}

static int mode_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? (int)(status.st_mode & 07777) : -1;
}

/* The folder is made when it is needed, and only then. */
FOLDER_TEST(test_folder)
{
    mode_t mask = umask(022);
    struct nic_rule rule;
    char below[PATH_MAX];

    snprintf(below, sizeof below, "%s", tree_path("/new"));
    rule_journal_use(below, NULL);
    assert_int_equal(clean(), 0);
    assert_int_equal(mode_of(below), -1);
    rule = begin(ours, 3);
    assert_int_equal(mode_of(below), 0755);
    end(&rule);
    umask(mask);
}

/*
 * Another process holds the lock: no call waits for it. The next call succeeds when the lock is
 * free; if it stays held, the rule is made without a journal at the end of the patience.
 */
FOLDER_TEST(test_stuck_lock)
{
    uint64_t begun = clock_now();
    struct nic_rule rule;
    int fd = journal_hold_lock();

    for (int i = 0; i < 5; i++)
        assert_int_equal(steering_begin(FAKE_NIC, ours, 3, DEADLINE_NEVER, &rule),
                         TCPX_IN_PROGRESS);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_begin(FAKE_NIC, ours, 3, clock_now(), &rule), TCPX_SUCCESS);
    assert_in_range(clock_now() - begun, 0, 1000000000);
    expect_counts(1, 0);
    assert_int_equal(flock(fd, LOCK_UN), 0);
    end(&rule);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_begin(FAKE_NIC, ours, 3, DEADLINE_NEVER, &rule), TCPX_SUCCESS);
    expect_counts(1, 1);
    end(&rule);
    close(fd);
}

/* --- whose files these are ------------------------------------------------------------------ */

enum { SOMEBODY = 65534 };

static bool become_somebody(void)
{
    return setgid(SOMEBODY) == 0 && setuid(SOMEBODY) == 0;
}

static void need_root(void)
{
    if (geteuid() != 0)
        skip_because("only root can give files away, or become somebody else");
}

static void open_lock_as_somebody(const uint8_t *nothing)
{
    const char *path = journal_path(".lock");

    (void)nothing;
    CHECK(become_somebody());
    CHECK(open(path, O_RDONLY | O_CLOEXEC) == -1 && errno == EACCES);
}

/* No other user can hold the locks, or read the journal. */
FOLDER_TEST(test_modes)
{
    mode_t mask = umask(0);
    struct nic_rule rule;
    int lock;

    assert_int_equal(chmod(tree_root, 0755), 0);
    lock = steering_lock(FAKE_NIC);
    assert_true(lock >= 0);
    rule = begin(ours, 3);
    assert_int_equal(mode_of(journal_path("")), 0600);
    assert_int_equal(mode_of(journal_path(".lock")), 0600);
    assert_int_equal(mode_of(journal_path(".setup.lock")), 0600);
    if (geteuid() == 0)
        run_child(open_lock_as_somebody);
    end(&rule);
    steering_unlock(lock);
    umask(mask);
}

/* Files that others may open get the right mode. */
FOLDER_TEST(test_old_files)
{
    mode_t mask = umask(0);
    struct nic_rule rule;

    close(open(journal_path(".lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    tree_put(journal_path(""), "rubbish\n");
    rule = begin(ours, 3);
    expect_counts(1, 1);
    assert_int_equal(mode_of(journal_path("")), 0600);
    assert_int_equal(mode_of(journal_path(".lock")), 0600);
    end(&rule);
    umask(mask);
}

/* The rule is made, and nothing is written anywhere. */
static void expect_unrecorded(void)
{
    struct nic_rule rule = begin(ours, 3);

    expect_counts(1, 0);
    end(&rule);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_lock(FAKE_NIC), -1);
}

/* A folder that others can change is not used. */
FOLDER_TEST(test_folders_of_others)
{
    char other[PATH_MAX];

    assert_int_equal(chmod(tree_root, 0775), 0);
    expect_unrecorded();
    assert_int_equal(chmod(tree_root, 01777), 0);
    expect_unrecorded();
    assert_int_equal(chmod(tree_root, 0700), 0);
    snprintf(other, sizeof other, "%s", tree_path("-link"));
    assert_int_equal(symlink(tree_root, other), 0);
    rule_journal_use(other, NULL);
    expect_unrecorded();
    assert_int_equal(unlink(other), 0);
    rule_journal_use(tree_root, NULL);
    need_root();
    assert_int_equal(chown(tree_root, SOMEBODY, SOMEBODY), 0);
    expect_unrecorded();
}

/* Nor files that somebody has put there. */
FOLDER_TEST(test_planted_files)
{
    char target[PATH_MAX];
    const char *lock = journal_path(".lock");
    const char *setup = journal_path(".setup.lock");
    int fd;

    snprintf(target, sizeof target, "%s", tree_path("/target"));
    assert_int_equal(symlink(target, lock) | symlink(target, setup), 0);
    expect_unrecorded();
    assert_int_equal(mode_of(target), -1);
    assert_int_equal(unlink(lock) | unlink(setup), 0);
    assert_int_equal(mkfifo(lock, 0600) | mkfifo(setup, 0600), 0);
    expect_unrecorded();
    assert_int_equal(unlink(lock) | unlink(setup), 0);
    need_root();
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(rename(lock, setup) | link(setup, lock), 0);
    assert_int_equal(fchown(fd, SOMEBODY, SOMEBODY), 0);
    expect_unrecorded();
    close(fd);
}

/* A journal that another user has put there is not believed. */
FOLDER_TEST(test_planted_record)
{
    kill_one_and_wait();
    need_root();
    assert_int_equal(chown(journal_path(""), SOMEBODY, SOMEBODY), 0);
    assert_int_equal(clean(), 0);
    assert_int_equal(fake_nic_rules(), 2);
    assert_int_equal(chown(journal_path(""), 0, 0), 0);
    assert_int_equal(clean(), 2);
}

static char second[PATH_MAX];
static char own[PATH_MAX];

static void begin_and_leave(const uint8_t *nothing)
{
    struct nic_rule rule;

    (void)nothing;
    CHECK_SUCCESS(steering_begin(FAKE_NIC, ours, 1, 0, &rule));
}

/*
 * A user who may not write to the first folder, as under setcap, has one of his own: what a killed
 * process of his leaves is removed by the next one.
 */
static void work_as_somebody(const uint8_t *nothing)
{
    (void)nothing;
    rule_journal_use(tree_root, second);
    CHECK(become_somebody());
    CHECK(clean() == 0 && mode_of(own) == -1);
    CHECK(child_wait(child_try_fork_here(begin_and_leave, NULL)) == 0 && fake_nic_rules() == 1);
    CHECK(mode_of(own) == 0700);
    CHECK(clean() == 1 && fake_nic_rules() == 0);
}

FOLDER_TEST(test_second_folder)
{
    need_root();
    assert_int_equal(chmod(tree_root, 0755), 0);
    /* As /tmp is: everybody can make a folder of his own there. */
    snprintf(second, sizeof second, "%s", tree_path("/all/of-"));
    snprintf(own, sizeof own, "%s", tree_path("/all/of-%d", SOMEBODY));
    assert_int_equal(chmod(tree_path("/all"), 01777), 0);
    run_child(work_as_somebody);
    expect_counts(0, 0);
}

/* --- at the same time ----------------------------------------------------------------------- */

static void lock_and_tell(const uint8_t *nothing)
{
    (void)nothing;
    CHECK(steering_lock(FAKE_NIC) >= 0);
    atomic_store(&child_shared->flag, 1);
}

/* Another process waits for its turn; rules can be made meanwhile. */
FOLDER_TEST(test_setup_lock)
{
    struct nic_rule rule;
    int lock = steering_lock(FAKE_NIC);
    pid_t child = child_fork_here(lock_and_tell, NULL);

    assert_true(lock >= 0);
    rule = begin(ours, 3);
    expect_counts(1, 1);
    usleep(100000);
    assert_int_equal(atomic_load(&child_shared->flag), 0);
    steering_unlock(lock);
    child_judge(child_wait(child), "child");
    assert_int_equal(atomic_load(&child_shared->flag), 1);
    end(&rule);
    steering_unlock(-1);
    rule_journal_use("/proc/no-folder", NULL);
    assert_int_equal(steering_lock(FAKE_NIC), -1);
}

static pid_t fork_within;

static void stay(const uint8_t *nothing)
{
    (void)nothing;
    pause();
}

static void fork_once(void)
{
    if (fork_within == 0)
        fork_within = child_fork_here(stay, NULL);
}

/* A child of a process in the middle of a change does not keep the lock. */
FOLDER_TEST(test_children_do_not_lock)
{
    struct nic_rule rule;

    fake_nic_during = fork_once;
    rule = begin(ours, 3);
    fake_nic_during = NULL;
    assert_true(fork_within > 0);
    end(&rule);
    child_kill(fork_within);
    expect_counts(0, 0); /* one line would be left if the lock could not be taken */
}

static int begin_at_last(int socket, unsigned queue, struct nic_rule *rule)
{
    uint64_t patience_ends = deadline_after_ms(20000);
    int result;

    while ((result = steering_begin(FAKE_NIC, socket, queue, patience_ends, rule)) ==
           TCPX_IN_PROGRESS)
        sched_yield();
    return result;
}

static void begin_and_end_often(const uint8_t *nothing)
{
    enum { TURNS = 40 };
    struct nic_rule one;
    struct nic_rule two;

    (void)nothing;
    connect_pair(false);
    for (int i = 0; i < TURNS; i++) {
        CHECK_SUCCESS(begin_at_last(ours, 1, &one));
        CHECK_SUCCESS(begin_at_last(theirs, 2, &two));
        clean();
        end(&one);
        end(&two);
    }
}

/* Several processes at once: no rule takes another's place, no line is lost. */
FOLDER_TEST(test_many_at_once)
{
    enum { PROCESSES = 6 };
    pid_t children[PROCESSES];

    kill_one_and_wait();
    for (int i = 0; i < PROCESSES; i++)
        children[i] = child_fork_here(begin_and_end_often, NULL);
    for (int i = 0; i < PROCESSES; i++)
        child_judge(child_wait(children[i]), "child");
    assert_int_equal(fake_nic->overwritten, 0);
    expect_counts(0, 0); /* also those of the killed one */
}

static void clean_elsewhere(const uint8_t *nothing)
{
    (void)nothing;
    if (unshare(CLONE_NEWNET) != 0)
        _exit(2);
    CHECK(clean() == 0);
}

/* The same name in another network namespace is another interface. */
FOLDER_TEST(test_name_spaces)
{
    int status;

    kill_one_and_wait();
    status = child_wait(child_fork_here(clean_elsewhere, NULL));
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 1);
    assert_int_equal(clean(), 2);
    if (WEXITSTATUS(status) == 2)
        skip_because("this takes CAP_NET_ADMIN");
}

SUITE(.name = "steering");
