/* Sessions and listeners as callers make and end them. */
#include "session/access.h"

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "session/bootstrap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* --- making -------------------------------------------------------------------------------- */

/* It goes to the peer as it is. */
static int check_name(const char *name)
{
    size_t length = name != NULL ? strnlen(name, AGREEMENT_NAME_BYTES) : 0;

    if (length == AGREEMENT_NAME_BYTES)
        return error_set(TCPX_INVALID_ARGUMENT, "the name of a session has at most %d characters",
                         AGREEMENT_NAME_BYTES - 1);
    for (size_t i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] > '~')
            return error_set(TCPX_INVALID_ARGUMENT,
                             "the name of a session: character %zu is not printable ASCII", i);
    return TCPX_SUCCESS;
}

static int take_options(const struct tcpx_session_options *given,
                        struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    if (given == NULL || given->size <= sizeof given->size)
        return error_set(
            TCPX_INVALID_ARGUMENT,
            "the options of a session are not set: call tcpx_session_options_init() first");
    if (given->size > sizeof *given)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the options of a session are from a newer library than this one, %s",
                         tcpx_version());
    memcpy(options, given, given->size);
    options->size = sizeof *options;
    if (options->channels < 0 || options->channels > MOST_CHANNELS)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "%d channels: expected 1 to %d, or 0 for the default", options->channels,
                         MOST_CHANNELS);
    if (options->chunk_bytes > (uint64_t)1 << 30)
        return error_set(TCPX_INVALID_ARGUMENT, "chunks of %llu bytes: expected at most 1G",
                         (unsigned long long)options->chunk_bytes);
    if (options->gpu < -1)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "there is no GPU %d: expected 0 or more, or -1 for host memory only",
                         options->gpu);
    if (options->no_kernels != 0 && options->no_kernels != 1)
        return error_set(TCPX_INVALID_ARGUMENT, "no_kernels is %d: 0 or 1", options->no_kernels);
    return check_name(options->name);
}

static int session_check_call(const char *wrong, int port, int least_port,
                              const struct tcpx_session_options *given,
                              struct tcpx_session_options *options)
{
    int result = fork_watch();

    if (result == TCPX_SUCCESS)
        result = fork_check();
    if (result == TCPX_SUCCESS && wrong != NULL)
        result = error_set(TCPX_INVALID_ARGUMENT, "%s", wrong);
    if (result == TCPX_SUCCESS && (port < least_port || port > 65535))
        result =
            error_set(TCPX_INVALID_ARGUMENT, "port %d: expected %d to 65535", port, least_port);
    return result == TCPX_SUCCESS ? take_options(given, options) : result;
}

static int session_make(const struct tcpx_session_options *options, struct tcpx_session **out)
{
    struct tcpx_session *session = calloc(1, sizeof *session);
    int result;

    if (session == NULL)
        return error_system(ENOMEM, "a session");
    session->gpu_number = options->gpu;
    session->no_kernels = options->no_kernels != 0;
    session->event_fd = -1;
    session->directions[SENDING].sending = true;
    pthread_mutex_init(&session->lock, NULL);
    condition_init(&session->changed);
    result = import_open_named(options->plugin_path, &session->plugin);
    /* The built-in transport does more without a table between. */
    if (result == TCPX_SUCCESS && import_is_builtin(session->plugin))
        session->plugin = NULL;
    if (result == TCPX_SUCCESS && session->no_kernels && session->plugin != NULL)
        result = error_set(TCPX_INVALID_USAGE,
                           "no_kernels: not over the plugin %s, only over the built-in transport "
                           "(plugin_path \"builtin\")",
                           session->plugin->table.name);
    if (result == TCPX_SUCCESS && session->gpu_number >= 0)
        result = gpu_open(session->gpu_number, &session->gpu);
    if (result != TCPX_SUCCESS) {
        tcpx_session_close(session);
        return result;
    }
    *out = session;
    return TCPX_SUCCESS;
}

static int session_complete(struct tcpx_session *session, int result,
                            const struct tcpx_session_options *options, uint64_t deadline,
                            struct tcpx_session **out)
{
    char why[400];

    if (result == TCPX_SUCCESS)
        result = session_connect_channels(session, options, deadline);
    if (result == TCPX_SUCCESS) {
        *out = session;
        return TCPX_SUCCESS;
    }
    snprintf(why, sizeof why, "%s", error_text()); /* closing may fail, too */
    tcpx_session_close(session);
    return error_set(result, "%s", why);
}

