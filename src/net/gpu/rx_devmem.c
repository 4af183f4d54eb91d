/*
 * Reads fragments into parts of some hundred of them. The pool is the one that the link was steered
 * to, or one of the tests.
 */
#include "net/gpu/rx_devmem.h"

#include "base/config.h"
#include "base/log.h"
#include "net/comm/for_movers.h"
#include "net/devmem/devmem.h"
#include "net/gpu/devmem_part.h"
#include "net/gpu/gpu_mover.h"
#include "net/gpu/in_place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 4, PATIENCE_MS = 10000 };

struct devmem_lane {
    struct devmem_socket socket;
    struct unpack_engine *engine;
    struct devmem_part parts[PARTS];
    unsigned oldest; /* parts are used and end in turn */
    unsigned under_way;
    bool filling;     /* the part behind them is being filled */
    uint64_t starved; /* as the socket counts */
    uint64_t hungry;  /* since when it has waited for announced bytes; 0: it does not wait */

    /* what has come, and how */
    uint64_t device_bytes;
    uint64_t linear_bytes;
    uint64_t plain_bytes;
    uint64_t tokens_out;
    uint8_t control[CMSG_SPACE(sizeof(struct devmem_fragment)) * DEVMEM_PART_FRAGMENTS];
};

struct rx_devmem {
    uint64_t looked_at_pool; /* when its pages were last counted */
    uint64_t unbind_after;   /* after so many bytes, in tests; 0: never */
    bool warned_of_exhaustion;
    bool warned_of_split; /* that payload came beside headers, or in ordinary memory */
    struct devmem_lane *lanes[WIRE_MOST_SOCKETS];
};

static const struct sink_ops sink_devmem;

/* --- opening and closing ------------------------------------------------------------------- */

static int rx_devmem_open_lane(struct net_comm *comm, unsigned socket)
{
    struct devmem_lane *lane = calloc(1, sizeof *lane);
    int result;

    if (lane == NULL)
        return error_system(ENOMEM, "a devmem socket");
    comm->gpu->devmem->lanes[socket] = lane;
    result = comm->link.no_kernels
                 ? unpack_create_as(comm->gpu->share.pool->gpu, UNPACK_HOST, &lane->engine)
                 : unpack_create(comm->gpu->share.pool->gpu, &lane->engine);
    if (result == TCPX_SUCCESS)
        result = devmem_socket_open(comm->gpu->rx_pool, comm->link.forward[socket], &lane->socket);
    return result;
}

static int rx_devmem_take_pool(struct net_comm *comm, struct devmem_pool **pool)
{
    if (comm->link.devmem == NULL)
        return devmem_pool_take_soft(comm->gpu->device, pool);
    *pool = devmem_pool_share(comm->link.devmem->pool);
    return TCPX_SUCCESS;
}

int rx_devmem_applies(const struct net_comm *comm, bool *applies)
{
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        *applies = comm->side == NET_RECEIVER && comm->link.framing == WIRE_SEPARATE &&
                   (config->soft_devmem != 0 || comm->link.devmem != NULL);
    return result;
}

