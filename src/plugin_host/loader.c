/* Finds, loads and starts network plugins, and remembers which. */
#include "plugin_host/plugin_host.h"

#include "base/config.h"
#include "base/fork.h"
#include "gpu/gpu.h"
#include "plugin_host/bounded.h"
#include "plugin_host/exit_watch.h"
#include "plugin_host/quirks.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Guards the list and the loading itself, since two threads must not start one plugin. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

/* A plugin that did not start stays in the list: a second try would hide its first error. */
struct loaded {
    struct loaded *next;
    struct import_plugin plugin;
    dev_t device; /* which file it is, by whatever name */
    ino_t inode;
    int result;
    char text[512]; /* why it did not start */
    char path[];
};

static struct loaded *all_loaded;

_Static_assert((int)IMPORT_PATH_BYTES == (int)CONFIG_TEXT_BYTES,
               "a path is a text of the configuration");

int import_choose(char path[IMPORT_PATH_BYTES], bool *builtin)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    *path = '\0';
    *builtin = strcmp(config->plugin_path, "builtin") == 0;
    if (*builtin)
        return TCPX_SUCCESS;
    if (*config->plugin_path == '\0') {
        *builtin = access(IMPORT_USUAL_PATH, F_OK) != 0;
        snprintf(path, IMPORT_PATH_BYTES, "%s", *builtin ? "" : IMPORT_USUAL_PATH);
        return TCPX_SUCCESS;
    }
    if (access(config->plugin_path, R_OK) != 0)
        return error_system(errno, "UCCL_TCPX_PLUGIN_PATH=%s cannot be read", config->plugin_path);
    memcpy(path, config->plugin_path, IMPORT_PATH_BYTES);
    return TCPX_SUCCESS;
}

/*
 * A plugin that was started by other code of this process, such as NCCL, may refuse a second start
 * and still work.
 */
static int init_plugin(struct import_plugin *plugin, bool was_loaded, bool was_set)
{
    struct bounded_call call = {.object = &plugin->table};
    int result = bounded_call(plugin, BOUNDED_INIT, &call);

    log_tcpx("net->init rc=%d", result);
    if (result != TCPX_INTERNAL_ERROR || !was_loaded ||
        import_table_check(&plugin->table) != TCPX_SUCCESS)
        return result;
    if (!was_set) /* it has read its environment, and does not look again */
        return error_set(TCPX_INVALID_USAGE,
                         "%s: another library of this process has started it without %s",
                         plugin->table.name, plugin->quirks->variable);
    log_tcpx("%s: it seems that another library of this process has started it already",
             plugin->table.name);
    return TCPX_SUCCESS;
}

static int start_plugin(struct import_plugin *plugin, bool was_loaded)
{
    struct bounded_call call = {.count = 0};
    bool was_set;
    int result;

    plugin->quirks = import_quirks_of(plugin->table.name);
    result = import_quirks_prepare(plugin->quirks, plugin->table.name, &plugin->longest, &was_set);
    if (result != TCPX_SUCCESS)
        return result;
    result = init_plugin(plugin, was_loaded, was_set);
    if (result != TCPX_SUCCESS)
        return result;
    result = bounded_call(plugin, BOUNDED_DEVICES, &call);
    if (result == TCPX_SUCCESS)
        plugin->devices = call.count;
    log_tcpx("net->devices rc=%d ndev=%d", result, plugin->devices);
    if (result == TCPX_SUCCESS && plugin->devices == 0)
        result = error_set(TCPX_SYSTEM_ERROR, "%s has found no device", plugin->table.name);
    if (result != TCPX_SUCCESS)
        import_table_finalize(&plugin->table);
    return result;
}

/* With the lock. A library that failed is not unloaded either: it may have started threads. */
static int load_plugin(struct loaded *loaded)
{
    struct import_plugin *plugin = &loaded->plugin;
    void *library;
    bool was_loaded;
    int result;

    plugin->path = loaded->path;
    log_tcpx("Loading plugin: %s", plugin->path);
    was_loaded = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) != NULL;
    library = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "the plugin cannot be loaded: %s", dlerror());
    result = import_table_find(library, &plugin->table);
    if (result != TCPX_SUCCESS)
        return error_set(result, "%s is not a network plugin for NCCL: %s", plugin->path,
                         error_text());
    exit_watch_plugin(plugin->table.name, plugin->table.raw);
    result = start_plugin(plugin, was_loaded);
    if (result == TCPX_SUCCESS)
        log_tcpx("%s, table version %d, %d device%s, from %s", plugin->table.name,
                 plugin->table.version, plugin->devices, plugin->devices == 1 ? "" : "s",
                 plugin->path);
    return result;
}

