/* Questions that take one ioctl, or a second one where the driver lacks the first. */
#include "net/nic/nic.h"

#include "net/nic/ethtool.h"

#include <errno.h>
#include <linux/ethtool.h>

int nic_count_queues(const char *interface, unsigned *queues)
{
    struct ethtool_rxnfc rings = {.cmd = ETHTOOL_GRXRINGS};
    struct ethtool_channels channels = {.cmd = ETHTOOL_GCHANNELS};
    uint64_t count = 0;
    int error = ethtool_call(interface, &rings);

    if (error == 0) {
        count = rings.data;
    } else if (error == EOPNOTSUPP) {
        error = ethtool_call(interface, &channels);
        count = (uint64_t)channels.rx_count + channels.combined_count;
    }
    if (error != 0)
        return ethtool_refused(error, "%s: cannot ask how many receive queues it has", interface);
    *queues = count < NIC_MOST_QUEUES ? (unsigned)count : NIC_MOST_QUEUES;
    return TCPX_SUCCESS;
}

int nic_has_rules(const char *interface, bool *has_rules)
{
    struct ethtool_value flags = {.cmd = ETHTOOL_GFLAGS};
    struct ethtool_rxnfc count = {.cmd = ETHTOOL_GRXCLSRLCNT};
    int error = ethtool_call(interface, &flags);

    if (error != 0)
        return ethtool_refused(error, "%s: cannot ask whether ntuple rules are on", interface);
    *has_rules = (flags.data & ETH_FLAG_NTUPLE) != 0 && ethtool_call(interface, &count) == 0;
    return TCPX_SUCCESS;
}

int nic_computes_checksums(const char *interface, bool *computes)
{
    struct ethtool_value value = {.cmd = ETHTOOL_GTXCSUM};
    int error = ethtool_call(interface, &value);

    if (error != 0)
        return ethtool_refused(error, "%s: cannot ask whether it computes checksums", interface);
    *computes = value.data != 0;
    return TCPX_SUCCESS;
}