int rx_devmem_open(struct net_comm *comm)
{
    const struct config *config;
    bool applies = false;
    int result = rx_devmem_applies(comm, &applies);

    if (result == TCPX_SUCCESS)
        result = config_get(&config);
    if (result != TCPX_SUCCESS || !applies)
        return result;
    comm->gpu->devmem = calloc(1, sizeof *comm->gpu->devmem);
    if (comm->gpu->devmem == NULL)
        return error_system(ENOMEM, "devmem");
    comm->gpu->devmem->unbind_after = config->unbind_after;
    result = rx_devmem_take_pool(comm, &comm->gpu->rx_pool);
    if (result != TCPX_SUCCESS) {
        free(comm->gpu->devmem);
        comm->gpu->devmem = NULL;
        return result;
    }
    for (unsigned i = 1; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        result = rx_devmem_open_lane(comm, i);
    if (result != TCPX_SUCCESS)
        rx_devmem_close(comm);
    return result;
}

static void rx_devmem_set_sinks(struct net_comm *comm)
{
    COMM_LOCKED(comm);
    for (unsigned i = 1; i < comm->link.sockets; i++)
        comm->rx.lane_sinks[i] = &sink_devmem;
}

void rx_devmem_start(struct net_comm *comm)
{
    if (comm->gpu->devmem != NULL)
        rx_devmem_set_sinks(comm);
}

void rx_devmem_reserve_lanes(struct net_comm *comm)
{
    if (comm->link.devmem == NULL)
        return;
    comm_lock_take(&comm->lock);
    rx_devmem_set_sinks(comm);
    comm_lock_release(&comm->lock);
}

/* The one that is being filled, or would be next. */
static struct devmem_part *rx_devmem_newest_part(struct devmem_lane *lane)
{
    return &lane->parts[(lane->oldest + lane->under_way) % PARTS];
}

static void rx_devmem_log_statistics(const struct devmem_lane *lane, unsigned socket)
{
    if (lane->socket.ops == NULL)
        return;
    log_debug("devmem socket %u: %llu bytes in pages, %llu linear, %llu plain; tokens: %llu out, "
              "%llu back; starved %llu times",
              socket, (unsigned long long)lane->device_bytes,
              (unsigned long long)lane->linear_bytes, (unsigned long long)lane->plain_bytes,
              (unsigned long long)lane->tokens_out, (unsigned long long)lane->socket.tokens_back,
              (unsigned long long)devmem_socket_starved(&lane->socket));
}

static void rx_devmem_log_unpack(const struct unpack_counts *counts)
{
    if (counts->in_place + counts->copied > 0)
        log_debug("devmem unpack: %llu receives in place, %llu with copies; %llu bytes in place, "
                  "%llu copied",
                  (unsigned long long)counts->in_place, (unsigned long long)counts->copied,
                  (unsigned long long)counts->in_place_bytes,
                  (unsigned long long)counts->copied_bytes);
}

static void rx_devmem_close_lane(struct net_comm *comm, struct devmem_lane *lane, unsigned socket)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    for (unsigned i = 0; i < PARTS; i++) {
        struct devmem_part *part = &lane->parts[(lane->oldest + i) % PARTS];

        if (i < lane->under_way && !part->lost)
            devmem_part_wait(lane->engine, part, deadline);
        if (part->slot != NULL)
            devmem_part_give_slot(comm, part);
    }
    rx_devmem_log_statistics(lane, socket);
    devmem_socket_close(&lane->socket);
    unpack_destroy(lane->engine);
    free(lane);
}

void rx_devmem_close(struct net_comm *comm)
{
    if (comm->gpu->devmem == NULL)
        return;
    in_place_destroy(comm->gpu->in_place);
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (comm->gpu->devmem->lanes[i] != NULL)
            rx_devmem_close_lane(comm, comm->gpu->devmem->lanes[i], i);
    rx_devmem_log_unpack(&comm->unpack_counts);
    devmem_pool_give(comm->gpu->rx_pool);
    free(comm->gpu->devmem);
    comm->gpu->devmem = NULL;
}

/* --- the end of a part --------------------------------------------------------------------- */

/* Pages of a lost part stay out until the socket is closed: the GPU may still read them. */
static void rx_devmem_end_oldest(struct net_comm *comm, struct devmem_lane *lane)
{
    struct devmem_part *part = &lane->parts[lane->oldest];

    if (!part->lost && !part->kept && !devmem_socket_return(&lane->socket, &part->tokens))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "tokens that the socket does not know"));
    lane->oldest = (lane->oldest + 1) % PARTS;
    lane->under_way--;
    devmem_part_finish(comm, part);
}

static void rx_devmem_poll_lane(struct net_comm *comm, unsigned socket)
{
    struct devmem_lane *lane = comm->gpu->devmem->lanes[socket];

    while (lane->under_way > 0 &&
           devmem_part_has_ended(comm, lane->engine, &lane->parts[lane->oldest]))
        rx_devmem_end_oldest(comm, lane);
}

/* A busy lane is polled by its owner. */
void rx_devmem_poll(struct net_comm *comm)
{
    if (comm->gpu->devmem == NULL)
        return;
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (!comm->lanes[i].busy)
            rx_devmem_poll_lane(comm, i);
}

bool rx_devmem_is_under_way(const struct net_comm *comm)
{
    if (comm->gpu->devmem == NULL)
        return false;
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (comm->gpu->devmem->lanes[i]->under_way > 0)
            return true;
    return false;
}

/* All payload from a NIC should arrive in pages. */
static void rx_devmem_note_how_it_came(struct net_comm *comm, struct devmem_lane *lane,
                                       const struct scatter_list *scatter)
{
    const struct devmem_memory *memory = &comm->gpu->rx_pool->memory;

    lane->device_bytes += scatter->device_bytes;
    lane->linear_bytes += scatter->linear_bytes;
    lane->plain_bytes += scatter->plain_bytes;
    lane->tokens_out += scatter->device_fragments;
    if (memory->ifindex == 0 || scatter->linear_bytes + scatter->plain_bytes == 0 ||
        comm->gpu->devmem->warned_of_split)
        return;
    comm->gpu->devmem->warned_of_split = true;
    log_warn("from %s payload comes through %s in ordinary memory, which has to be copied: its "
             "header split or its steering rules do not work, or its queue is bound no more",
             comm->link.peer, memory->interface);
}

