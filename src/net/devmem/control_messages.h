/*
 * Reads the control messages of one recvmsg call on a devmem socket, of either kernel, and appends
 * what they describe to a scatter list and to the socket's tokens. Every answer of the kernel ends
 * in success or in an error with a text, and no page that the kernel handed out is forgotten. The
 * devmem part of the transport calls it after each recvmsg.
 */
#ifndef TCPX_NET_DEVMEM_CONTROL_MESSAGES_H
#define TCPX_NET_DEVMEM_CONTROL_MESSAGES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "net/devmem/scatter_list.h"

enum devmem_layout {
    DEVMEM_LAYOUT_MAINLINE, /* Linux since 6.12 */
    DEVMEM_LAYOUT_LEGACY    /* the GPUDirect-TCPX kernel that came before */
};

/* One call of recvmsg: what it returned, and what its bytes are to be checked against. */
struct devmem_call {
    enum devmem_layout layout;
    const struct msghdr *message; /* as recvmsg left it */
    ssize_t received;             /* its return value, not negative */
    uint32_t dmabuf_id;           /* mainline: of the binding whose pages may come */
    uint64_t pool_size;
    uint64_t destination_offset; /* of the first byte received, in the message */

    /*
     * The kernel packs the bytes that are not in the pool from the start of the iovec on. It
     * begins host_offset bytes into a host buffer of host_size.
     */
    uint64_t host_offset;
    uint64_t host_size;
};

/*
 * Appends the fragments and tokens of one call. A linear fragment is as good as a device one; a
 * call without any devmem message gave all of its bytes to the iovec and becomes one host fragment.
 * An empty fragment leaves its token and nothing else. Timestamps and TCP_CM_INQ, which the owner
 * of a socket may ask for, are skipped; every other message is a problem, since it might describe
 * bytes, and taking those for plain data would corrupt the message.
 *
 * On an error the scatter list is as it was. The tokens of all messages that could be read, also of
 * those behind the first problem, have been appended, because pages that never go back starve the
 * pool. The bytes of the call are lost, so the connection has to end; that returns what could not
 * be read.
 */
MUST_CHECK int control_messages_read(const struct devmem_call *call, struct scatter_list *scatter,
                                     struct token_list *tokens);

/*
 * Bytes of control buffer for exactly `fragments` messages. The kernel stops where the buffer is
 * full and leaves the rest in the socket, so a buffer made for the room that is left in both lists
 * never meets a full one.
 */
size_t control_messages_space(enum devmem_layout layout, uint32_t fragments);

#endif
