/* Calls into the tables, versions 6 to 12. */
#include "plugin_host/table.h"

#include "nccl_plugin/plugin.h"
#include "plugin_host/exit_watch.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What NCCL fills in for tables that cannot say it, and keeps to itself. */
#define P2P_BYTES_BEFORE_V9        ((size_t)1 << 30)
#define COLLECTIVE_BYTES_BEFORE_V9 ((size_t)1 << 29)

#define V(number) ((const struct net_table_v##number *)table->raw)

/* A member that has the same signature in all versions. */
#define CALL(member, ...)                                                                          \
    (table->version == 6    ? V(6)->member(__VA_ARGS__)                                            \
     : table->version == 7  ? V(7)->member(__VA_ARGS__)                                            \
     : table->version == 8  ? V(8)->member(__VA_ARGS__)                                            \
     : table->version == 9  ? V(9)->member(__VA_ARGS__)                                            \
     : table->version == 10 ? V(10)->member(__VA_ARGS__)                                           \
     : table->version == 11 ? V(11)->member(__VA_ARGS__)                                           \
                            : V(12)->member(__VA_ARGS__))

/* A result that no call may have is the plugin's fault. */
static int answer(const struct import_table *table, const char *call, int result)
{
    bool is_error = result >= TCPX_CUDA_ERROR && result <= TCPX_REMOTE_ERROR;
    char warning[EXIT_WATCH_TEXT];

    /* Our own transport has said why. */
    if (result == TCPX_SUCCESS || table->is_builtin)
        return result;
    exit_watch_last_warning(warning);
    return error_set(is_error ? result : TCPX_INTERNAL_ERROR, "%s: %s failed with %d (%s)%s%s",
                     table->name, call, result, tcpx_result_name(result),
                     *warning != '\0' ? "; its last warning: " : "", warning);
}

/* The same for a member of all versions: whether it is there. */
#define HAS(member)                                                                                \
    (table->version == 6    ? V(6)->member != NULL                                                 \
     : table->version == 7  ? V(7)->member != NULL                                                 \
     : table->version == 8  ? V(8)->member != NULL                                                 \
     : table->version == 9  ? V(9)->member != NULL                                                 \
     : table->version == 10 ? V(10)->member != NULL                                                \
     : table->version == 11 ? V(11)->member != NULL                                                \
                            : V(12)->member != NULL)

/* Of those that are called here; NULL: none is missing. */
static const char *missing_member(const struct import_table *table)
{
    return !HAS(devices)          ? "devices"
           : !HAS(get_properties) ? "getProperties"
           : !HAS(listen)         ? "listen"
           : !HAS(connect)        ? "connect"
           : !HAS(accept)         ? "accept"
           : !HAS(reg_mr)         ? "regMr"
           : !HAS(dereg_mr)       ? "deregMr"
           : !HAS(isend)          ? "isend"
           : !HAS(irecv)          ? "irecv"
           : !HAS(test)           ? "test"
           : !HAS(close_send)     ? "closeSend"
           : !HAS(close_recv)     ? "closeRecv"
           : !HAS(close_listen)   ? "closeListen"
                                  : NULL;
}

/* --- finding and starting ------------------------------------------------------------------ */

