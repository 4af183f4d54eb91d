/* Zero-copy sends from dma-bufs. */
#include "net/gpu/tx_dmabuf.h"

#include "base/config.h"
#include "base/log.h"
#include "net/comm/for_movers.h"
#include "net/devmem/devmem.h"
#include "net/nic/nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* --- whether to ---------------------------------------------------------------------------- */

/* The kernel drops what leaves through another NIC than the one that the memory is bound to. */
static int tx_dmabuf_check_route(const struct net_comm *comm, int socket)
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

/* Equal-cost routes may spread the connections over several NICs. */
static int tx_dmabuf_check_routes(const struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        result = tx_dmabuf_check_route(comm, comm->link.forward[i]);
    return result;
}

/* With the lock. */
static int tx_dmabuf_allow(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < comm->link.sockets && result == TCPX_SUCCESS; i++) {
        struct zerocopy **sends = &comm->gpu->zero_copy[i];

        if (*sends == NULL)
            *sends = calloc(1, sizeof **sends);
        result = *sends != NULL ? zerocopy_allow(comm->link.forward[i])
                                : error_system(ENOMEM, "sends without a copy");
    }
    return result;
}

/* Once for a comm, with its first memory that can be sent by reference. */
static int tx_dmabuf_begin(struct net_comm *comm)
{
    int result = TCPX_SUCCESS;

    comm_lock_take(&comm->lock);
    if (!comm->gpu->sends_by_reference) {
        result = tx_dmabuf_allow(comm);
        comm->gpu->sends_by_reference = result == TCPX_SUCCESS;
        comm->tx.zero_copy = comm->gpu->sends_by_reference;
        if (comm->gpu->sends_by_reference)
            log_tcpx("%s sends to %s by devmem TCP", comm->link.device.name, comm->link.peer);
    }
    comm_lock_release(&comm->lock);
    return result;
}

/* Called without the lock, since the kernel may take long. */
static int tx_dmabuf_take_source(struct net_comm *comm, gpu_address address, uint64_t bytes,
                                 struct devmem_source **source)
{
    int result = comm->gpu->sends_by_reference ? TCPX_SUCCESS : tx_dmabuf_check_routes(comm);

    if (result == TCPX_SUCCESS)
        result = devmem_source_take(&comm->link.device, comm->gpu->share.pool->gpu, address, bytes,
                                    source);
    if (result != TCPX_SUCCESS)
        return result;
    result = tx_dmabuf_begin(comm);
    if (result != TCPX_SUCCESS) {
        devmem_source_give(*source);
        *source = NULL;
    }
    return result;
}

int tx_dmabuf_register(struct net_comm *comm, gpu_address address, uint64_t bytes,
                       struct devmem_source **source)
{
    const struct net_device *device = &comm->link.device;
    const struct config *config;
    int result = config_get(&config);

    *source = NULL;
    if (result != TCPX_SUCCESS || comm->side != NET_SENDER || device->ifindex <= 0 ||
        device->is_loopback || config->devmem == CONFIG_DEVMEM_OFF || config->soft_devmem != 0 ||
        atomic_load(&comm->gpu->stages_instead))
        return result;
    result = tx_dmabuf_take_source(comm, address, bytes, source);
    if (result == TCPX_SUCCESS || config->devmem == CONFIG_DEVMEM_ON)
        return result;
    log_tcpx("%s sends to %s without devmem TCP: %s", device->name, comm->link.peer, error_text());
    atomic_store(&comm->gpu->stages_instead, true);
    return TCPX_SUCCESS;
}

/* --- sending ------------------------------------------------------------------------------- */

