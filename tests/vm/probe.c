/*
 * Moves bytes over devmem TCP with nothing but the kernel's calls, to show that the virtual machine
 * can: one end receives into a dma-buf, the other sends from one, or from ordinary memory. All that
 * arrives is compared, wherever it lies, and every page is given back.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernel_calls.h"

static const char usage[] =
    "usage: probe receive DEVICE QUEUE PORT BYTES [KIB]     KIB: of the dma-buf, 16384\n"
    "       probe send DEVICE ADDRESS PORT BYTES device|ordinary\n";

enum {
    PERIOD = 257 * 4096, /* odd in pages, so that no two of them are alike for long */
    CHUNK = 64 << 10,    /* of one send */
    ROOM = 1 << 20,      /* of one receive */
    FRAGMENTS = 512,     /* of one receive */
    MOST_RANGES = 128,   /* that the kernel takes back in one call, */
    MOST_TOKENS = 1024,  /* and tokens in them */
    IN_FLIGHT = 16,      /* sends that are not complete */
    WAIT_SECONDS = 10,   /* for anything to happen */
    ALL_SECONDS = 60
};

/* Two periods, so that a piece of up to one of them can be compared at once. */
static const uint8_t *pattern(void)
{
    static uint8_t bytes[2 * PERIOD];
    uint64_t state = 0x9e3779b97f4a7c15;

    if (bytes[0] == 0) {
        for (size_t i = 0; i < PERIOD; i++) {
            state = state * 6364136223846793005 + 1442695040888963407;
            bytes[i] = bytes[PERIOD + i] = (uint8_t)(state >> 56 | (i == 0));
        }
    }
    return bytes;
}

static void limit_waits(int fd)
{
    struct timeval limit = {.tv_sec = WAIT_SECONDS};

    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0)
        die(1, "the time limit of a socket: %s", strerror(errno));
}

/* --- receiving --------------------------------------------------------------------------------*/

struct receiver {
    int fd;
    struct dmabuf dmabuf;
    uint32_t id;
    uint8_t *room;
    uint64_t total;
    uint64_t in_device;
    uint64_t linear;   /* beside device memory, */
    uint64_t ordinary; /* and in calls without any */
    struct token_range ranges[MOST_RANGES];
    size_t range_count;
    uint32_t token_count;
};

static void compare(struct receiver *receiver, const uint8_t *bytes, size_t length)
{
    while (length > 0) {
        size_t part = length < PERIOD ? length : PERIOD;

        if (memcmp(bytes, pattern() + receiver->total % PERIOD, part) != 0)
            die(1, "wrong bytes within %zu of byte %llu", part,
                (unsigned long long)receiver->total);
        receiver->total += part;
        bytes += part;
        length -= part;
    }
}

static void return_tokens(struct receiver *receiver)
{
    int freed;

    if (receiver->range_count == 0)
        return;
    freed = setsockopt(receiver->fd, SOL_SOCKET, SOCKET_DEVMEM_DONTNEED, receiver->ranges,
                       (socklen_t)(receiver->range_count * sizeof receiver->ranges[0]));
    if (freed < 0)
        die(1, "the return of tokens: %s", strerror(errno));
    if ((uint32_t)freed != receiver->token_count)
        die(1, "%d of %u tokens were taken back", freed, receiver->token_count);
    receiver->range_count = 0;
    receiver->token_count = 0;
}

static void keep_token(struct receiver *receiver, uint32_t token)
{
    struct token_range *last;

    if (receiver->range_count == MOST_RANGES || receiver->token_count == MOST_TOKENS)
        return_tokens(receiver);
    last = receiver->range_count > 0 ? &receiver->ranges[receiver->range_count - 1] : NULL;
    if (last != NULL && last->start + last->count == token)
        last->count++;
    else
        receiver->ranges[receiver->range_count++] = (struct token_range){token, 1};
    receiver->token_count++;
}

/* *linear: how much of the room was used. */
static void take_fragment(struct receiver *receiver, const struct cmsghdr *control, size_t *linear)
{
    struct received_fragment fragment;

    memcpy(&fragment, CMSG_DATA(control), sizeof fragment);
    if (control->cmsg_type == SOCKET_DEVMEM_LINEAR) {
        compare(receiver, receiver->room + *linear, fragment.size);
        *linear += fragment.size;
        receiver->linear += fragment.size;
        return;
    }
    if (fragment.dmabuf != receiver->id)
        die(1, "a fragment of dma-buf %u, not %u", fragment.dmabuf, receiver->id);
    if (fragment.size > receiver->dmabuf.size ||
        fragment.offset > receiver->dmabuf.size - fragment.size)
        die(1, "a fragment outside of the dma-buf: %u bytes at %llu", fragment.size,
            (unsigned long long)fragment.offset);
    compare(receiver, receiver->dmabuf.memory + fragment.offset, fragment.size);
    receiver->in_device += fragment.size;
    keep_token(receiver, fragment.token);
}

