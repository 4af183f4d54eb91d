/* The table of attempts, and which of them are forgotten. */
#include "net/link/attempt.h"

#include "base/clock.h"
#include "net/link/budget.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

/* Guards the table; an attempt belongs to the thread that has taken it out. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct attempt *table[ATTEMPTS_MOST];

unsigned attempt_connection_count(const struct attempt *attempt)
{
    return attempt->options.sockets + 1u;
}

bool attempt_has_greeted(const struct connection *connection)
{
    return connection->hello_sent == WIRE_HELLO_BYTES;
}

bool attempt_has_sent_hellos(const struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++)
        if (!attempt_has_greeted(&attempt->connections[i]))
            return false;
    return true;
}

/* The listener, or what it has accepted, has closed a connection, or it broke. */
static bool attempt_has_lost_peer(const struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++) {
        struct pollfd end = {.fd = attempt->connections[i].fd, .events = POLLRDHUP};

        if (poll(&end, 1, 0) > 0)
            return true;
    }
    return false;
}

static bool attempt_is_old(const struct attempt *attempt)
{
    return clock_now() - attempt->called_at > attempt->options.timeout_ms * 1000000;
}

/*
 * There was no call for it during a whole timeout, and the listener has gone, or cannot have
 * accepted it. An attempt that may be accepted is kept: the listener's program has its link.
 */
static bool attempt_is_forgotten(const struct attempt *attempt)
{
    return attempt_is_old(attempt) &&
           (!attempt_has_sent_hellos(attempt) || attempt_has_lost_peer(attempt));
}

struct attempt *attempt_take(uint64_t number)
{
    struct attempt *found = NULL;

    if (number == 0)
        return NULL;
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < ATTEMPTS_MOST && found == NULL; i++)
        if (table[i] != NULL && table[i]->number == number) {
            found = table[i];
            table[i] = NULL;
        }
    pthread_mutex_unlock(&table_lock);
    return found;
}

void attempt_close_connections(struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt_connection_count(attempt); i++) {
        socket_close(&attempt->connections[i].fd);
        attempt->connections[i] = (struct connection){.fd = -1};
    }
}

void attempt_close_probes(struct attempt *attempt)
{
    for (unsigned i = 0; i < attempt->path_count; i++)
        socket_close(&attempt->paths[i].probe);
}

void attempt_drop(struct attempt *attempt)
{
    attempt_close_connections(attempt);
    attempt_close_probes(attempt);
    budget_give(attempt->handle.process, attempt->budgeted);
    free(attempt);
}

/* A free place, or that of an attempt without a call during a timeout; NULL: all are in use. */
static struct attempt **attempt_find_place(void)
{
    struct attempt **oldest = &table[0];

    for (int i = 0; i < ATTEMPTS_MOST; i++) {
        if (table[i] == NULL)
            return &table[i];
        if (table[i]->called_at < (*oldest)->called_at)
            oldest = &table[i];
    }
    return attempt_is_old(*oldest) ? oldest : NULL;
}

bool attempt_put_back(struct attempt *attempt)
{
    struct attempt **place;
    struct attempt *replaced = NULL;

    attempt->called_at = clock_now();
    pthread_mutex_lock(&table_lock);
    place = attempt_find_place();
    if (place != NULL) {
        replaced = *place;
        *place = attempt;
    }
    pthread_mutex_unlock(&table_lock);
    if (replaced != NULL)
        attempt_drop(replaced);
    return place != NULL;
}

void attempt_drop_all(const void *owner)
{
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < ATTEMPTS_MOST; i++)
        if (table[i] != NULL &&
            (owner != NULL ? table[i]->options.owner == owner : attempt_is_forgotten(table[i]))) {
            attempt_drop(table[i]);
            table[i] = NULL;
        }
    pthread_mutex_unlock(&table_lock);
}

void attempt_describe(const struct attempt *attempt, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < attempt->path_count; i++) {
        struct path path = attempt->paths[i];

        if (&attempt->paths[i] == attempt->path || path.state == PATH_PROBED)
            path_expect(&path, attempt->path_works);
        if (*path.reason != '\0')
            used = path_describe(&path, text, size, used);
    }
}
