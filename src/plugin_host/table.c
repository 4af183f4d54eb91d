/* Calls into the tables, versions 6 to 12. */
#include "plugin_host/table.h"

#include "nccl_plugin/nccl_plugin.h"
#include "plugin_host/exit_watch.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What NCCL assumes of tables that do not have these properties. */
#define P2P_BYTES_BEFORE_V9        ((size_t)1 << 30)
#define COLLECTIVE_BYTES_BEFORE_V9 ((size_t)1 << 29)

/* An unknown result is the plugin's fault. */
static int plugin_result(const struct import_table *table, const char *call, int result)
{
    bool is_error = result >= TCPX_CUDA_ERROR && result <= TCPX_REMOTE_ERROR;
    char warning[EXIT_WATCH_TEXT];

    /* Our own transport has set the text. */
    if (result == TCPX_SUCCESS || table->is_builtin)
        return result;
    exit_watch_last_warning(warning);
    return error_set(is_error ? result : TCPX_INTERNAL_ERROR, "%s: %s failed with %d (%s)%s%s",
                     table->name, call, result, tcpx_result_name(result),
                     *warning != '\0' ? "; its last warning: " : "", warning);
}

/* The first member that is called here and missing, or NULL. All of a union are one pointer. */
static const char *missing_member(const struct net_table *raw)
{
    return raw->devices == NULL          ? "devices"
           : raw->get_properties == NULL ? "getProperties"
           : raw->listen.v6 == NULL      ? "listen"
           : raw->connect.v6 == NULL     ? "connect"
           : raw->accept.v6 == NULL      ? "accept"
           : raw->reg_mr.v6 == NULL      ? "regMr"
           : raw->dereg_mr == NULL       ? "deregMr"
           : raw->isend.v6 == NULL       ? "isend"
           : raw->irecv.v6 == NULL       ? "irecv"
           : raw->test == NULL           ? "test"
           : raw->close_send == NULL     ? "closeSend"
           : raw->close_recv == NULL     ? "closeRecv"
           : raw->close_listen == NULL   ? "closeListen"
                                         : NULL;
}

/* --- finding and starting ------------------------------------------------------------------ */

int import_table_find(void *library, struct import_table *table)
{
    enum { NEWEST = 12, OLDEST = 6 };

    for (int version = NEWEST; version >= OLDEST; version--) {
        char symbol[32];
        const struct net_table *raw;

        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        raw = dlsym(library, symbol);
        if (raw == NULL)
            continue;
        *table = (struct import_table){.name = raw->name, .version = version, .raw = raw};
        if (table->name == NULL)
            return error_set(TCPX_INVALID_ARGUMENT, "its table %s has no name", symbol);
        return TCPX_SUCCESS;
    }
    return error_set(TCPX_INVALID_ARGUMENT,
                     "it has none of the tables ncclNetPlugin_v%d to ncclNetPlugin_v%d", OLDEST,
                     NEWEST);
}

void import_table_builtin(struct import_table *table)
{
    plugin_unpack_always();
    *table = (struct import_table){.name = ncclNetPlugin_v12.name,
                                   .version = 12,
                                   .raw = &ncclNetPlugin_v12,
                                   .is_builtin = true};
}

/*
 * Logs a line of the plugin, whose length is not to be trusted. Warnings are kept for later texts
 * even if they are not logged.
 */
static void log_plugin_line(int level, unsigned long flags, const char *file, int line,
                            const char *format, ...)
{
    enum { NCCL_WARN = 2, NCCL_INFO = 3 };
    enum log_kind kind = level == NCCL_WARN ? LOG_WARN : level == NCCL_INFO ? LOG_TCPX : LOG_DEBUG;
    char text[900];
    va_list arguments;

    (void)flags;
    if (format == NULL || (!log_enabled(kind) && kind != LOG_WARN))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (kind == LOG_WARN)
        exit_watch_keep_warning(text);
    if (log_enabled(kind))
        log_write(kind, file != NULL ? file : "", line, "%s", text);
}

/* Plugins call it without a check for NULL. */
static int no_profiler(void **event, int type, void *parent, int64_t plugin, void *data)
{
    (void)event;
    (void)type;
    (void)parent;
    (void)plugin;
    (void)data;
    return TCPX_SUCCESS;
}

