/*
 * A pair of comms whose receiver has an unpack queue, and the part of NCCL's kernels: it knows only
 * the device handle, reads queue and bounce memory through the GPU, and counts receives by the
 * head. Every byte is checked where a kernel would have put it.
 */
#ifndef TCPX_TESTS_SUPPORT_UNPACK_PAIR_H
#define TCPX_TESTS_SUPPORT_UNPACK_PAIR_H

#include "tests/support/gpu_pair.h"

struct kernel {
    struct unpack_device_handle handle;
    uint64_t head;
};

struct unpack_pair {
    struct pair comms;
    struct kernel kernel;
    uint32_t largest;
    struct gpu_memory memory; /* a buffer for each slot, of the largest message and a page */
    struct net_memory *registered;
};

void unpack_open(struct unpack_pair *pair, const struct net_link_options *options,
                 uint32_t largest);
void unpack_close(struct unpack_pair *pair);

/* A receive into its buffer, which is marked before. *request: NULL if the comm is busy. */
int unpack_post(struct unpack_pair *pair, uint64_t receive, uint64_t room,
                struct net_request **request);

/* Where it is received. */
gpu_address unpack_buffer(const struct unpack_pair *pair, uint64_t receive);

/* In its slot: of descriptors. */
uint64_t unpack_count(const struct unpack_pair *pair, uint64_t receive);

/* As NCCL's: the head goes up first, and its slot is the receive's. Returns how many there were. */
uint64_t unpack_next(struct unpack_pair *pair, uint64_t receive);

/* The buffer holds the receive's text and nothing else. */
void unpack_check(const struct unpack_pair *pair, uint64_t receive, uint64_t bytes, uint64_t room);

/* A message from its send until it is unpacked and checked; the caller consumes it. */
void unpack_exchange(struct unpack_pair *pair, uint64_t receive, uint64_t bytes,
                     struct net_request **request);

#endif