int import_table_find(void *library, struct import_table *table)
{
    enum { NEWEST = 12, OLDEST = 6 };

    for (int version = NEWEST; version >= OLDEST; version--) {
        char symbol[32];
        const void *raw;

        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        raw = dlsym(library, symbol);
        if (raw == NULL)
            continue;
        *table = (struct import_table){.version = version, .raw = raw};
        table->name = *(const char *const *)raw;
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
 * The plugin's lines among ours; it must not be trusted with the length. Its warnings are kept even
 * if nobody reads lines.
 */
static void log_line(int level, unsigned long flags, const char *file, int line, const char *format,
                     ...)
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

/* Plugins call it without asking whether it is there. */
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

    if (!HAS(init))
        return error_set(TCPX_INVALID_ARGUMENT, "%s: its table has no init", table->name);
    switch (table->version) {
    case 6:
        result = V(6)->init(log_line);
        break;
    case 7:
        result = V(7)->init(log_line);
        break;
    case 8:
        result = V(8)->init(log_line);
        break;
    case 9:
        result = V(9)->init(log_line);
        break;
    case 10:
        result = V(10)->init(log_line, no_profiler);
        break;
    case 11:
        result = V(11)->init(&table->context, 0, &config, log_line, no_profiler);
        break;
    default:
        /* Our own lines are ours already. */
        result = V(12)->init(&table->context, 0, &config, table->is_builtin ? NULL : log_line,
                             no_profiler);
        break;
    }
    return result == TCPX_SUCCESS ? import_table_check(table) : answer(table, "init", result);
}

int import_table_check(const struct import_table *table)
{
    const char *missing = missing_member(table);

    if (missing != NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: its table has no %s", table->name, missing);
    return TCPX_SUCCESS;
}

void import_table_finalize(struct import_table *table)
{
    if (table->version == 11 && V(11)->finalize != NULL)
        V(11)->finalize(table->context);
    else if (table->version == 12 && V(12)->finalize != NULL)
        V(12)->finalize(table->context);
    table->context = NULL;
}

/* --- devices ------------------------------------------------------------------------------- */

int import_devices(const struct import_table *table, int *count)
{
    int found = 0;
    int result = answer(table, "devices", CALL(devices, &found));

    if (result == TCPX_SUCCESS && found < 0)
        return error_set(TCPX_INTERNAL_ERROR, "%s: devices says %d", table->name, found);
    if (result == TCPX_SUCCESS)
        *count = found;
    return result;
}

/* The members that all versions from 6, 8 and 9 on have under the same names. */
#define SINCE_V6(from)                                                                             \
    .name = (from).name, .pci_path = (from).pci_path, .guid = (from).guid,                         \
    .pointer_support = (from).pointer_support, .speed = (from).speed, .port = (from).port,         \
    .latency = (from).latency, .max_comms = (from).max_comms, .max_receives = (from).max_receives
#define SINCE_V7(from)                                                                             \
    SINCE_V6(from), .device_type = (from).device_type, .device_version = (from).device_version
#define BEFORE_V9                                                                                  \
    .parts = {.count = 1, .devices = {device}}, .max_p2p_bytes = P2P_BYTES_BEFORE_V9,              \
    .max_collective_bytes = COLLECTIVE_BYTES_BEFORE_V9
#define SINCE_V9(from)                                                                             \
    SINCE_V7(from), .registration_is_global = (from).registration_is_global,                       \
                    .force_flush = (from).force_flush, .max_p2p_bytes = (from).max_p2p_bytes,      \
                    .max_collective_bytes = (from).max_collective_bytes
#define BEFORE_V11 .max_multi_request = 1
#define BEFORE_V12 .rail = NET_UNDEFINED, .plane = NET_UNDEFINED

static void take_parts(const struct net_virtual_v9 *from, struct net_virtual_v12 *to)
{
    to->count = from->count;
    memcpy(to->devices, from->devices, sizeof from->devices);
}

/* Into zeroed structs: a plugin that does not set a member has said 0. */
int import_properties(const struct import_table *table, int device,
                      struct net_properties_v12 *properties)
{
    struct net_properties_v6 v6 = {0};
    struct net_properties_v7 v7 = {0};
    struct net_properties_v8 v8 = {0};
    struct net_properties_v9 v9 = {0};
    struct net_properties_v11 v11 = {0};
    struct net_properties_v12 v12 = {0};
    int result;

    switch (table->version) {
    case 6:
        result = V(6)->get_properties(device, &v6);
        v12 = (struct net_properties_v12){SINCE_V6(v6), BEFORE_V9, BEFORE_V11, BEFORE_V12};
        break;
    case 7:
        result = V(7)->get_properties(device, &v7);
        v12 = (struct net_properties_v12){SINCE_V7(v7), BEFORE_V9, BEFORE_V11, BEFORE_V12};
        break;
    case 8:
        result = V(8)->get_properties(device, &v8);
        v12 = (struct net_properties_v12){SINCE_V7(v8), BEFORE_V9,
                                          .registration_is_global = v8.registration_is_global,
                                          BEFORE_V11, BEFORE_V12};
        break;
    case 9:
    case 10:
        result = table->version == 9 ? V(9)->get_properties(device, &v9)
                                     : V(10)->get_properties(device, &v9);
        v12 = (struct net_properties_v12){SINCE_V9(v9), BEFORE_V11, BEFORE_V12};
        take_parts(&v9.parts, &v12.parts);
        break;
    case 11:
        result = V(11)->get_properties(device, &v11);
        v12 = (struct net_properties_v12){SINCE_V9(v11), .max_multi_request = v11.max_multi_request,
                                          BEFORE_V12};
        take_parts(&v11.parts, &v12.parts);
        break;
    default:
        result = V(12)->get_properties(device, &v12);
        break;
    }
    if (result == TCPX_SUCCESS)
        *properties = v12;
    return answer(table, "getProperties", result);
}

/* --- connections --------------------------------------------------------------------------- */

int import_listen(const struct import_table *table, int device,
                  uint8_t handle[NET_TABLE_HANDLE_BYTES], void **listener)
{
    int result;

    memset(handle, 0, NET_TABLE_HANDLE_BYTES); /* all of it travels */
    *listener = NULL;
    switch (table->version) {
    case 6:
        result = V(6)->listen(device, handle, listener);
        break;
    case 7:
        result = V(7)->listen(device, handle, listener);
        break;
    case 8:
        result = V(8)->listen(device, handle, listener);
        break;
    case 9:
        result = V(9)->listen(device, handle, listener);
        break;
    case 10:
        result = V(10)->listen(device, handle, listener);
        break;
    case 11:
        result = V(11)->listen(table->context, device, handle, listener);
        break;
    default:
        result = V(12)->listen(table->context, device, handle, listener);
        break;
    }
    return answer(table, "listen", result);
}

int import_connect(const struct import_table *table, int device,
                   uint8_t handle[NET_TABLE_HANDLE_BYTES], void **sender)
{
    struct net_comm_config config = {.traffic_class = NET_UNDEFINED};
    struct net_device_handle *on_gpu = NULL; /* as NCCL: a sender has nothing there */
    int result;

    *sender = NULL;
    switch (table->version) {
    case 6:
        result = V(6)->connect(device, handle, sender);
        break;
    case 7:
        result = V(7)->connect(device, handle, sender, &on_gpu);
        break;
    case 8:
        result = V(8)->connect(device, handle, sender, &on_gpu);
        break;
    case 9:
        result = V(9)->connect(device, handle, sender, &on_gpu);
        break;
    case 10:
        result = V(10)->connect(device, &config, handle, sender, &on_gpu);
        break;
    case 11:
        result = V(11)->connect(table->context, device, handle, sender, &on_gpu);
        break;
    default:
        result = V(12)->connect(table->context, device, handle, sender, &on_gpu);
        break;
    }
    return answer(table, "connect", result);
}

int import_accept(const struct import_table *table, void *listener, void **receiver,
                  struct net_device_handle *on_gpu)
{
    struct net_device_handle *place = on_gpu;
    int result;

    *receiver = NULL;
    switch (table->version) {
    case 6:
        *on_gpu = (struct net_device_handle){.type = NET_DEVICE_HOST};
        result = V(6)->accept(listener, receiver);
        break;
    case 7:
        result = V(7)->accept(listener, receiver, &place);
        break;
    case 8:
        result = V(8)->accept(listener, receiver, &place);
        break;
    case 9:
        result = V(9)->accept(listener, receiver, &place);
        break;
    case 10:
        result = V(10)->accept(listener, receiver, &place);
        break;
    case 11:
        result = V(11)->accept(listener, receiver, &place);
        break;
    default:
        result = V(12)->accept(listener, receiver, &place);
        break;
    }
    /* It may have put its own struct there instead of filling in ours. */
    if (result == TCPX_SUCCESS && *receiver != NULL && place != NULL && place != on_gpu)
        *on_gpu = *place;
    return answer(table, "accept", result);
}

int import_close_send(const struct import_table *table, void *sender)
{
    return answer(table, "closeSend", CALL(close_send, sender));
}

int import_close_recv(const struct import_table *table, void *receiver)
{
    return answer(table, "closeRecv", CALL(close_recv, receiver));
}

int import_close_listen(const struct import_table *table, void *listener)
{
    return answer(table, "closeListen", CALL(close_listen, listener));
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
    switch (table->version) {
    case 6:
        result = V(6)->reg_mr(comm, data, (int)bytes, type, memory);
        break;
    case 7:
        result = V(7)->reg_mr(comm, data, (int)bytes, type, memory);
        break;
    case 8:
        result = V(8)->reg_mr(comm, data, bytes, type, memory);
        break;
    case 9:
        result = V(9)->reg_mr(comm, data, bytes, type, memory);
        break;
    case 10:
        result = V(10)->reg_mr(comm, data, bytes, type, memory);
        break;
    case 11:
        result = V(11)->reg_mr(comm, data, bytes, type, memory);
        break;
    default:
        result = V(12)->reg_mr(comm, data, bytes, type, memory);
        break;
    }
    return answer(table, "regMr", result);
}

int import_deregister(const struct import_table *table, void *comm, void *memory)
{
    return answer(table, "deregMr", CALL(dereg_mr, comm, memory));
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
    switch (table->version) {
    case 6:
        result = V(6)->isend(sender, data, (int)bytes, tag, memory, request);
        break;
    case 7:
        result = V(7)->isend(sender, data, (int)bytes, tag, memory, request);
        break;
    case 8:
        result = V(8)->isend(sender, data, (int)bytes, tag, memory, request);
        break;
    case 9:
        result = V(9)->isend(sender, data, bytes, tag, memory, request);
        break;
    case 10:
        result = V(10)->isend(sender, data, bytes, tag, memory, NULL, request);
        break;
    case 11:
        result = V(11)->isend(sender, data, bytes, tag, memory, NULL, request);
        break;
    default:
        result = V(12)->isend(sender, data, bytes, tag, memory, NULL, request);
        break;
    }
    return answer(table, "isend", result);
}

int import_irecv(const struct import_table *table, void *receiver, void *data, size_t bytes,
                 int tag, void *memory, void **request)
{
    int small = bytes <= INT_MAX ? (int)bytes : 0;
    int result = check_length(table, bytes);

    *request = NULL;
    if (result != TCPX_SUCCESS)
        return result;
    switch (table->version) {
    case 6:
        result = V(6)->irecv(receiver, 1, &data, &small, &tag, &memory, request);
        break;
    case 7:
        result = V(7)->irecv(receiver, 1, &data, &small, &tag, &memory, request);
        break;
    case 8:
        result = V(8)->irecv(receiver, 1, &data, &small, &tag, &memory, request);
        break;
    case 9:
        result = V(9)->irecv(receiver, 1, &data, &bytes, &tag, &memory, request);
        break;
    case 10:
        result = V(10)->irecv(receiver, 1, &data, &bytes, &tag, &memory, NULL, request);
        break;
    case 11:
        result = V(11)->irecv(receiver, 1, &data, &bytes, &tag, &memory, NULL, request);
        break;
    default:
        result = V(12)->irecv(receiver, 1, &data, &bytes, &tag, &memory, NULL, request);
        break;
    }
    return answer(table, "irecv", result);
}

int import_test(const struct import_table *table, void *request, int *done, uint64_t *bytes)
{
    int said = -1;
    int result;

    *done = 0;
    result = answer(table, "test", CALL(test, request, done, &said));
    if (result == TCPX_SUCCESS && *done != 0)
        *bytes = said >= 0 ? (uint64_t)said : IMPORT_BYTES_UNSAID;
    return result;
}

int import_consumed(const struct import_table *table, void *receiver, void *request)
{
    int (*consumed)(void *receiver, int count, void *request) =
        table->version == 6    ? NULL
        : table->version == 7  ? V(7)->irecv_consumed
        : table->version == 8  ? V(8)->irecv_consumed
        : table->version == 9  ? V(9)->irecv_consumed
        : table->version == 10 ? V(10)->irecv_consumed
        : table->version == 11 ? V(11)->irecv_consumed
                               : V(12)->irecv_consumed;

    if (consumed == NULL)
        return TCPX_SUCCESS;
    return answer(table, "irecvConsumed", consumed(receiver, 1, request));
}
