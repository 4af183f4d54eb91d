/*
 * One routing socket for the whole process, and a thread that only reads it: an interface that goes
 * down may be removed soon after (devmem_source.c has the reason).
 */
#include "net/nic/nic.h"

#include "base/fork.h"
#include "net/nic/netlink.h"

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

/* Guards the variables below; held while the thread, which reads them, starts and ends. */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static pthread_t watcher;
static struct netlink links = {.fd = -1};
static int stop = -1;
static void (*report_down)(unsigned ifindex);

static void watch_read_message(const struct nlmsghdr *message)
{
    struct ifinfomsg interface;

    if ((message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) ||
        message->nlmsg_len < NLMSG_LENGTH(sizeof interface))
        return;
    memcpy(&interface, NLMSG_DATA(message), sizeof interface);
    /* A bridge that loses a port sends the same message with its own family. */
    if (interface.ifi_index > 0 && interface.ifi_family == AF_UNSPEC &&
        (message->nlmsg_type == RTM_DELLINK || (interface.ifi_flags & IFF_UP) == 0))
        report_down((unsigned)interface.ifi_index);
}

/*
 * ENOBUFS: the socket was full, and the kernel drops messages. It reports that once, and goes on
 * dropping until the socket has been emptied: so the loss is reported at once, and again then. A
 * message that is too long is lost, too.
 */
static void watch_read_socket(void)
{
    _Alignas(struct nlmsghdr) char bytes[16384];
    bool lost = false;

    for (;;) {
        ssize_t got = recv(links.fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);

        if (got > (ssize_t)sizeof bytes || (got < 0 && errno == ENOBUFS)) {
            lost = true;
            report_down(NIC_WATCH_LOST);
        } else if (got > 0) {
            for (struct nlmsghdr *message = (struct nlmsghdr *)bytes; NLMSG_OK(message, got);
                 message = NLMSG_NEXT(message, got))
                watch_read_message(message);
        } else if (got == 0 || errno != EINTR) {
            break;
        }
    }
    if (lost)
        report_down(NIC_WATCH_LOST);
}

/* By its name, which may change between the two calls: then both are made again. */
bool nic_watch_is_up(unsigned ifindex)
{
    enum { TRIES = 10 };
    struct ifreq interface = {.ifr_flags = 0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is_up = fd < 0; /* unknown: nothing is ended */

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

static void *watch_run(void *unused)
{
    struct pollfd both[2] = {{.fd = links.fd, .events = POLLIN}, {.fd = stop, .events = POLLIN}};

    pthread_setname_np(pthread_self(), "tcpx-nics");
    while (both[1].revents == 0)
        if (poll(both, 2, -1) > 0 && both[0].revents != 0)
            watch_read_socket();
    return unused;
}

static void watch_close(void)
{
    netlink_close(&links);
    if (stop >= 0)
        fork_close(stop);
    stop = -1;
}

/* A forked child closes its copies of both descriptors. */
static int watch_open(void)
{
    const struct sockaddr_nl group = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    int error = netlink_open(NETLINK_ROUTE, true, &links);

    if (error == 0 && bind(links.fd, (const struct sockaddr *)&group, sizeof group) != 0)
        error = errno;
    if (error == 0) {
        fork_hold();
        stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        error = stop < 0 ? errno : 0;
        if (!fork_release(stop)) {
            stop = -1;
            error = ENOMEM;
        }
    }
    return error == 0 ? TCPX_SUCCESS
                      : error_system(error, "cannot listen to what becomes of interfaces");
}

/* A program's signals are handled by its own threads. */
static int watch_start_thread(void)
{
    sigset_t all;
    sigset_t before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&watcher, NULL, watch_run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? TCPX_SUCCESS
                      : error_system(error, "cannot start a thread that watches interfaces");
}

int nic_watch_begin(void (*down)(unsigned ifindex))
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&watch_lock);
    if (users == 0) {
        report_down = down;
        result = watch_open();
        if (result == TCPX_SUCCESS)
            result = watch_start_thread();
        if (result != TCPX_SUCCESS)
            watch_close();
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
        watch_close();
    }
    pthread_mutex_unlock(&watch_lock);
}
