/* The plugin's start, its mode and its devices. */
#include "nccl_plugin/nccl_plugin.h"

#include "base/fork.h"
#include "gpu/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* Guards the start; what is below does not change afterwards. */
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static struct net_device devices[NET_DEVICES_MOST];
static int device_count;
static int all_devices; /* with spare ones, for peers that the devices do not reach */
static enum config_plugin_mode mode;
static bool unpacks_always;
static struct net_link_options link_options;

int plugin_answer(const char *call, int result)
{
    /* The logger may hold a lock of a thread that did not survive the fork. */
    if (result != TCPX_SUCCESS && fork_check() == TCPX_SUCCESS)
        log_warn("NET/TCPX %s: %s", call, error_text());
    return result;
}

enum config_plugin_mode plugin_mode(void)
{
    return mode;
}

struct net_link_options plugin_link_options(const void *owner)
{
    struct net_link_options options = link_options;

    options.owner = owner;
    options.devices = devices;
    options.device_count = all_devices;
    return options;
}

void plugin_unpack_always(void)
{
    unpacks_always = true;
}

bool plugin_unpacks(void)
{
    return mode == CONFIG_PLUGIN_UNPACK;
}

/* --- start --------------------------------------------------------------------------------- */

/*
 * NCCL from 2.24 on does not keep these away from a plugin that unpacks on the GPU, and each of
 * them ends in wrong data, a hang or an illegal access.
 */
static void warn_about_environment(void)
{
    static const struct {
        const char *name;
        const char *value;
    } needed[] = {{"NCCL_PROTO", "Simple"},
                  {"NCCL_PAT_ENABLE", "0"},
                  {"NCCL_GRAPH_REGISTER", "0"},
                  {"NCCL_LOCAL_REGISTER", "0"}};
    char missing[160] = "";
    size_t used = 0;

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const char *value = getenv(needed[i].name);

        if (value == NULL || strcasecmp(value, needed[i].value) != 0)
            used += (size_t)snprintf(missing + used, sizeof missing - used, " %s=%s",
                                     needed[i].name, needed[i].value);
    }
    if (used > 0)
        log_warn("NET/TCPX UCCL_TCPX_PLUGIN_MODE=unpack needs%s: without it NCCL may compute wrong "
                 "results, hang or crash",
                 missing);
}

static void log_start(void)
{
    static const char *const names[] = {[CONFIG_PLUGIN_HOST] = "host",
                                        [CONFIG_PLUGIN_CUDA] = "cuda",
                                        [CONFIG_PLUGIN_UNPACK] = "unpack"};
    char list[512] = "";
    size_t used = 0;

    for (int i = 0; i < device_count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s %s (%d Mbit/s)",
                                 i > 0 ? "," : "", devices[i].name, devices[i].speed_mbps);
    log_tcpx("NET/TCPX tcpx %s, mode %s, %d device%s:%s", tcpx_version(), names[mode], device_count,
             device_count == 1 ? "" : "s", list);
}

/* Sending by devmem TCP takes no copy, and is not affected. */
static void log_staging(const struct config *config)
{
    if (config->soft_devmem == 0 && config->devmem == CONFIG_DEVMEM_OFF)
        return;
    log_tcpx("NET/TCPX mode cuda receives through host memory and not by devmem TCP, whose payload "
             "would need a copy inside the GPU: that waits for NCCL's kernels, which wait for the "
             "payload");
}

/* With the lock. */
static int start_once(void)
{
    const struct config *config;
    int gpus;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = fork_watch();
    if (result != TCPX_SUCCESS)
        return result;
    mode = unpacks_always ? CONFIG_PLUGIN_UNPACK : (enum config_plugin_mode)config->plugin_mode;
    if (mode != CONFIG_PLUGIN_HOST)
        result = gpu_count(&gpus);
    /* Messages match in order: NCCL's tags do not distinguish them. */
    if (result == TCPX_SUCCESS)
        result = net_link_defaults(WIRE_MATCH_FIFO, &link_options);
    if (result == TCPX_SUCCESS)
        result =
            net_devices_find_all_configured(devices, NET_DEVICES_MOST, &device_count, &all_devices);
    if (result != TCPX_SUCCESS)
        return result;
    started = true;
    log_start();
    if (mode == CONFIG_PLUGIN_CUDA)
        log_staging(config);
    if (mode == CONFIG_PLUGIN_UNPACK && !unpacks_always)
        warn_about_environment();
    return TCPX_SUCCESS;
}

int plugin_start(void)
{
    int result = TCPX_SUCCESS;

    pthread_mutex_lock(&start_lock);
    if (!started)
        result = start_once();
    pthread_mutex_unlock(&start_lock);
    return result;
}

/* --- devices ------------------------------------------------------------------------------- */

int plugin_devices(int *count)
{
    *count = device_count;
    return TCPX_SUCCESS;
}

int plugin_device(int number, const struct net_device **device)
{
    if (number < 0 || number >= device_count)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "there is no device %d: there are %d, counted from 0", number,
                         device_count);
    *device = &devices[number];
    return TCPX_SUCCESS;
}

int plugin_properties(int number, struct net_properties_v12 *properties)
{
    /* test() reports lengths in an int, and NCCL takes these limits for tables before version 9. */
    const size_t most_p2p_bytes = (size_t)1 << 30;
    const size_t most_collective_bytes = (size_t)1 << 29;
    const struct net_device *device;
    int result = plugin_device(number, &device);

    if (result == TCPX_SUCCESS)
        *properties = (struct net_properties_v12){
            .name = devices[number].name,
            .pci_path = *device->pci_path != '\0' ? devices[number].pci_path : NULL,
            .guid = device->guid,
            .pointer_support =
                NET_POINTER_HOST | (mode != CONFIG_PLUGIN_HOST ? NET_POINTER_CUDA : 0),
            .speed = device->speed_mbps,
            .max_comms = 65536,
            .max_receives = 1,
            .device_type = plugin_unpacks() ? NET_DEVICE_UNPACK : NET_DEVICE_HOST,
            .device_version = plugin_unpacks() ? UNPACK_VERSION : 0,
            .parts = {.count = 1, .devices = {number}},
            .max_p2p_bytes = most_p2p_bytes,
            .max_collective_bytes = most_collective_bytes,
            .max_multi_request = 1,
            .rail = NET_UNDEFINED,
            .plane = NET_UNDEFINED};
    return plugin_answer("getProperties", result);
}