int import_table_init(struct import_table *table)
{
    struct net_comm_config config = {.traffic_class = NET_UNDEFINED};
    int result;

    if (table->raw->init.v6 == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: its table has no init", table->name);
    if (table->version < 10)
        result = table->raw->init.v6(log_plugin_line);
    else if (table->version == 10)
        result = table->raw->init.v10(log_plugin_line, no_profiler);
    else /* lines of our own transport are ours already */
        result = table->raw->init.v11(&table->context, 0, &config,
                                      table->is_builtin ? NULL : log_plugin_line, no_profiler);
    return result == TCPX_SUCCESS ? import_table_check(table)
                                  : plugin_result(table, "init", result);
}

int import_table_check(const struct import_table *table)
{
    const char *missing = missing_member(table->raw);

    if (missing != NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: its table has no %s", table->name, missing);
    return TCPX_SUCCESS;
}

void import_table_finalize(struct import_table *table)
{
    if (table->version >= 11 && table->raw->finalize != NULL)
        table->raw->finalize(table->context);
    table->context = NULL;
}

/* --- devices ------------------------------------------------------------------------------- */

int import_devices(const struct import_table *table, int *count)
{
    int found = 0;
    int result = plugin_result(table, "devices", table->raw->devices(&found));

    if (result == TCPX_SUCCESS && found < 0)
        return error_set(TCPX_INTERNAL_ERROR, "%s: its devices call returned %d devices",
                         table->name, found);
    if (result == TCPX_SUCCESS)
        *count = found;
    return result;
}

int import_properties(const struct import_table *table, int device,
                      struct net_properties_v12 *properties)
{
    /* In the layout of the table; zeroed, since a plugin may leave members as they are. */
    struct net_properties_v12 given = {0};
    /* What NCCL assumes of members that the version does not have. */
    struct net_properties_v12 newest = {.parts = {.count = 1, .devices = {device}},
                                        .max_p2p_bytes = P2P_BYTES_BEFORE_V9,
                                        .max_collective_bytes = COLLECTIVE_BYTES_BEFORE_V9,
                                        .max_multi_request = 1,
                                        .rail = NET_UNDEFINED,
                                        .plane = NET_UNDEFINED};
    int result = table->raw->get_properties(device, &given);

    net_properties_from(table->version, &given, &newest);
    if (result == TCPX_SUCCESS)
        *properties = newest;
    return plugin_result(table, "getProperties", result);
}

/* --- connections --------------------------------------------------------------------------- */

int import_listen(const struct import_table *table, int device,
                  uint8_t handle[NET_TABLE_HANDLE_BYTES], void **listener)
{
    int result;

    memset(handle, 0, NET_TABLE_HANDLE_BYTES); /* all of it travels */
    *listener = NULL;
    if (table->version < 11)
        result = table->raw->listen.v6(device, handle, listener);
    else
        result = table->raw->listen.v11(table->context, device, handle, listener);
    return plugin_result(table, "listen", result);
}

int import_connect(const struct import_table *table, int device,
                   uint8_t handle[NET_TABLE_HANDLE_BYTES], void **sender)
{
    struct net_comm_config config = {.traffic_class = NET_UNDEFINED};
    struct net_device_handle *on_gpu = NULL; /* as NCCL: a sender has nothing there */
    int result;

    *sender = NULL;
    if (table->version == 6)
        result = table->raw->connect.v6(device, handle, sender);
    else if (table->version < 10)
        result = table->raw->connect.v7(device, handle, sender, &on_gpu);
    else if (table->version == 10)
        result = table->raw->connect.v10(device, &config, handle, sender, &on_gpu);
    else
        result = table->raw->connect.v11(table->context, device, handle, sender, &on_gpu);
    return plugin_result(table, "connect", result);
}

int import_accept(const struct import_table *table, void *listener, void **receiver,
                  struct net_device_handle *on_gpu)
{
    struct net_device_handle *place = on_gpu;
    int result;

    *receiver = NULL;
    if (table->version == 6) {
        *on_gpu = (struct net_device_handle){.type = NET_DEVICE_HOST};
        result = table->raw->accept.v6(listener, receiver);
    } else {
        result = table->raw->accept.v7(listener, receiver, &place);
    }
    /* It may have put its own struct there instead of filling in ours. */
    if (result == TCPX_SUCCESS && *receiver != NULL && place != NULL && place != on_gpu)
        *on_gpu = *place;
    return plugin_result(table, "accept", result);
}

int import_close_send(const struct import_table *table, void *sender)
{
    return plugin_result(table, "closeSend", table->raw->close_send(sender));
}

int import_close_recv(const struct import_table *table, void *receiver)
{
    return plugin_result(table, "closeRecv", table->raw->close_recv(receiver));
}

int import_close_listen(const struct import_table *table, void *listener)
{
    return plugin_result(table, "closeListen", table->raw->close_listen(listener));
}

/* --- memory -------------------------------------------------------------------------------- */

int import_register(const struct import_table *table, void *comm, void *data, size_t bytes,
                    int type, void **memory)
{
    int result;

    *memory = NULL;
    if (table->version < 8 && bytes > INT_MAX)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%s: its table, version %d, cannot register more than %d bytes, and these "
                         "are %zu",
                         table->name, table->version, INT_MAX, bytes);
    if (table->version < 8)
        result = table->raw->reg_mr.v6(comm, data, (int)bytes, type, memory);
    else
        result = table->raw->reg_mr.v8(comm, data, bytes, type, memory);
    return plugin_result(table, "regMr", result);
}

int import_deregister(const struct import_table *table, void *comm, void *memory)
{
    return plugin_result(table, "deregMr", table->raw->dereg_mr(comm, memory));
}

/* --- requests ------------------------------------------------------------------------------ */

size_t import_longest(const struct import_table *table)
{
    return table->version < 9 ? P2P_BYTES_BEFORE_V9 : (size_t)1 << 40;
}

static int check_length(const struct import_table *table, size_t bytes)
{
    if (bytes <= import_longest(table))
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT,
                     "%s: its table, version %d, has messages of at most %zu bytes, and this is "
                     "one of %zu",
                     table->name, table->version, import_longest(table), bytes);
}

