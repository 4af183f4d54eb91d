/* The generic netlink family "netdev": bindings of device memory, bound queues, page pools. */
#include "net/nic/nic.h"

#include "base/checked.h"
#include "net/nic/netlink.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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
static const char *interface_name(unsigned ifindex, char name[IF_NAMESIZE])
{
    if (if_indextoname(ifindex, name) == NULL)
        snprintf(name, IF_NAMESIZE, "#%u", ifindex);
    return name;
}

static int netdev_refused(const struct netlink_verdict *verdict)
{
    return netlink_refused(verdict, "the kernel cannot be asked for its netlink family netdev");
}

static bool netdev_has(const struct netlink_family *netdev, uint8_t command)
{
    return (netdev->commands >> command & 1) != 0;
}

int nic_kernel_binds(bool *receive, bool *send)
{
    struct netlink_family netdev = {0};
    struct netlink_verdict verdict;
    struct netlink netlink;

    /* ENOENT: a kernel before 6.7. */
    if (netlink_open_family("netdev", false, &netlink, &netdev, &verdict) == 0)
        netlink_close(&netlink);
    else if (verdict.error != ENOENT)
        return netdev_refused(&verdict);
    *receive = netdev_has(&netdev, BIND_RX);
    *send = netdev_has(&netdev, BIND_TX);
    return TCPX_SUCCESS;
}

/* By the system call itself, since that takes no library. */
int nic_check_privilege(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &header, data) != 0)
        return error_system(errno, "the capabilities of this process");
    if ((data[0].effective & (UINT32_C(1) << CAP_NET_ADMIN)) == 0)
        return error_set(TCPX_SYSTEM_ERROR,
                         "this process may not bind receive queues: it lacks CAP_NET_ADMIN (run it "
                         "as root, or setcap cap_net_admin+ep on the program)");
    return TCPX_SUCCESS;
}

/* --- bindings ------------------------------------------------------------------------------ */

static int bind_read_id(void *id, struct netlink_span attributes)
{
    uint64_t number;

    if (!netlink_find_number(attributes, DMABUF_ID, &number) || number == 0 || number > UINT32_MAX)
        return EPROTO;
    *(uint32_t *)id = (uint32_t)number;
    return 0;
}

static void bind_put_queue(struct netlink_request *request, unsigned queue)
{
    size_t nest = netlink_nest(request, DMABUF_QUEUES);

    netlink_put_u32(request, QUEUE_ID, queue);
    netlink_put_u32(request, QUEUE_TYPE, 0);
    netlink_nest_end(request, nest);
}

/* "2", "2, 3", and not all of very many. */
static void bind_list_queues(const unsigned *queues, unsigned count, char *text, size_t room)
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

/* Writes the error text of a refused bind. */
static int bind_refused(const struct netlink_verdict *verdict, unsigned ifindex,
                        const unsigned *queues, unsigned count)
{
    char name[IF_NAMESIZE];
    char list[64];

    interface_name(ifindex, name);
    if (count == 0)
        return netlink_refused(verdict, "%s: cannot bind device memory for sending", name);
    bind_list_queues(queues, count, list, sizeof list);
    return netlink_refused(verdict, "%s: cannot bind device memory to receive queue%s %s", name,
                           count == 1 ? "" : "s", list);
}

/* The binding lives as long as the socket that requested it. */
static int bind_dmabuf(uint8_t command, unsigned ifindex, const unsigned *queues, unsigned count,
                       int dmabuf, struct nic_binding *binding, int *os_error)
{
    struct netlink_verdict verdict;
    struct netlink_request request;
    struct netlink_family netdev;
    struct netlink netlink;
    uint32_t id = 0;
    int result;

    if (netlink_open_family("netdev", true, &netlink, &netdev, &verdict) != 0) {
        result = netdev_refused(&verdict);
    } else if (!netdev_has(&netdev, command)) {
        verdict.error = EOPNOTSUPP;
        result = error_set(TCPX_SYSTEM_ERROR,
                           "this kernel cannot %s device memory: Linux 6.%d or later with "
                           "CONFIG_NET_DEVMEM can",
                           command == BIND_RX ? "receive into" : "send from",
                           command == BIND_RX ? 12 : 16);
    } else {
        netlink_begin_generic(&request, netdev.id, command, 0);
        netlink_put_u32(&request, DMABUF_IFINDEX, ifindex);
        netlink_put_u32(&request, DMABUF_FD, (uint32_t)dmabuf);
        for (unsigned i = 0; i < count; i++)
            bind_put_queue(&request, queues[i]);
        netlink_ask(&netlink, &request, bind_read_id, &id, &verdict);
        if (verdict.error == 0 && id == 0)
            verdict.error = EPROTO;
        if (verdict.error == 0) {
            *binding = (struct nic_binding){.socket = netlink.fd, .id = id};
            return TCPX_SUCCESS;
        }
        result = bind_refused(&verdict, ifindex, queues, count);
    }
    netlink_close(&netlink);
    if (os_error != NULL)
        *os_error = verdict.error;
    return result;
}

int nic_bind_receive(unsigned ifindex, const unsigned *queues, unsigned count, int dmabuf,
                     struct nic_binding *binding, int *os_error)
{
    return bind_dmabuf(BIND_RX, ifindex, queues, count, dmabuf, binding, os_error);
}

int nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding, int *os_error)
{
    return bind_dmabuf(BIND_TX, ifindex, NULL, 0, dmabuf, binding, os_error);
}

void nic_unbind(struct nic_binding *binding)
{
    struct netlink netlink = {.fd = binding->socket, .lasts = true};

    netlink_close(&netlink);
    *binding = (struct nic_binding){.socket = -1};
}

/* --- queues and page pools ----------------------------------------------------------------- */

/* Dumps what `command` lists; `what` is for the text. */
static int netdev_dump(uint8_t command, unsigned ifindex, uint16_t filter, netlink_each *each,
                       void *owner, const char *what)
{
    struct netlink_verdict verdict;
    struct netlink_request request;
    struct netlink_family netdev;
    struct netlink netlink;
    char name[IF_NAMESIZE];

    if (netlink_open_family("netdev", false, &netlink, &netdev, &verdict) != 0)
        return netdev_refused(&verdict);
    netlink_begin_generic(&request, netdev.id, command, NLM_F_DUMP);
    if (filter != 0)
        netlink_put_u32(&request, filter, ifindex);
    netlink_ask(&netlink, &request, each, owner, &verdict);
    netlink_close(&netlink);
    if (verdict.error == 0)
        return TCPX_SUCCESS;
    return netlink_refused(&verdict, "%s: cannot list its %s", interface_name(ifindex, name), what);
}

struct queue_list {
    unsigned ifindex;
    bool bound[NIC_MOST_QUEUES];
};

static int queue_list_read(void *owner, struct netlink_span attributes)
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
    int result = netdev_dump(QUEUE_GET, ifindex, QUEUE_IFINDEX, queue_list_read, &queues, "queues");

    if (result == TCPX_SUCCESS)
        memcpy(bound, queues.bound, sizeof queues.bound);
    return result;
}

struct pool_list {
    unsigned ifindex;
    uint32_t id;
    uint64_t pages;
};

static int pool_list_read(void *owner, struct netlink_span attributes)
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
    int result = netdev_dump(PAGE_POOL_GET, ifindex, 0, pool_list_read, &pools, "page pools");

    if (result == TCPX_SUCCESS)
        *pages = pools.pages;
    return result;
}
