/*
 * Shows that a connection's rule is the one for what arrives on it; that a process which is killed
 * leaves rules that the next one removes, and never those of the living or of others; that the
 * record of rules survives every kind of rubbish in it, many writers at once, and its own absence.
 */
#include "tests/unit/fake_nic.h"

#include "base/clock.h"
#include "net/nic/nic.h"
#include "net/nic/rule_journal.h"
#include "net/nic/steering_files.h"
#include "net/socket/socket.h"
#include "tests/limit.h"
#include "tests/skip.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

/* --- a folder of our own ------------------------------------------------------------------- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tcpx-steering-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    steering_files_use(folder, NULL);
    fake_nic_reset(8);
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void record_path(char path[256])
{
    struct stat status;

    assert_int_equal(stat("/proc/self/ns/net", &status), 0);
    snprintf(path, 256, "%s/steering-%llu-" FAKE_NIC, folder, (unsigned long long)status.st_ino);
}

static void read_record(char text[4096])
{
    char path[256];
    FILE *file;

    record_path(path);
    file = fopen(path, "r");
    text[file != NULL ? fread(text, 1, 4095, file) : 0] = '\0';
    if (file != NULL)
        fclose(file);
}

static void write_record(const void *bytes, size_t length)
{
    char path[256];
    FILE *file;

    record_path(path);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static unsigned count_lines(void)
{
    char text[4096];
    unsigned count = 0;

    read_record(text);
    for (const char *at = text; *at != '\0'; at++)
        count += *at == '\n';
    return count;
}

/* --- connections --------------------------------------------------------------------------- */

/* Two ends of a connection over loopback. */
struct pair {
    int ours;
    int theirs;
};

static struct pair make_pair(bool through_ipv6)
{
    union socket_address any = {0};
    socklen_t length = through_ipv6 ? sizeof any.ipv6 : sizeof any.ipv4;
    int listening = socket(through_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair pair;

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
    pair.ours = socket(any.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(pair.ours, (struct sockaddr *)&any, length), 0);
    pair.theirs = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(pair.theirs >= 0);
    close(listening);
    return pair;
}

static void close_pair(struct pair *pair)
{
    close(pair->ours);
    close(pair->theirs);
}

static uint16_t port_of(int socket)
{
    union socket_address any = {0};
    socklen_t length = sizeof any;

    assert_int_equal(getsockname(socket, (struct sockaddr *)&any, &length), 0);
    return ntohs(any.storage.ss_family == AF_INET ? any.ipv4.sin_port : any.ipv6.sin6_port);
}

static void test_rule_of_a_connection(void **state)
{
    (void)state;
    for (int through_ipv6 = 0; through_ipv6 < 2; through_ipv6++) {
        struct pair pair;
        struct nic_rule rule;
        union socket_address from;
        union socket_address to;
        int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (probe < 0 && through_ipv6)
            break;
        close(probe);
        pair = make_pair(through_ipv6);
        assert_int_equal(steering_describe(pair.ours, &rule), TCPX_SUCCESS);
        from.storage = rule.from;
        to.storage = rule.to;
        assert_int_equal(from.storage.ss_family, AF_INET);
        assert_int_equal(to.storage.ss_family, AF_INET);
        assert_int_equal(ntohs(from.ipv4.sin_port), port_of(pair.theirs));
        assert_int_equal(ntohs(to.ipv4.sin_port), port_of(pair.ours));
        assert_int_equal(ntohl(from.ipv4.sin_addr.s_addr), INADDR_LOOPBACK);
        assert_int_equal(ntohl(to.ipv4.sin_addr.s_addr), INADDR_LOOPBACK);
        close_pair(&pair);
    }
}

static void test_no_connection(void **state)
{
    int unconnected = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int pair[2];
    struct nic_rule rule;

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, unconnected, 1, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(steering_begin(FAKE_NIC, -1, 1, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair[0], 1, 0, &rule), TCPX_INVALID_ARGUMENT);
    close(pair[0]);
    close(pair[1]);
    close(unconnected);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(count_lines(), 0);
}

static void test_begin_and_end(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule one;
    struct nic_rule two;
    struct rule_line line;
    char text[4096];

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &one), TCPX_SUCCESS);
    assert_int_equal(one.queue, 3);
    assert_int_equal(fake_nic_rules(), 1);
    read_record(text);
    assert_non_null(strchr(text, '\n'));
    *strchr(text, '\n') = '\0';
    assert_true(rule_line_parse(text, &line));
    assert_int_equal(line.owner.pid, getpid());
    assert_false(rule_owner_is_gone(&line.owner));
    assert_int_equal(line.rule.queue, 3);
    assert_int_equal(line.rule.location, one.location);
    assert_memory_equal(&line.rule.from, &one.from, sizeof(struct sockaddr_in));
    assert_memory_equal(&line.rule.to, &one.to, sizeof(struct sockaddr_in));
    assert_int_equal(steering_begin(FAKE_NIC, pair.theirs, 4, 0, &two), TCPX_SUCCESS);
    assert_int_equal(count_lines(), 2);
    assert_int_equal(steering_clean(FAKE_NIC), 0); /* the living keep theirs */
    assert_int_equal(fake_nic_rules(), 2);
    steering_end(FAKE_NIC, &one);
    assert_int_equal(count_lines(), 1);
    assert_int_equal(fake_nic_rules(), 1);
    steering_end(FAKE_NIC, &two);
    assert_int_equal(count_lines(), 0);
    assert_int_equal(fake_nic_rules(), 0);
    close_pair(&pair);
}

