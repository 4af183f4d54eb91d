/*
 * Reads fragments, and unpacks parts of some hundred of them. The pool is the one that the link was
 * steered to, or one of the tests.
 */
#include "net/gpu/rx_devmem.h"

#include "base/config.h"
#include "base/log.h"
#include "net/comm/for_movers.h"
#include "net/devmem/devmem.h"
#include "net/gpu/rx_staged.h"
#include "net/gpu/unpack_queue.h"
#include "unpack/unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 4, MOST_FRAGMENTS = 512, PATIENCE_MS = 10000 };

enum part_state { PART_FREE, PART_FILLING, PART_UNDER_WAY };

/* Some fragments of one slice, and what is done with them. */
struct part {
    enum part_state state;
    struct net_request *request;
    uint64_t offset; /* in the message */
    uint64_t bytes;
    struct pinned_slot *slot; /* descriptors first, then bytes that came without a page */
    struct scatter_list scatter;
    struct token_list tokens;
    struct scatter_fragment fragments[MOST_FRAGMENTS];
    struct devmem_token_range ranges[MOST_FRAGMENTS];
    bool by_ticket; /* or by the slot's event */
    bool lost;      /* the GPU cannot be asked any more, and may still use the slot */
    bool gathered;  /* in the slot, from where the CPU takes it */
    uint64_t ticket;
    uint64_t not_before; /* as that of a copy */
};

struct devmem_lane {
    struct devmem_socket *socket;
    struct unpack_engine *engine;
    struct part parts[PARTS];
    unsigned oldest; /* parts are used and end in turn */
    unsigned under_way;
    uint64_t starved; /* as the socket counts */
    uint64_t hungry;  /* since when it has waited for bytes that were announced; 0: it does not */

    /* what has come, and how */
    uint64_t device_bytes;
    uint64_t linear_bytes;
    uint64_t plain_bytes;
    uint64_t tokens_out;
    uint64_t tokens_back;
    uint8_t control[CMSG_SPACE(sizeof(struct devmem_fragment)) * MOST_FRAGMENTS];
};

struct rx_devmem {
    struct devmem_pool *pool;
    uint64_t pool_bytes;
    gpu_address pool_address;
    uint64_t looked_at_pool; /* when its pages were last counted */
    uint64_t unbind_after;   /* so many bytes; 0: not */
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
    comm->rx.lane_sinks[socket] = &sink_devmem;
    result = comm->link.no_kernels
                 ? unpack_create_as(pinned_gpu(&comm->gpu->share), UNPACK_HOST, &lane->engine)
                 : unpack_create(pinned_gpu(&comm->gpu->share), &lane->engine);
    if (result == TCPX_SUCCESS)
        result =
            devmem_socket_open(comm->gpu->devmem->pool, comm->link.forward[socket], &lane->socket);
    return result;
}

static int rx_devmem_take_pool(struct net_comm *comm, struct devmem_pool **pool)
{
    if (comm->link.devmem == NULL)
        return devmem_pool_take_soft(comm->gpu->device, pool);
    *pool = devmem_pool_share(comm->link.devmem->pool);
    return TCPX_SUCCESS;
}

int rx_devmem_open(struct net_comm *comm)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS || comm->side != NET_RECEIVER ||
        comm->link.framing != WIRE_SEPARATE ||
        (config->soft_devmem == 0 && comm->link.devmem == NULL))
        return result;
    comm->gpu->devmem = calloc(1, sizeof *comm->gpu->devmem);
    if (comm->gpu->devmem == NULL)
        return error_system(ENOMEM, "devmem");
    comm->gpu->devmem->unbind_after = config->unbind_after;
    result = rx_devmem_take_pool(comm, &comm->gpu->devmem->pool);
    if (result != TCPX_SUCCESS) {
        free(comm->gpu->devmem);
        comm->gpu->devmem = NULL;
        return result;
    }
    comm->gpu->devmem->pool_bytes = devmem_pool_memory(comm->gpu->devmem->pool)->bytes;
    comm->gpu->devmem->pool_address = devmem_pool_memory(comm->gpu->devmem->pool)->address;
    for (unsigned i = 1; i < comm->link.sockets && result == TCPX_SUCCESS; i++)
        result = rx_devmem_open_lane(comm, i);
    if (result != TCPX_SUCCESS)
        rx_devmem_close(comm);
    return result;
}

