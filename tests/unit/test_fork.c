/*
 * Shows that a child forked after fork_watch() is refused with error 5 in words, its own children
 * too, while the parent and a child forked earlier are not.
 */
#include "base/fork.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What `check` returns in a forked child. */
static int in_child(int (*check)(void))
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(check());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int check_text(void)
{
    if (fork_check() != TCPX_INVALID_USAGE)
        return 1;
    return strstr(error_text(), "forked") != NULL ? 0 : 2;
}

static int check_in_grandchild(void)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(fork_check());
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return 100;
    return WEXITSTATUS(status);
}

TEST(test_not_watched_yet)
{
    assert_int_equal(fork_check(), TCPX_SUCCESS);
    assert_int_equal(in_child(fork_check), TCPX_SUCCESS);
}

TEST(test_child_is_refused)
{
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    assert_int_equal(in_child(fork_check), TCPX_INVALID_USAGE);
    assert_int_equal(in_child(check_text), 0);
    assert_int_equal(in_child(check_in_grandchild), TCPX_INVALID_USAGE);
}

TEST(test_parent_goes_on)
{
    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    (void)in_child(fork_check);
    assert_int_equal(fork_check(), TCPX_SUCCESS);
}

/* --- a descriptor whose close takes long ---------------------------------------------------- */

enum { LINGER_SECONDS = 2 };

/* Its bytes have no room at the other end, so that its close waits for as long as it is told to. */
static int make_slow_one(int *listening, int *other)
{
    const struct linger linger = {.l_onoff = 1, .l_linger = LINGER_SECONDS};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    static char bytes[65536];
    int fd;

    *listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*listening, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(*listening, 1), 0);
    assert_int_equal(getsockname(*listening, (struct sockaddr *)&address, &length), 0);
    fork_hold();
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fork_release(fd));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    *other = accept4(*listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(*other >= 0);
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    return fd;
}

static atomic_bool closing;
static atomic_bool is_closed;

/* The child has no second thread: that is no leak of its own. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "report_thread_leaks=0";
}

static int slow_one;

static void *close_slowly(void *unused)
{
    atomic_store(&closing, true);
    fork_close(slow_one);
    atomic_store(&is_closed, true);
    return unused;
}

static int check_no_copy(void)
{
    return fcntl(slow_one, F_GETFD) == -1 ? 0 : 1;
}

/* Other threads open and close meanwhile; a fork waits, and the child has no copy. */
TEST(test_a_slow_close)
{
    pthread_t thread;
    int listening;
    int other;

    assert_int_equal(fork_watch(), TCPX_SUCCESS);
    slow_one = make_slow_one(&listening, &other);
    assert_int_equal(pthread_create(&thread, NULL, close_slowly, NULL), 0);
    while (!atomic_load(&closing))
        sched_yield();
    usleep(100000); /* it is inside of close() */
    for (int i = 0; i < 100; i++) {
        int opened;

        fork_hold();
        opened = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(fork_release(opened));
        fork_close(opened);
    }
    assert_false(atomic_load(&is_closed));
    assert_int_equal(in_child(check_no_copy), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(other);
    close(listening);
}

SUITE(.name = "fork");
