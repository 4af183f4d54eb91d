/* One RTM_GETROUTE request, as the kernel would look the route up for a packet. */
#include "net/nic/nic.h"

#include "net/nic/netlink.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>

/* Both addresses are of one family. */
static void route_put(struct netlink_request *request, const union socket_address *from,
                      const union socket_address *to)
{
    static const uint8_t any[sizeof(struct in6_addr)];
    size_t length;
    const void *source = socket_address_bytes(from, &length);
    const void *target = socket_address_bytes(to, &length);
    bool has_source = memcmp(source, any, length) != 0;
    struct rtmsg head = {
        .rtm_family = (uint8_t)to->storage.ss_family,
        .rtm_dst_len = (uint8_t)(8 * length),
        .rtm_src_len = has_source ? (uint8_t)(8 * length) : 0,
    };

    netlink_begin(request, RTM_GETROUTE, 0, &head, sizeof head);
    netlink_put(request, RTA_DST, target, length);
    if (has_source)
        netlink_put(request, RTA_SRC, source, length);
    /* the interface that a link-local address is on */
    if (to->storage.ss_family == AF_INET6 && to->ipv6.sin6_scope_id != 0)
        netlink_put_u32(request, RTA_OIF, to->ipv6.sin6_scope_id);
    /* Of several equal routes the kernel takes one by the ports, as it will for packets. Both
     * families have their port at one place. */
    if (from->ipv4.sin_port != 0 && to->ipv4.sin_port != 0) {
        netlink_put_u8(request, RTA_IP_PROTO, IPPROTO_TCP);
        netlink_put(request, RTA_SPORT, &from->ipv4.sin_port, sizeof from->ipv4.sin_port);
        netlink_put(request, RTA_DPORT, &to->ipv4.sin_port, sizeof to->ipv4.sin_port);
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
