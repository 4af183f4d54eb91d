#include "kernel_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/udmabuf.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static char reason[256];

void die_usage(const char *usage)
{
    fputs(usage, stderr);
    exit(2);
}

int interface_index(const char *name)
{
    unsigned index = if_nametoindex(name);

    if (index == 0)
        die(1, "%s: %s", name, strerror(errno));
    return (int)index;
}

/* --- netlink ----------------------------------------------------------------------------------*/

int netlink_open(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK};
    struct timeval limit = {.tv_sec = 20};
    int yes = 1;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        setsockopt(fd, SOL_NETLINK, NETLINK_EXT_ACK, &yes, sizeof yes) < 0 ||
        setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &yes, sizeof yes) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) < 0)
        die(1, "netlink: %s", strerror(errno));
    return fd;
}

void request_start(struct request *request, uint16_t family, uint8_t command, uint16_t flags)
{
    struct nlmsghdr header = {.nlmsg_type = family, .nlmsg_flags = NLM_F_REQUEST | flags};
    struct genlmsghdr generic = {.cmd = command, .version = 1};

    memset(request, 0, sizeof *request);
    memcpy(request->bytes, &header, sizeof header);
    memcpy(request->bytes + NLMSG_HDRLEN, &generic, sizeof generic);
    request->length = NLMSG_HDRLEN + GENL_HDRLEN;
}

void request_put(struct request *request, uint16_t type, const void *value, size_t length)
{
    struct nlattr attribute = {.nla_type = type, .nla_len = (uint16_t)(NLA_HDRLEN + length)};

    if (request->length + NLA_ALIGN(attribute.nla_len) > sizeof request->bytes)
        die(1, "a netlink request of more than %zu bytes", sizeof request->bytes);
    memcpy(request->bytes + request->length, &attribute, sizeof attribute);
    if (length > 0)
        memcpy(request->bytes + request->length + NLA_HDRLEN, value, length);
    request->length += NLA_ALIGN(attribute.nla_len);
}

void request_put_u32(struct request *request, uint16_t type, uint32_t value)
{
    request_put(request, type, &value, sizeof value);
}

size_t request_nest(struct request *request, uint16_t type)
{
    size_t nest = request->length;

    request_put(request, type | NLA_F_NESTED, NULL, 0);
    return nest;
}

void request_nest_end(struct request *request, size_t nest)
{
    uint16_t length = (uint16_t)(request->length - nest);

    memcpy(request->bytes + nest + offsetof(struct nlattr, nla_len), &length, sizeof length);
}

const void *attribute(const struct nlattr *first, size_t length, uint16_t type)
{
    const uint8_t *at = (const uint8_t *)first;

    while (length >= NLA_HDRLEN) {
        struct nlattr header;

        memcpy(&header, at, sizeof header);
        if (header.nla_len < NLA_HDRLEN || header.nla_len > length)
            break;
        if ((header.nla_type & NLA_TYPE_MASK) == type)
            return at + NLA_HDRLEN;
        if ((size_t)NLA_ALIGN(header.nla_len) >= length)
            break;
        at += NLA_ALIGN(header.nla_len);
        length -= NLA_ALIGN(header.nla_len);
    }
    return NULL;
}

uint64_t attribute_number(const struct nlattr *first, size_t length, uint16_t type,
                          uint64_t missing)
{
    const uint8_t *value = attribute(first, length, type);
    struct nlattr header;
    uint32_t narrow;
    uint64_t wide;

    if (value == NULL)
        return missing;
    memcpy(&header, value - NLA_HDRLEN, sizeof header);
    if (header.nla_len == NLA_HDRLEN + sizeof wide) {
        memcpy(&wide, value, sizeof wide);
        return wide;
    }
    memcpy(&narrow, value, sizeof narrow);
    return narrow;
}

/* The text that came with an error. */
static void keep_reason(const struct nlmsghdr *message)
{
    const struct nlmsgerr *error = NLMSG_DATA(message);
    size_t before = sizeof *error;
    const char *text;

    reason[0] = '\0';
    if (!(message->nlmsg_flags & NLM_F_ACK_TLVS))
        return;
    if (!(message->nlmsg_flags & NLM_F_CAPPED))
        before += error->msg.nlmsg_len - NLMSG_HDRLEN;
    if (message->nlmsg_len < NLMSG_HDRLEN + before)
        return;
    text = attribute((const void *)((const uint8_t *)error + before),
                     message->nlmsg_len - NLMSG_HDRLEN - before, NLMSGERR_ATTR_MSG);
    if (text != NULL)
        snprintf(reason, sizeof reason, ": %s", text);
}

const char *netlink_reason(void)
{
    return reason;
}

