/* The table of pending links, and which of them are evicted when there is no room for another. */
#include "net/link/pending_link.h"

#include <errno.h>
#include <sys/resource.h>

enum {
    LARGEST_LINK = WIRE_MOST_SOCKETS + 1,
    MOST_DESCRIPTORS = 32 * LARGEST_LINK, /* of all pending links */
};

/* A peer with the token must not take more than half of what this process may open. */
void pending_links_start(struct pending_links *pending)
{
    struct rlimit limit;

    pending->most_descriptors = MOST_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 2 <= MOST_DESCRIPTORS)
        pending->most_descriptors =
            limit.rlim_cur / 2 > LARGEST_LINK ? (unsigned)limit.rlim_cur / 2 : LARGEST_LINK;
}

void pending_link_drop(struct pending_link *pending)
{
    net_link_close(&pending->link);
    pending->present = 0;
}

bool pending_link_is_complete(const struct pending_link *pending)
{
    return pending->present == pending->link.sockets + 1u;
}

/* Before READY a peer sends nothing: what can be read is its end, or breaks the protocol. */
static bool pending_socket_is_silent(int fd)
{
    uint8_t byte;

    return fd < 0 || (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
                      (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

bool pending_link_has_peer(const struct pending_link *pending)
{
    for (unsigned i = 0; i < pending->link.sockets; i++)
        if (!pending_socket_is_silent(pending->link.forward[i]))
            return false;
    return pending_socket_is_silent(pending->link.reverse);
}

/* A free place for a link of so many descriptors; NULL: there is none. */
static struct pending_link *pending_links_free_place(struct pending_links *pending,
                                                     unsigned descriptors)
{
    struct pending_link *unused = NULL;

    for (int i = 0; i < PENDING_LINKS_MOST; i++) {
        if (pending->places[i].present == 0)
            unused = &pending->places[i];
        else
            descriptors += pending->places[i].link.sockets + 1u;
    }
    return descriptors <= pending->most_descriptors ? unused : NULL;
}

/* The oldest incomplete link whose time is over; NULL: none. */
static struct pending_link *pending_links_oldest_late(struct pending_links *pending, uint64_t now)
{
    struct pending_link *oldest = NULL;

    for (int i = 0; i < PENDING_LINKS_MOST; i++) {
        struct pending_link *place = &pending->places[i];

        if (place->present != 0 && !pending_link_is_complete(place) && now >= place->deadline &&
            (oldest == NULL || place->deadline < oldest->deadline))
            oldest = place;
    }
    return oldest;
}

/* Evicts links whose peers have left, then late ones, until there is room. */
static struct pending_link *pending_links_make_room(struct pending_links *pending,
                                                    unsigned descriptors, uint64_t now)
{
    struct pending_link *unused = pending_links_free_place(pending, descriptors);
    struct pending_link *late;

    for (int i = 0; i < PENDING_LINKS_MOST && unused == NULL; i++)
        if (pending->places[i].present != 0 && !pending_link_has_peer(&pending->places[i])) {
            pending_link_drop(&pending->places[i]);
            unused = pending_links_free_place(pending, descriptors);
        }
    while (unused == NULL && (late = pending_links_oldest_late(pending, now)) != NULL) {
        pending_link_drop(late);
        unused = pending_links_free_place(pending, descriptors);
    }
    return unused;
}

/* The link of a hello, new if there is none; NULL: it does not fit. */
static struct pending_link *pending_links_find(struct pending_links *pending,
                                               const struct net_link_options *options,
                                               const struct wire_hello *hello, uint64_t now,
                                               uint64_t deadline)
{
    struct pending_link *unused;

    for (int i = 0; i < PENDING_LINKS_MOST; i++) {
        struct pending_link *place = &pending->places[i];

        if (place->present != 0 && place->comm == hello->comm)
            return place->link.sockets == hello->sockets && place->link.version == hello->version
                       ? place
                       : NULL;
    }
    unused = pending_links_make_room(pending, hello->sockets + 1u, now);
    if (unused == NULL)
        return NULL;
    *unused =
        (struct pending_link){.comm = hello->comm,
                              .deadline = deadline,
                              .check_at = deadline,
                              .link = {.sockets = hello->sockets,
                                       .version = hello->version,
                                       .capabilities = hello->capabilities & WIRE_CAPABILITIES,
                                       .reverse = -1,
                                       .match = options->match,
                                       .framing = options->framing,
                                       .eager_limit = options->eager_limit,
                                       .eager_credit = options->eager_credit,
                                       .largest_slice = options->largest_slice,
                                       .requests = options->requests,
                                       .no_kernels = options->no_kernels}};
    for (int i = 0; i < WIRE_MOST_SOCKETS; i++)
        unused->link.forward[i] = -1;
    return unused;
}

int pending_links_join(struct pending_links *pending, const struct net_link_options *options,
                       const struct wire_hello *hello, int fd, uint64_t now, uint64_t deadline)
{
    struct pending_link *found = pending_links_find(pending, options, hello, now, deadline);
    int *place;
    int result;

    if (found == NULL)
        return error_set(TCPX_REMOTE_ERROR,
                         "too many links are being made, or its link has other sockets");
    place = hello->role == WIRE_REVERSE ? &found->link.reverse : &found->link.forward[hello->index];
    if (*place >= 0)
        return error_set(TCPX_REMOTE_ERROR, "its place in the link is taken");
    result = socket_tune(fd, options->timeout_ms);
    if (result != TCPX_SUCCESS)
        return result;
    *place = fd;
    found->present++;
    return TCPX_SUCCESS;
}