static struct part *rx_devmem_oldest_part(struct devmem_lane *lane)
{
    return &lane->parts[lane->oldest];
}

/* The one that is being filled, or would be next. */
static struct part *rx_devmem_newest_part(struct devmem_lane *lane)
{
    return &lane->parts[(lane->oldest + lane->under_way) % PARTS];
}

static int rx_devmem_wait_once(struct devmem_lane *lane, const struct part *part, uint64_t deadline)
{
    return part->by_ticket ? unpack_wait(lane->engine, part->ticket, deadline)
                           : gpu_event_wait(part->slot->event, deadline);
}

static void rx_devmem_wait_for_part(struct devmem_lane *lane, struct part *part, uint64_t deadline)
{
    int result = rx_devmem_wait_once(lane, part, deadline);

    if (result != TCPX_SUCCESS) /* once more: a single question may fail */
        result = rx_devmem_wait_once(lane, part, deadline);
    part->lost = result != TCPX_SUCCESS;
    if (part->lost)
        log_warn("an unpack did not end when its comm was closed: %s", error_text());
}

/* What the GPU may still use is not given to anyone else. */
static void rx_devmem_let_go_of_slot(struct net_comm *comm, struct part *part)
{
    if (part->lost)
        pinned_retire(&comm->gpu->share, part->slot);
    else
        pinned_give(&comm->gpu->share, part->slot);
    part->slot = NULL;
}

static void rx_devmem_log_statistics(const struct devmem_lane *lane, unsigned socket)
{
    if (lane->socket == NULL)
        return;
    log_debug("devmem socket %u: %llu bytes in pages, %llu linear, %llu plain; tokens: %llu out, "
              "%llu back; starved %llu times",
              socket, (unsigned long long)lane->device_bytes,
              (unsigned long long)lane->linear_bytes, (unsigned long long)lane->plain_bytes,
              (unsigned long long)lane->tokens_out, (unsigned long long)lane->tokens_back,
              (unsigned long long)devmem_socket_starved(lane->socket));
}

static void rx_devmem_close_lane(struct net_comm *comm, struct devmem_lane *lane, unsigned socket)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    for (unsigned i = 0; i < PARTS; i++) {
        struct part *part = &lane->parts[i];

        if (part->state == PART_UNDER_WAY && !part->lost)
            rx_devmem_wait_for_part(lane, part, deadline);
        if (part->slot != NULL)
            rx_devmem_let_go_of_slot(comm, part);
    }
    rx_devmem_log_statistics(lane, socket);
    devmem_socket_close(lane->socket);
    unpack_destroy(lane->engine);
    free(lane);
}

void rx_devmem_close(struct net_comm *comm)
{
    if (comm->gpu->devmem == NULL)
        return;
    for (unsigned i = 1; i < comm->link.sockets; i++)
        if (comm->gpu->devmem->lanes[i] != NULL)
            rx_devmem_close_lane(comm, comm->gpu->devmem->lanes[i], i);
    devmem_pool_give(comm->gpu->devmem->pool);
    free(comm->gpu->devmem);
    comm->gpu->devmem = NULL;
}

/* --- what a slot holds ------------------------------------------------------------------------ */

static uint32_t rx_devmem_fragments_of(const struct net_comm *comm)
{
    uint64_t room = pinned_slot_bytes(&comm->gpu->share) / 4 / sizeof(struct unpack_descriptor);

    return room < MOST_FRAGMENTS ? (uint32_t)room : MOST_FRAGMENTS;
}

/* Behind the descriptors. */
static uint64_t rx_devmem_host_start(const struct net_comm *comm)
{
    return rx_devmem_fragments_of(comm) * sizeof(struct unpack_descriptor);
}

static uint64_t rx_devmem_host_room(const struct net_comm *comm)
{
    return pinned_slot_bytes(&comm->gpu->share) - rx_devmem_host_start(comm);
}

static uint64_t rx_devmem_host_used(const struct part *part)
{
    return part->scatter.linear_bytes + part->scatter.plain_bytes;
}

/* --- the end of a part --------------------------------------------------------------------- */

static bool rx_devmem_give_tokens(struct devmem_lane *lane, const struct token_list *tokens)
{
    struct devmem_token_range batch[DEVMEM_DONTNEED_MAX_RANGES];
    struct token_cursor cursor = {.range = 0};
    uint32_t count;
    unsigned ranges;

    while ((ranges = token_list_batch(tokens, &cursor, batch, &count)) > 0) {
        if (devmem_socket_return(lane->socket, batch, ranges) != (int)count)
            return false;
        lane->tokens_back += count;
    }
    return true;
}

