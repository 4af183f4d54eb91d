/* NCCL's communicators: each has a context, which ends with all that belongs to it. */
#include "nccl_plugin/plugin.h"

#include "base/error.h"
#include "base/fork.h"
#include "nccl_plugin/channel.h"
#include "nccl_plugin/start.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is below */
static unsigned contexts;
static bool shared_is_used; /* by a table before version 11 */

int plugin_init(log_nccl_logger logger, void **out)
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
    result = plugin_start();
    pthread_mutex_lock(&contexts_lock);
    contexts += result == TCPX_SUCCESS && context != NULL;
    shared_is_used |= context == NULL;
    pthread_mutex_unlock(&contexts_lock);
    if (result != TCPX_SUCCESS)
        free(context);
    else if (out != NULL)
        *out = context;
    return plugin_answer("init", result);
}

int plugin_finalize(void *raw_context)
{
    struct plugin_context *context = raw_context;
    int result = fork_check();

    if (context == NULL || result != TCPX_SUCCESS)
        return result;
    plugin_close_all(context);
    pthread_mutex_lock(&contexts_lock);
    /* The logger is code of a library that may be unloaded now. */
    if (--contexts == 0 && !shared_is_used)
        log_set_nccl_logger(NULL);
    pthread_mutex_unlock(&contexts_lock);
    free(context);
    return TCPX_SUCCESS;
}
