/* The family "netdev": bindings of device memory, whose queues are taken, which pages are out. */
#include "net/nic/nic_binding.h"

#include "base/checked.h"
#include "net/nic/netlink.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* Numbers of the interface, which older headers lack. */
enum {
    PAGE_POOL_GET = 5,
    QUEUE_GET = 10,
    BIND_RX = 13,
    BIND_TX = 15,

    DMABUF_IFINDEX = 1,
    DMABUF_QUEUES = 2,
    DMABUF_FD = 3,
    DMABUF_ID = 4,

    QUEUE_ID = 1,
    QUEUE_IFINDEX = 2,
    QUEUE_TYPE = 3, /* 0: receives */
    QUEUE_DMABUF = 5,
    QUEUE_IO_URING = 6,
    QUEUE_XSK = 7,

    POOL_IFINDEX = 2,
    POOL_INFLIGHT = 4,
    POOL_DMABUF = 7,
};

/* An interface that is gone has no name any more. */
static const char *name_of(unsigned ifindex, char name[IF_NAMESIZE])
{
    if (if_indextoname(ifindex, name) == NULL)
        snprintf(name, IF_NAMESIZE, "#%u", ifindex);
    return name;
}

/* ENOENT: a kernel before 6.7. On success *netlink is to be closed. */
static int open_netdev(bool lasts, struct netlink *netlink, struct netlink_family *family,
                       struct netlink_verdict *verdict)
{
    int result = lasts ? netlink_open_lasting(NETLINK_GENERIC, netlink)
                       : netlink_open(NETLINK_GENERIC, netlink);

    *verdict = (struct netlink_verdict){.error = EIO};
    if (result != TCPX_SUCCESS)
        return result;
    if (netlink_find_family(netlink, "netdev", family, verdict) == 0)
        return TCPX_SUCCESS;
    netlink_close(netlink);
    return netlink_refused(verdict, "the kernel cannot be asked for its netlink family netdev");
}

int nic_kernel_binds(bool *receive, bool *send)
{
    struct netlink_family netdev = {0};
    struct netlink_verdict verdict;
    struct netlink netlink;
    int result = open_netdev(false, &netlink, &netdev, &verdict);

    if (result == TCPX_SUCCESS)
        netlink_close(&netlink);
    else if (verdict.error != ENOENT)
        return result;
    *receive = (netdev.commands >> BIND_RX & 1) != 0;
    *send = (netdev.commands >> BIND_TX & 1) != 0;
    return TCPX_SUCCESS;
}

/* --- bindings ------------------------------------------------------------------------------ */

static int read_id(void *id, struct netlink_span attributes)
{
    uint64_t number;

    if (!netlink_find_number(attributes, DMABUF_ID, &number) || number == 0 || number > UINT32_MAX)
        return EPROTO;
    *(uint32_t *)id = (uint32_t)number;
    return 0;
}

static void put_queue(struct netlink_request *request, unsigned queue)
{
    size_t nest = netlink_nest(request, DMABUF_QUEUES);

    netlink_put_u32(request, QUEUE_ID, queue);
    netlink_put_u32(request, QUEUE_TYPE, 0);
    netlink_nest_end(request, nest);
}

/* "2", "2, 3", and not all of very many. */
static void list_queues(const unsigned *queues, unsigned count, char *text, size_t room)
{
    size_t used = 0;

    *text = '\0';
    for (unsigned i = 0; i < count && used < room; i++) {
        if (used + 20 > room) {
            snprintf(text + used, room - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, room - used, "%s%u", i > 0 ? ", " : "", queues[i]);
    }
}

static void tell(int *os_error, int error)
{
    if (os_error != NULL)
        *os_error = error;
}

/* A request on its way: the socket that asks is the one that the binding lives by. */
struct wish {
    struct netlink netlink;
    struct netlink_request request;
    struct netlink_verdict verdict;
};

static int wish_open(struct wish *wish, uint8_t command, unsigned ifindex, int dmabuf,
                     int *os_error)
{
    struct netlink_family netdev;
    int result = open_netdev(true, &wish->netlink, &netdev, &wish->verdict);

    if (result != TCPX_SUCCESS) {
        tell(os_error, wish->verdict.error);
        return result;
    }
    if ((netdev.commands >> command & 1) == 0) {
        netlink_close(&wish->netlink);
        tell(os_error, EOPNOTSUPP);
        return error_set(TCPX_SYSTEM_ERROR,
                         "this kernel cannot %s device memory: Linux 6.%d or later with "
                         "CONFIG_NET_DEVMEM can",
                         command == BIND_RX ? "receive into" : "send from",
                         command == BIND_RX ? 12 : 16);
    }
    netlink_begin_generic(&wish->request, netdev.id, command, 0);
    netlink_put_u32(&wish->request, DMABUF_IFINDEX, ifindex);
    netlink_put_u32(&wish->request, DMABUF_FD, (uint32_t)dmabuf);
    return TCPX_SUCCESS;
}

/* The errno; 0: it is bound. */
static int wish_grant(struct wish *wish, struct nic_binding *binding, int *os_error)
{
    uint32_t id = 0;

    netlink_ask(&wish->netlink, &wish->request, read_id, &id, &wish->verdict);
    if (wish->verdict.error == 0 && id == 0)
        wish->verdict.error = EPROTO;
    if (wish->verdict.error == 0) {
        *binding = (struct nic_binding){.socket = wish->netlink.fd, .id = id};
        return 0;
    }
    netlink_close(&wish->netlink);
    tell(os_error, wish->verdict.error);
    return wish->verdict.error;
}

int nic_bind_receive(unsigned ifindex, const unsigned *queues, unsigned count, int dmabuf,
                     struct nic_binding *binding, int *os_error)
{
    char name[IF_NAMESIZE];
    char list[64];
    struct wish wish;
    int result = wish_open(&wish, BIND_RX, ifindex, dmabuf, os_error);

    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < count; i++)
        put_queue(&wish.request, queues[i]);
    if (wish_grant(&wish, binding, os_error) == 0)
        return TCPX_SUCCESS;
    list_queues(queues, count, list, sizeof list);
    return netlink_refused(&wish.verdict, "%s: cannot bind device memory to receive queue%s %s",
                           name_of(ifindex, name), count == 1 ? "" : "s", list);
}

int nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding, int *os_error)
{
    char name[IF_NAMESIZE];
    struct wish wish;
    int result = wish_open(&wish, BIND_TX, ifindex, dmabuf, os_error);

    if (result != TCPX_SUCCESS)
        return result;
    if (wish_grant(&wish, binding, os_error) == 0)
        return TCPX_SUCCESS;
    return netlink_refused(&wish.verdict, "%s: cannot bind device memory for sending",
                           name_of(ifindex, name));
}

void nic_unbind(struct nic_binding *binding)
{
    struct netlink netlink = {.fd = binding->socket, .lasts = true};

    netlink_close(&netlink);
    *binding = (struct nic_binding){.socket = -1};
}

/* --- what the kernel tells ----------------------------------------------------------------- */

/* All answers to a question of the family netdev; `what` is for the text. */
static int list(uint8_t command, unsigned ifindex, uint16_t filter, netlink_each *each, void *owner,
                const char *what)
{
    struct netlink_verdict verdict;
    struct netlink_request request;
    struct netlink_family netdev;
    struct netlink netlink;
    char name[IF_NAMESIZE];
    int result = open_netdev(false, &netlink, &netdev, &verdict);

    if (result != TCPX_SUCCESS)
        return result;
    netlink_begin_generic(&request, netdev.id, command, NLM_F_DUMP);
    if (filter != 0)
        netlink_put_u32(&request, filter, ifindex);
    netlink_ask(&netlink, &request, each, owner, &verdict);
    netlink_close(&netlink);
    if (verdict.error == 0)
        return TCPX_SUCCESS;
    return netlink_refused(&verdict, "%s: cannot list its %s", name_of(ifindex, name), what);
}

struct queue_list {
    unsigned ifindex;
    bool bound[NIC_MOST_QUEUES];
};

static int read_queue(void *owner, struct netlink_span attributes)
{
    static const uint16_t owners[] = {QUEUE_DMABUF, QUEUE_IO_URING, QUEUE_XSK};
    struct queue_list *queues = owner;
    struct netlink_span value;
    uint64_t ifindex;
    uint64_t queue;
    uint64_t type;

    if (!netlink_find_number(attributes, QUEUE_IFINDEX, &ifindex) || ifindex != queues->ifindex ||
        !netlink_find_number(attributes, QUEUE_TYPE, &type) || type != 0 ||
        !netlink_find_number(attributes, QUEUE_ID, &queue) || queue >= NIC_MOST_QUEUES)
        return 0;
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++)
        if (netlink_find(attributes, owners[i], &value))
            queues->bound[queue] = true;
    return 0;
}

int nic_find_bound_queues(unsigned ifindex, bool bound[NIC_MOST_QUEUES])
{
    struct queue_list queues = {.ifindex = ifindex};
    int result = list(QUEUE_GET, ifindex, QUEUE_IFINDEX, read_queue, &queues, "queues");

    if (result == TCPX_SUCCESS)
        memcpy(bound, queues.bound, sizeof queues.bound);
    return result;
}

struct pool_list {
    unsigned ifindex;
    uint32_t id;
    uint64_t pages;
};