int import_isend(const struct import_table *table, void *sender, void *data, size_t bytes, int tag,
                 void *memory, void **request)
{
    int result = check_length(table, bytes);

    *request = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    if (table->version < 9)
        result = table->raw->isend.v6(sender, data, (int)bytes, tag, memory, request);
    else if (table->version == 9)
        result = table->raw->isend.v9(sender, data, bytes, tag, memory, request);
    else
        result = table->raw->isend.v10(sender, data, bytes, tag, memory, NULL, request);
    return plugin_result(table, "isend", result);
}

int import_irecv(const struct import_table *table, void *receiver, void *data, size_t bytes,
                 int tag, void *memory, void **request)
{
    int small = bytes <= INT_MAX ? (int)bytes : 0;
    int result = check_length(table, bytes);

    *request = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    if (table->version < 9)
        result = table->raw->irecv.v6(receiver, 1, &data, &small, &tag, &memory, request);
    else if (table->version == 9)
        result = table->raw->irecv.v9(receiver, 1, &data, &bytes, &tag, &memory, request);
    else
        result = table->raw->irecv.v10(receiver, 1, &data, &bytes, &tag, &memory, NULL, request);
    return plugin_result(table, "irecv", result);
}

int import_test(const struct import_table *table, void *request, int *done, uint64_t *bytes)
{
    int reported = -1;
    int result;

    *done = 0;
    result = plugin_result(table, "test", table->raw->test(request, done, &reported));
    if (result == TCPX_SUCCESS && *done != 0)
        *bytes = reported >= 0 ? (uint64_t)reported : IMPORT_BYTES_UNSAID;
    return result;
}

int import_consumed(const struct import_table *table, void *receiver, void *request)
{
    if (table->version == 6 || table->raw->irecv_consumed == NULL)
        return TCPX_SUCCESS;
    return plugin_result(table, "irecvConsumed", table->raw->irecv_consumed(receiver, 1, request));
}
