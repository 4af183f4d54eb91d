/*
 * Agents: their names, doors, and the caretaker, a thread that does what no call of the program
 * would: it takes notices of peers whose program does not ask, sends what had to wait, follows what
 * was cancelled, and closes sessions.
 */
#include "nixl_plugin/agent.h"

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "session/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REST_MS = 100, /* of the caretaker, while there is nothing to do */
    SOON_MS = 2,
    DOOR_MS = 200, /* after so long, a thread that waits for guests looks whether it should end */
};

struct retired {
    struct retired *next;
    struct tcpx_session *session;
};

/* --- what is said -------------------------------------------------------------------------- */

static void print_line(const struct nixl_agent *agent, const char *format, va_list arguments)
{
    char line[1024];
    char shown[128];

    vsnprintf(line, sizeof line, format, arguments);
    if (agent == NULL)
        fprintf(stderr, "[TCPX] NIXL: %s\n", line);
    else
        fprintf(stderr, "[TCPX] NIXL agent %s: %s\n",
                agent_shown((struct nixl_text){agent->name, agent->name_length}, shown), line);
}

void agent_say(const struct nixl_agent *agent, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    print_line(agent, format, arguments);
    va_end(arguments);
}

/* NIXL's variable asks for such lines of NIXL. */
static bool is_talkative(void)
{
    const char *level = getenv("NIXL_LOG_LEVEL");

    return log_enabled(LOG_TCPX) ||
           (level != NULL && (strcasecmp(level, "info") == 0 || strcasecmp(level, "debug") == 0 ||
                              strcasecmp(level, "trace") == 0));
}

void agent_tell(const struct nixl_agent *agent, const char *format, ...)
{
    va_list arguments;

    if (!is_talkative())
        return;
    va_start(arguments, format);
    print_line(agent, format, arguments);
    va_end(arguments);
}

const char *agent_shown(struct nixl_text name, char shown[128])
{
    text_printable(name.bytes, name.length, shown, 128);
    return shown;
}

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

void agent_wake_caretaker(struct nixl_agent *agent)
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
    agent_wake_caretaker(agent);
}

/* With the lock, which is free meanwhile: closing a session may wait for the peer's host. */
static void agent_close_retired(struct nixl_agent *agent)
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

/* --- doors --------------------------------------------------------------------------------- */

void agent_session_options(const struct nixl_agent *agent, int gpu,
                           struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    options->gpu = gpu;
    options->channels = agent->options->channels;
    options->plugin_path = "builtin";
    options->secret_file = agent->options->secret_file;
    options->windows = 1;
    options->name = agent->place.identity;
}

static bool agent_is_closing(struct nixl_agent *agent)
{
    bool is_closing;

    pthread_mutex_lock(&agent->lock);
    is_closing = agent->is_closing;
    pthread_mutex_unlock(&agent->lock);
    return is_closing;
}

/* Several threads, so that one guest that is slow does not hold up the others. */
static void *door_run(void *argument)
{
    struct door *door = argument;
    struct nixl_agent *agent = door->agent;

    while (!agent_is_closing(agent)) {
        struct tcpx_session *session;
        int result =
            session_accept_until(door->listener, deadline_after_ms(DOOR_MS),
                                 deadline_after_ms(DOOR_MS + agent->timeout_ms), &session);

        if (result == TCPX_SUCCESS) {
            pthread_mutex_lock(&agent->lock);
            guests_add(agent, session);
            pthread_mutex_unlock(&agent->lock);
        } else if (result != TCPX_IN_PROGRESS) {
            agent_tell(agent, "a peer that came: %s", error_text());
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
    return NULL;
}

static void door_close(struct door *door)
{
    while (door->thread_count > 0)
        pthread_join(door->threads[--door->thread_count], NULL);
    tcpx_session_stop_listening(door->listener);
    free(door);
}

static int door_begin(struct door *door)
{
    struct tcpx_session_options options;
    int result;

    agent_session_options(door->agent, door->gpu, &options);
    result = tcpx_session_listen(NULL, 0, &options, &door->listener);
    if (result == TCPX_SUCCESS)
        result = tcpx_session_port(door->listener, &door->port);
    while (result == TCPX_SUCCESS && door->thread_count < DOOR_THREADS) {
        int error = thread_start(&door->threads[door->thread_count], door_run, door);

        if (error != 0 && door->thread_count == 0)
            return error_system(error, "a thread for peers");
        if (error != 0) /* fewer will do */
            break;
        door->thread_count++;
    }
    return result;
}

int agent_open_door(struct nixl_agent *agent, int gpu, int *port)
{
    struct door *door = agent->doors;
    int result;

    while (door != NULL && door->gpu != gpu)
        door = door->next;
    if (door == NULL) {
        door = calloc(1, sizeof *door);
        if (door == NULL)
            return error_set(TCPX_SYSTEM_ERROR, "no memory to listen");
        door->agent = agent;
        door->gpu = gpu;
        result = door_begin(door);
        if (result != TCPX_SUCCESS) {
            door_close(door);
            return result;
        }
        door->next = agent->doors;
        agent->doors = door;
    }
    *port = door->port;
    return TCPX_SUCCESS;
}

/* --- making and ending --------------------------------------------------------------------- */

static int agent_take_name(struct nixl_agent *agent, struct nixl_text name)
{
    if (name.length > MOST_NAME)
        return error_set(TCPX_INVALID_ARGUMENT, "a name of %zu bytes: %d at most", name.length,
                         MOST_NAME);
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
    agent->timeout_ms = agent->options->timeout_ms != 0 ? (uint64_t)agent->options->timeout_ms
                                                        : config->timeout_ms;
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
    struct door *door;

    pthread_mutex_lock(&agent->lock);
    agent->is_closing = true;
    agent_wake_caretaker(agent);
    door = agent->doors;
    agent->doors = NULL;
    pthread_mutex_unlock(&agent->lock);
    while (door != NULL) {
        struct door *next = door->next;

        door_close(door);
        door = next;
    }
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