/* Whether that was the last; then *error is what it said. */
static int read_message(const struct nlmsghdr *message, answer_reader reader, void *context,
                        int *error)
{
    size_t before = NLMSG_HDRLEN + GENL_HDRLEN;

    if (message->nlmsg_type == NLMSG_ERROR) {
        keep_reason(message);
        *error = -((const struct nlmsgerr *)NLMSG_DATA(message))->error;
        return 1;
    }
    if (message->nlmsg_type == NLMSG_DONE) {
        *error = 0;
        return 1;
    }
    if (reader != NULL && message->nlmsg_len > before)
        reader((const void *)((const uint8_t *)message + before), message->nlmsg_len - before,
               context);
    return 0;
}

int netlink_ask(int netlink, struct request *request, answer_reader reader, void *context)
{
    static _Alignas(struct nlmsghdr) uint8_t answers[32768];
    uint32_t length = (uint32_t)request->length;
    int error;

    reason[0] = '\0';
    memcpy(request->bytes + offsetof(struct nlmsghdr, nlmsg_len), &length, sizeof length);
    if (send(netlink, request->bytes, request->length, 0) < 0)
        die(1, "netlink: %s", strerror(errno));
    for (;;) {
        ssize_t got = recv(netlink, answers, sizeof answers, 0);
        unsigned left;

        if (got < 0)
            die(1, "netlink: %s", strerror(errno));
        left = (unsigned)got;
        for (const struct nlmsghdr *message = (void *)answers; NLMSG_OK(message, left);
             message = NLMSG_NEXT(message, left))
            if (read_message(message, reader, context, &error))
                return error;
    }
}

static void read_family(const struct nlattr *first, size_t length, void *context)
{
    const void *id = attribute(first, length, CTRL_ATTR_FAMILY_ID);

    if (id != NULL)
        memcpy(context, id, sizeof(uint16_t));
}

uint16_t netlink_family(int netlink, const char *name)
{
    struct request request;
    uint16_t family = 0;
    int error;

    request_start(&request, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, NLM_F_ACK);
    request_put(&request, CTRL_ATTR_FAMILY_NAME, name, strlen(name) + 1);
    error = netlink_ask(netlink, &request, read_family, &family);
    if (error != 0 || family == 0)
        die(1, "netlink family %s: %s", name, strerror(error));
    return family;
}

/* --- device memory ----------------------------------------------------------------------------*/

void dmabuf_make(struct dmabuf *dmabuf, size_t size)
{
    struct udmabuf_create create = {.size = size};
    int driver = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    int memory = memfd_create("device", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    if (driver < 0)
        die(1, "/dev/udmabuf: %s", strerror(errno));
    if (memory < 0 || ftruncate(memory, (off_t)size) < 0 ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        die(1, "a memfd of %zu bytes: %s", size, strerror(errno));
    create.memfd = (uint32_t)memory;
    dmabuf->size = size;
    dmabuf->fd = ioctl(driver, UDMABUF_CREATE, &create);
    if (dmabuf->fd < 0)
        die(1, "a udmabuf of %zu bytes: %s", size, strerror(errno));
    dmabuf->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (dmabuf->memory == MAP_FAILED)
        die(1, "mmap of %zu bytes: %s", size, strerror(errno));
    close(memory);
    close(driver);
}

static void read_id(const struct nlattr *first, size_t length, void *context)
{
    *(uint32_t *)context = (uint32_t)attribute_number(first, length, DMABUF_ID, 0);
}

static uint32_t ask_bind(int netlink, struct request *request, const char *what)
{
    uint32_t id = 0;
    int error = netlink_ask(netlink, request, read_id, &id);

    if (error != 0)
        die(1, "%s: %s%s", what, strerror(error), netlink_reason());
    return id;
}

uint32_t bind_receive(int netlink, int ifindex, int dmabuf_fd, uint32_t queue)
{
    struct request request;
    size_t nest;

    request_start(&request, netlink_family(netlink, "netdev"), NETDEV_BIND_RX, NLM_F_ACK);
    request_put_u32(&request, DMABUF_IFINDEX, (uint32_t)ifindex);
    request_put_u32(&request, DMABUF_FD, (uint32_t)dmabuf_fd);
    nest = request_nest(&request, DMABUF_QUEUES);
    request_put_u32(&request, QUEUE_ID, queue);
    request_put_u32(&request, QUEUE_TYPE, 0);
    request_nest_end(&request, nest);
    return ask_bind(netlink, &request, "bind-rx");
}

uint32_t bind_send(int netlink, int ifindex, int dmabuf_fd)
{
    struct request request;

    request_start(&request, netlink_family(netlink, "netdev"), NETDEV_BIND_TX, NLM_F_ACK);
    request_put_u32(&request, DMABUF_IFINDEX, (uint32_t)ifindex);
    request_put_u32(&request, DMABUF_FD, (uint32_t)dmabuf_fd);
    return ask_bind(netlink, &request, "bind-tx");
}