int tcpx_session_connect(const char *host, int port, const struct tcpx_session_options *options,
                         int timeout_ms, struct tcpx_session **out)
{
    struct tcpx_session_options all;
    struct tcpx_session *session;
    uint64_t deadline;
    const char *wrong =
        host == NULL || out == NULL ? "tcpx_session_connect: an argument is NULL" : NULL;
    int result = session_check_call(wrong, port, 1, options, &all);

    if (result == TCPX_SUCCESS)
        result = config_deadline(timeout_ms, &deadline);
    if (result == TCPX_SUCCESS)
        result = session_make(&all, &session);
    if (result != TCPX_SUCCESS)
        return result;
    result = bootstrap_connect(host, (uint16_t)port, all.secret_file, deadline, &session->control);
    return session_complete(session, result, &all, deadline, out);
}

/* --- listening ----------------------------------------------------------------------------- */

/* One thread at a time waits for a peer at it. */
struct tcpx_session_listener {
    pthread_mutex_t lock; /* guards is_taken */
    pthread_cond_t free;  /* is_taken became false */
    bool is_taken;        /* a thread waits for a peer and uses `bootstrap` */
    struct bootstrap_listener *bootstrap;
    struct tcpx_session_options options;
    char *plugin_path; /* copies of the caller's */
    char *name;
};

/* NULL stays NULL. */
static int copy_text(const char *text, char **copy)
{
    if (text == NULL)
        return TCPX_SUCCESS;
    *copy = strdup(text);
    return *copy != NULL ? TCPX_SUCCESS : error_system(ENOMEM, "a listener");
}

int tcpx_session_listen(const char *address, int port, const struct tcpx_session_options *options,
                        struct tcpx_session_listener **out)
{
    struct tcpx_session_listener *listener;
    struct tcpx_session_options all;
    const char *wrong = out == NULL ? "tcpx_session_listen: listener is NULL" : NULL;
    int result = session_check_call(wrong, port, 0, options, &all);

    if (result != TCPX_SUCCESS || out == NULL)
        return result;
    listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return error_system(ENOMEM, "a listener");
    pthread_mutex_init(&listener->lock, NULL);
    condition_init(&listener->free);
    listener->options = all;
    listener->options.secret_file = NULL; /* it has been read */
    result = copy_text(all.plugin_path, &listener->plugin_path);
    if (result == TCPX_SUCCESS)
        result = copy_text(all.name, &listener->name);
    listener->options.plugin_path = listener->plugin_path;
    listener->options.name = listener->name;
    if (result == TCPX_SUCCESS)
        result = bootstrap_listen(address, (uint16_t)port, all.secret_file, &listener->bootstrap);
    if (result != TCPX_SUCCESS) {
        tcpx_session_stop_listening(listener);
        return result;
    }
    *out = listener;
    return TCPX_SUCCESS;
}

int tcpx_session_port(const struct tcpx_session_listener *listener, int *port)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (listener == NULL || port == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_session_port: an argument is NULL");
    *port = bootstrap_port(listener->bootstrap);
    return TCPX_SUCCESS;
}

/* A thread that waits for a peer has the listener to itself. */
static bool take_listener(struct tcpx_session_listener *listener, uint64_t deadline)
{
    bool taken;

    pthread_mutex_lock(&listener->lock);
    while (listener->is_taken && !deadline_passed(deadline))
        condition_wait(&listener->free, &listener->lock, deadline);
    taken = !listener->is_taken;
    listener->is_taken = true;
    pthread_mutex_unlock(&listener->lock);
    return taken;
}

static void give_listener(struct tcpx_session_listener *listener)
{
    pthread_mutex_lock(&listener->lock);
    listener->is_taken = false;
    pthread_cond_signal(&listener->free);
    pthread_mutex_unlock(&listener->lock);
}

/* Threads wait one after the other, each until its own deadline. */
static int wait_for_peer(struct tcpx_session_listener *listener, uint64_t deadline,
                         struct control **control)
{
    int result;

    if (!take_listener(listener, deadline))
        return error_set(TCPX_IN_PROGRESS,
                         "no peer came in time: other threads waited for one, too");
    result = bootstrap_accept(listener->bootstrap, deadline, control);
    give_listener(listener);
    return result;
}

int session_accept_until(struct tcpx_session_listener *listener, uint64_t peer_deadline,
                         uint64_t open_deadline, struct tcpx_session **out)
{
    struct tcpx_session *session;
    int result = session_make(&listener->options, &session);

    if (result != TCPX_SUCCESS)
        return result;
    result = wait_for_peer(listener, peer_deadline, &session->control);
    return session_complete(session, result, &listener->options, open_deadline, out);
}

int tcpx_session_accept(struct tcpx_session_listener *listener, int timeout_ms,
                        struct tcpx_session **out)
{
    uint64_t deadline;
    int result = fork_check();

    if (result == TCPX_SUCCESS && (listener == NULL || out == NULL))
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_session_accept: an argument is NULL");
    if (result == TCPX_SUCCESS)
        result = config_deadline(timeout_ms, &deadline);
    return result == TCPX_SUCCESS ? session_accept_until(listener, deadline, deadline, out)
                                  : result;
}

