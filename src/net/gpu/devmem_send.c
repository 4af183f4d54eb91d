/*
 * Sending GPU memory by devmem TCP: the socket is told a place in a dma-buf instead of an address,
 * the NIC reads it there, and the bytes count as sent when the peer has them.
 */
#include "net/comm/comm_state.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "net/nic/nic_binding.h"
#include "net/devmem/devmem_uapi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* --- whether to ---------------------------------------------------------------------------- */

/* The kernel drops what leaves through another NIC than the one that the memory is bound to. */
static int check_route(const struct net_comm *comm, int socket)
{
    const struct net_device *device = &comm->link.device;
    struct sockaddr_storage from = {0};
    struct sockaddr_storage to = {0};
    socklen_t length = sizeof from;
    unsigned ifindex = 0;
    int result;

    if (getsockname(socket, (struct sockaddr *)&from, &length) != 0)
        return error_system(errno, "the address of a connection");
    length = sizeof to;
    if (getpeername(socket, (struct sockaddr *)&to, &length) != 0)
        return error_system(errno, "the address of a peer");
    result = nic_of_route(&from, &to, &ifindex);
    if (result == TCPX_SUCCESS && ifindex != (unsigned)device->ifindex) {
        char name[IF_NAMESIZE] = "?";

        return error_set(TCPX_SYSTEM_ERROR, "the route to %s leads through %s", comm->link.peer,
                         if_indextoname(ifindex, name) != NULL ? name : "another interface");
    }
    return result;
}

/* Several routes of the same length may share the connections. */
static int check_routes(const struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        result = check_route(comm, comm->link.forward[i]);
    return result;
}

/* With the lock. */
static int allow_on_all(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < comm->link.sockets && result == TCPX_SUCCESS; i++) {
        struct outgoing *outgoing = &comm->outgoing[i];

        if (outgoing->by_reference == NULL)
            outgoing->by_reference = calloc(1, sizeof *outgoing->by_reference);
        result = outgoing->by_reference != NULL ? zerocopy_allow(comm->link.forward[i])
                                                : error_system(ENOMEM, "sends without a copy");
    }
    return result;
}

/* Once for a comm, when there is something that can be sent. */
static int begin(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&comm->lock);
    if (!comm->sends_by_reference) {
        result = allow_on_all(comm);
        comm->sends_by_reference = result == TCPX_SUCCESS;
        if (comm->sends_by_reference)
            log_tcpx("%s sends to %s by devmem TCP", comm->link.device.name, comm->link.peer);
    }
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* Without the lock, since the kernel may take its time. */
static int take_source(struct net_comm *comm, gpu_address address, uint64_t bytes,
                       struct devmem_source **source)
{
    int result = comm->sends_by_reference ? TCPX_SUCCESS : check_routes(comm);

    if (result == TCPX_SUCCESS)
        result = devmem_source_take(&comm->link.device, staging_gpu(&comm->gpu.share), address,
                                    bytes, source);
    if (result != TCPX_SUCCESS)
        return result;
    result = begin(comm);
    if (result != TCPX_SUCCESS) {
        devmem_source_give(*source);
        *source = NULL;
    }
    return result;
}

int devmem_send_register(struct net_comm *comm, gpu_address address, uint64_t bytes,
                         struct devmem_source **source)
{
    const struct net_device *device = &comm->link.device;
    const struct config *config;
    int result = config_get(&config);

    *source = NULL;
    if (result != TCPX_SUCCESS || comm->side != NET_SENDER || device->ifindex <= 0 ||
        device->is_loopback || config->devmem == CONFIG_DEVMEM_OFF || config->soft_devmem != 0 ||
        atomic_load(&comm->stages_instead))
        return result;
    result = take_source(comm, address, bytes, source);
    if (result == TCPX_SUCCESS || config->devmem == CONFIG_DEVMEM_ON)
        return result;
    log_tcpx("%s sends to %s without devmem TCP: %s", device->name, comm->link.peer, error_text());
    atomic_store(&comm->stages_instead, true);
    return TCPX_SUCCESS;
}

/* --- sending ------------------------------------------------------------------------------- */

/* The lock is free. Returns as sendmsg() does; ENOBUFS: too many are under way. */
ssize_t devmem_send_some(int socket, uint32_t source_id, uint64_t at, uint64_t bytes)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(uint32_t))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(uint32_t)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = DEVMEM_SCM_DMABUF}};
    struct iovec place = {.iov_base = (void *)(uintptr_t)at, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &place,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.bytes};

    memcpy(CMSG_DATA(&control.head), &source_id, sizeof source_id);
    return sendmsg(socket, &message, MSG_ZEROCOPY | MSG_NOSIGNAL | MSG_DONTWAIT);
}

