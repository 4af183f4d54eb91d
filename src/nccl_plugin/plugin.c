/* The plugin's start and end, its contexts and its devices. */
#include "nccl_plugin/plugin.h"

#include "base/fork.h"
#include "gpu/gpu.h"
#include "nccl_plugin/plugin_state.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/*
 * Guards what is below and the lists of the contexts. What the start has found is the same for the
 * life of the process: NCCL keeps pointers to it.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static struct net_device devices[NET_DEVICES_MOST];
static int device_count;
static enum config_plugin_mode mode;
static bool unpacks_always;
static struct net_link_options link_options;
static unsigned contexts;
static struct plugin_context shared_context;
static bool shared_is_used;

void plugin_lock(void)
{
    pthread_mutex_lock(&lock);
}

void plugin_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int plugin_answer(const char *call, int result)
{
    /* The logger may hold a lock of a thread that did not survive the fork. */
    if (result != TCPX_SUCCESS && fork_check() == TCPX_SUCCESS)
        log_warn("NET/TCPX %s: %s", call, error_text());
    return result;
}

struct plugin_context *plugin_context_or_shared(struct plugin_context *context)
{
    return context != NULL ? context : &shared_context;
}

enum config_plugin_mode plugin_mode(void)
{
    return mode;
}

struct net_link_options plugin_link_options(const struct plugin_context *context)
{
    struct net_link_options options = link_options;

    options.owner = context;
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

bool plugin_takes_gpu_memory(void)
{
    return mode != CONFIG_PLUGIN_HOST;
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

static void announce(void)
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
static void announce_staging(const struct config *config)
{
    if (config->soft_devmem == 0 && config->devmem == CONFIG_DEVMEM_OFF)
        return;
    log_tcpx("NET/TCPX mode cuda receives through host memory and not by devmem TCP, whose payload "
             "would need a copy inside the GPU: that waits for NCCL's kernels, which wait for the "
             "payload");
}

/* With the lock. */
static int start(void)
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
    /* In order: NCCL's tags are not for telling messages apart. */
    if (result == TCPX_SUCCESS)
        result = net_link_defaults(WIRE_MATCH_FIFO, &link_options);
    if (result == TCPX_SUCCESS)
        result = net_devices_find_configured(devices, NET_DEVICES_MOST, &device_count);
    if (result != TCPX_SUCCESS)
        return result;
    started = true;
    announce();
    if (mode == CONFIG_PLUGIN_CUDA)
        announce_staging(config);
    if (mode == CONFIG_PLUGIN_UNPACK && !unpacks_always)
        warn_about_environment();
    return TCPX_SUCCESS;
}

int plugin_init(log_nccl_logger logger, struct plugin_context **out)
{
    struct plugin_context *context = NULL;
    int result = fork_check();

    if (out != NULL)
        *out = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    if (logger != NULL)
        log_set_nccl_logger(logger);
    if (out != NULL) {
        context = calloc(1, sizeof *context);
        if (context == NULL)
            return plugin_answer("init", error_system(ENOMEM, "a context"));
    }
    plugin_lock();
    if (!started)
        result = start();
    if (result == TCPX_SUCCESS && context != NULL)
        contexts++;
    shared_is_used |= context == NULL;
    plugin_unlock();
    if (result != TCPX_SUCCESS)
        free(context);
    else if (out != NULL)
        *out = context;
    return plugin_answer("init", result);
}

/* --- end ----------------------------------------------------------------------------------- */

/* NCCL's threads are gone by now; what they left after an abort is nobody's. */
static void close_leftovers(struct plugin_context *context)
{
    while (context->listeners != NULL)
        plugin_close_listener(context->listeners);
    while (context->comms != NULL)
        plugin_close(context->comms);
    net_connect_cancel_all(context);
}

int plugin_finalize(void *raw_context)
{
    struct plugin_context *context = raw_context;
    int result = fork_check();

    if (context == NULL || result != TCPX_SUCCESS)
        return result;
    close_leftovers(context);
    plugin_lock();
    /* The logger is code of somebody who may be unloaded now. */
    if (--contexts == 0 && !shared_is_used)
        log_set_nccl_logger(NULL);
    plugin_unlock();
    free(context);
    return TCPX_SUCCESS;
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
        return error_set(TCPX_INVALID_ARGUMENT, "device %d: there are %d, from 0", number,
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
                NET_POINTER_HOST | (plugin_takes_gpu_memory() ? NET_POINTER_CUDA : 0),
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