/* The lock is free. ENOBUFS: too many are in flight. */
static ssize_t tx_dmabuf_write(const struct net_comm *comm, unsigned socket)
{
    const struct outgoing *outgoing = &comm->tx.outgoing[socket];
    const struct request_gpu *gpu = &outgoing->request->gpu;
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(uint32_t))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(uint32_t)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = DEVMEM_SCM_DMABUF}};
    struct iovec place = {.iov_base = (void *)(uintptr_t)(gpu->source_at + outgoing->at),
                          .iov_len = outgoing->payload_left};
    struct msghdr message = {.msg_iov = &place,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.bytes};

    memcpy(CMSG_DATA(&control.head), &gpu->source_id, sizeof gpu->source_id);
    return sendmsg(comm->link.forward[socket], &message,
                   MSG_ZEROCOPY | MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void tx_dmabuf_taken(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    zerocopy_started(comm->gpu->zero_copy[socket], comm->tx.outgoing[socket].request, bytes);
}

static bool tx_dmabuf_is_ready(const struct net_request *request)
{
    return !request->gpu.gated;
}

static bool tx_dmabuf_has_room(struct net_comm *comm, unsigned socket)
{
    if (!zerocopy_has_room(comm->gpu->zero_copy[socket]))
        tx_dmabuf_poll(comm, socket);
    return zerocopy_has_room(comm->gpu->zero_copy[socket]);
}

static bool tx_dmabuf_explain(struct net_comm *comm, int error)
{
    if (error != EINVAL && error != ENODEV && error != EFAULT && error != EOPNOTSUPP)
        return false;
    error_keep_system(error,
                      "%s cannot send from GPU memory any more (it was shut down, or the route "
                      "to %s has changed)",
                      comm->link.device.name, comm->link.peer);
    comm_fail(comm, TCPX_SYSTEM_ERROR);
    return true;
}

const struct source_ops source_dmabuf = {.is_ready = tx_dmabuf_is_ready,
                                         .has_room = tx_dmabuf_has_room,
                                         .write = tx_dmabuf_write,
                                         .taken = tx_dmabuf_taken,
                                         .explain = tx_dmabuf_explain};

void tx_dmabuf_poll(struct net_comm *comm, unsigned socket)
{
    struct zerocopy *sends = comm->gpu->zero_copy[socket];
    void *request;
    uint64_t bytes;
    int result;

    COMM_LOCKED(comm);
    if (sends == NULL || !zerocopy_in_flight(sends))
        return;
    result = zerocopy_poll(sends, comm->link.forward[socket]);
    if (result != TCPX_SUCCESS)
        comm_fail(comm, result);
    /* If the connection failed, the kernel reports sends as completed that did not arrive. */
    else if (zerocopy_has_completed(sends) && comm->lost_at == 0)
        tx_connection_has_failed(comm, socket);
    while (comm->result == TCPX_SUCCESS && comm->lost_at == 0 &&
           zerocopy_take(sends, &request, &bytes))
        tx_moved(request, bytes);
}

bool tx_dmabuf_is_in_flight(const struct net_comm *comm, unsigned socket)
{
    const struct zerocopy *sends = comm->gpu->zero_copy[socket];

    return sends != NULL && zerocopy_in_flight(sends);
}

/* --- the end ------------------------------------------------------------------------------- */

/* Another thread may be about to send. */
static bool tx_dmabuf_may_be_in_flight(const struct net_comm *comm, unsigned socket)
{
    const struct net_request *request = comm->tx.outgoing[socket].request;

    return tx_dmabuf_is_in_flight(comm, socket) ||
           (request != NULL && request->source == &source_dmabuf);
}

/*
 * A socket keeps sending what it was given, even after shutdown() and close(), from memory that its
 * owner may overwrite now. A connect() to AF_UNSPEC discards it and resets the connection.
 */
static void tx_dmabuf_reset(const struct net_comm *comm, unsigned socket)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

    if (connect(comm->link.forward[socket], &nowhere, sizeof nowhere) != 0)
        log_warn("a connection to %s could not be reset: %s", comm->link.peer, strerror(errno));
}

void tx_dmabuf_abort(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (tx_dmabuf_may_be_in_flight(comm, i))
            tx_dmabuf_reset(comm, i);
}

/* Whether the sockets have taken all records and bytes, so that the message may arrive whole. */
static bool tx_dmabuf_may_arrive_whole(const struct net_comm *comm,
                                       const struct net_request *request)
{
    uint64_t bytes = request->moved;

    if (request->records_queued > 0)
        return false;
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->gpu->zero_copy[i] != NULL)
            bytes += zerocopy_bytes_of(comm->gpu->zero_copy[i], request);
    return bytes == request->bytes;
}

/* Whether the socket holds a part of a message that the peer could take for whole and right. */
static bool tx_dmabuf_holds_part_of_whole(const struct net_comm *comm, unsigned socket)
{
    const struct zerocopy *sends = comm->gpu->zero_copy[socket];

    for (unsigned i = 0; sends != NULL && i < comm->used_requests; i++) {
        const struct net_request *request = &comm->requests[i];

        if (request->state == REQUEST_MOVING && request->source == &source_dmabuf &&
            zerocopy_bytes_of(sends, request) > 0 && tx_dmabuf_may_arrive_whole(comm, request))
            return true;
    }
    return false;
}

/* Completions of a failed connection count, too: nothing more is sent there. */
static bool tx_dmabuf_read_arrivals(struct net_comm *comm)
{
    bool waits = false;

    for (unsigned i = 0; i < comm->link.sockets; i++) {
        struct zerocopy *sends = comm->gpu->zero_copy[i];
        void *request;
        uint64_t bytes;

        if (sends == NULL || zerocopy_poll(sends, comm->link.forward[i]) != TCPX_SUCCESS)
            continue;
        while (zerocopy_take(sends, &request, &bytes))
            tx_moved(request, bytes);
    }
    for (unsigned i = 0; i < comm->link.sockets && !waits; i++)
        waits = tx_dmabuf_holds_part_of_whole(comm, i);
    return waits;
}

/*
 * A reset also discards earlier bytes of the same socket, which may be host-memory messages whose
 * sends are done. So the peer gets CLOSE_MS to acknowledge. The peer cannot take a message with
 * missing bytes for complete: its sockets are not reset.
 */
void tx_dmabuf_close_sends(struct net_comm *comm)
{
    enum { CLOSE_MS = 2000 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t deadline = deadline_after_ms(CLOSE_MS);

    if (comm->result != TCPX_SUCCESS) {
        tx_dmabuf_abort(comm);
        return;
    }
    while (tx_dmabuf_read_arrivals(comm) && !deadline_passed(deadline))
        nanosleep(&pause, NULL);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (tx_dmabuf_holds_part_of_whole(comm, i))
            tx_dmabuf_reset(comm, i);
}

void tx_dmabuf_close(struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        free(comm->gpu->zero_copy[i]);
}