static void test_refusal_leaves_nothing(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule = {.location = 4711};

    (void)state;
    fake_nic->refusal = EPERM;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SYSTEM_ERROR);
    assert_int_equal(rule.location, 4711);
    assert_int_equal(count_lines(), 0);
    close_pair(&pair);
}

/* A rule that could not be removed stays in the record, for who can. */
static void test_kept_for_later(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    fake_nic->refusal = EPERM;
    steering_end(FAKE_NIC, &rule);
    assert_int_equal(count_lines(), 1);
    fake_nic->refusal = 0;
    steering_end(FAKE_NIC, &rule);
    assert_int_equal(count_lines(), 0);
    close_pair(&pair);
}

/* The end of a rule that is not there any more leaves alone what is at its place. */
static void test_place_of_another(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule one;
    struct nic_rule two;

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &one), TCPX_SUCCESS);
    fake_nic->is_used[one.location] = false; /* by hand */
    assert_int_equal(steering_begin(FAKE_NIC, pair.theirs, 4, 0, &two), TCPX_SUCCESS);
    assert_int_equal(one.location, two.location);
    assert_int_equal(count_lines(), 1);
    steering_end(FAKE_NIC, &one);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(count_lines(), 1);
    steering_end(FAKE_NIC, &two);
    assert_int_equal(fake_nic_rules(), 0);
    close_pair(&pair);
}

/* --- processes that are gone --------------------------------------------------------------- */

/* A child that makes two rules and is killed; still to be waited for. */
static pid_t kill_one(void)
{
    pid_t child = fork();
    siginfo_t info;

    if (child == 0) {
        struct pair pair = make_pair(false);
        struct nic_rule rule;

        if (steering_begin(FAKE_NIC, pair.ours, 1, 0, &rule) == TCPX_SUCCESS &&
            steering_begin(FAKE_NIC, pair.theirs, 2, 0, &rule) == TCPX_SUCCESS)
            raise(SIGKILL);
        _exit(1);
    }
    assert_true(child > 0);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(info.si_code, CLD_KILLED);
    return child;
}

