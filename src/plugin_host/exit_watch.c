/* Finds out whether a plugin has called exit(): exit_watch.h says why. */
#include "plugin_host/exit_watch.h"

#include "base/fork.h"
#include "plugin_host/held.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#else
/* Without backtrace() no call of exit() can be attributed to a plugin. */
static int backtrace(void **frames, int most)
{
    (void)frames;
    (void)most;
    return 0;
}
#endif

enum { MOST_PLUGINS = 16, MOST_FRAMES = 64 };

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is below */
static char last_warning[EXIT_WATCH_TEXT];
static bool watching;
static unsigned plugin_count;
static struct {
    const char *name;
    const void *base; /* where its file is mapped */
} plugins[MOST_PLUGINS];

static const void *mapping_of(const void *address)
{
    Dl_info info;

    return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

/* The plugin whose code is on the stack of this thread; NULL: none is. */
static const char *plugin_on_stack(void)
{
    void *frames[MOST_FRAMES];
    int count = backtrace(frames, MOST_FRAMES);

    for (int i = 0; i < count; i++) {
        const void *base = mapping_of(frames[i]);

        for (unsigned k = 0; base != NULL && k < plugin_count; k++)
            if (plugins[k].base == base)
                return plugins[k].name;
    }
    return NULL;
}

/* Called in the thread that called exit(). Another one may hold the lock for ever. */
static void report_plugin_exit(void)
{
    char text[EXIT_WATCH_TEXT] = "";
    const char *name;

    if (fork_check() != TCPX_SUCCESS)
        return;
    name = plugin_on_stack();
    if (name == NULL) {
        held_wait_at_exit();
        return;
    }
    if (pthread_mutex_trylock(&watch_lock) == 0) {
        memcpy(text, last_warning, sizeof text);
        pthread_mutex_unlock(&watch_lock);
    }
    fprintf(stderr, "[TCPX] error: %s has ended the process by exit(); %s%s\n", name,
            *text != '\0' ? "its last warning: " : "it gave no warning", text);
    fflush(stderr);
}

void exit_watch_plugin(const char *name, const void *inside)
{
    void *frames[1];

    pthread_mutex_lock(&watch_lock);
    if (plugin_count < MOST_PLUGINS) {
        plugins[plugin_count].name = name;
        plugins[plugin_count++].base = mapping_of(inside);
    }
    if (!watching) {
        backtrace(frames, 1); /* the first call loads a library */
        watching = atexit(report_plugin_exit) == 0;
    }
    pthread_mutex_unlock(&watch_lock);
}

void exit_watch_keep_warning(const char *text)
{
    pthread_mutex_lock(&watch_lock);
    snprintf(last_warning, sizeof last_warning, "%s", text);
    pthread_mutex_unlock(&watch_lock);
}

void exit_watch_last_warning(char text[EXIT_WATCH_TEXT])
{
    pthread_mutex_lock(&watch_lock);
    memcpy(text, last_warning, EXIT_WATCH_TEXT);
    pthread_mutex_unlock(&watch_lock);
}
