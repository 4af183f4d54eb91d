/* What values that leave something open, as auto does, come to on this machine. */
#include "tools/env_resolve.h"

#include "base/config.h"
#include "gpu/gpu.h"
#include "net/device/device.h"
#include "net/io/plan.h"
#include "net/transport.h"
#include "plugin_host/plugin_host.h"
#include "tools/nic_devmem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void say_failure(char *text, size_t room)
{
    snprintf(text, room, "unknown: %s", error_text());
}

static void resolve_gpu(char *text, size_t room)
{
    const char *backend;
    const char *reason;

    if (gpu_backend(&backend, &reason) == TCPX_SUCCESS)
        snprintf(text, room, "%s (%s)", backend, reason);
    else
        say_failure(text, room);
}

static void resolve_unpack(char *text, size_t room)
{
    snprintf(text, room, "for each receive: d2d for one run or large ones, else kernel");
}

static void resolve_plugin(char *text, size_t room)
{
    if (access(IMPORT_USUAL_PATH, F_OK) == 0)
        snprintf(text, room, "%s", IMPORT_USUAL_PATH);
    else
        snprintf(text, room, "none, the built-in transport");
}

static void resolve_channels(char *text, size_t room)
{
    struct net_device devices[NET_DEVICES_MOST];
    int count;

    if (net_devices_find_configured(devices, NET_DEVICES_MOST, &count) != TCPX_SUCCESS)
        say_failure(text, room);
    else if (count == 1)
        snprintf(text, room, "1, or 2 over a plugin");
    else
        snprintf(text, room, "as many of %d as are near the GPU", count);
}

static void resolve_chunks(char *text, size_t room)
{
    snprintf(text, room, "4M, and over a plugin what NCCL_P2P_NET_CHUNKSIZE says");
}

static void resolve_interfaces(char *text, size_t room)
{
    struct net_device devices[NET_DEVICES_MOST];
    size_t used = 0;
    int count;

    if (net_devices_find_configured(devices, NET_DEVICES_MOST, &count) != TCPX_SUCCESS) {
        say_failure(text, room);
        return;
    }
    for (int i = 0; i < count && used < room; i++)
        used +=
            (size_t)snprintf(text + used, room - used, "%s%s", i > 0 ? "," : "", devices[i].name);
}

static void resolve_data_interfaces(char *text, size_t room)
{
    snprintf(text, room, "those of NCCL_SOCKET_IFNAME");
}

static void resolve_port(char *text, size_t room)
{
    snprintf(text, room, "any free one for each listener");
}

static void resolve_advertised(char *text, size_t room)
{
    snprintf(text, room, "the addresses of the interfaces");
}

static void resolve_speed(char *text, size_t room)
{
    snprintf(text, room, "%d", NET_DEVICE_DEFAULT_MBPS);
}

static void resolve_sockets(char *text, size_t room)
{
    struct net_link_options link;

    if (net_link_defaults(WIRE_MATCH_TAG, &link) == TCPX_SUCCESS)
        snprintf(text, room, "%u", link.sockets);
    else
        say_failure(text, room);
}

static void resolve_threads(char *text, size_t room)
{
    struct io_plan plan;

    if (io_plan(&plan) == TCPX_SUCCESS)
        snprintf(text, room, "%u", plan.threads);
    else
        say_failure(text, room);
}

static void resolve_processes(char *text, size_t room)
{
    struct io_plan plan;

    if (io_plan(&plan) == TCPX_SUCCESS)
        snprintf(text, room, "%u", plan.processes);
    else
        say_failure(text, room);
}

/* Whether each interface has it takes more questions, which `tcpx devices` and doctor ask. */
static void resolve_devmem(char *text, size_t room)
{
    struct net_device devices[NET_DEVICES_MOST];
    struct nic_devmem devmem;
    size_t used = 0;
    int count;

    if (net_devices_find_configured(devices, NET_DEVICES_MOST, &count) != TCPX_SUCCESS) {
        say_failure(text, room);
        return;
    }
    for (int i = 0; i < count && used < room; i++) {
        char driver[64];

        nic_driver("", devices[i].name, driver, sizeof driver);
        nic_devmem_look(&devices[i], driver, &devmem);
        if (devmem.knows)
            used += (size_t)snprintf(text + used, room - used, "%s%s",
                                     used > 0 ? "," : "on if it can be on ", devices[i].name);
    }
    if (used == 0)
        snprintf(text, room, "off: no interface can have it");
}

static void resolve_queues(char *text, size_t room)
{
    snprintf(text, room, "a quarter of the queues of a NIC, 4 at most");
}

static const struct {
    const char *name;
    const char *value; /* that leaves something open */
    void (*resolve)(char *text, size_t room);
} open_values[] = {
    {"UCCL_TCPX_GPU", "auto", resolve_gpu},
    {"UCCL_TCPX_UNPACK_IMPL", "auto", resolve_unpack},
    {"UCCL_TCPX_PLUGIN_PATH", "", resolve_plugin},
    {"UCCL_TCPX_NUM_CHANNELS", "auto", resolve_channels},
    {"UCCL_TCPX_CHUNK_BYTES", "0", resolve_chunks},
    {"NCCL_SOCKET_IFNAME", "", resolve_interfaces},
    {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "", resolve_data_interfaces},
    {"UCCL_TCPX_PORT", "auto", resolve_port},
    {"UCCL_TCPX_ADVERTISE", "", resolve_advertised},
    {"UCCL_TCPX_SPEED", "0", resolve_speed},
    {"UCCL_TCPX_SOCKETS", "auto", resolve_sockets},
    {"UCCL_TCPX_THREADS", "auto", resolve_threads},
    {"UCCL_TCPX_PROCESSES", "auto", resolve_processes},
    {"UCCL_TCPX_DEVMEM", "auto", resolve_devmem},
    {"UCCL_TCPX_DEVMEM_QUEUES", "auto", resolve_queues},
};

void env_resolve(const char *name, const char *value, char *text, size_t room)
{
    const struct config *config;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof open_values / sizeof *open_values; i++)
        if (strcmp(open_values[i].name, name) == 0 && strcmp(open_values[i].value, value) == 0) {
            if (config_get(&config) == TCPX_SUCCESS)
                open_values[i].resolve(text, room);
            else
                snprintf(text, room, "unknown while a variable is wrong");
        }
}
