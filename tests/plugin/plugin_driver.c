/* See the header. One function for each member of the tables, and the log. */
#include "tests/plugin/plugin_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The plugin has structs of its own under other names, as it has with NCCL. */
#if defined __clang__
#pragma clang attribute push(__attribute__((no_sanitize("function"))), apply_to = function)
#endif

/* --- loading --------------------------------------------------------------------------------- */

const char *plugin_path(void)
{
    static char path[4096];
    const char *given = getenv("TCPX_TEST_PLUGIN");
    char program[3000];
    ssize_t length;

    if (given != NULL)
        return given;
    length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return "libnccl-net-tcpx.so";
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    snprintf(path, sizeof path, "%s/../../libnccl-net-tcpx.so", program);
    return path;
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

/* The members that every version, every one from 7, from 11 on has with the same parameters. */
#define FROM_7(p, use)                                                                             \
    ((p)->version == 7    ? (p)->table.v7->use                                                     \
     : (p)->version == 8  ? (p)->table.v8->use                                                     \
     : (p)->version == 9  ? (p)->table.v9->use                                                     \
     : (p)->version == 10 ? (p)->table.v10->use                                                    \
     : (p)->version == 11 ? (p)->table.v11->use                                                    \
                          : (p)->table.v12->use)
#define EACH(p, use)    ((p)->version == 6 ? (p)->table.v6->use : FROM_7(p, use))
#define FROM_11(p, use) ((p)->version == 11 ? (p)->table.v11->use : (p)->table.v12->use)

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

    switch (plugin->version) {
    case 6:
        return plugin->table.v6->init(plugin_logger);
    case 7:
        return plugin->table.v7->init(plugin_logger);
    case 8:
        return plugin->table.v8->init(plugin_logger);
    case 9:
        return plugin->table.v9->init(plugin_logger);
    case 10:
        return plugin->table.v10->init(plugin_logger, profiler);
    default:
        return FROM_11(plugin, init(&plugin->context, 0x1234, &config, plugin_logger, profiler));
    }
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
    switch (plugin->version) {
    case 6:
        *bytes = sizeof(struct nccl_props_v6);
        return plugin->table.v6->get_properties(device, props);
    case 7:
        *bytes = sizeof(struct nccl_props_v7);
        return plugin->table.v7->get_properties(device, props);
    case 8:
        *bytes = sizeof(struct nccl_props_v8);
        return plugin->table.v8->get_properties(device, props);
    case 9:
        *bytes = sizeof(struct nccl_props_v9);
        return plugin->table.v9->get_properties(device, props);
    case 10:
        *bytes = sizeof(struct nccl_props_v9);
        return plugin->table.v10->get_properties(device, props);
    case 11:
        *bytes = sizeof(struct nccl_props_v11);
        return plugin->table.v11->get_properties(device, props);
    default:
        *bytes = sizeof(struct nccl_props_v12);
        return plugin->table.v12->get_properties(device, props);
    }
}

#define COPY_COMMON(to, from)                                                                      \
    do {                                                                                           \
        (to)->name = (from).name;                                                                  \
        (to)->pci_path = (from).pci_path;                                                          \
        (to)->guid = (from).guid;                                                                  \
        (to)->ptr_support = (from).ptr_support;                                                    \
        (to)->speed = (from).speed;                                                                \
        (to)->max_comms = (from).max_comms;                                                        \
        (to)->max_recvs = (from).max_recvs;                                                        \
    } while (0)
#define COPY_DEVICE(to, from)                                                                      \
    do {                                                                                           \
        COPY_COMMON(to, from);                                                                     \
        (to)->net_device_type = (from).net_device_type;                                            \
        (to)->net_device_version = (from).net_device_version;                                      \
    } while (0)