/* false: the end of the stream. */
static bool receive_some(struct receiver *receiver)
{
    static char controls[FRAGMENTS * CMSG_SPACE(sizeof(struct received_fragment))];
    struct iovec room = {receiver->room, ROOM};
    struct msghdr message = {.msg_iov = &room,
                             .msg_iovlen = 1,
                             .msg_control = controls,
                             .msg_controllen = sizeof controls};
    uint64_t before = receiver->total;
    size_t linear = 0;
    bool any = false;
    ssize_t got = recvmsg(receiver->fd, &message, MESSAGE_DEVMEM);

    if (got < 0)
        die(1, "recvmsg after %llu bytes: %s (errno %d)", (unsigned long long)before,
            strerror(errno), errno);
    for (struct cmsghdr *control = CMSG_FIRSTHDR(&message); control != NULL;
         control = CMSG_NXTHDR(&message, control)) {
        if (control->cmsg_level != SOL_SOCKET || (control->cmsg_type != SOCKET_DEVMEM_LINEAR &&
                                                  control->cmsg_type != SOCKET_DEVMEM_DMABUF))
            continue;
        take_fragment(receiver, control, &linear);
        any = true;
    }
    if (!any) {
        compare(receiver, receiver->room, (size_t)got);
        receiver->ordinary += (uint64_t)got;
    }
    if (receiver->total != before + (uint64_t)got)
        die(1, "fragments of %llu bytes in a call of %zd",
            (unsigned long long)(receiver->total - before), got);
    return_tokens(receiver);
    return got > 0;
}

static int accept_one(uint16_t port)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    int fd;

    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 1) < 0)
        die(1, "port %u: %s", port, strerror(errno));
    limit_waits(listener);
    puts("listening");
    fflush(stdout);
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die(1, "nobody connects to port %u: %s", port, strerror(errno));
    limit_waits(fd);
    close(listener);
    return fd;
}

static void receive_all(const char *device, uint32_t queue, uint16_t port, uint64_t bytes,
                        size_t kib)
{
    struct receiver receiver = {.room = malloc(ROOM)};
    int netlink = netlink_open();

    if (receiver.room == NULL)
        die(1, "out of memory");
    dmabuf_make(&receiver.dmabuf, kib << 10);
    receiver.id = bind_receive(netlink, interface_index(device), receiver.dmabuf.fd, queue);
    receiver.fd = accept_one(port);
    while (receive_some(&receiver))
        ;
    close(receiver.fd);
    close(netlink);
    printf("received %llu device %llu linear %llu ordinary %llu\n",
           (unsigned long long)receiver.total, (unsigned long long)receiver.in_device,
           (unsigned long long)receiver.linear, (unsigned long long)receiver.ordinary);
    if (receiver.total != bytes)
        die(1, "%llu bytes were expected", (unsigned long long)bytes);
    free(receiver.room);
}

/* --- sending ----------------------------------------------------------------------------------*/

struct sender {
    int fd;
    bool from_device;
    struct dmabuf dmabuf; /* one period */
    uint32_t id;
    uint32_t started; /* sends, */
    uint32_t complete;
};

/* Returns its length. */
static socklen_t parse_address(const char *text, uint16_t port, struct sockaddr_storage *address)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

    if (inet_pton(AF_INET, text, &four.sin_addr) == 1) {
        memcpy(address, &four, sizeof four);
        return sizeof four;
    }
    if (inet_pton(AF_INET6, text, &six.sin6_addr) != 1)
        die(1, "'%s' is not an address", text);
    memcpy(address, &six, sizeof six);
    return sizeof six;
}

/* Tries again while nobody listens. */
static int connect_to(const char *device, const char *text, uint16_t port)
{
    struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    struct sockaddr_storage address;
    socklen_t length = parse_address(text, port, &address);

    for (int tries = 0;; tries++) {
        int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0 ||
            setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device)) < 0)
            die(1, "a socket of %s: %s", device, strerror(errno));
        limit_waits(fd);
        if (connect(fd, (struct sockaddr *)&address, length) == 0)
            return fd;
        if (errno != ECONNREFUSED || tries == 20 * WAIT_SECONDS)
            die(1, "no connection to %s port %u: %s", text, port, strerror(errno));
        close(fd);
        nanosleep(&pause, NULL);
    }
}

