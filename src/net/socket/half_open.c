/* The table of half-open connections: places, the clock of their time limits, and accept(). */
#include "net/socket/half_open.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>

void half_open_start(struct half_open_table *table, uint64_t limit_ms)
{
    *table = (struct half_open_table){.limit_ms = limit_ms, .advanced_at = clock_now()};
}

void half_open_add_place(struct half_open_table *table, struct half_open *place)
{
    place->fd = -1;
    table->places[table->count++] = place;
}

bool half_open_listen(const struct half_open_table *table, int fd,
                      const struct sockaddr_storage *address, int backlog)
{
    int silence_s = (int)(table->limit_ms + 999) / 1000;

    return setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silence_s, sizeof silence_s) == 0 &&
           bind(fd, (const struct sockaddr *)address, socket_address_length(address)) == 0 &&
           listen(fd, backlog) == 0;
}

/* A lack of descriptors or memory may pass, but callers must not wait for that for ever. */
static int half_open_backoff(struct half_open_table *table, int error)
{
    enum { BACKOFF_MS = 1000 };

    if (table->backoff_ends == 0) {
        table->backoff_ends = deadline_after_ms(BACKOFF_MS);
        log_warn("a connection could not be accepted: %s", strerror(error));
    }
    if (!deadline_passed(table->backoff_ends))
        return TCPX_SUCCESS;
    table->backoff_ends = 0;
    return error_system(error, "connections could not be accepted for %d ms", BACKOFF_MS);
}

int half_open_accept(struct half_open_table *table, int listening, int *fd)
{
    int error = 0;

    *fd = socket_accept(listening, &error);
    /* The kernel reserves a descriptor before it looks for a connection: EAGAIN ends the lack. */
    if (*fd >= 0 || error == EAGAIN || error == EWOULDBLOCK) {
        table->backoff_ends = 0;
        return TCPX_SUCCESS;
    }
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
        return half_open_backoff(table, error);
    if (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EFAULT)
        return error_system(error, "accept");
    /* Other errors belong to a connection, which is gone. */
    return TCPX_SUCCESS;
}

void half_open_enter(struct half_open_table *table, struct half_open *place, int fd)
{
    *place = (struct half_open){.fd = fd, .deadline = half_open_deadline(table)};
}

struct half_open *half_open_free_place(const struct half_open_table *table)
{
    for (unsigned i = 0; i < table->count; i++)
        if (table->places[i]->fd < 0)
            return table->places[i];
    return NULL;
}

struct half_open *half_open_oldest(const struct half_open_table *table)
{
    struct half_open *oldest = NULL;

    for (unsigned i = 0; i < table->count; i++) {
        struct half_open *place = table->places[i];

        if (place->fd >= 0 && (oldest == NULL || place->deadline < oldest->deadline))
            oldest = place;
    }
    return oldest;
}

struct half_open *half_open_excess(const struct half_open_table *table, bool greeted, unsigned most)
{
    struct half_open *candidates[HALF_OPEN_PLACES];
    uint32_t number = 0;
    unsigned count = 0;

    for (unsigned i = 0; i < table->count; i++)
        if (table->places[i]->fd >= 0 && table->places[i]->has_greeted == greeted)
            candidates[count++] = table->places[i];
    if (count <= most)
        return NULL;
    if (socket_random(&number, sizeof number) != TCPX_SUCCESS)
        number = (uint32_t)clock_now();
    return candidates[number % count];
}

void half_open_advance(struct half_open_table *table, uint64_t most_ns)
{
    uint64_t now = clock_now();
    uint64_t passed = now - table->advanced_at;

    table->clock += passed < most_ns ? passed : most_ns;
    table->advanced_at = now;
}

uint64_t half_open_deadline(const struct half_open_table *table)
{
    return table->clock + table->limit_ms * 1000000;
}
