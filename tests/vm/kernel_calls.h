/*
 * The kernel's side of devmem TCP as the programs of the virtual machine call it: netlink messages
 * byte by byte, dma-bufs from ordinary memory, and the numbers of the socket calls. None of it is
 * the library's, so that these programs can tell whether the library is right. A call that fails
 * ends the program, unless it returns an error.
 */
#pragma once

#include "tests/net/program.h"

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

/* Socket calls; the C library of Debian 12 does not have these yet. */
enum {
    SOCKET_DEVMEM_LINEAR = 78,
    SOCKET_DEVMEM_DMABUF = 79,
    SOCKET_DEVMEM_DONTNEED = 80,
    MESSAGE_DEVMEM = 0x2000000
};

/* The family "netdev": commands and attributes. */
enum {
    NETDEV_PAGE_POOL_GET = 5,
    NETDEV_QUEUE_GET = 10,
    NETDEV_BIND_RX = 13,
    NETDEV_BIND_TX = 15,

    DMABUF_IFINDEX = 1,
    DMABUF_QUEUES = 2,
    DMABUF_FD = 3,
    DMABUF_ID = 4,

    QUEUE_ID = 1,
    QUEUE_IFINDEX = 2,
    QUEUE_TYPE = 3,
    QUEUE_DMABUF = 5,

    POOL_ID = 1,
    POOL_IFINDEX = 2,
    POOL_INFLIGHT = 4,
    POOL_DETACH_TIME = 6,
    POOL_DMABUF = 7
};

/* The family "ethtool". */
enum {
    ETHTOOL_RINGS_SET = 16,
    RINGS_HEADER = 1,
    RINGS_TCP_DATA_SPLIT = 11,
    RINGS_HDS_THRESH = 17,
    HEADER_DEV_NAME = 2
};

struct received_fragment { /* of a control message */
    uint64_t offset;
    uint32_t size;
    uint32_t token;
    uint32_t dmabuf;
    uint32_t flags;
};

struct token_range {
    uint32_t start;
    uint32_t count;
};

void die_usage(const char *usage) __attribute__((noreturn));

int interface_index(const char *name);

/* --- netlink ----------------------------------------------------------------------------------*/

struct request {
    _Alignas(struct nlmsghdr) uint8_t bytes[1024];
    size_t length;
};

/* For each answer: its attributes. */
typedef void (*answer_reader)(const struct nlattr *first, size_t length, void *context);

int netlink_open(void);
uint16_t netlink_family(int netlink, const char *name);
void request_start(struct request *request, uint16_t family, uint8_t command, uint16_t flags);
void request_put(struct request *request, uint16_t type, const void *value, size_t length);
void request_put_u32(struct request *request, uint16_t type, uint32_t value);
size_t request_nest(struct request *request, uint16_t type);
void request_nest_end(struct request *request, size_t nest);

/* 0, or the errno; netlink_reason() is the kernel's text with it. */
int netlink_ask(int netlink, struct request *request, answer_reader reader, void *context);
const char *netlink_reason(void);

/* The value of an attribute; NULL when it is not there. */
const void *attribute(const struct nlattr *first, size_t length, uint16_t type);
/* A number of 4 or 8 bytes; missing when it is not there. */
uint64_t attribute_number(const struct nlattr *first, size_t length, uint16_t type,
                          uint64_t missing);

/* --- device memory ----------------------------------------------------------------------------*/

/* Memory that is also a dma-buf. */
struct dmabuf {
    uint8_t *memory;
    size_t size;
    int fd;
};

void dmabuf_make(struct dmabuf *dmabuf, size_t size);

/* The binding lasts as long as the socket. Both end the program with the kernel's words. */
uint32_t bind_receive(int netlink, int ifindex, int dmabuf_fd, uint32_t queue);
uint32_t bind_send(int netlink, int ifindex, int dmabuf_fd);