static void rx_devmem_end_part(struct net_comm *comm, struct devmem_lane *lane, struct part *part)
{
    struct net_request *request = part->request;
    uint64_t bytes = part->bytes;

    if (part->gathered && !comm->copies_failed)
        memcpy(request->data + part->offset, part->slot->host + rx_devmem_host_start(comm), bytes);
    /* Pages of a lost part stay out until the socket is closed: the GPU may still read them. */
    if (!part->lost && !rx_devmem_give_tokens(lane, &part->tokens))
        comm_fail(comm, error_set(TCPX_INTERNAL_ERROR, "tokens that the socket does not know"));
    rx_devmem_let_go_of_slot(comm, part);
    part->state = PART_FREE;
    stages_copy_ended(&comm->copying);
    lane->oldest = (lane->oldest + 1) % PARTS;
    lane->under_way--;
    request_let_go(request);
    if (comm->copies_failed)
        return;
    rx_copied(comm, request, bytes);
}

static int rx_devmem_ask(struct devmem_lane *lane, const struct part *part, bool *done)
{
    return part->by_ticket ? unpack_poll(lane->engine, part->ticket, done)
                           : gpu_event_query(part->slot->event, done);
}

/* What cannot be asked twice is lost, and so is the GPU. */
static bool rx_devmem_has_ended(struct net_comm *comm, struct devmem_lane *lane, struct part *part)
{
    bool done = false;
    int result;

    if (part->lost)
        return true;
    result = rx_devmem_ask(lane, part, &done);
    if (result != TCPX_SUCCESS) {
        comm_fail_copies(comm, result);
        part->lost = rx_devmem_ask(lane, part, &done) != TCPX_SUCCESS;
    }
    return part->lost || done;
}

static void rx_devmem_poll_lane(struct net_comm *comm, unsigned socket)
{
    struct devmem_lane *lane = comm->gpu->devmem->lanes[socket];

    /* Tokens and reads of one socket are one thread's at a time. */
    while (lane->under_way > 0) {
        struct part *part = rx_devmem_oldest_part(lane);

        if ((part->not_before != 0 && !deadline_passed(part->not_before)) ||
            !rx_devmem_has_ended(comm, lane, part))
            return;
        rx_devmem_end_part(comm, lane, part);
    }
}

/* By whoever moves the lane, or finds it at rest. */
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

/* --- unpacking ----------------------------------------------------------------------------- */

/* To where the GPU writes: what came without a page by a copy each, the rest by the engine. */
static int rx_devmem_unpack_to(struct net_comm *comm, struct devmem_lane *lane, struct part *part,
                               uint32_t count, gpu_address to)
{
    const struct unpack_list list = {.bounce = comm->gpu->devmem->pool_address,
                                     .destination = to,
                                     .descriptors = (struct unpack_descriptor *)part->slot->host,
                                     .descriptors_device = part->slot->device,
                                     .count = count};
    const struct scatter_fragment *fragment;
    uint32_t cursor = 0;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS &&
           (fragment = scatter_list_next_host(&part->scatter, &cursor)) != NULL)
        result = gpu_copy_to_device(unpack_stream(lane->engine), to + fragment->destination_offset,
                                    part->slot->host + rx_devmem_host_start(comm) +
                                        fragment->source_offset,
                                    fragment->length);
    part->by_ticket = true;
    if (result == TCPX_SUCCESS)
        result = unpack_submit(lane->engine, &list, 1, true, &part->ticket);
    return result;
}

/* Where host memory or bounce memory takes the next of the part's bytes. */
static uint8_t *rx_devmem_host_place(const struct net_comm *comm, const struct part *part,
                                     uint64_t at, uint64_t *most)
{
    *most = part->bytes - at;
    return part->request->sink == &sink_bounce
               ? unpack_queue_where(comm, part->request, part->offset + at, most)
               : part->request->data + part->offset + at;
}

