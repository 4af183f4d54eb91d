/*
 * Agents: how they begin and end, and the service thread, which does what no call of the program
 * would: it takes notices of peers whose program does not ask, sends what had to wait, follows what
 * was cancelled, and closes sessions.
 */
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"

#include "base/config.h"
#include "base/fork.h"

#include <stdlib.h>
#include <string.h>

enum {
    REST_MS = 100, /* of the service thread, while there is nothing to do */
    SOON_MS = 2,
};

/* --- the service thread --------------------------------------------------------------------- */

static bool agent_service(struct nixl_agent *agent)
{
    bool soon = agent->composed != NULL;

    incoming_listen(agent);
    requests_service(agent);
    for (struct peer *peer = agent->peers; peer != NULL; peer = peer->next)
        for (struct link *link = peer->links, *next; link != NULL; link = next) {
            next = link->next;
            soon = link_service(link) || soon;
        }
    agent_close_retired(agent);
    return soon;
}

static void *agent_run(void *argument)
{
    struct nixl_agent *agent = argument;

    pthread_mutex_lock(&agent->lock);
    while (!agent->is_closing) {
        uint64_t rest_ms = agent_service(agent) ? SOON_MS : REST_MS;

        if (!agent->is_closing)
            condition_wait(&agent->changed, &agent->lock, deadline_after_ms(rest_ms));
    }
    pthread_mutex_unlock(&agent->lock);
    return NULL;
}

/* --- making and ending --------------------------------------------------------------------- */

static int agent_take_name(struct nixl_agent *agent, struct nixl_text name)
{
    if (name.length > NOTE_BODY_BYTES)
        return error_set(TCPX_INVALID_ARGUMENT, "a name of %zu bytes: %d at most", name.length,
                         NOTE_BODY_BYTES);
    agent->name = malloc(name.length + 1);
    agent->room = malloc(TCPX_NOTE_BYTES);
    if (agent->name == NULL || agent->room == NULL)
        return error_set(TCPX_SYSTEM_ERROR, "no memory for an agent");
    memcpy(agent->name, name.bytes, name.length);
    agent->name_length = name.length;
    return TCPX_SUCCESS;
}

static int agent_take_settings(struct nixl_agent *agent)
{
    const struct config *config;
    int result = fork_watch();

    if (result == TCPX_SUCCESS)
        result = config_get(&config);
    if (result != TCPX_SUCCESS)
        return result;
    agent->timeout_ms =
        agent->options->timeout_ms != 0 ? (uint64_t)agent->options->timeout_ms : config->timeout_ms;
    return endpoint_find(config->advertise.text, &agent->endpoint);
}

static int agent_begin(struct nixl_agent *agent, struct nixl_text name)
{
    struct nixl_text endpoint;
    int error;
    int result = agent_take_name(agent, name);

    if (result == TCPX_SUCCESS)
        result = agent_take_settings(agent);
    if (result == TCPX_SUCCESS)
        result = agent_open_acceptor(agent, HOST, &agent->endpoint.port);
    if (result != TCPX_SUCCESS)
        return result;
    endpoint_write(&agent->endpoint, agent->endpoint_text);
    endpoint = nixl_agent_endpoint(agent);
    if (nixl_peer_load(agent, name, endpoint) != NIXL_SUCCESS) /* it is its own peer, too */
        return TCPX_INTERNAL_ERROR;
    error = thread_start(&agent->service_thread, agent_run, agent);
    return error == 0 ? TCPX_SUCCESS : error_system(error, "a thread of an agent");
}

/* All but the service thread, which may not have begun. */
static void agent_end(struct nixl_agent *agent)
{
    struct acceptor *acceptors;

    pthread_mutex_lock(&agent->lock);
    agent->is_closing = true;
    agent_wake_service(agent);
    acceptors = agent->acceptors;
    agent->acceptors = NULL;
    pthread_mutex_unlock(&agent->lock);
    acceptors_close(acceptors);
}

struct nixl_agent *nixl_agent_create(struct nixl_text name, struct nixl_options *options)
{
    struct nixl_agent *agent = calloc(1, sizeof *agent);

    if (agent == NULL) {
        nixl_options_free(options);
        return NULL;
    }
    pthread_mutex_init(&agent->lock, NULL);
    condition_init(&agent->changed);
    agent->references = 1;
    agent->options = options;
    agent->last_in_inbox = &agent->inbox;
    if (agent_begin(agent, name) != TCPX_SUCCESS) {
        agent_say(agent, "it cannot begin: %s", error_text());
        agent_end(agent);
        pthread_mutex_lock(&agent->lock);
        peers_end(agent);
        agent_release(agent);
        return NULL;
    }
    agent_tell(agent, "TCPX %s, reached as \"%s\"", tcpx_version(), agent->endpoint_text);
    return agent;
}

void nixl_agent_destroy(struct nixl_agent *agent)
{
    if (fork_check() != TCPX_SUCCESS) /* its threads are those of the parent */
        return;
    agent_end(agent);
    pthread_join(agent->service_thread, NULL);
    pthread_mutex_lock(&agent->lock);
    peers_end(agent);
    incoming_end(agent);
    agent_close_retired(agent);
    regions_close(agent);
    while (agent->inbox != NULL) {
        struct nixl_notice *notice = agent->inbox;

        agent->inbox = notice->next;
        free(notice);
    }
    agent_release(agent);
}

struct nixl_text nixl_agent_endpoint(const struct nixl_agent *agent)
{
    return (struct nixl_text){agent->endpoint_text, strlen(agent->endpoint_text)};
}
