/*
 * One routing socket for the whole process, and a thread that does nothing but listen to it: the
 * time between the news that an interface goes and its end is short (devmem_source.c says what
 * for).
 */
#include "net/nic/nic_watch.h"

#include "base/fork.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Guards all of it; what the thread reads stays as it is as long as there is one. */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static pthread_t watcher;
static int news = -1;
static int stop = -1;
static void (*tell)(unsigned ifindex);

static void look_at(const struct nlmsghdr *message)
{
    struct ifinfomsg interface;

    if ((message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) ||
        message->nlmsg_len < NLMSG_LENGTH(sizeof interface))
        return;
    memcpy(&interface, NLMSG_DATA(message), sizeof interface);
    /* A bridge that loses a port says so in the same words. */
    if (interface.ifi_index > 0 && interface.ifi_family == AF_UNSPEC &&
        (message->nlmsg_type == RTM_DELLINK || (interface.ifi_flags & IFF_UP) == 0))
        tell((unsigned)interface.ifi_index);
}

static void look_at_all(const void *bytes, size_t left)
{
    for (const struct nlmsghdr *message = bytes; NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left))
        look_at(message);
}

/*
 * ENOBUFS: the socket was full, and the kernel drops messages. It says so once, and goes on
 * dropping until the socket has been emptied: so those who have to look do it at once, and again
 * then. A message that is too long is lost, too.
 */
static void hear(void)
{
    _Alignas(struct nlmsghdr) char bytes[16384];
    bool lost = false;

    for (;;) {
        ssize_t got = recv(news, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);

        if (got > (ssize_t)sizeof bytes || (got < 0 && errno == ENOBUFS)) {
            lost = true;
            tell(NIC_WATCH_LOST);
        } else if (got > 0) {
            look_at_all(bytes, (size_t)got);
        } else if (got == 0 || errno != EINTR) {
            break;
        }
    }
    if (lost)
        tell(NIC_WATCH_LOST);
}

/* By its name, which may change between the two calls; then it is asked for again. */
bool nic_watch_is_up(unsigned ifindex)
{
    enum { TRIES = 10 };
    struct ifreq interface = {.ifr_flags = 0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_up = fd < 0; /* nothing is known: nothing is ended */

    for (int i = 0; i < TRIES && fd >= 0; i++) {
        interface.ifr_ifindex = (int)ifindex;
        if (ioctl(fd, SIOCGIFNAME, &interface) != 0)
            break;
        if (ioctl(fd, SIOCGIFFLAGS, &interface) == 0) {
            is_up = (interface.ifr_flags & IFF_UP) != 0;
            break;
        }
    }
    if (fd >= 0)
        close(fd);
    return is_up;
}

static void *watch(void *unused)
{
    struct pollfd both[2] = {{.fd = news, .events = POLLIN}, {.fd = stop, .events = POLLIN}};

    pthread_setname_np(pthread_self(), "tcpx-nics");
    while (both[1].revents == 0)
        if (poll(both, 2, -1) > 0 && both[0].revents != 0)
            hear();
    return unused;
}

/* -1: errno says why. */
static int open_news(void)
{
    struct sockaddr_nl links = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

    if (fd >= 0 && bind(fd, (struct sockaddr *)&links, sizeof links) != 0) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int open_stop(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static int open_for_us(int (*open)(void), int *fd)
{
    int error;

    fork_hold();
    *fd = open();
    error = errno;
    if (!fork_release(*fd)) {
        *fd = -1;
        error = ENOMEM;
    }
    return *fd >= 0 ? TCPX_SUCCESS
                    : error_system(error, "cannot listen to what becomes of interfaces");
}

static void close_ours(int *fd)
{
    if (*fd >= 0)
        fork_close(*fd);
    *fd = -1;
}

/* A program's signals are handled by its own threads. */
static int start_thread(void)
{
    sigset_t all;
    sigset_t before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&watcher, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? TCPX_SUCCESS
                      : error_system(error, "cannot start a thread that watches interfaces");
}

static int start(void)
{
    int result = open_for_us(open_news, &news);

    if (result == TCPX_SUCCESS)
        result = open_for_us(open_stop, &stop);
    if (result == TCPX_SUCCESS)
        result = start_thread();
    if (result != TCPX_SUCCESS) {
        close_ours(&news);
        close_ours(&stop);
    }
    return result;
}

int nic_watch_begin(void (*down)(unsigned ifindex))
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&watch_lock);
    if (users == 0) {
        tell = down;
        result = start();
    }
    users += result == TCPX_SUCCESS;
    pthread_mutex_unlock(&watch_lock);
    return result;
}

void nic_watch_end(void)
{
    const uint64_t one = 1;

    pthread_mutex_lock(&watch_lock);
    if (--users == 0 && write(stop, &one, sizeof one) == (ssize_t)sizeof one) {
        pthread_join(watcher, NULL);
        close_ours(&news);
        close_ours(&stop);
    }
    pthread_mutex_unlock(&watch_lock);
}
