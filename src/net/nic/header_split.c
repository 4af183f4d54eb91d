/* Header split by netlink, since ioctls do not know it. */
#include "net/nic/nic.h"

#include "base/log.h"
#include "net/nic/netlink.h"

#include <errno.h>

/* Numbers of the netlink family "ethtool", which older headers lack. */
enum {
    RINGS_GET = 15,
    RINGS_SET = 16,
    RINGS_HEADER = 1,
    RINGS_TCP_DATA_SPLIT = 11,
    RINGS_HDS_THRESH = 17,
    HEADER_DEV_NAME = 2,

    SPLIT_OFF = 1,
    SPLIT_ON = 2,
};

struct rings_answer {
    bool has_split;
    struct nic_rings rings;
};

static int rings_read(void *owner, struct netlink_span attributes)
{
    struct rings_answer *answer = owner;
    uint64_t split;
    uint64_t threshold;

    answer->has_split = netlink_find_number(attributes, RINGS_TCP_DATA_SPLIT, &split);
    if (answer->has_split)
        answer->rings.split = split == SPLIT_ON    ? NIC_SPLIT_ON
                              : split == SPLIT_OFF ? NIC_SPLIT_OFF
                                                   : NIC_SPLIT_UNKNOWN;
    answer->rings.has_threshold =
        netlink_find_number(attributes, RINGS_HDS_THRESH, &threshold) && threshold <= UINT32_MAX;
    if (answer->rings.has_threshold)
        answer->rings.threshold = (uint32_t)threshold;
    return 0;
}

/* Reads the rings of an interface into *answer or, if that is NULL, sets them to `wanted`. */
static int rings_ask(const char *interface, const struct nic_rings *wanted,
                     struct rings_answer *answer, struct netlink_verdict *verdict)
{
    struct netlink_request request;
    struct netlink_family ethtool;
    struct netlink netlink;
    size_t nest;

    if (netlink_open_family("ethtool", false, &netlink, &ethtool, verdict) == 0) {
        netlink_begin_generic(&request, ethtool.id, wanted != NULL ? RINGS_SET : RINGS_GET, 0);
        nest = netlink_nest(&request, RINGS_HEADER);
        netlink_put_text(&request, HEADER_DEV_NAME, interface);
        netlink_nest_end(&request, nest);
        if (wanted != NULL)
            netlink_put_u8(&request, RINGS_TCP_DATA_SPLIT, SPLIT_ON);
        if (wanted != NULL && wanted->has_threshold)
            netlink_put_u32(&request, RINGS_HDS_THRESH, wanted->threshold);
        netlink_ask(&netlink, &request, answer != NULL ? rings_read : NULL, answer, verdict);
        netlink_close(&netlink);
    }
    if (verdict->error == 0)
        return TCPX_SUCCESS;
    return netlink_refused(verdict, "%s: cannot %s header split (tcp-data-split)", interface,
                           wanted != NULL ? "switch on" : "ask about");
}

int nic_get_rings(const char *interface, struct nic_rings *rings, int *os_error)
{
    struct rings_answer answer = {0};
    struct netlink_verdict verdict;
    int result = rings_ask(interface, NULL, &answer, &verdict);

    /* The kernel leaves out what a driver does not report. */
    if (result == TCPX_SUCCESS && !answer.has_split && !answer.rings.has_threshold) {
        verdict.error = EOPNOTSUPP;
        result = error_set(TCPX_SYSTEM_ERROR,
                           "%s: its driver does not know header split (tcp-data-split)", interface);
    }
    if (result == TCPX_SUCCESS)
        *rings = answer.rings;
    else if (os_error != NULL)
        *os_error = verdict.error;
    return result;
}

int nic_split_headers(const char *interface)
{
    struct nic_rings rings = {0};
    struct netlink_verdict verdict;
    int error = 0;
    int result = nic_get_rings(interface, &rings, &error);

    /* It is set even if the driver does not report it: the refusal has the kernel's explanation. */
    if (result != TCPX_SUCCESS && error != EOPNOTSUPP)
        return result;
    if (rings.split == NIC_SPLIT_ON && (!rings.has_threshold || rings.threshold == 0))
        return TCPX_SUCCESS;
    rings.threshold = 0;
    result = rings_ask(interface, &rings, NULL, &verdict);
    if (result == TCPX_SUCCESS)
        log_debug("%s: header split is on now", interface);
    return result;
}
