/*
 * Sending GPU memory by devmem TCP: the socket is told a place in a dma-buf instead of an address,
 * the NIC reads it there, and the bytes count as sent when the peer has them.
 */
#include "net/comm_state.h"

#include "base/config.h"
#include "base/log.h"
#include "net/nic_binding.h"
#include "rx/devmem_uapi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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
    /* When a connection breaks, all that was under way is told to be over. */
    else if (zerocopy_has_news(sends))
        comm_has_broken(comm, comm->link.forward[socket]);
    while (comm->result == TCPX_SUCCESS && zerocopy_take(sends, &request, &bytes))
        sender_moved(request, bytes);
}

bool devmem_send_is_flying(const struct net_comm *comm, unsigned socket)
{
    const struct zerocopy *sends = comm->outgoing[socket].by_reference;

    return sends != NULL && zerocopy_is_flying(sends);
}

/* Somebody may be about to. */
static bool has_or_may_have_sent(const struct net_comm *comm, unsigned socket)
{
    const struct net_request *request = comm->outgoing[socket].request;

    return devmem_send_is_flying(comm, socket) ||
           (request != NULL && request_is_referred_to(request));
}

/*
 * A socket sends on what it has been given, also after shutdown() and close(), from memory that its
 * owner may overwrite now; and the peer would take it for what was meant. A connect() to nowhere
 * throws it away and resets the connection.
 */
void devmem_send_abort(struct net_comm *comm)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};

    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (has_or_may_have_sent(comm, i) &&
            connect(comm->link.forward[i], &nowhere, sizeof nowhere) != 0)
            log_warn("a connection to %s could not be reset: %s", comm->link.peer, strerror(errno));
}