/* One run of pages that lie side by side, as far as its place does. */
static int rx_devmem_copy_run_to_host(struct net_comm *comm, struct devmem_lane *lane,
                                      const struct part *part,
                                      const struct unpack_descriptor *first, uint64_t bytes)
{
    int result = TCPX_SUCCESS;

    for (uint64_t at = 0, most; at < bytes && result == TCPX_SUCCESS; at += most) {
        uint8_t *place = rx_devmem_host_place(comm, part, first->destination_offset + at, &most);

        most = most < bytes - at ? most : bytes - at;
        result =
            gpu_copy_to_host(unpack_stream(lane->engine), place,
                             comm->gpu->devmem->pool_address + first->source_offset + at, most);
    }
    return result;
}

static bool rx_devmem_follows(const struct unpack_descriptor *first, uint64_t bytes,
                              const struct unpack_descriptor *next)
{
    return next->source_offset == first->source_offset + bytes &&
           next->destination_offset == first->destination_offset + bytes;
}

static int rx_devmem_copy_to_host(struct net_comm *comm, struct devmem_lane *lane,
                                  struct part *part, uint32_t count)
{
    const struct unpack_descriptor *descriptors = (struct unpack_descriptor *)part->slot->host;
    const struct scatter_fragment *fragment;
    uint32_t cursor = 0;
    int result = gpu_flush_inbound_writes(pinned_gpu(&comm->gpu->share));

    while ((fragment = scatter_list_next_host(&part->scatter, &cursor)) != NULL)
        for (uint64_t at = 0, most; at < fragment->length; at += most) {
            uint8_t *place =
                rx_devmem_host_place(comm, part, fragment->destination_offset + at, &most);

            most = most < fragment->length - at ? most : fragment->length - at;
            memcpy(place,
                   part->slot->host + rx_devmem_host_start(comm) + fragment->source_offset + at,
                   most);
        }
    for (uint32_t i = 0; i < count && result == TCPX_SUCCESS;) {
        const struct unpack_descriptor *first = &descriptors[i];
        uint64_t bytes = first->length;

        for (i++; i < count && rx_devmem_follows(first, bytes, &descriptors[i]); i++)
            bytes += descriptors[i].length;
        result = rx_devmem_copy_run_to_host(comm, lane, part, first, bytes);
    }
    part->by_ticket = false;
    if (result == TCPX_SUCCESS)
        result = gpu_event_record(part->slot->event, unpack_stream(lane->engine));
    return result;
}

/* From a NIC all payload should come in pages. */
static void rx_devmem_note_how_it_came(struct net_comm *comm, struct devmem_lane *lane,
                                       const struct scatter_list *scatter)
{
    const char *interface = devmem_pool_interface(comm->gpu->devmem->pool);

    lane->device_bytes += scatter->device_bytes;
    lane->linear_bytes += scatter->linear_bytes;
    lane->plain_bytes += scatter->plain_bytes;
    lane->tokens_out += scatter->device_fragments;
    if (interface == NULL || scatter->linear_bytes + scatter->plain_bytes == 0 ||
        comm->gpu->devmem->warned_of_split)
        return;
    comm->gpu->devmem->warned_of_split = true;
    log_warn("from %s payload comes through %s in ordinary memory, which has to be copied: its "
             "header split or its steering rules do not work, or its queue is bound no more",
             comm->link.peer, interface);
}

static void rx_devmem_unbind_if_asked(struct rx_devmem *devmem, const struct devmem_lane *lane)
{
    if (devmem->unbind_after == 0 || lane->device_bytes < devmem->unbind_after)
        return;
    devmem->unbind_after = 0;
    devmem_pool_unbind(devmem->pool);
}

/* 0: the CPU's business. */
static gpu_address rx_devmem_gpu_place(const struct net_comm *comm, const struct part *part)
{
    const struct net_request *request = part->request;

    if (request->sink == &sink_staged)
        return (gpu_address)(uintptr_t)request->data + part->offset;
    if (request->sink == &sink_bounce && !comm->link.no_kernels)
        return unpack_queue_where_on_gpu(comm, request, part->offset, part->bytes);
    /* Into host memory by way of the slot: a copy for each fragment would take much longer. */
    return part->gathered ? part->slot->device + rx_devmem_host_start(comm) : 0;
}

/* Some of its work may have begun, and its end has to be seen, by the event of the slot. */
static void rx_devmem_see_end_of_failed(struct devmem_lane *lane, struct part *part)
{
    int result = gpu_event_record(part->slot->event, unpack_stream(lane->engine));

    if (result != TCPX_SUCCESS)
        result = gpu_event_record(part->slot->event, unpack_stream(lane->engine));
    part->by_ticket = false;
    part->lost = result != TCPX_SUCCESS;
}

