/*
 * Messages that are lists of parts: which memory a range of the message is. In host memory the
 * socket calls get the parts as they are.
 */
#ifndef TCPX_NET_COMM_PARTS_H
#define TCPX_NET_COMM_PARTS_H

#include "net/comm/comm_state.h"

#include <sys/uio.h>

/* The most parts that one system call takes. */
enum { PARTS_OF_CALL = 512 };

/*
 * Lists the memory of `bytes` of the message from `offset` on, as far as `most` vectors go; of a
 * request without parts it is one. Returns how many there are, without empty ones, and in *covered
 * how many bytes. The range is inside the message.
 */
unsigned parts_list(const struct net_request *request, uint64_t offset, uint64_t bytes,
                    struct iovec *list, unsigned most, uint64_t *covered);

/* The memory at `offset`; *bytes: how many are wanted, and how many are contiguous there. */
uint8_t *parts_at(const struct net_request *request, uint64_t offset, uint64_t *bytes);

/* Copies a range of a message in host memory to `to`; the first bytes of one from `from`. */
void parts_copy_out(const struct net_request *request, uint64_t offset, uint8_t *to,
                    uint64_t bytes);
void parts_copy_in(const struct net_request *request, const uint8_t *from, uint64_t bytes);

#endif
