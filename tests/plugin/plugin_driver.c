/* See the header. One function for each member of the tables, and the log. */
#include "tests/plugin/plugin_driver.h"
#include "tests/support/basics.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The plugin has structs of its own under other names, as it has with NCCL. */
#if defined __clang__
#pragma clang attribute push(__attribute__((no_sanitize("function"))), apply_to = function)
#endif

/* --- loading --------------------------------------------------------------------------------- */

const char *plugin_path(void)
{
    const char *given = getenv("TCPX_TEST_PLUGIN");

    return given != NULL ? given : path_in_build("libnccl-net-tcpx.so");
}

void *plugin_load(void)
{
    void *library = dlopen(plugin_path(), RTLD_NOW | RTLD_LOCAL);

    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    return library;
}

bool plugin_find(void *library, int version, struct plugin *plugin)
{
    char symbol[40];

    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    *plugin = (struct plugin){.version = version, .table.any = dlsym(library, symbol)};
    return plugin->table.any != NULL;
}

/* --- the log --------------------------------------------------------------------------------- */

enum { LOG_LINES = 64, LOG_LINE = 1024 };

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static char log_lines[LOG_LINES][LOG_LINE];                  /* the latest warnings */
static unsigned log_count;

void plugin_logger(int level, unsigned long flags, const char *file, int line, const char *format,
                   ...)
{
    char text[LOG_LINE];
    va_list arguments;

    (void)flags;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (getenv("TCPX_TEST_LOG") != NULL)
        fprintf(stderr, "# log level %d %s:%d %s\n", level, file, line, text);
    if (level != NCCL_LOG_WARN)
        return;
    pthread_mutex_lock(&log_lock);
    memcpy(log_lines[log_count % LOG_LINES], text, sizeof text);
    log_count++;
    pthread_mutex_unlock(&log_lock);
}

void plugin_log_clear(void)
{
    pthread_mutex_lock(&log_lock);
    log_count = 0;
    pthread_mutex_unlock(&log_lock);
}

unsigned plugin_log_warnings(void)
{
    unsigned count;

    pthread_mutex_lock(&log_lock);
    count = log_count;
    pthread_mutex_unlock(&log_lock);
    return count;
}

bool plugin_log_warned(const char *text)
{
    bool found = false;

    pthread_mutex_lock(&log_lock);
    for (unsigned i = 0; i < log_count && i < LOG_LINES; i++)
        found = found || strstr(log_lines[i], text) != NULL;
    pthread_mutex_unlock(&log_lock);
    return found;
}

void plugin_log_print(void)
{
    pthread_mutex_lock(&log_lock);
    for (unsigned i = 0; i < log_count && i < LOG_LINES; i++)
        fprintf(stderr, "# warning: %s\n", log_lines[i]);
    pthread_mutex_unlock(&log_lock);
}

const char *plugin_log_last(void)
{
    static char text[LOG_LINE];

    pthread_mutex_lock(&log_lock);
    if (log_count > 0)
        memcpy(text, log_lines[(log_count - 1) % LOG_LINES], sizeof text);
    else
        text[0] = '\0';
    pthread_mutex_unlock(&log_lock);
    return text;
}

/* NCCL gives its own also where no profiler is loaded. */
static int profiler(void **event, int type, void *parent, int64_t id, void *extra)
{
    (void)event, (void)type, (void)parent, (void)id, (void)extra;
    return NCCL_SUCCESS;
}

/* --- calls ----------------------------------------------------------------------------------- */

/* A call of one version, and of all versions of a range, where its parameters are the same. */
#define OF(p, number, use) (p)->version == (number) ? (p)->table.v##number->use
#define FROM_11(p, use)    (OF(p, 11, use) : (p)->table.v12->use)
#define FROM_10(p, use)    (OF(p, 10, use) : FROM_11(p, use))
#define FROM_9(p, use)     (OF(p, 9, use) : FROM_10(p, use))
#define FROM_8(p, use)     (OF(p, 8, use) : FROM_9(p, use))
#define FROM_7(p, use)     (OF(p, 7, use) : FROM_8(p, use))
#define EACH(p, use)       (OF(p, 6, use) : FROM_7(p, use))
#define UNTIL_8(p, use)    (OF(p, 6, use) : OF(p, 7, use) : (p)->table.v8->use)
#define UNTIL_9(p, use)    ((p)->version < 9 ? UNTIL_8(p, use) : (p)->table.v9->use)
#define UNTIL_10(p, use)   ((p)->version < 10 ? UNTIL_9(p, use) : (p)->table.v10->use)

