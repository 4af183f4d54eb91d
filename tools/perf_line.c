/*
 * The line rate of the interfaces that carry a session's bytes, as far as the kernel knows it: that
 * of physical interfaces and bonds. Loopback has none, and what a veth or a bridge reports is no
 * rate of a line; UCCL_TCPX_SPEED says it for those.
 */
#include "base/config.h"
#include "net/device/device.h"
#include "tools/perf_side.h"

#include <string.h>
#include <unistd.h>

static bool line_is_bond(const char *name)
{
    char path[64];

    snprintf(path, sizeof path, "/sys/class/net/%s/bonding", name);
    return access(path, F_OK) == 0;
}

/* What the kernel says; 0: nothing. */
static uint32_t line_reads(const char *name)
{
    char path[64];
    int mbps = 0;
    FILE *file;

    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%9d", &mbps) != 1 || mbps < 0)
        mbps = 0;
    fclose(file);
    return (uint32_t)mbps;
}

static uint32_t line_of(const struct net_device *devices, int count, const char *name)
{
    const struct config *config;

    for (int i = 0; i < count; i++) {
        if (strcmp(devices[i].name, name) != 0 || devices[i].is_loopback)
            continue;
        if (!devices[i].is_virtual || line_is_bond(name))
            return line_reads(name);
        return config_get(&config) == TCPX_SUCCESS ? (uint32_t)config->speed : 0;
    }
    return 0;
}

/* Of "... over eth0,eth1, 2 channels": all that are named, or unknown if one of them is. */
int perf_line_rate(const char *path, uint32_t *mbps)
{
    static const char before[] = " over ";
    struct net_device devices[NET_DEVICES_MOST];
    const char *names = strstr(path, before);
    char list[PERF_TEXT];
    char *rest = list;
    uint32_t sum = 0;
    int count;
    int result = net_devices_find_configured(devices, NET_DEVICES_MOST, &count);

    *mbps = 0;
    if (result != TCPX_SUCCESS || names == NULL)
        return result;
    names += strlen(before);
    snprintf(list, sizeof list, "%.*s", (int)(strcspn(names, " ")), names);
    while (rest != NULL && *rest != '\0') {
        const char *name = strsep(&rest, ",");
        uint32_t one = *name != '\0' ? line_of(devices, count, name) : 0;

        if (*name != '\0' && one == 0)
            return TCPX_SUCCESS;
        sum += one;
    }
    *mbps = sum;
    return TCPX_SUCCESS;
}