void tcpx_session_stop_listening(struct tcpx_session_listener *listener)
{
    if (listener == NULL)
        return;
    bootstrap_listener_close(listener->bootstrap);
    pthread_cond_destroy(&listener->free);
    pthread_mutex_destroy(&listener->lock);
    free(listener->plugin_path);
    free(listener->name);
    free(listener);
}

/* --- ending -------------------------------------------------------------------------------- */

/* How long a close waits until the peer has what was sent. */
enum { LINGER_MS = 500 };

static void close_channels(struct tcpx_session *session)
{
    for (int i = 0; i < 2; i++) {
        for (unsigned k = 0; k < session->channels && session->directions[i].lanes != NULL; k++)
            channel_close(session_channel(session, i, k));
        free(session->directions[i].lanes);
    }
}

/* Waits for the GPU, so that the caller may use its memory again. */
static void session_drain(struct tcpx_session *session)
{
    enum { PAUSE_NS = 50000 };

    while (!chunks_drain_step(session))
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

void tcpx_session_close(struct tcpx_session *session)
{
    struct gpu_scope scope;
    bool entered;

    if (session == NULL || fork_check() != TCPX_SUCCESS)
        return;
    accesses_stop(session);
    worker_stop(session);
    if (session->control != NULL && *session->path != '\0' && session->failure == TCPX_SUCCESS &&
        matching_goodbye(session) != TCPX_SUCCESS)
        log_debug("%s", error_text());
    if (session->engine != NULL && !session->is_drained)
        session_drain(session);
    matching_free(session);
    /* Plugins work with the GPU that is current. */
    entered = session->gpu != NULL && gpu_enter(session->gpu, &scope) == TCPX_SUCCESS;
    memory_free_all(session);
    close_channels(session);
    /* Until here I/O threads may send from the parts of these. */
    transfer_free_all(session);
    accesses_free(session);
    if (entered)
        gpu_leave(session->gpu, &scope);
    control_close(session->control, LINGER_MS);
    unpack_destroy(session->engine);
    gpu_stream_destroy(session->order);
    for (int i = 0; i < 2; i++)
        slots_free(session, &session->directions[i].slots);
    gpu_close(session->gpu);
    if (session->event_fd >= 0)
        close(session->event_fd);
    pthread_cond_destroy(&session->changed);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

/* --- what it is ---------------------------------------------------------------------------- */

const char *tcpx_session_path(const struct tcpx_session *session)
{
    return session != NULL ? session->path : "";
}

const char *tcpx_session_peer(const struct tcpx_session *session)
{
    return session != NULL ? session->peer_name : "";
}

int tcpx_session_event_fd(struct tcpx_session *session, int *fd)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL || fd == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_session_event_fd: an argument is NULL");
    session_lock(session);
    if (session->event_fd < 0) {
        session->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (session->event_fd < 0)
            result = error_system(errno, "an eventfd");
        else if (session->has_signalled) /* the caller may not know it yet */
            session_signal(session);
    }
    if (result == TCPX_SUCCESS)
        result = worker_start(session);
    if (result == TCPX_SUCCESS) {
        worker_watch_channels(session);
        worker_wake(session);
        *fd = session->event_fd;
    }
    session_unlock(session);
    return result;
}

/* Of several channels, which share the work, the average. Over a plugin it is not known. */
static void add_stages(struct tcpx_session *session, struct tcpx_session_statistics *statistics)
{
    const unsigned channels = session->channels;
    struct stage_times times;

    for (unsigned i = 0; i < 2 * channels && session->plugin == NULL; i++) {
        net_get_stages(session_channel(session, i % 2, i / 2)->builtin, &times);
        statistics->copy_out_ns += times.copy_out_ns / channels;
        statistics->write_ns += times.write_ns / channels;
        statistics->write_wait_ns += times.write_wait_ns / channels;
        statistics->read_ns += times.read_ns / channels;
        statistics->read_wait_ns += times.read_wait_ns / channels;
        statistics->copy_in_ns += times.copy_in_ns / channels;
    }
}

int tcpx_session_get_statistics(struct tcpx_session *session,
                                struct tcpx_session_statistics *statistics)
{
    struct tcpx_session_statistics all;
    size_t size;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL || statistics == NULL || statistics->size < sizeof(size_t))
        return error_set(
            TCPX_INVALID_ARGUMENT,
            "tcpx_session_get_statistics: set the field size to the size of the struct first");
    size = statistics->size < sizeof *statistics ? statistics->size : sizeof *statistics;
    session_lock(session);
    all = session->statistics;
    add_stages(session, &all);
    session_unlock(session);
    all.size = size;
    memcpy(statistics, &all, size);
    return TCPX_SUCCESS;
}
