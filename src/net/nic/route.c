/* One RTM_GETROUTE request, as the kernel would look the route up for a packet. */
#include "net/nic/route.h"

#include "net/nic/netlink.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>

/* An address as routes have it. */
struct route_end {
    const void *bytes;
    size_t length;
    in_port_t port; /* in network order; 0: none */
    bool is_any;
};

static struct route_end route_end_of(const union socket_address *address)
{
    static const uint8_t zeros[sizeof(struct in6_addr)];
    struct route_end end = {.bytes = &address->ipv6.sin6_addr,
                            .length = sizeof address->ipv6.sin6_addr,
                            .port = address->ipv6.sin6_port};

    if (address->storage.ss_family == AF_INET)
        end = (struct route_end){.bytes = &address->ipv4.sin_addr,
                                 .length = sizeof address->ipv4.sin_addr,
                                 .port = address->ipv4.sin_port};
    end.is_any = memcmp(end.bytes, zeros, end.length) == 0;
    return end;
}

/* Both addresses are of one family. */
static void route_put(struct netlink_request *request, const union socket_address *from,
                      const union socket_address *to)
{
    struct route_end source = route_end_of(from);
    struct route_end target = route_end_of(to);
    struct rtmsg head = {
        .rtm_family = (uint8_t)to->storage.ss_family,
        .rtm_dst_len = (uint8_t)(8 * target.length),
        .rtm_src_len = source.is_any ? 0 : (uint8_t)(8 * source.length),
    };

    netlink_begin(request, RTM_GETROUTE, 0, &head, sizeof head);
    netlink_put(request, RTA_DST, target.bytes, target.length);
    if (!source.is_any)
        netlink_put(request, RTA_SRC, source.bytes, source.length);
    /* the interface that a link-local address is on */
    if (to->storage.ss_family == AF_INET6 && to->ipv6.sin6_scope_id != 0)
        netlink_put_u32(request, RTA_OIF, to->ipv6.sin6_scope_id);
    /* Of several equal routes the kernel takes one by the ports, as it will for packets. */
    if (source.port != 0 && target.port != 0) {
        netlink_put_u8(request, RTA_IP_PROTO, IPPROTO_TCP);
        netlink_put(request, RTA_SPORT, &source.port, sizeof source.port);
        netlink_put(request, RTA_DPORT, &target.port, sizeof target.port);
    }
}

static int route_read(void *owner, struct netlink_span attributes)
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
    union socket_address source = {.storage = *from};
    union socket_address target = {.storage = *to};
    char from_name[SOCKET_NAME_BYTES];
    char to_name[SOCKET_NAME_BYTES];
    struct netlink_verdict verdict = {0};
    struct netlink_request request;
    struct netlink netlink;
    unsigned found = 0;

    socket_address_name(from, from_name);
    socket_address_name(to, to_name);
    socket_address_unmap(&source.storage);
    socket_address_unmap(&target.storage);
    if (source.storage.ss_family != target.storage.ss_family || socket_address_length(to) == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "no route leads from %s to %s: both must be IPv4 or both IPv6", from_name,
                         to_name);
    verdict.error = netlink_open(NETLINK_ROUTE, false, &netlink);
    if (verdict.error == 0) {
        route_put(&request, &source, &target);
        netlink_ask(&netlink, &request, route_read, &found, &verdict);
        netlink_close(&netlink);
    }
    if (verdict.error == 0 && found == 0)
        verdict.error = EPROTO;
    if (verdict.error != 0)
        return netlink_refused(&verdict, "cannot find the route from %s to %s", from_name, to_name);
    *ifindex = found;
    return TCPX_SUCCESS;
}
