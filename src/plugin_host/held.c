/* Connections that outlive their comm: held.h has the reason. */
#include "plugin_host/held.h"

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct held {
    int fd;
    uint64_t until;
};

static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is below */
static struct held *held_list;
static unsigned held_used;
static unsigned held_room;
static bool has_thread;

/* --- which connections --------------------------------------------------------------------- */

/* The port of a listener that takes one peer: no other connection of this process has it. */
static bool is_connected_to(int fd, const uint8_t *address)
{
    struct sockaddr_storage peer = {0};
    struct sockaddr_storage wanted = {0};
    const struct sockaddr_in *peer4 = (const struct sockaddr_in *)&peer;
    const struct sockaddr_in *wanted4 = (const struct sockaddr_in *)&wanted;
    const struct sockaddr_in6 *peer6 = (const struct sockaddr_in6 *)&peer;
    const struct sockaddr_in6 *wanted6 = (const struct sockaddr_in6 *)&wanted;
    socklen_t bytes = sizeof peer;

    memcpy(&wanted, address, sizeof *wanted6);
    if (getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0 ||
        peer.ss_family != wanted.ss_family)
        return false;
    if (peer.ss_family == AF_INET)
        return peer4->sin_port == wanted4->sin_port &&
               peer4->sin_addr.s_addr == wanted4->sin_addr.s_addr;
    return peer.ss_family == AF_INET6 && peer6->sin6_port == wanted6->sin6_port &&
           memcmp(&peer6->sin6_addr, &wanted6->sin6_addr, sizeof peer6->sin6_addr) == 0;
}

/* With the lock. */
static bool is_held(int fd)
{
    unsigned i = 0;

    while (i < held_used && held_list[i].fd != fd)
        i++;
    return i < held_used;
}

/* With the lock. A copy of the descriptor keeps the connection open. */
static bool keep_open(int fd, uint64_t until)
{
    int copy;

    if (held_used == held_room) {
        unsigned more = held_room == 0 ? 16 : 2 * held_room;
        struct held *larger = realloc(held_list, more * sizeof *held_list);

        if (larger == NULL)
            return false;
        held_list = larger;
        held_room = more;
    }
    fork_hold();
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (!fork_release(copy) || copy < 0)
        return false;
    /* A host that has died must not be held for ever. */
    (void)!setsockopt(copy, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    held_list[held_used++] = (struct held){.fd = copy, .until = until};
    return true;
}

/* --- the thread that closes them ----------------------------------------------------------- */

/* What the peer sends is dropped: it may be a grant of room. */
static bool peer_has_closed(int fd)
{
    char bytes[256];
    ssize_t got;

    do
        got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (got > 0 || (got < 0 && errno == EINTR));
    return got == 0 || errno != EAGAIN;
}

/* With the lock. */
static void close_ended(void)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < held_used; i++)
        if (peer_has_closed(held_list[i].fd) || deadline_passed(held_list[i].until))
            fork_close(held_list[i].fd);
        else
            held_list[kept++] = held_list[i];
    held_used = kept;
}

static bool none_is_left(void)
{
    bool empty;

    pthread_mutex_lock(&held_lock);
    close_ended();
    empty = held_used == 0;
    has_thread = has_thread && !empty;
    pthread_mutex_unlock(&held_lock);
    return empty;
}

static void *held_thread(void *unused)
{
    enum { PAUSE_MS = 50 };

    (void)unused;
    while (!none_is_left())
        poll(NULL, 0, PAUSE_MS);
    return NULL;
}

/* --- calls --------------------------------------------------------------------------------- */

bool held_keep(const struct import_quirks *quirks, const uint8_t *handle)
{
    const struct config *config;
    DIR *folder;
    bool found = false;
    bool lost = false;
    struct dirent *entry;

    folder = config_get(&config) == TCPX_SUCCESS ? opendir("/proc/self/fd") : NULL;
    if (folder == NULL)
        return false;
    pthread_mutex_lock(&held_lock);
    close_ended();
    while ((entry = readdir(folder)) != NULL) { /* NOLINT(concurrency-mt-unsafe): our own stream */
        int fd = (int)strtol(entry->d_name, NULL, 10);
        bool control;

        if (entry->d_name[0] == '.' || is_held(fd))
            continue;
        control = is_connected_to(fd, handle + quirks->control_at);
        if (!control && !is_connected_to(fd, handle + quirks->data_at))
            continue;
        lost |= !keep_open(fd, deadline_after_ms(config->timeout_ms));
        found |= control;
    }
    if (held_used > 0 && !has_thread) /* without it they are closed when the next ones are kept */
        has_thread = thread_start(NULL, held_thread, NULL) == 0;
    pthread_mutex_unlock(&held_lock);
    closedir(folder);
    return found && !lost;
}

unsigned held_count(void)
{
    unsigned held;

    pthread_mutex_lock(&held_lock);
    held = held_used;
    pthread_mutex_unlock(&held_lock);
    return held;
}

void held_wait_at_exit(void)
{
    enum { PAUSE_MS = 5 };
    uint64_t deadline = deadline_after_ms(HELD_EXIT_MS);

    while (!none_is_left() && !deadline_passed(deadline))
        poll(NULL, 0, PAUSE_MS);
    if (held_count() > 0)
        log_warn("the process ends, and %u connections whose peers may not have taken everything "
                 "end with it",
                 held_count());
}
