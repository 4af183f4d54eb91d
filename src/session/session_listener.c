/* A listener, at which one thread at a time waits for a peer. */
#include "session/session_listener.h"

#include "base/fork.h"
#include "base/time_limit.h"
#include "session/bootstrap.h"
#include "session/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tcpx_session_listener {
    pthread_mutex_t lock; /* guards is_taken */
    pthread_cond_t free;  /* is_taken became false */
    bool is_taken;        /* a thread waits for a peer and uses `bootstrap` */
    struct bootstrap_listener *bootstrap;
    struct tcpx_session_options options;
    char *plugin_path; /* copies of the caller's */
};

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
    session_condition_init(&listener->free);
    listener->options = all;
    listener->options.secret_file = NULL; /* it has been read */
    if (all.plugin_path != NULL) {
        listener->plugin_path = strdup(all.plugin_path);
        listener->options.plugin_path = listener->plugin_path;
        if (listener->plugin_path == NULL)
            result = error_system(ENOMEM, "a listener");
    }
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
        session_condition_wait(&listener->free, &listener->lock, deadline);
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
        return error_set(TCPX_IN_PROGRESS, "no peer came in time: others waited for one, too");
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
        result = time_limit(timeout_ms, &deadline);
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
    free(listener);
}