static void rx_devmem_submit(struct net_comm *comm, struct devmem_lane *lane, struct part *part)
{
    const struct scatter_sizes sizes = {.message = part->bytes,
                                        .pool = comm->gpu->devmem->pool_bytes,
                                        .host = rx_devmem_host_room(comm)};
    gpu_address to;
    uint32_t count = 0;
    int result =
        descriptors_build(&part->scatter, &sizes, (struct unpack_descriptor *)part->slot->host,
                          rx_devmem_fragments_of(comm), &count);

    part->gathered = part->request->sink == &sink_host && rx_devmem_host_used(part) == 0 &&
                     part->bytes <= rx_devmem_host_room(comm) && !comm->link.no_kernels;
    to = rx_devmem_gpu_place(comm, part);
    part->state = PART_UNDER_WAY;
    part->not_before = stages_slow_until(&comm->throttle, CONFIG_THROTTLE_UNPACK, part->bytes);
    stages_copy_began(&comm->copying);
    lane->under_way++;
    request_hold(part->request);
    rx_devmem_note_how_it_came(comm, lane, &part->scatter);
    rx_devmem_unbind_if_asked(comm->gpu->devmem, lane);
    if (result == TCPX_SUCCESS)
        result = to != 0 ? rx_devmem_unpack_to(comm, lane, part, count, to)
                         : rx_devmem_copy_to_host(comm, lane, part, count);
    if (result != TCPX_SUCCESS) {
        comm_fail_copies(comm, result);
        rx_devmem_see_end_of_failed(lane, part);
    }
}

/* --- receiving ----------------------------------------------------------------------------- */

/* A part to fill with what comes next; NULL: not now. */
static struct part *rx_devmem_part_to_fill(struct net_comm *comm, struct devmem_lane *lane,
                                           const struct rx_payload *payload)
{
    struct part *part = rx_devmem_newest_part(lane);
    int result;

    if (lane->under_way < PARTS && part->state == PART_FILLING)
        return part;
    if (lane->under_way == PARTS)
        return NULL;
    result = pinned_take(&comm->gpu->share, &part->slot);
    if (result != TCPX_SUCCESS)
        comm_fail_copies(comm, result);
    if (part->slot == NULL)
        return NULL;
    part->state = PART_FILLING;
    part->lost = false;
    part->request = payload->request;
    part->offset = payload->at;
    part->bytes = 0;
    scatter_list_init(&part->scatter, part->fragments, rx_devmem_fragments_of(comm));
    token_list_init(&part->tokens, part->ranges, rx_devmem_fragments_of(comm));
    return part;
}

static bool rx_devmem_is_full(const struct net_comm *comm, const struct part *part)
{
    return part->scatter.count == rx_devmem_fragments_of(comm) ||
           rx_devmem_host_used(part) == rx_devmem_host_room(comm);
}

static bool rx_devmem_has_starved(struct devmem_lane *lane)
{
    uint64_t before = lane->starved;

    lane->starved = devmem_socket_starved(lane->socket);
    return lane->starved != before;
}

/*
 * A NIC that has no page for a packet drops it, which looks like a bad network from here. Whoever
 * has waited for long counts the pages.
 */
void rx_devmem_watch(struct net_comm *comm)
{
    const uint64_t LONG_NS = 500000000;
    const uint64_t AGAIN_NS = 2000000000;
    struct rx_devmem *devmem = comm->gpu->devmem;
    uint64_t now;
    uint64_t out;

    if (devmem == NULL || devmem->warned_of_exhaustion ||
        devmem_pool_interface(devmem->pool) == NULL)
        return;
    now = clock_now();
    if (now < devmem->looked_at_pool + AGAIN_NS)
        return;
    for (unsigned i = 1; i < comm->link.sockets; i++) {
        uint64_t hungry = devmem->lanes[i]->hungry;

        if (hungry == 0 || now < hungry + LONG_NS)
            continue;
        devmem->looked_at_pool = now;
        if (devmem_pool_count_out(devmem->pool, &out) != TCPX_SUCCESS ||
            out * devmem_page_bytes() < devmem->pool_bytes - devmem->pool_bytes / 16)
            return;
        devmem->warned_of_exhaustion = true;
        log_warn("nothing comes from %s: the pages that %s receives into are all in use (%llu of "
                 "%llu). UCCL_TCPX_DEVMEM_BYTES has to be larger, or what was received is not "
                 "consumed",
                 comm->link.peer, devmem_pool_interface(devmem->pool), (unsigned long long)out,
                 (unsigned long long)(devmem->pool_bytes / devmem_page_bytes()));
        return;
    }
}

