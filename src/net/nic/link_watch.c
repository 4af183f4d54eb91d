/*
 * A routing socket and a thread that only reads it, for as long as there are users: an interface
 * that goes down may be removed soon after (devmem_source.c has the reason). A new watch can begin
 * while the thread of the last one still ends.
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
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Constant while the thread runs. */
struct watch {
    void (*down)(unsigned ifindex);
    struct netlink links;
    int stop; /* an eventfd that ends the thread */
    pthread_t thread;
};

/* Guards both. Not held while a thread ends: it may be in a long call of `down`. */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static struct watch *current; /* NULL: there are no users */

static void watch_read_message(const struct watch *watch, const struct nlmsghdr *message)
{
    struct ifinfomsg interface;

    if ((message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) ||
        message->nlmsg_len < NLMSG_LENGTH(sizeof interface))
        return;
    memcpy(&interface, NLMSG_DATA(message), sizeof interface);
    /* A bridge that loses a port sends the same message with its own family. */
    if (interface.ifi_index > 0 && interface.ifi_family == AF_UNSPEC &&
        (message->nlmsg_type == RTM_DELLINK || (interface.ifi_flags & IFF_UP) == 0))
        watch->down((unsigned)interface.ifi_index);
}

/*
 * ENOBUFS: the socket was full, and the kernel drops messages. It reports that once, and goes on
 * dropping until the socket has been emptied: so the loss is reported at once, and again then. A
 * message that is too long is lost, too.
 */
static void watch_read_socket(const struct watch *watch)
{
    _Alignas(struct nlmsghdr) char bytes[16384];
    bool lost = false;

    for (;;) {
        ssize_t got = recv(watch->links.fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);

        if (got > (ssize_t)sizeof bytes || (got < 0 && errno == ENOBUFS)) {
            lost = true;
            watch->down(NIC_WATCH_LOST);
        } else if (got > 0) {
            for (struct nlmsghdr *message = (struct nlmsghdr *)bytes; NLMSG_OK(message, got);
                 message = NLMSG_NEXT(message, got))
                watch_read_message(watch, message);
        } else if (got == 0 || errno != EINTR) {
            break;
        }
    }
    if (lost)
        watch->down(NIC_WATCH_LOST);
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

static void *watch_run(void *argument)
{
    const struct watch *watch = argument;
    struct pollfd both[2] = {{.fd = watch->links.fd, .events = POLLIN},
                             {.fd = watch->stop, .events = POLLIN}};

    pthread_setname_np(pthread_self(), "tcpx-nics");
    while (both[1].revents == 0)
        if (poll(both, 2, -1) > 0 && both[0].revents != 0)
            watch_read_socket(watch);
    return NULL;
}

static void watch_close(struct watch *watch)
{
    netlink_close(&watch->links);
    if (watch->stop >= 0)
        fork_close(watch->stop);
    free(watch);
}

/* A forked child closes its copies of both descriptors. */
static int watch_open(struct watch *watch)
{
    const struct sockaddr_nl group = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    int error = netlink_open(NETLINK_ROUTE, true, &watch->links);

    if (error == 0 && bind(watch->links.fd, (const struct sockaddr *)&group, sizeof group) != 0)
        error = errno;
    if (error == 0) {
        fork_hold();
        watch->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        error = watch->stop < 0 ? errno : 0;
        if (!fork_release(watch->stop)) {
            watch->stop = -1;
            error = ENOMEM;
        }
    }
    return error == 0 ? TCPX_SUCCESS
                      : error_system(error, "cannot listen to what becomes of interfaces");
}

/* A program's signals are handled by its own threads. */
static int watch_start_thread(struct watch *watch)
{
    sigset_t all;
    sigset_t before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&watch->thread, NULL, watch_run, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 ? TCPX_SUCCESS
                      : error_system(error, "cannot start a thread that watches interfaces");
}

static int watch_create(void (*down)(unsigned ifindex), struct watch **out)
{
    struct watch *watch = malloc(sizeof *watch);
    int result;

    if (watch == NULL)
        return error_system(ENOMEM, "a watch of interfaces");
    *watch = (struct watch){.down = down, .links.fd = -1, .stop = -1};
    result = watch_open(watch);
    if (result == TCPX_SUCCESS)
        result = watch_start_thread(watch);
    if (result == TCPX_SUCCESS)
        *out = watch;
    else
        watch_close(watch);
    return result;
}

int nic_watch_begin(void (*down)(unsigned ifindex))
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&watch_lock);
    if (users == 0)
        result = watch_create(down, &current);
    users += result == TCPX_SUCCESS;
    pthread_mutex_unlock(&watch_lock);
    return result;
}

void nic_watch_end(void)
{
    const uint64_t one = 1;
    struct watch *ended = NULL;

    pthread_mutex_lock(&watch_lock);
    if (--users == 0) {
        ended = current;
        current = NULL;
    }
    pthread_mutex_unlock(&watch_lock);
    if (ended != NULL && write(ended->stop, &one, sizeof one) == (ssize_t)sizeof one) {
        pthread_join(ended->thread, NULL);
        watch_close(ended);
    }
}