static void rx_devmem_unbind_if_asked(struct net_comm *comm, const struct devmem_lane *lane)
{
    struct rx_devmem *devmem = comm->gpu->devmem;

    if (devmem->unbind_after == 0 || lane->device_bytes < devmem->unbind_after)
        return;
    devmem->unbind_after = 0;
    devmem_pool_unbind(comm->gpu->rx_pool);
}

/* Bytes that came in ordinary memory have no page to stay in. */
static bool rx_devmem_can_stay(struct net_comm *comm, struct devmem_lane *lane,
                               const struct devmem_part *part)
{
    return comm->gpu->in_place != NULL && part->request->sink == &sink_bounce &&
           !part->request->cancelled && devmem_part_host_used(part) == 0 &&
           in_place_take(comm, &lane->socket, part);
}

static void rx_devmem_submit(struct net_comm *comm, unsigned socket)
{
    struct devmem_lane *lane = comm->gpu->devmem->lanes[socket];
    struct devmem_part *part = rx_devmem_newest_part(lane);

    lane->filling = false;
    lane->under_way++;
    rx_devmem_note_how_it_came(comm, lane, &part->scatter);
    rx_devmem_unbind_if_asked(comm, lane);
    if (rx_devmem_can_stay(comm, lane, part)) {
        devmem_part_keep(comm, part);
        rx_devmem_poll_lane(comm, socket);
    } else {
        devmem_part_unpack(comm, lane->engine, part);
    }
}

/* --- receiving ----------------------------------------------------------------------------- */

/* A part to fill with what arrives next; NULL: not now. */
static struct devmem_part *rx_devmem_part_to_fill(struct net_comm *comm, struct devmem_lane *lane,
                                                  const struct rx_payload *payload)
{
    struct devmem_part *part = rx_devmem_newest_part(lane);

    if (!lane->filling && lane->under_way < PARTS)
        lane->filling = devmem_part_begin(comm, payload, &comm->gpu->rx_pool->memory.memory, part);
    return lane->filling ? part : NULL;
}

static bool rx_devmem_has_starved(struct devmem_lane *lane)
{
    uint64_t before = lane->starved;

    lane->starved = devmem_socket_starved(&lane->socket);
    return lane->starved != before;
}

/* Whether a lane has waited for announced bytes for long. */
static bool rx_devmem_is_hungry(const struct net_comm *comm, uint64_t now)
{
    const uint64_t LONG_NS = 500000000;

    for (unsigned i = 1; i < comm->link.sockets; i++) {
        uint64_t hungry = comm->gpu->devmem->lanes[i]->hungry;

        if (hungry != 0 && now >= hungry + LONG_NS)
            return true;
    }
    return false;
}

/*
 * A NIC that has no page for a packet drops it, which looks like a bad network. So a receiver that
 * has waited for long counts the pages: without the comm's lock, since the kernel may take long.
 */
void rx_devmem_watch(struct net_comm *comm)
{
    const uint64_t AGAIN_NS = 2000000000;
    struct rx_devmem *devmem = comm->gpu->devmem;
    struct devmem_memory *memory;
    uint64_t now;
    uint64_t out;
    uint64_t all;
    int result;

    COMM_LOCKED(comm);
    if (devmem == NULL || devmem->warned_of_exhaustion || comm->gpu->rx_pool->memory.ifindex == 0)
        return;
    now = clock_now();
    if (now < devmem->looked_at_pool + AGAIN_NS || !rx_devmem_is_hungry(comm, now))
        return;
    devmem->looked_at_pool = now;
    memory = &comm->gpu->rx_pool->memory;
    all = memory->memory.bytes / devmem_page_bytes();
    comm_lock_release(&comm->lock);
    result = comm->gpu->rx_pool->ops->count_out(memory, &out);
    comm_lock_take(&comm->lock);
    if (result != TCPX_SUCCESS || out < all - all / 16 || devmem->warned_of_exhaustion)
        return;
    devmem->warned_of_exhaustion = true;
    log_warn("nothing comes from %s: the pages that %s receives into are all in use (%llu of "
             "%llu). UCCL_TCPX_DEVMEM_BYTES has to be larger, or what was received is not "
             "consumed",
             comm->link.peer, memory->interface, (unsigned long long)out, (unsigned long long)all);
}