/* A stream that the kernel cannot go on with is a matter of the NIC, not of the peer. */
static void rx_devmem_explain(struct net_comm *comm, int error)
{
    const char *interface = devmem_pool_interface(comm->gpu->devmem->pool);

    if (interface == NULL || (error != ENODEV && error != EFAULT && error != DEVMEM_ETOOSMALL))
        return;
    comm_fail(comm,
              error_set(TCPX_SYSTEM_ERROR,
                        "the kernel cannot read on what %s sends through %s (error %d): payload "
                        "came beside headers; check header split (ethtool -g %s), or set "
                        "UCCL_TCPX_DEVMEM=off",
                        comm->link.peer, interface, error, interface));
}

static ssize_t rx_devmem_call(struct net_comm *comm, struct devmem_lane *lane, struct part *part,
                              uint64_t wanted, int *error)
{
    uint64_t used = rx_devmem_host_used(part);
    struct iovec place = {.iov_base = part->slot->host + rx_devmem_host_start(comm) + used,
                          .iov_len = wanted < rx_devmem_host_room(comm) - used
                                         ? wanted
                                         : rx_devmem_host_room(comm) - used};
    struct msghdr message = {.msg_iov = &place,
                             .msg_iovlen = 1,
                             .msg_control = lane->control,
                             .msg_controllen = control_messages_space(DEVMEM_LAYOUT_MAINLINE,
                                                                      rx_devmem_fragments_of(comm) -
                                                                          part->scatter.count)};
    struct devmem_call parsed = {.layout = DEVMEM_LAYOUT_MAINLINE,
                                 .message = &message,
                                 .dmabuf_id = devmem_pool_id(comm->gpu->devmem->pool),
                                 .pool_size = comm->gpu->devmem->pool_bytes,
                                 .destination_offset = part->bytes,
                                 .host_offset = used,
                                 .host_size = rx_devmem_host_room(comm)};
    int result;

    stages_call_begins(&comm->calling);
    comm_lock_release(&comm->lock);
    parsed.received = devmem_socket_receive(lane->socket, &message, DEVMEM_MSG_FLAG | MSG_DONTWAIT);
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

static ssize_t rx_devmem_read(struct net_comm *comm, unsigned socket, int *error,
                              enum lane_wait *wait)
{
    struct devmem_lane *lane = comm->gpu->devmem->lanes[socket];
    struct incoming *incoming = &comm->rx.incoming[socket];
    struct rx_payload *payload = &incoming->payload;
    struct part *part;
    ssize_t got;

    rx_devmem_poll_lane(comm, socket);
    part = comm->result == TCPX_SUCCESS ? rx_devmem_part_to_fill(comm, lane, payload) : NULL;
    *wait = LANE_SOON;
    *error = EAGAIN;
    if (part == NULL)
        return -1;
    got = rx_devmem_call(comm, lane, part, payload->left, error);
    if (got < 0)
        rx_devmem_explain(comm, *error);
    if (comm->result != TCPX_SUCCESS)
        return -1;
    if (got < 0 && *error == EAGAIN) {
        lane->hungry = lane->hungry != 0 ? lane->hungry : clock_now();
        /* What is here goes on: its pages may be the ones that are missing. */
        *wait = rx_devmem_has_starved(lane) ? LANE_SOON : LANE_FOR_INPUT;
        if (part->bytes > 0)
            rx_devmem_submit(comm, lane, part);
        return -1;
    }
    if (got <= 0)
        return got;
    lane->hungry = 0;
    payload->left -= (uint64_t)got;
    payload->at += (uint64_t)got;
    incoming->total += (uint64_t)got;
    payload->request->copying += (uint64_t)got;
    if (payload->left == 0 || rx_devmem_is_full(comm, part))
        rx_devmem_submit(comm, lane, part);
    return got;
}

static const struct sink_ops sink_devmem = {
    .name = "devmem", .read = rx_devmem_read, .complete = sink_complete_receive};