static void test_killed(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule ours;

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &ours), TCPX_SUCCESS);
    for (int waited = 0; waited < 2; waited++) {
        pid_t child = kill_one();

        assert_int_equal(fake_nic_rules(), 3);
        assert_int_equal(count_lines(), 3);
        if (waited)
            waitpid(child, NULL, 0);
        assert_int_equal(steering_clean(FAKE_NIC), 2); /* dead, waited for or not */
        if (!waited)
            waitpid(child, NULL, 0);
        assert_int_equal(steering_clean(FAKE_NIC), 0);
        assert_int_equal(fake_nic_rules(), 1);
        assert_int_equal(count_lines(), 1);
    }
    steering_end(FAKE_NIC, &ours);
    close_pair(&pair);
}

/* The record names a rule of the dead, but the NIC has another at this place: it stays. */
static void test_no_foreign_rule_is_removed(void **state)
{
    pid_t child = kill_one();
    unsigned changes;

    (void)state;
    waitpid(child, NULL, 0);
    for (int i = 0; i < FAKE_PLACES; i++)
        fake_nic->rules[i].ring_cookie = 7;
    changes = fake_nic->changes;
    assert_int_equal(steering_clean(FAKE_NIC), 0);
    assert_int_equal(fake_nic_rules(), 2);
    assert_int_equal(fake_nic->changes, changes);
    assert_int_equal(count_lines(), 0);
}

static void test_who_is_gone(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;
    struct rule_line line;
    char text[4096];

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    read_record(text);
    *strchr(text, '\n') = '\0';
    assert_true(rule_line_parse(text, &line));
    assert_false(rule_owner_is_gone(&line.owner));
    line.owner.started--; /* an earlier process of our number */
    assert_true(rule_owner_is_gone(&line.owner));
    line.owner.name_space++; /* in another container: nobody knows */
    assert_false(rule_owner_is_gone(&line.owner));
    line.owner.name_space--;
    line.owner.pid = 0x7ffffff0; /* beyond all process ids */
    assert_true(rule_owner_is_gone(&line.owner));
    steering_end(FAKE_NIC, &rule);
    close_pair(&pair);
}

/* --- the record ---------------------------------------------------------------------------- */

static const char good_line[] = "4194304 123 4026531836 192.0.2.1 4000 192.0.2.2 5000 3 17";
static const char good_ipv6[] = "1 0 1 2001:db8::1 1 fe80::2 65535 1023 4294967295";