/* A stream that the kernel cannot continue is a problem of the NIC, not of the peer. */
static void rx_devmem_explain(struct net_comm *comm, int error)
{
    const struct devmem_memory *memory = &comm->gpu->rx_pool->memory;

    if (memory->ifindex == 0 || (error != ENODEV && error != EFAULT && error != DEVMEM_ETOOSMALL))
        return;
    comm_fail(comm,
              error_set(TCPX_SYSTEM_ERROR,
                        "the kernel cannot read on what %s sends through %s (error %d): payload "
                        "came beside headers; check header split (ethtool -g %s), or set "
                        "UCCL_TCPX_DEVMEM=off",
                        comm->link.peer, memory->interface, error, memory->interface));
}

static ssize_t rx_devmem_call(struct net_comm *comm, struct devmem_lane *lane,
                              struct devmem_part *part, uint64_t wanted, int *error)
{
    const struct devmem_memory *memory = &comm->gpu->rx_pool->memory;
    uint64_t used = devmem_part_host_used(part);
    struct iovec place = {.iov_base = devmem_part_host_place(comm, part),
                          .iov_len = wanted < devmem_part_host_room(comm) - used
                                         ? wanted
                                         : devmem_part_host_room(comm) - used};
    struct msghdr message = {.msg_iov = &place,
                             .msg_iovlen = 1,
                             .msg_control = lane->control,
                             .msg_controllen = control_messages_space(DEVMEM_LAYOUT_MAINLINE,
                                                                      devmem_part_fragments(comm) -
                                                                          part->scatter.count)};
    struct devmem_call parsed = {.layout = DEVMEM_LAYOUT_MAINLINE,
                                 .message = &message,
                                 .dmabuf_id = memory->dmabuf_id,
                                 .pool_size = memory->memory.bytes,
                                 .destination_offset = part->bytes,
                                 .host_offset = used,
                                 .host_size = devmem_part_host_room(comm)};
    int result;

    stages_call_begins(&comm->calling);
    comm_lock_release(&comm->lock);
    parsed.received =
        lane->socket.ops->receive(&lane->socket, &message, DEVMEM_MSG_FLAG | MSG_DONTWAIT);
    *error = errno;
    comm_lock_take(&comm->lock);
    account_throttle(comm, CONFIG_THROTTLE_RECEIVE, parsed.received);
    stages_call_ended(&comm->calling, parsed.received > 0);
    if (parsed.received <= 0)
        return parsed.received;
    result = control_messages_read(&parsed, &part->scatter, &part->tokens);
    if (result != TCPX_SUCCESS)
        comm_fail(comm, result);
    part->bytes += (uint64_t)parsed.received;
    return parsed.received;
}

/* Of the payload, what goes to one range of memory. */
static uint64_t rx_devmem_bytes_of_part(const struct rx_payload *payload)
{
    uint64_t bytes = payload->left;

    if (payload->request->parts != NULL)
        parts_at(payload->request, payload->at, &bytes);
    return bytes;
}

static ssize_t rx_devmem_read(struct net_comm *comm, unsigned socket, int *error,
                              enum lane_wait *wait)
{
    struct incoming *incoming = &comm->rx.incoming[socket];
    struct rx_payload *payload = &incoming->payload;
    struct devmem_lane *lane;
    struct devmem_part *part;
    uint64_t wanted;
    ssize_t got;

    *wait = LANE_SOON;
    *error = EAGAIN;
    if (comm->mover == NULL) /* the GPU is being attached */
        return -1;
    lane = comm->gpu->devmem->lanes[socket];
    rx_devmem_poll_lane(comm, socket);
    part = comm->result == TCPX_SUCCESS ? rx_devmem_part_to_fill(comm, lane, payload) : NULL;
    if (part == NULL)
        return -1;
    wanted = rx_devmem_bytes_of_part(payload);
    got = rx_devmem_call(comm, lane, part, wanted, error);
    if (got < 0)
        rx_devmem_explain(comm, *error);
    if (comm->result != TCPX_SUCCESS)
        return -1;
    if (got < 0 && *error == EAGAIN) {
        lane->hungry = lane->hungry != 0 ? lane->hungry : clock_now();
        /* Unpacking what has arrived may free the pages that are missing. */
        *wait = rx_devmem_has_starved(lane) ? LANE_SOON : LANE_FOR_INPUT;
        if (part->bytes > 0)
            rx_devmem_submit(comm, socket);
        return -1;
    }
    if (got <= 0)
        return got;
    lane->hungry = 0;
    payload->left -= (uint64_t)got;
    payload->at += (uint64_t)got;
    incoming->total += (uint64_t)got;
    payload->request->copying += (uint64_t)got;
    if ((uint64_t)got == wanted || devmem_part_is_full(comm, part))
        rx_devmem_submit(comm, socket);
    return got;
}

static const struct sink_ops sink_devmem = {.read = rx_devmem_read,
                                            .complete = sink_complete_receive};