const char *plugin_name(const struct plugin *plugin)
{
    return EACH(plugin, name);
}

bool plugin_has_consumed(const struct plugin *plugin)
{
    return plugin->version >= 7 && FROM_7(plugin, irecv_consumed) != NULL;
}

int plugin_init(struct plugin *plugin)
{
    static struct nccl_config config = {.traffic_class = -1};

    if (plugin->version < 10)
        return UNTIL_9(plugin, init(plugin_logger));
    if (plugin->version == 10)
        return plugin->table.v10->init(plugin_logger, profiler);
    return FROM_11(plugin, init(&plugin->context, 0x1234, &config, plugin_logger, profiler));
}

int plugin_finalize(struct plugin *plugin)
{
    void *context = plugin->context;

    if (plugin->version < 11)
        return NCCL_SUCCESS;
    plugin->context = NULL;
    return FROM_11(plugin, finalize(context));
}

int plugin_devices(const struct plugin *plugin, int *count)
{
    return EACH(plugin, devices(count));
}

int plugin_raw_properties(const struct plugin *plugin, int device, void *props, size_t *bytes)
{
    static const size_t sizes[] = {sizeof(struct nccl_props_v6), sizeof(struct nccl_props_v7),
                                   sizeof(struct nccl_props_v8), sizeof(struct nccl_props_v9),
                                   sizeof(struct nccl_props_v9), sizeof(struct nccl_props_v11),
                                   sizeof(struct nccl_props_v12)};

    *bytes = sizes[plugin->version - FIRST_VERSION];
    return EACH(plugin, get_properties(device, props));
}

/* The members of a version's struct, and of those before it. */
#define COPY_6(to, from)                                                                           \
    (to)->name = (from).name, (to)->pci_path = (from).pci_path, (to)->guid = (from).guid,          \
    (to)->ptr_support = (from).ptr_support, (to)->speed = (from).speed, (to)->port = (from).port,  \
    (to)->latency = (from).latency, (to)->max_comms = (from).max_comms,                            \
    (to)->max_recvs = (from).max_recvs
#define COPY_7(to, from)                                                                           \
    COPY_6(to, from), (to)->net_device_type = (from).net_device_type,                              \
                      (to)->net_device_version = (from).net_device_version
#define COPY_8(to, from) COPY_7(to, from), (to)->reg_is_global = (from).reg_is_global
#define COPY_9(to, from)                                                                           \
    COPY_8(to, from),                                                                              \
        (to)->force_flush = (from).force_flush, (to)->parts = (from).virtual_device.count,         \
        (to)->first_part = (from).virtual_device.devices[0],                                       \
        (to)->max_p2p_bytes = (from).max_p2p_bytes, (to)->max_coll_bytes = (from).max_coll_bytes
#define COPY_11(to, from)                                                                          \
    COPY_9(to, from), (to)->max_multi_request_size = (from).max_multi_request_size
#define COPY_12(to, from)                                                                          \
    COPY_11(to, from), (to)->rail_id = (from).rail_id, (to)->plane_id = (from).plane_id

struct plugin_properties plugin_read_properties(int version, const union plugin_raw *raw)
{
    struct plugin_properties props = {.net_device_type = NCCL_DEVICE_HOST};

    if (version == 6)
        COPY_6(&props, raw->v6);
    else if (version == 7)
        COPY_7(&props, raw->v7);
    else if (version == 8)
        COPY_8(&props, raw->v8);
    else if (version <= 10)
        COPY_9(&props, raw->v9);
    else if (version == 11)
        COPY_11(&props, raw->v11);
    else
        COPY_12(&props, raw->v12);
    return props;
}

int plugin_properties(const struct plugin *plugin, int device, struct plugin_properties *props)
{
    union plugin_raw raw;
    size_t bytes;
    int result = plugin_raw_properties(plugin, device, &raw, &bytes);

    if (result == NCCL_SUCCESS)
        *props = plugin_read_properties(plugin->version, &raw);
    return result;
}

int plugin_listen(const struct plugin *plugin, int device, void *handle, void **comm)
{
    if (plugin->version < 11)
        return UNTIL_10(plugin, listen(device, handle, comm));
    return FROM_11(plugin, listen(plugin->context, device, handle, comm));
}

int plugin_connect(const struct plugin *plugin, int device, void *handle, void **comm,
                   struct nccl_device_handle **device_comm)
{
    struct nccl_config config = {.traffic_class = -1};

