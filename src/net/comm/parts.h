/*
 * Messages that are lists of parts: which memory a range of the message is. For requests in host
 * memory the socket calls get the parts as they are; for GPU memory they are copied one by one.
 */
#ifndef TCPX_NET_COMM_PARTS_H
#define TCPX_NET_COMM_PARTS_H

#include "net/comm/comm_state.h"

#include <sys/uio.h>

/* The most parts that one system call or one copy of a slot takes. */
enum { PARTS_OF_CALL = 512, PARTS_OF_COPY = 64 };

/*
 * Lists the memory of `bytes` of the message from `offset` on, as far as `most` vectors go; of a
 * request without parts it is one. Returns how many there are, without empty ones, and in *covered
 * how many bytes.
 */
unsigned parts_list(const struct net_request *request, uint64_t offset, uint64_t bytes,
                    struct iovec *list, unsigned most, uint64_t *covered);

/* Copies a range of a message in host memory to `to`; the first bytes of one from `from`. */
void parts_copy_out(const struct net_request *request, uint64_t offset, uint8_t *to,
                    uint64_t bytes);
void parts_copy_in(const struct net_request *request, const uint8_t *from, uint64_t bytes);

#endif
