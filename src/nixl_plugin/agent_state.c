/*
 * The lock of an agent, how long it lives, and the sessions that nothing refers to any more. The
 * threads that make links may outlive the owner's call that ends the agent; the last one frees it.
 */
#include "nixl_plugin/agent.h"

#include "base/fork.h"

#include <sched.h>
#include <stdlib.h>

/* A program that asks again within this time does nothing else. */
enum { SPIN_NS = 100000 };

struct retired {
    struct retired *next;
    struct tcpx_session *session;
};

/* --- the lock ------------------------------------------------------------------------------ */

bool agent_enter(struct nixl_agent *agent)
{
    if (fork_check() != TCPX_SUCCESS) {
        agent_say(NULL, "%s", error_text());
        return false;
    }
    pthread_mutex_lock(&agent->lock);
    return true;
}

void agent_leave(struct nixl_agent *agent)
{
    pthread_mutex_unlock(&agent->lock);
}

void agent_leave_empty_handed(struct nixl_agent *agent)
{
    const uint64_t now = clock_now();
    const bool spins = now - agent->asked_at < SPIN_NS;

    agent->asked_at = now;
    agent_leave(agent);
    if (spins)
        sched_yield();
}

void agent_wake_service(struct nixl_agent *agent)
{
    pthread_cond_signal(&agent->changed);
}

/* --- sessions that end --------------------------------------------------------------------- */

void agent_retire_session(struct nixl_agent *agent, struct tcpx_session *session)
{
    struct retired *retired = malloc(sizeof *retired);

    if (retired == NULL) { /* it stays open: nothing can be done with it any more */
        agent_say(agent, "no memory to close a session");
        return;
    }
    *retired = (struct retired){agent->retired, session};
    agent->retired = retired;
    agent_wake_service(agent);
}

/* With the lock, which is free meanwhile: closing a session may wait for the peer's host. */
void agent_close_retired(struct nixl_agent *agent)
{
    struct retired *list = agent->retired;

    if (list == NULL)
        return;
    agent->retired = NULL;
    pthread_mutex_unlock(&agent->lock);
    while (list != NULL) {
        struct retired *retired = list;

        list = retired->next;
        tcpx_session_close(retired->session);
        free(retired);
    }
    pthread_mutex_lock(&agent->lock);
}

static void agent_free(struct nixl_agent *agent)
{
    pthread_cond_destroy(&agent->changed);
    pthread_mutex_destroy(&agent->lock);
    nixl_options_free(agent->options);
    free(agent->room);
    free(agent->name);
    free(agent);
}

void agent_release(struct nixl_agent *agent)
{
    bool is_last = --agent->references == 0;

    if (is_last)
        agent_close_retired(agent);
    pthread_mutex_unlock(&agent->lock);
    if (is_last)
        agent_free(agent);
}

/* --- its sessions -------------------------------------------------------------------------- */

void agent_session_options(const struct nixl_agent *agent, int gpu,
                           struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    options->gpu = gpu;
    options->channels = agent->options->channels;
    options->plugin_path = "builtin";
    options->secret_file = agent->options->secret_file;
    options->windows = 1;
    options->name = agent->endpoint.identity;
}