int plugin_properties(const struct plugin *plugin, int device, struct plugin_properties *props)
{
    union {
        struct nccl_props_v6 v6;
        struct nccl_props_v7 v7;
        struct nccl_props_v8 v8;
        struct nccl_props_v9 v9;
        struct nccl_props_v11 v11;
        struct nccl_props_v12 v12;
    } raw;
    size_t bytes;
    int result = plugin_raw_properties(plugin, device, &raw, &bytes);

    *props = (struct plugin_properties){.net_device_type = NCCL_DEVICE_HOST};
    if (result != NCCL_SUCCESS)
        return result;
    switch (plugin->version) {
    case 6:
        COPY_COMMON(props, raw.v6);
        break;
    case 7:
        COPY_DEVICE(props, raw.v7);
        break;
    case 8:
        COPY_DEVICE(props, raw.v8);
        break;
    case 9:
    case 10:
        COPY_DEVICE(props, raw.v9);
        break;
    case 11:
        COPY_DEVICE(props, raw.v11);
        break;
    default:
        COPY_DEVICE(props, raw.v12);
        break;
    }
    return NCCL_SUCCESS;
}

int plugin_listen(const struct plugin *plugin, int device, void *handle, void **comm)
{
    switch (plugin->version) {
    case 6:
        return plugin->table.v6->listen(device, handle, comm);
    case 7:
        return plugin->table.v7->listen(device, handle, comm);
    case 8:
        return plugin->table.v8->listen(device, handle, comm);
    case 9:
        return plugin->table.v9->listen(device, handle, comm);
    case 10:
        return plugin->table.v10->listen(device, handle, comm);
    default:
        return FROM_11(plugin, listen(plugin->context, device, handle, comm));
    }
}

int plugin_connect(const struct plugin *plugin, int device, void *handle, void **comm,
                   struct nccl_device_handle **device_comm)
{
    struct nccl_config config = {.traffic_class = -1};

    switch (plugin->version) {
    case 6:
        return plugin->table.v6->connect(device, handle, comm);
    case 7:
        return plugin->table.v7->connect(device, handle, comm, device_comm);
    case 8:
        return plugin->table.v8->connect(device, handle, comm, device_comm);
    case 9:
        return plugin->table.v9->connect(device, handle, comm, device_comm);
    case 10:
        return plugin->table.v10->connect(device, &config, handle, comm, device_comm);
    default:
        return FROM_11(plugin, connect(plugin->context, device, handle, comm, device_comm));
    }
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
    switch (plugin->version) {
    case 6:
        return plugin->table.v6->reg_mr(comm, data, (int)size, type, mhandle);
    case 7:
        return plugin->table.v7->reg_mr(comm, data, (int)size, type, mhandle);
    case 8:
        return plugin->table.v8->reg_mr(comm, data, size, type, mhandle);
    case 9:
        return plugin->table.v9->reg_mr(comm, data, size, type, mhandle);
    case 10:
        return plugin->table.v10->reg_mr(comm, data, size, type, mhandle);
    default:
        return FROM_11(plugin, reg_mr(comm, data, size, type, mhandle));
    }
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
    switch (plugin->version) {
    case 6:
        return plugin->table.v6->isend(comm, data, (int)size, tag, mhandle, request);
    case 7:
        return plugin->table.v7->isend(comm, data, (int)size, tag, mhandle, request);
    case 8:
        return plugin->table.v8->isend(comm, data, (int)size, tag, mhandle, request);
    case 9:
        return plugin->table.v9->isend(comm, data, (size_t)size, tag, mhandle, request);
    case 10:
        return plugin->table.v10->isend(comm, data, (size_t)size, tag, mhandle, NULL, request);
    default:
        return FROM_11(plugin, isend(comm, data, (size_t)size, tag, mhandle, NULL, request));
    }
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
    switch (plugin->version) {
    case 6:
        return plugin->table.v6->irecv(comm, n, data, small, tags, mhandles, request);
    case 7:
        return plugin->table.v7->irecv(comm, n, data, small, tags, mhandles, request);
    case 8:
        return plugin->table.v8->irecv(comm, n, data, small, tags, mhandles, request);
    case 9:
        return plugin->table.v9->irecv(comm, n, data, large, tags, mhandles, request);
    case 10:
        return plugin->table.v10->irecv(comm, n, data, large, tags, mhandles, NULL, request);
    default:
        return FROM_11(plugin, irecv(comm, n, data, large, tags, mhandles, NULL, request));
    }
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