static int read_pool(void *owner, struct netlink_span attributes)
{
    struct pool_list *pools = owner;
    uint64_t ifindex;
    uint64_t pages;
    uint64_t id;

    if (!netlink_find_number(attributes, POOL_DMABUF, &id) || id != pools->id ||
        !netlink_find_number(attributes, POOL_IFINDEX, &ifindex) || ifindex != pools->ifindex ||
        !netlink_find_number(attributes, POOL_INFLIGHT, &pages))
        return 0;
    return checked_add(pools->pages, pages, &pools->pages) ? 0 : EPROTO;
}

int nic_count_pages_out(unsigned ifindex, uint32_t id, uint64_t *pages)
{
    struct pool_list pools = {.ifindex = ifindex, .id = id};
    int result = list(PAGE_POOL_GET, ifindex, 0, read_pool, &pools, "page pools");

    if (result == TCPX_SUCCESS)
        *pages = pools.pages;
    return result;
}

/* --- routes -------------------------------------------------------------------------------- */

/* An address as routes have it. */
struct place {
    int family;
    uint8_t bytes[16];
    size_t length;
    in_port_t port; /* in network order; 0: none */
    unsigned scope; /* the interface that a link-local address is on; 0: none */
};

static bool place_of(const struct sockaddr_storage *address, struct place *place)
{
    const union socket_address any = {.storage = *address};
    const uint8_t *bytes;

    *place = (struct place){.family = address->ss_family};
    if (address->ss_family == AF_INET) {
        bytes = (const uint8_t *)&any.ipv4.sin_addr;
        place->length = sizeof any.ipv4.sin_addr;
        place->port = any.ipv4.sin_port;
    } else if (address->ss_family == AF_INET6) {
        bytes = any.ipv6.sin6_addr.s6_addr;
        place->length = sizeof any.ipv6.sin6_addr;
        place->port = any.ipv6.sin6_port;
        place->scope = any.ipv6.sin6_scope_id;
    } else {
        return false;
    }
    if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr)) {
        place->family = AF_INET;
        bytes += 12;
        place->length = 4;
    }
    memcpy(place->bytes, bytes, place->length);
    return true;
}

static bool is_any(const struct place *place)
{
    for (size_t i = 0; i < place->length; i++)
        if (place->bytes[i] != 0)
            return false;
    return true;
}

/* Where several routes are as good, the kernel takes one by the ports, as it will for packets. */
static void put_ports(struct netlink_request *request, const struct place *from,
                      const struct place *to)
{
    if (from->port == 0 || to->port == 0)
        return;
    netlink_put_u8(request, RTA_IP_PROTO, IPPROTO_TCP);
    netlink_put(request, RTA_SPORT, &from->port, sizeof from->port);
    netlink_put(request, RTA_DPORT, &to->port, sizeof to->port);
}

static void put_route(struct netlink_request *request, const struct place *from,
                      const struct place *to)
{
    struct rtmsg head = {
        .rtm_family = (uint8_t)to->family,
        .rtm_dst_len = (uint8_t)(8 * to->length),
        .rtm_src_len = is_any(from) ? 0 : (uint8_t)(8 * from->length),
    };

    netlink_begin(request, RTM_GETROUTE, 0, &head, sizeof head);
    netlink_put(request, RTA_DST, to->bytes, to->length);
    if (!is_any(from))
        netlink_put(request, RTA_SRC, from->bytes, from->length);
    if (to->scope != 0)
        netlink_put_u32(request, RTA_OIF, to->scope);
    put_ports(request, from, to);
}

static int read_route(void *owner, struct netlink_span attributes)
{
    uint64_t ifindex;

    if (!netlink_find_number(attributes, RTA_OIF, &ifindex) || ifindex == 0 || ifindex > INT32_MAX)
        return EPROTO;
    *(unsigned *)owner = (unsigned)ifindex;
    return 0;
}

int nic_of_route(const struct sockaddr_storage *from, const struct sockaddr_storage *to,
                 unsigned *ifindex)
{
    char from_name[SOCKET_NAME_BYTES];
    char to_name[SOCKET_NAME_BYTES];
    struct netlink_request request;
    struct netlink_verdict verdict;
    struct netlink netlink;
    struct place start;
    struct place end;
    unsigned found = 0;
    int result;

    socket_address_name(from, from_name);
    socket_address_name(to, to_name);
    if (!place_of(from, &start) || !place_of(to, &end) || start.family != end.family)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "no route leads from %s to %s: both must be IPv4 or both IPv6", from_name,
                         to_name);
    result = netlink_open(NETLINK_ROUTE, &netlink);
    if (result != TCPX_SUCCESS)
        return result;
    put_route(&request, &start, &end);
    netlink_ask(&netlink, &request, read_route, &found, &verdict);
    netlink_close(&netlink);
    if (verdict.error == 0 && found == 0)
        verdict.error = EPROTO;
    if (verdict.error != 0)
        return netlink_refused(&verdict, "cannot find the route from %s to %s", from_name, to_name);
    *ifindex = found;
    return TCPX_SUCCESS;
}
