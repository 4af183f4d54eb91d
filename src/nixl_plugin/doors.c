/*
 * Where peers arrive: a listener for memory of the host and one for each GPU that has a region,
 * each with several threads, so that a guest that is slow does not hold up the others.
 */
#include "nixl_plugin/agent.h"

#include "session/session.h"

#include <stdlib.h>

/* After so long, a thread that waits for guests looks whether it should end. */
enum { DOOR_MS = 200 };

static bool agent_is_closing(struct nixl_agent *agent)
{
    bool is_closing;

    pthread_mutex_lock(&agent->lock);
    is_closing = agent->is_closing;
    pthread_mutex_unlock(&agent->lock);
    return is_closing;
}

static void *door_run(void *argument)
{
    struct door *door = argument;
    struct nixl_agent *agent = door->agent;

    while (!agent_is_closing(agent)) {
        struct tcpx_session *session;
        int result = session_accept_until(door->listener, deadline_after_ms(DOOR_MS),
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

void doors_close(struct door *doors)
{
    while (doors != NULL) {
        struct door *next = doors->next;

        door_close(doors);
        doors = next;
    }
}