/* Completions that are there, or, if it is to wait, at least one. */
static void reap(struct sender *sender, bool wait)
{
    for (;;) {
        char controls[256];
        struct msghdr message = {.msg_control = controls, .msg_controllen = sizeof controls};
        struct pollfd error = {.fd = sender->fd};
        struct sock_extended_err what;

        if (recvmsg(sender->fd, &message, MSG_ERRQUEUE) < 0) {
            if (errno != EAGAIN)
                die(1, "the error queue: %s", strerror(errno));
            if (!wait)
                return;
            if (poll(&error, 1, WAIT_SECONDS * 1000) <= 0)
                die(1, "send %u of %u is not complete", sender->complete, sender->started);
            continue;
        }
        if (CMSG_FIRSTHDR(&message) == NULL)
            die(1, "an empty completion");
        memcpy(&what, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof what);
        if (what.ee_origin != SO_EE_ORIGIN_ZEROCOPY || what.ee_errno != 0 || what.ee_code != 0 ||
            what.ee_info != sender->complete)
            die(1, "a completion of %u to %u with errno %u, code %u: %u was due", what.ee_info,
                what.ee_data, what.ee_errno, what.ee_code, sender->complete);
        sender->complete = what.ee_data + 1;
        wait = false;
    }
}

static ssize_t send_device(struct sender *sender, size_t offset, size_t length)
{
    char controls[CMSG_SPACE(sizeof sender->id)] = {0};
    struct iovec piece = {.iov_len = length};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = controls,
                             .msg_controllen = sizeof controls};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    ssize_t sent;

    /* An offset in the dma-buf stands where an address would. */
    memcpy(&piece.iov_base, &offset, sizeof offset);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SOCKET_DEVMEM_DMABUF;
    control->cmsg_len = CMSG_LEN(sizeof sender->id);
    memcpy(CMSG_DATA(control), &sender->id, sizeof sender->id);
    sent = sendmsg(sender->fd, &message, MSG_ZEROCOPY);
    if (sent < 0)
        die(1, "sendmsg of %zu bytes at %zu: %s", length, offset, strerror(errno));
    sender->started++;
    reap(sender, sender->started - sender->complete > IN_FLIGHT);
    return sent;
}

static ssize_t send_ordinary(struct sender *sender, size_t offset, size_t length)
{
    ssize_t sent = send(sender->fd, pattern() + offset, length, MSG_NOSIGNAL);

    if (sent < 0)
        die(1, "send of %zu bytes: %s", length, strerror(errno));
    return sent;
}

static void send_all(const char *device, const char *address, uint16_t port, uint64_t bytes,
                     bool from_device)
{
    struct sender sender = {.from_device = from_device};
    int netlink = netlink_open();
    uint64_t total = 0;
    int yes = 1;
    char rest;

    sender.fd = connect_to(device, address, port);
    if (from_device) {
        dmabuf_make(&sender.dmabuf, PERIOD);
        memcpy(sender.dmabuf.memory, pattern(), PERIOD);
        sender.id = bind_send(netlink, interface_index(device), sender.dmabuf.fd);
        if (setsockopt(sender.fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) < 0)
            die(1, "SO_ZEROCOPY: %s", strerror(errno));
    }
    while (total < bytes) {
        size_t offset = total % PERIOD;
        size_t length = bytes - total < CHUNK ? bytes - total : CHUNK;

        if (length > PERIOD - offset)
            length = PERIOD - offset;
        total += (uint64_t)(from_device ? send_device(&sender, offset, length)
                                        : send_ordinary(&sender, offset, length));
    }
    shutdown(sender.fd, SHUT_WR);
    while (sender.complete < sender.started)
        reap(&sender, true);
    if (recv(sender.fd, &rest, 1, 0) != 0)
        die(1, "the receiver did not end the connection: %s", strerror(errno));
    close(sender.fd);
    close(netlink);
    printf("sent %llu in %u device sends\n", (unsigned long long)total, sender.started);
}

int main(int argc, char **argv)
{
    uint64_t bytes;
    uint64_t port;

    if (argc < 6 || argc > 7)
        die_usage(usage);
    alarm(ALL_SECONDS);
    port = parse_number("the port", argv[4], 0, UINT16_MAX);
    bytes = parse_number("the bytes", argv[5], 0, UINT64_MAX / 2);
    if (strcmp(argv[1], "receive") == 0)
        receive_all(argv[2], (uint32_t)parse_number("the queue", argv[3], 0, UINT32_MAX),
                    (uint16_t)port, bytes,
                    argc == 7 ? parse_number("KIB", argv[6], 0, 1 << 20) : 16384);
    else if (strcmp(argv[1], "send") == 0 && argc == 7 &&
             (strcmp(argv[6], "device") == 0 || strcmp(argv[6], "ordinary") == 0))
        send_all(argv[2], argv[3], (uint16_t)port, bytes, strcmp(argv[6], "device") == 0);
    else
        die_usage(usage);
    return 0;
}