void devmem_send_poll(struct net_comm *comm, unsigned socket)
{
    struct zerocopy *sends = comm->outgoing[socket].by_reference;
    void *request;
    uint64_t bytes;
    int result;

    if (sends == NULL || !zerocopy_is_flying(sends))
        return;
    result = zerocopy_hear(sends, comm->link.forward[socket]);
    if (result != TCPX_SUCCESS)
        comm_fail(comm, result);
    /* A connection that breaks tells all that was under way to be over, arrived or not. */
    else if (zerocopy_has_news(sends) && comm->lost_at == 0)
        comm_has_broken(comm, socket);
    while (comm->result == TCPX_SUCCESS && comm->lost_at == 0 &&
           zerocopy_take(sends, &request, &bytes))
        sender_moved(request, bytes);
}

bool devmem_send_is_flying(const struct net_comm *comm, unsigned socket)
{
    const struct zerocopy *sends = comm->outgoing[socket].by_reference;

    return sends != NULL && zerocopy_is_flying(sends);
}

/* --- the end ------------------------------------------------------------------------------- */

/* Another thread may be about to send. */
static bool has_or_may_have_sent(const struct net_comm *comm, unsigned socket)
{
    const struct net_request *request = comm->outgoing[socket].request;

    return devmem_send_is_flying(comm, socket) ||
           (request != NULL && request_is_referred_to(request));
}

/*
 * A socket goes on sending what it was given, also after shutdown() and close(), from memory that
 * its owner may overwrite now. A connect() to nowhere discards it and resets the connection.
 */
static void reset(const struct net_comm *comm, unsigned socket)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

    if (connect(comm->link.forward[socket], &nowhere, sizeof nowhere) != 0)
        log_warn("a connection to %s could not be reset: %s", comm->link.peer, strerror(errno));
}

void devmem_send_abort(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (has_or_may_have_sent(comm, i))
            reset(comm, i);
}

/* Whether sockets have taken all of its records, and of its bytes those that have not arrived. */
static bool may_arrive_whole(const struct net_comm *comm, const struct net_request *request)
{
    uint64_t bytes = request->moved;

    if (request->unsaid > 0)
        return false;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->outgoing[i].by_reference != NULL)
            bytes += zerocopy_bytes_of(comm->outgoing[i].by_reference, request);
    return bytes == request->bytes;
}

/* Whether the socket holds a part of a message that the peer could take for whole and right. */
static bool holds_part_of_whole(const struct net_comm *comm, unsigned socket)
{
    const struct zerocopy *sends = comm->outgoing[socket].by_reference;

    for (unsigned i = 0; sends != NULL && i < comm->used_requests; i++) {
        const struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_MOVING && request_is_referred_to(request) &&
            zerocopy_bytes_of(sends, request) > 0 && may_arrive_whole(comm, request))
            return true;
    }
    return false;
}

/* Notices that a connection has broken are notices, too: nothing is sent there any more. */
static bool hear_arrivals(struct net_comm *comm)
{
    bool waits = false;

    for (unsigned i = 0; i < comm->link.sockets; i++) {
        struct zerocopy *sends = comm->outgoing[i].by_reference;
        void *request;
        uint64_t bytes;

        if (sends == NULL || zerocopy_hear(sends, comm->link.forward[i]) != TCPX_SUCCESS)
            continue;
        while (zerocopy_take(sends, &request, &bytes))
            sender_moved(request, bytes);
    }
    for (unsigned i = 0; i < comm->link.sockets && !waits; i++)
        waits = holds_part_of_whole(comm, i);
    return waits;
}

/*
 * A reset also discards what lies in front of it in the same socket, and that may be messages in
 * host memory whose sends are done. So the peer gets CLOSE_MS to acknowledge. A message that some
 * bytes are missing of cannot be taken for whole, whatever becomes of the others: its sockets are
 * left alone.
 */
void devmem_send_close(struct net_comm *comm)
{
    enum { CLOSE_MS = 2000 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t deadline = deadline_after_ms(CLOSE_MS);

    if (comm->result != TCPX_SUCCESS) {
        devmem_send_abort(comm);
        return;
    }
    while (hear_arrivals(comm) && !deadline_passed(deadline))
        nanosleep(&pause, NULL);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (holds_part_of_whole(comm, i))
            reset(comm, i);
}
