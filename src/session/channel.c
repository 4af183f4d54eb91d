/* Channels over a plugin's comm, or over one of the built-in transport. */
#include "session/channel.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

/* Chunks of the built-in transport have a tag of their own, apart from whole messages. */
#define CHUNK_TAG ((uint64_t)1 << 63)

static int link_options(const struct channel_devices *devices, struct net_link_options *options)
{
    int result = net_link_defaults(WIRE_MATCH_TAG, options);

    options->requests = CHANNEL_REQUESTS;
    options->devices = devices->list;
    options->device_count = devices->all;
    options->no_kernels = devices->no_kernels;
    return result;
}

/* --- making -------------------------------------------------------------------------------- */

int channel_listen(const struct import_plugin *plugin, const struct channel_devices *devices,
                   int number, int gpu, uint8_t handle[NET_TABLE_HANDLE_BYTES],
                   struct channel_listener *listener)
{
    struct net_link_options options;
    int result;

    *listener = (struct channel_listener){0};
    if (plugin != NULL)
        return import_comm_listen(plugin, number, handle, &listener->plugin);
    result = link_options(devices, &options);
    options.gpu = gpu;
    if (result == TCPX_SUCCESS)
        result = net_listen(&devices->list[number], &options, handle, &listener->builtin);
    return result;
}

int channel_accept(struct channel_listener *listener, struct channel *channel, bool *there)
{
    struct net_link link;
    int result;

    *channel = (struct channel){0};
    if (listener->plugin != NULL) {
        result = import_comm_accept(listener->plugin, &channel->plugin);
        *there = result == TCPX_SUCCESS && channel->plugin != NULL;
        return result;
    }
    result = net_accept(listener->builtin, &link, there);
    if (result == TCPX_SUCCESS && *there)
        result = net_comm_create(&link, NET_RECEIVER, &channel->builtin);
    return result;
}

int channel_connect(const struct import_plugin *plugin, const struct channel_devices *devices,
                    int number, uint64_t deadline, uint8_t handle[NET_TABLE_HANDLE_BYTES],
                    struct channel *channel, bool *there)
{
    struct net_link_options options;
    struct net_link link;
    int result;

    *channel = (struct channel){0};
    if (plugin != NULL) {
        result = import_comm_connect(plugin, number, handle, &channel->plugin);
        *there = result == TCPX_SUCCESS && channel->plugin != NULL;
        return result;
    }
    result = link_options(devices, &options);
    options.answer_ms = deadline == DEADLINE_NEVER ? 0 : (uint64_t)deadline_poll_ms(deadline) / 2;
    if (result == TCPX_SUCCESS)
        result = net_connect(&devices->list[number], &options, handle, &link, there);
    if (result == TCPX_SUCCESS && *there) {
        memcpy(channel->nic, link.device.name, sizeof channel->nic);
        result = net_comm_create(&link, NET_SENDER, &channel->builtin);
    }
    return result;
}

void channel_connect_describe(const struct import_plugin *plugin,
                              const uint8_t handle[NET_TABLE_HANDLE_BYTES], char *text, size_t size)
{
    text[0] = '\0';
    if (plugin == NULL)
        net_connect_describe(handle, text, size);
}

void channel_connect_cancel(const struct import_plugin *plugin,
                            uint8_t handle[NET_TABLE_HANDLE_BYTES])
{
    if (plugin != NULL)
        import_comm_connect_forget(plugin, handle);
    else
        net_connect_cancel(handle);
}

void channel_listener_close(struct channel_listener *listener)
{
    if (import_listener_close(listener->plugin) != TCPX_SUCCESS)
        log_warn("%s", error_text());
    net_listener_close(listener->builtin);
    *listener = (struct channel_listener){0};
}

void channel_close(struct channel *channel)
{
    if (import_comm_close(channel->plugin, true) != TCPX_SUCCESS)
        log_warn("%s", error_text());
    net_comm_close(channel->builtin);
    *channel = (struct channel){0};
}

/* --- using --------------------------------------------------------------------------------- */

int channel_register(struct channel *channel, void *data, uint64_t bytes, bool on_gpu,
                     struct channel_memory *memory)
{
    *memory = (struct channel_memory){0};
    if (channel->plugin != NULL)
        return import_comm_register(channel->plugin, data, bytes,
                                    on_gpu ? NET_POINTER_CUDA : NET_POINTER_HOST, &memory->plugin);
    return on_gpu ? net_register(channel->builtin, data, bytes, &memory->builtin) : TCPX_SUCCESS;
}

void channel_deregister(struct channel *channel, struct channel_memory *memory)
{
    if (memory->plugin != NULL &&
        import_comm_deregister(channel->plugin, memory->plugin) != TCPX_SUCCESS)
        log_warn("%s", error_text());
    if (memory->builtin != NULL)
        net_deregister(channel->builtin, memory->builtin);
    *memory = (struct channel_memory){0};
}

int channel_post(struct channel *channel, bool sends, void *data, uint64_t bytes,
                 const struct channel_memory *memory, channel_request *request)
{
    const struct net_buffer buffer = {.data = data, .bytes = bytes, .memory = memory->builtin};

    if (channel->plugin != NULL)
        return (sends ? import_comm_isend : import_comm_irecv)(
            channel->plugin, data, bytes, 0, memory->plugin, (struct import_request **)request);
    return (sends ? net_isend_buffer : net_irecv_buffer)(channel->builtin, &buffer, CHUNK_TAG,
                                                         (struct net_request **)request);
}

int channel_test(struct channel *channel, channel_request request, bool *done, uint64_t *bytes)
{
    return channel->plugin != NULL ? import_request_test(request, done, bytes)
                                   : net_test(request, done, bytes);
}

int channel_received(struct channel *channel, channel_request request, struct unpack_list *received)
{
    *received = (struct unpack_list){.count = 0};
    return channel->plugin != NULL ? import_request_received(request, received) : TCPX_SUCCESS;
}

int channel_consumed(struct channel *channel, channel_request request)
{
    return channel->plugin != NULL ? import_request_consumed(request) : TCPX_SUCCESS;
}