static struct loaded *find_loaded(const struct stat *file)
{
    struct loaded *loaded = all_loaded;

    while (loaded != NULL && (loaded->device != file->st_dev || loaded->inode != file->st_ino))
        loaded = loaded->next;
    return loaded;
}

static struct loaded *add_loaded(const char *path, const struct stat *file)
{
    struct loaded *loaded = calloc(1, sizeof *loaded + strlen(path) + 1);

    if (loaded == NULL)
        return NULL;
    strcpy(loaded->path, path); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): it fits */
    loaded->device = file->st_dev;
    loaded->inode = file->st_ino;
    loaded->result = load_plugin(loaded);
    if (loaded->result != TCPX_SUCCESS)
        snprintf(loaded->text, sizeof loaded->text, "%s", error_text());
    loaded->next = all_loaded;
    all_loaded = loaded;
    return loaded;
}

int import_open(const char *path, const struct import_plugin **plugin)
{
    struct loaded *loaded;
    struct stat file;
    char *whole;
    int result = fork_watch();

    if (result == TCPX_SUCCESS)
        result = fork_check();
    if (result != TCPX_SUCCESS)
        return result;
    whole = realpath(path, NULL);
    if (whole == NULL || stat(whole, &file) != 0) {
        result = error_system(errno, "the plugin %s", path);
        free(whole);
        return result;
    }
    pthread_mutex_lock(&load_lock);
    loaded = find_loaded(&file);
    if (loaded == NULL)
        loaded = add_loaded(whole, &file);
    pthread_mutex_unlock(&load_lock);
    free(whole);
    if (loaded == NULL)
        return error_system(ENOMEM, "a plugin");
    if (loaded->result != TCPX_SUCCESS)
        return error_set(loaded->result, "%s", loaded->text);
    *plugin = &loaded->plugin;
    return TCPX_SUCCESS;
}

/* --- the built-in transport ---------------------------------------------------------------- */

static struct import_plugin builtin;
static bool builtin_started;

/* With the lock. */
static int start_builtin(void)
{
    int result;

    import_table_builtin(&builtin.table);
    builtin.path = "builtin";
    log_tcpx("Loading plugin: %s", builtin.path);
    result = start_plugin(&builtin, false);
    builtin_started = result == TCPX_SUCCESS;
    return result;
}

static int open_builtin(const struct import_plugin **plugin)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&load_lock);
    if (!builtin_started)
        result = start_builtin();
    pthread_mutex_unlock(&load_lock);
    if (result == TCPX_SUCCESS)
        *plugin = &builtin;
    return result;
}

int import_open_named(const char *name, const struct import_plugin **plugin)
{
    char path[IMPORT_PATH_BYTES];
    bool is_builtin = name != NULL && strcmp(name, "builtin") == 0;
    int result = TCPX_SUCCESS;

    if (name == NULL)
        result = import_choose(path, &is_builtin);
    if (result != TCPX_SUCCESS)
        return result;
    return is_builtin ? open_builtin(plugin) : import_open(name != NULL ? name : path, plugin);
}

int import_check_device(const struct import_plugin *plugin, int device)
{
    if (device < 0 || device >= plugin->devices)
        return error_set(TCPX_INVALID_ARGUMENT, "there is no device %d: %s has %d, counted from 0",
                         device, plugin->table.name, plugin->devices);
    return TCPX_SUCCESS;
}

bool import_is_builtin(const struct import_plugin *plugin)
{
    return plugin == &builtin;
}

int import_reaches_gpus(const struct import_plugin *plugin, bool *reaches)
{
    const char *backend;
    const char *reason;
    int result = gpu_backend(&backend, &reason);

    if (result == TCPX_SUCCESS)
        *reaches = import_is_builtin(plugin) || strcmp(backend, "host") != 0;
    return result;
}
