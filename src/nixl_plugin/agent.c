/*
 * Agents: how they begin and end, and the caretaker, a thread that does what no call of the program
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
    REST_MS = 100, /* of the caretaker, while there is nothing to do */
    SOON_MS = 2,
};

/* --- the caretaker ------------------------------------------------------------------------- */

static bool agent_care(struct nixl_agent *agent)
{
    bool soon = agent->composed != NULL;

    guests_listen(agent);
    requests_care(agent);
    for (struct peer *peer = agent->peers; peer != NULL; peer = peer->next)
        for (struct link *link = peer->links, *next; link != NULL; link = next) {
            next = link->next;
            soon = link_care(link) || soon;
        }
    agent_close_retired(agent);
    return soon;
}

static void *agent_run(void *argument)
{
    struct nixl_agent *agent = argument;

    pthread_mutex_lock(&agent->lock);
    while (!agent->is_closing) {
        uint64_t rest_ms = agent_care(agent) ? SOON_MS : REST_MS;

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
    return place_find(config->advertise.text, &agent->place);
}

static int agent_begin(struct nixl_agent *agent, struct nixl_text name)
{
    struct nixl_text place;
    int error;
    int result = agent_take_name(agent, name);

    if (result == TCPX_SUCCESS)
        result = agent_take_settings(agent);
    if (result == TCPX_SUCCESS)
        result = agent_open_door(agent, HOST, &agent->place.port);
    if (result != TCPX_SUCCESS)
        return result;
    place_write(&agent->place, agent->place_text);
    place = nixl_agent_place(agent);
    if (nixl_peer_load(agent, name, place) != NIXL_SUCCESS) /* it is its own peer, too */
        return TCPX_INTERNAL_ERROR;
    error = thread_start(&agent->caretaker, agent_run, agent);
    return error == 0 ? TCPX_SUCCESS : error_system(error, "a thread of an agent");
}

/* All but the caretaker, which may not have begun. */
static void agent_end(struct nixl_agent *agent)
{
    struct door *doors;

    pthread_mutex_lock(&agent->lock);
    agent->is_closing = true;
    agent_wake_caretaker(agent);
    doors = agent->doors;
    agent->doors = NULL;
    pthread_mutex_unlock(&agent->lock);
    doors_close(doors);
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
    agent_tell(agent, "TCPX %s, reached as \"%s\"", tcpx_version(), agent->place_text);
    return agent;
}

void nixl_agent_destroy(struct nixl_agent *agent)
{
    if (fork_check() != TCPX_SUCCESS) /* its threads are those of the parent */
        return;
    agent_end(agent);
    pthread_join(agent->caretaker, NULL);
    pthread_mutex_lock(&agent->lock);
    peers_end(agent);
    guests_end(agent);
    agent_close_retired(agent);
    regions_close(agent);
    while (agent->inbox != NULL) {
        struct nixl_notice *notice = agent->inbox;

        agent->inbox = notice->next;
        free(notice);
    }
    agent_release(agent);
}

struct nixl_text nixl_agent_place(const struct nixl_agent *agent)
{
    return (struct nixl_text){agent->place_text, strlen(agent->place_text)};
}