static void test_lines(void **state)
{
    struct rule_line line;
    char text[RULE_LINE_BYTES];

    (void)state;
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

static void test_bad_lines(void **state)
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

    (void)state;
    memset(&line, 0x5a, sizeof line);
    memset(longer, '0', sizeof longer); /* before a good line: the number is the same */
    memcpy(longer + sizeof longer - sizeof good_line, good_line, sizeof good_line);
    assert_false(rule_line_parse(longer, &line));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (rule_line_parse(texts[i], &line))
            fail_msg("'%s' was taken", texts[i]);
    for (size_t i = 0; i < sizeof line; i++)
        assert_int_equal(((const uint8_t *)&line)[i], 0x5a);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Whatever is understood means the same when it is written and read again. */
static void test_spoilt_lines(void **state)
{
    static const char characters[] = "0123456789 .:af-\n\t\xff";
    uint32_t random = 20240607;
    unsigned taken = 0;

    (void)state;
    for (int round = 0; round < 200000; round++) {
        struct rule_line line;
        struct rule_line again;
        char text[sizeof good_line + sizeof good_ipv6];
        char once[RULE_LINE_BYTES];
        char twice[RULE_LINE_BYTES];
        size_t length;

        snprintf(text, sizeof text, "%s", next_random(&random) % 2 == 0 ? good_line : good_ipv6);
        length = strlen(text);
        for (uint32_t changes = next_random(&random) % 3 + 1; changes > 0; changes--)
            text[next_random(&random) % length] =
                characters[next_random(&random) % (sizeof characters - 1)];
        if (next_random(&random) % 8 == 0)
            text[next_random(&random) % length] = '\0';
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
static void test_rubbish(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule ours;
    pid_t child;
    char text[4096];
    char bytes[8192];
    size_t length;

    (void)state;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &ours), TCPX_SUCCESS);
    child = kill_one();
    waitpid(child, NULL, 0);
    read_record(text);
    memcpy(bytes, "\0\0\n\0zero\n", 9);
    length = 9 + (size_t)snprintf(bytes + 9, sizeof bytes - 9, "\n\nrubbish\n%s%s 18\nhalf a li",
                                  text, good_line);
    memset(bytes + length, 'x', 3000); /* without an end */
    length += 3000;
    write_record(bytes, length);
    assert_int_equal(steering_clean(FAKE_NIC), 2);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(count_lines(), 1);
    steering_end(FAKE_NIC, &ours);
    assert_int_equal(fake_nic_rules(), 0);
    close_pair(&pair);
}

/* Random bytes as a whole record. */
static void test_random_record(void **state)
{
    uint32_t random = 7;
    uint8_t bytes[3000];

    (void)state;
    for (int round = 0; round < 200; round++) {
        size_t length = next_random(&random) % sizeof bytes;

        for (size_t i = 0; i < length; i++)
            bytes[i] = next_random(&random) % 4 == 0 ? (uint8_t)next_random(&random)
                                                     : (uint8_t) "0 1\n"[next_random(&random) % 4];
        write_record(bytes, length);
        assert_int_equal(steering_clean(FAKE_NIC), 0);
    }
    assert_int_equal(fake_nic->changes, 0);
}

/* Where nothing can be recorded, rules work all the same. */
static void test_without_record(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;
    char file[96];
    char below[128];
    int fd;

    (void)state;
    snprintf(file, sizeof file, "%s/file", folder);
    snprintf(below, sizeof below, "%s/no-folder", file);
    fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    close(fd);
    steering_files_use(below, NULL);
    assert_int_equal(steering_clean(FAKE_NIC), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(steering_clean(FAKE_NIC), 0);
    steering_end(FAKE_NIC, &rule);
    assert_int_equal(fake_nic_rules(), 0);
    steering_files_use(folder, NULL);
    close_pair(&pair);
}

/* The folder is made when it is needed, and only then. */
static void test_folder(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;
    struct stat status;
    mode_t mask = umask(022);
    char below[128];

    (void)state;
    snprintf(below, sizeof below, "%s/new", folder);
    steering_files_use(below, NULL);
    assert_int_equal(steering_clean(FAKE_NIC), 0);
    assert_int_not_equal(stat(below, &status), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    assert_int_equal(stat(below, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0755);
    steering_end(FAKE_NIC, &rule);
    umask(mask);
    steering_files_use(folder, NULL);
    close_pair(&pair);
}

static int open_lock(mode_t mode)
{
    char path[256];
    char lock[300];

    record_path(path);
    snprintf(lock, sizeof lock, "%s.lock", path);
    return open(lock, O_RDWR | O_CREAT | O_CLOEXEC, mode);
}

/*
 * Another process holds the lock: nobody waits for it inside of a call. The next call succeeds when
 * it has let go; if it does not, the rule is made without a record at the end of the patience.
 */
static void test_stuck_lock(void **state)
{
    struct pair pair = make_pair(false);
    uint64_t begun = clock_now();
    struct nic_rule rule;
    int fd = open_lock(0600);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, DEADLINE_NEVER, &rule),
                         TCPX_IN_PROGRESS);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, clock_now(), &rule), TCPX_SUCCESS);
    assert_in_range(clock_now() - begun, 0, 1000000000);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(count_lines(), 0);
    assert_int_equal(flock(fd, LOCK_UN), 0);
    steering_end(FAKE_NIC, &rule);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, DEADLINE_NEVER, &rule), TCPX_SUCCESS);
    assert_int_equal(count_lines(), 1);
    steering_end(FAKE_NIC, &rule);
    close(fd);
    close_pair(&pair);
}

