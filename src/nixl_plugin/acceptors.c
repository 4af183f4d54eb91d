/*
 * Where peers arrive: a listener for memory of the host and one for each GPU that has a region,
 * each with several threads, so that a peer that is slow does not hold up the others.
 */
#include "nixl_plugin/agent.h"

#include "session/session.h"

#include <stdlib.h>

/* After so long, a thread that waits for peers looks whether it should end. */
enum { ACCEPTOR_MS = 200 };

static bool agent_is_closing(struct nixl_agent *agent)
{
    bool is_closing;

    pthread_mutex_lock(&agent->lock);
    is_closing = agent->is_closing;
    pthread_mutex_unlock(&agent->lock);
    return is_closing;
}

static void *acceptor_run(void *argument)
{
    struct acceptor *acceptor = argument;
    struct nixl_agent *agent = acceptor->agent;

    while (!agent_is_closing(agent)) {
        struct tcpx_session *session;
        int result =
            session_accept_until(acceptor->listener, deadline_after_ms(ACCEPTOR_MS),
                                 deadline_after_ms(ACCEPTOR_MS + agent->timeout_ms), &session);

        if (result == TCPX_SUCCESS) {
            pthread_mutex_lock(&agent->lock);
            incoming_add(agent, session);
            pthread_mutex_unlock(&agent->lock);
        } else if (result != TCPX_IN_PROGRESS) {
            agent_tell(agent, "a peer that came: %s", error_text());
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
    return NULL;
}

static void acceptor_close(struct acceptor *acceptor)
{
    while (acceptor->thread_count > 0)
        pthread_join(acceptor->threads[--acceptor->thread_count], NULL);
    tcpx_session_stop_listening(acceptor->listener);
    free(acceptor);
}

static int acceptor_begin(struct acceptor *acceptor)
{
    struct tcpx_session_options options;
    int result;

    agent_session_options(acceptor->agent, acceptor->gpu, &options);
    result = tcpx_session_listen(NULL, 0, &options, &acceptor->listener);
    if (result == TCPX_SUCCESS)
        result = tcpx_session_port(acceptor->listener, &acceptor->port);
    while (result == TCPX_SUCCESS && acceptor->thread_count < ACCEPTOR_THREADS) {
        int error =
            thread_start(&acceptor->threads[acceptor->thread_count], acceptor_run, acceptor);

        if (error != 0 && acceptor->thread_count == 0)
            return error_system(error, "a thread for peers");
        if (error != 0) /* fewer will do */
            break;
        acceptor->thread_count++;
    }
    return result;
}

int agent_open_acceptor(struct nixl_agent *agent, int gpu, int *port)
{
    struct acceptor *acceptor = agent->acceptors;
    int result;

    while (acceptor != NULL && acceptor->gpu != gpu)
        acceptor = acceptor->next;
    if (acceptor == NULL) {
        acceptor = calloc(1, sizeof *acceptor);
        if (acceptor == NULL)
            return error_set(TCPX_SYSTEM_ERROR, "no memory to listen");
        acceptor->agent = agent;
        acceptor->gpu = gpu;
        result = acceptor_begin(acceptor);
        if (result != TCPX_SUCCESS) {
            acceptor_close(acceptor);
            return result;
        }
        acceptor->next = agent->acceptors;
        agent->acceptors = acceptor;
    }
    *port = acceptor->port;
    return TCPX_SUCCESS;
}

void acceptors_close(struct acceptor *acceptors)
{
    while (acceptors != NULL) {
        struct acceptor *next = acceptors->next;

        acceptor_close(acceptors);
        acceptors = next;
    }
}