    if (plugin->version == 6)
        return plugin->table.v6->connect(device, handle, comm);
    if (plugin->version == 10)
        return plugin->table.v10->connect(device, &config, handle, comm, device_comm);
    if (plugin->version >= 11)
        return FROM_11(plugin, connect(plugin->context, device, handle, comm, device_comm));
    return (OF(plugin, 7, connect(device, handle, comm, device_comm))
            : OF(plugin, 8, connect(device, handle, comm, device_comm))
            : plugin->table.v9->connect(device, handle, comm, device_comm));
}

int plugin_accept(const struct plugin *plugin, void *listening, void **comm,
                  struct nccl_device_handle **device_comm)
{
    if (plugin->version == 6)
        return plugin->table.v6->accept(listening, comm);
    return FROM_7(plugin, accept(listening, comm, device_comm));
}

int plugin_reg(const struct plugin *plugin, void *comm, void *data, size_t size, int type,
               void **mhandle)
{
    if (plugin->version < 8)
        return UNTIL_8(plugin, reg_mr(comm, data, (int)size, type, mhandle));
    return FROM_8(plugin, reg_mr(comm, data, size, type, mhandle));
}

int plugin_reg_dmabuf(const struct plugin *plugin, void *comm, void *data, size_t size, int type,
                      uint64_t offset, int fd, void **mhandle)
{
    if (EACH(plugin, reg_mr_dmabuf) == NULL)
        return NCCL_INVALID_USAGE;
    return EACH(plugin, reg_mr_dmabuf(comm, data, size, type, offset, fd, mhandle));
}

int plugin_dereg(const struct plugin *plugin, void *comm, void *mhandle)
{
    return EACH(plugin, dereg_mr(comm, mhandle));
}

/* The caller's profiler token: NCCL's own calls without a profiler give NULL. */
int plugin_isend(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request)
{
    if (plugin->version < 9)
        return UNTIL_8(plugin, isend(comm, data, (int)size, tag, mhandle, request));
    if (plugin->version == 9)
        return plugin->table.v9->isend(comm, data, (size_t)size, tag, mhandle, request);
    return FROM_10(plugin, isend(comm, data, (size_t)size, tag, mhandle, NULL, request));
}

int plugin_irecv_n(const struct plugin *plugin, void *comm, int n, void **data,
                   const int64_t *sizes, int *tags, void **mhandles, void **request)
{
    size_t large[8] = {0};
    int small[8] = {0};

    for (int i = 0; i < n && i < 8; i++) {
        large[i] = (size_t)sizes[i];
        small[i] = (int)sizes[i];
    }
    if (plugin->version < 9)
        return UNTIL_8(plugin, irecv(comm, n, data, small, tags, mhandles, request));
    if (plugin->version == 9)
        return plugin->table.v9->irecv(comm, n, data, large, tags, mhandles, request);
    return FROM_10(plugin, irecv(comm, n, data, large, tags, mhandles, NULL, request));
}

int plugin_irecv(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request)
{
    return plugin_irecv_n(plugin, comm, 1, &data, &size, &tag, &mhandle, request);
}

int plugin_iflush(const struct plugin *plugin, void *comm, void *data, int size, void *mhandle,
                  void **request)
{
    return EACH(plugin, iflush(comm, 1, &data, &size, &mhandle, request));
}

int plugin_test(const struct plugin *plugin, void *request, int *done, int *sizes)
{
    return EACH(plugin, test(request, done, sizes));
}

int plugin_close_send(const struct plugin *plugin, void *comm)
{
    return EACH(plugin, close_send(comm));
}

int plugin_close_recv(const struct plugin *plugin, void *comm)
{
    return EACH(plugin, close_recv(comm));
}

int plugin_close_listen(const struct plugin *plugin, void *comm)
{
    return EACH(plugin, close_listen(comm));
}

int plugin_device_mr(const struct plugin *plugin, void *comm, void *mhandle, void **device)
{
    if (plugin->version < 7 || FROM_7(plugin, get_device_mr) == NULL)
        return NCCL_SUCCESS;
    return FROM_7(plugin, get_device_mr(comm, mhandle, device));
}

int plugin_consumed(const struct plugin *plugin, void *comm, void *request)
{
    if (!plugin_has_consumed(plugin))
        return NCCL_SUCCESS;
    return FROM_7(plugin, irecv_consumed(comm, 1, request));
}

int plugin_set_attr(const struct plugin *plugin, struct nccl_attr *attr)
{
    if (plugin->version < 11 || FROM_11(plugin, set_net_attr) == NULL)
        return NCCL_SUCCESS;
    return FROM_11(plugin, set_net_attr(plugin->context, attr));
}

#if defined __clang__
#pragma clang attribute pop
#endif