/* --- whose files these are ------------------------------------------------------------------ */

enum { SOMEBODY = 65534 };

static void expect_mode(const char *ending, mode_t mode)
{
    char path[256];
    char file[300];
    struct stat status;

    record_path(path);
    snprintf(file, sizeof file, "%s%s", path, ending);
    assert_int_equal(stat(file, &status), 0);
    assert_int_equal(status.st_mode & 07777, mode);
}

/* What a process of another user makes of the lock: 0 if it could hold it, or an errno. */
static int lock_as_somebody(void)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        char path[256];
        char lock[300];
        int fd;

        record_path(path);
        snprintf(lock, sizeof lock, "%s.lock", path);
        if (setgid(SOMEBODY) != 0 || setuid(SOMEBODY) != 0)
            _exit(255);
        fd = open(lock, O_RDONLY | O_CLOEXEC);
        _exit(fd < 0 ? errno : flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

/* No other user can hold the locks, or read the record. */
static void test_modes(void **state)
{
    struct pair pair = make_pair(false);
    mode_t mask = umask(0);
    struct nic_rule rule;
    int lock;

    (void)state;
    assert_int_equal(chmod(folder, 0755), 0);
    lock = steering_lock(FAKE_NIC);
    assert_true(lock >= 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    expect_mode("", 0600);
    expect_mode(".lock", 0600);
    expect_mode(".setup.lock", 0600);
    if (geteuid() == 0)
        assert_int_equal(lock_as_somebody(), EACCES);
    steering_end(FAKE_NIC, &rule);
    steering_unlock(lock);
    umask(mask);
    close_pair(&pair);
}

/* Files that others may open get the right mode. */
static void test_old_files(void **state)
{
    struct pair pair = make_pair(false);
    mode_t mask = umask(0);
    struct nic_rule rule;

    (void)state;
    close(open_lock(0666));
    write_record("rubbish\n", 8);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    assert_int_equal(count_lines(), 1);
    expect_mode("", 0600);
    expect_mode(".lock", 0600);
    steering_end(FAKE_NIC, &rule);
    umask(mask);
    close_pair(&pair);
}

/* The rule is made, and nothing is written anywhere. */
static void expect_unrecorded(void)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;

    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    assert_int_equal(fake_nic_rules(), 1);
    assert_int_equal(count_lines(), 0);
    steering_end(FAKE_NIC, &rule);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(steering_lock(FAKE_NIC), -1);
    close_pair(&pair);
}

/* A folder that others can change is not used. */
static void test_folders_of_others(void **state)
{
    char other[128];

    (void)state;
    assert_int_equal(chmod(folder, 0775), 0);
    expect_unrecorded();
    assert_int_equal(chmod(folder, 01777), 0);
    expect_unrecorded();
    assert_int_equal(chmod(folder, 0700), 0);
    snprintf(other, sizeof other, "%s-link", folder);
    assert_int_equal(symlink(folder, other), 0);
    steering_files_use(other, NULL);
    expect_unrecorded();
    assert_int_equal(unlink(other), 0);
    steering_files_use(folder, NULL);
    if (geteuid() != 0)
        skip_because("only root can give files away");
    assert_int_equal(chown(folder, SOMEBODY, SOMEBODY), 0);
    expect_unrecorded();
}

/* Nor files that somebody has put there. */
static void test_planted_files(void **state)
{
    char path[256];
    char lock[300];
    char setup[300];
    struct stat status;
    char target[128];
    int fd;

    (void)state;
    record_path(path);
    snprintf(lock, sizeof lock, "%s.lock", path);
    snprintf(setup, sizeof setup, "%s.setup.lock", path);
    snprintf(target, sizeof target, "%s/target", folder);
    assert_int_equal(symlink(target, lock), 0);
    assert_int_equal(symlink(target, setup), 0);
    expect_unrecorded();
    assert_int_equal(stat(target, &status), -1);
    assert_int_equal(unlink(lock) | unlink(setup), 0);
    assert_int_equal(mkfifo(lock, 0600) | mkfifo(setup, 0600), 0);
    expect_unrecorded();
    assert_int_equal(unlink(lock) | unlink(setup), 0);
    if (geteuid() != 0)
        skip_because("only root can give files away");
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(rename(lock, setup) | link(setup, lock), 0);
    assert_int_equal(fchown(fd, SOMEBODY, SOMEBODY), 0);
    expect_unrecorded();
    close(fd);
}

/* A record that another user has put there is not believed. */
static void test_planted_record(void **state)
{
    pid_t killed = kill_one();
    char path[256];

    (void)state;
    waitpid(killed, NULL, 0);
    if (geteuid() != 0)
        skip_because("only root can give files away");
    record_path(path);
    assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
    assert_int_equal(steering_clean(FAKE_NIC), 0);
    assert_int_equal(fake_nic_rules(), 2);
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(steering_clean(FAKE_NIC), 2);
}

static int mode_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? (int)(status.st_mode & 07777) : -1;
}

