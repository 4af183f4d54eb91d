/*
 * Prints the network devices that net_devices_find() chooses with the variables of the environment,
 * one a line, or why there are none. For tests/integration/net_devices.sh.
 */
#include "net/device/device.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int family_from_environment(void)
{
    const char *text = getenv("NCCL_SOCKET_FAMILY");

    if (text == NULL)
        return 0;
    return strcmp(text, "AF_INET6") == 0 ? AF_INET6 : AF_INET;
}

static void print_device(int index, const struct net_device *device)
{
    char host[NI_MAXHOST] = "?";
    char port[NI_MAXSERV] = "?";
    socklen_t length = device->address.ss_family == AF_INET ? 16 : 28;

    (void)getnameinfo((const struct sockaddr *)&device->address, length, host, sizeof host, port,
                      sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    printf("%d %s %s port=%s speed=%d mtu=%d index=%d numa=%d pci=%s loopback=%d virtual=%d "
           "guid=%016llx\n",
           index, device->name, host, port, device->speed_mbps, device->mtu, device->ifindex,
           device->numa_node, device->pci_path, device->is_loopback, device->is_virtual,
           (unsigned long long)device->guid);
}

int main(void)
{
    const char *speed = getenv("UCCL_TCPX_SPEED");
    const struct net_device_options options = {
        .data_ifname = getenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"),
        .socket_ifname = getenv("NCCL_SOCKET_IFNAME"),
        .family = family_from_environment(),
        .speed_mbps = speed != NULL ? (int)strtol(speed, NULL, 10) : 0,
    };
    struct net_device devices[NET_DEVICES_MOST];
    int count = 0;

    if (net_devices_find(&options, devices, NET_DEVICES_MOST, &count) != TCPX_SUCCESS) {
        fprintf(stderr, "%s\n", error_text());
        return 1;
    }
    for (int i = 0; i < count; i++)
        print_device(i, &devices[i]);
    return 0;
}
