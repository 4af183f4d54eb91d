/* See the header. One function for each member that versions have differently, and the log. */
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
    *plugin = (struct plugin){.version = version, .table = dlsym(library, symbol)};
    return plugin->table != NULL;
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

int plugin_init(struct plugin *plugin)
{
    static struct nccl_config config = {.traffic_class = -1};

    if (plugin->version < 10)
        return plugin->table->init.v6(plugin_logger);
    if (plugin->version == 10)
        return plugin->table->init.v10(plugin_logger, profiler);
    return plugin->table->init.v11(&plugin->context, 0x1234, &config, plugin_logger, profiler);
}

int plugin_finalize(struct plugin *plugin)
{
    void *context = plugin->context;

    if (plugin->version < 11)
        return NCCL_SUCCESS;
    plugin->context = NULL;
    return plugin->table->finalize(context);
}

struct nccl_props plugin_read_properties(int version, const void *raw)
{
    struct nccl_props props = {.name = NULL};

    for (size_t i = 0; i < COUNT_OF(nccl_props_members); i++) {
        const struct nccl_props_member *member = &nccl_props_members[i];
        int at = member->at[version - FIRST_VERSION];

        if (at >= 0)
            memcpy((char *)&props + member->newest, (const char *)raw + at, member->bytes);
    }
    return props;
}

int plugin_properties(const struct plugin *plugin, int device, struct nccl_props *props)
{
    uint64_t raw[32];
    int result = plugin->table->get_properties(device, raw);

    if (result == NCCL_SUCCESS)
        *props = plugin_read_properties(plugin->version, raw);
    return result;
}

int plugin_listen(const struct plugin *plugin, int device, void *handle, void **comm)
{
    if (plugin->version < 11)
        return plugin->table->listen.v6(device, handle, comm);
    return plugin->table->listen.v11(plugin->context, device, handle, comm);
}

int plugin_connect(const struct plugin *plugin, int device, void *handle, void **comm,
                   struct nccl_device_handle **device_comm)
{
    struct nccl_config config = {.traffic_class = -1};

    if (plugin->version == 6)
        return plugin->table->connect.v6(device, handle, comm);
    if (plugin->version < 10)
        return plugin->table->connect.v7(device, handle, comm, device_comm);
    if (plugin->version == 10)
        return plugin->table->connect.v10(device, &config, handle, comm, device_comm);
    return plugin->table->connect.v11(plugin->context, device, handle, comm, device_comm);
}

int plugin_accept(const struct plugin *plugin, void *listening, void **comm,
                  struct nccl_device_handle **device_comm)
{
    if (plugin->version == 6)
        return plugin->table->accept.v6(listening, comm);
    return plugin->table->accept.v7(listening, comm, device_comm);
}

int plugin_reg(const struct plugin *plugin, void *comm, void *data, size_t size, int type,
               void **mhandle)
{
    if (plugin->version < 8)
        return plugin->table->reg_mr.v6(comm, data, (int)size, type, mhandle);
    return plugin->table->reg_mr.v8(comm, data, size, type, mhandle);
}

/* The caller's profiler token: NCCL's own calls without a profiler give NULL. */
int plugin_isend(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request)
{
    if (plugin->version < 9)
        return plugin->table->isend.v6(comm, data, (int)size, tag, mhandle, request);
    if (plugin->version == 9)
        return plugin->table->isend.v9(comm, data, (size_t)size, tag, mhandle, request);
    return plugin->table->isend.v10(comm, data, (size_t)size, tag, mhandle, NULL, request);
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
        return plugin->table->irecv.v6(comm, n, data, small, tags, mhandles, request);
    if (plugin->version == 9)
        return plugin->table->irecv.v9(comm, n, data, large, tags, mhandles, request);
    return plugin->table->irecv.v10(comm, n, data, large, tags, mhandles, NULL, request);
}

int plugin_irecv(const struct plugin *plugin, void *comm, void *data, int64_t size, int tag,
                 void *mhandle, void **request)
{
    return plugin_irecv_n(plugin, comm, 1, &data, &size, &tag, &mhandle, request);
}

int plugin_iflush(const struct plugin *plugin, void *comm, void *data, int size, void *mhandle,
                  void **request)
{
    return plugin->table->iflush(comm, 1, &data, &size, &mhandle, request);
}

int plugin_device_mr(const struct plugin *plugin, void *comm, void *mhandle, void **device)
{
    if (plugin->version < 7 || plugin->table->get_device_mr == NULL)
        return NCCL_SUCCESS;
    return plugin->table->get_device_mr(comm, mhandle, device);
}

int plugin_consumed(const struct plugin *plugin, void *comm, void *request)
{
    if (plugin->version < 7 || plugin->table->irecv_consumed == NULL)
        return NCCL_SUCCESS;
    return plugin->table->irecv_consumed(comm, 1, request);
}

int plugin_set_attr(const struct plugin *plugin, struct nccl_attr *attr)
{
    if (plugin->version < 11 || plugin->table->set_net_attr == NULL)
        return NCCL_SUCCESS;
    return plugin->table->set_net_attr(plugin->context, attr);
}

#if defined __clang__
#pragma clang attribute pop
#endif