/*
 * A user who may not write to the first folder, as under setcap, has one of his own: what a killed
 * process of his leaves is removed by the next one.
 */
static int work_as_somebody(const char *second, const char *own)
{
    pid_t child;

    steering_files_use(folder, second);
    if (setgid(SOMEBODY) != 0 || setuid(SOMEBODY) != 0)
        return 1;
    if (steering_clean(FAKE_NIC) != 0 || mode_of(own) != -1)
        return 2;
    child = fork();
    if (child == 0) {
        struct pair pair = make_pair(false);
        struct nic_rule rule;

        _exit(steering_begin(FAKE_NIC, pair.ours, 1, 0, &rule) == TCPX_SUCCESS ? 0 : 1);
    }
    if (child < 0 || waitpid(child, NULL, 0) != child || fake_nic_rules() != 1)
        return 3;
    if (mode_of(own) != 0700)
        return 4;
    return steering_clean(FAKE_NIC) == 1 && fake_nic_rules() == 0 ? 0 : 5;
}

static void test_second_folder(void **state)
{
    char second[128];
    char own[160];
    int status = -1;
    pid_t child;

    (void)state;
    if (geteuid() != 0)
        skip_because("only root can become somebody else");
    assert_int_equal(chmod(folder, 0755), 0);
    /* As /tmp is: everybody can make a folder of his own there. */
    snprintf(second, sizeof second, "%s/all", folder);
    assert_int_equal(mkdir(second, 0777) | chmod(second, 01777), 0);
    snprintf(second, sizeof second, "%s/all/of-", folder);
    snprintf(own, sizeof own, "%s%d", second, SOMEBODY);
    child = fork();
    if (child == 0)
        _exit(work_as_somebody(second, own));
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(count_lines(), 0);
}

/* Another process waits for its turn; rules can be made meanwhile. */
static void test_setup_lock(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;
    int lock = steering_lock(FAKE_NIC);
    int tells[2];
    pid_t child;
    char byte;

    (void)state;
    assert_true(lock >= 0);
    assert_int_equal(pipe2(tells, O_CLOEXEC | O_NONBLOCK), 0);
    child = fork();
    if (child == 0) {
        int own = steering_lock(FAKE_NIC);

        _exit(own >= 0 && write(tells[1], "x", 1) == 1 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    assert_int_equal(count_lines(), 1);
    usleep(100000);
    assert_int_equal(read(tells[0], &byte, 1), -1);
    steering_unlock(lock);
    assert_int_equal(waitpid(child, &(int){0}, 0), child);
    assert_int_equal(read(tells[0], &byte, 1), 1);
    steering_end(FAKE_NIC, &rule);
    steering_unlock(-1);
    steering_files_use("/proc/no-folder", NULL);
    assert_int_equal(steering_lock(FAKE_NIC), -1);
    close(tells[0]);
    close(tells[1]);
    close_pair(&pair);
}

static pid_t fork_within;

static void fork_once(void)
{
    if (fork_within != 0)
        return;
    fork_within = fork();
    if (fork_within == 0) {
        pause();
        _exit(0);
    }
}

/* A child of a process in the middle of a change does not keep the lock. */
static void test_children_do_not_lock(void **state)
{
    struct pair pair = make_pair(false);
    struct nic_rule rule;

    (void)state;
    fake_nic_during = fork_once;
    assert_int_equal(steering_begin(FAKE_NIC, pair.ours, 3, 0, &rule), TCPX_SUCCESS);
    fake_nic_during = NULL;
    assert_true(fork_within > 0);
    steering_end(FAKE_NIC, &rule);
    kill(fork_within, SIGKILL);
    waitpid(fork_within, NULL, 0);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(count_lines(), 0); /* it would be 1 if the lock could not be taken */
    close_pair(&pair);
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

static void work(int turns)
{
    struct pair pair = make_pair(false);
    struct nic_rule one;
    struct nic_rule two;

    for (int i = 0; i < turns; i++) {
        if (begin_at_last(pair.ours, 1, &one) != TCPX_SUCCESS ||
            begin_at_last(pair.theirs, 2, &two) != TCPX_SUCCESS)
            _exit(1);
        steering_clean(FAKE_NIC);
        steering_end(FAKE_NIC, &one);
        steering_end(FAKE_NIC, &two);
    }
    _exit(0);
}

/* Several processes at once: no rule takes another's place, no line is lost. */
static void test_many_at_once(void **state)
{
    enum { PROCESSES = 6, TURNS = 40 };
    pid_t children[PROCESSES];
    pid_t killed = kill_one();

    (void)state;
    waitpid(killed, NULL, 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0)
            work(TURNS);
        assert_true(children[i] > 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;

        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(fake_nic->overwritten, 0);
    assert_int_equal(fake_nic_rules(), 0); /* also those of the killed one */
    assert_int_equal(count_lines(), 0);
}

/* The same name in another network namespace is another interface. */
static void test_name_spaces(void **state)
{
    pid_t killed = kill_one();
    pid_t child;
    int status = 0;

    (void)state;
    waitpid(killed, NULL, 0);
    child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNET) != 0)
            _exit(2);
        _exit(steering_clean(FAKE_NIC) == 0 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 1);
    assert_int_equal(steering_clean(FAKE_NIC), 2);
    if (WEXITSTATUS(status) == 2)
        skip_because("this takes CAP_NET_ADMIN");
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_rule_of_a_connection),
        IN_FOLDER(test_no_connection),
        IN_FOLDER(test_begin_and_end),
        IN_FOLDER(test_refusal_leaves_nothing),
        IN_FOLDER(test_kept_for_later),
        IN_FOLDER(test_place_of_another),
        IN_FOLDER(test_killed),
        IN_FOLDER(test_no_foreign_rule_is_removed),
        IN_FOLDER(test_who_is_gone),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_spoilt_lines),
        IN_FOLDER(test_rubbish),
        IN_FOLDER(test_random_record),
        IN_FOLDER(test_without_record),
        IN_FOLDER(test_folder),
        IN_FOLDER(test_stuck_lock),
        IN_FOLDER(test_modes),
        IN_FOLDER(test_old_files),
        IN_FOLDER(test_folders_of_others),
        IN_FOLDER(test_planted_files),
        IN_FOLDER(test_planted_record),
        IN_FOLDER(test_second_folder),
        IN_FOLDER(test_setup_lock),
        IN_FOLDER(test_children_do_not_lock),
        IN_FOLDER(test_many_at_once),
        IN_FOLDER(test_name_spaces),
    };

    return cmocka_run_group_tests_name("steering", tests, NULL, NULL);
}
