/* Sinks in host memory: the buffer of a receive, and the scratch for bytes that are not wanted. */
#include "net/comm/sink.h"

#include "net/comm/comm_state.h"
#include "net/comm/parts.h"
#include "net/comm/rx_done.h"

#include <string.h>

struct iovec sink_next_at_place(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                                uint64_t room)
{
    (void)scratch;
    return (struct iovec){.iov_base = comm->rx.incoming[socket].payload.place, .iov_len = room};
}

void sink_filled_at_place(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    comm->rx.incoming[socket].payload.place += bytes;
}

void sink_complete_receive(struct net_comm *comm, const struct rx_payload *payload)
{
    payload->request->moved += payload->bytes;
    rx_done_if_complete(comm, payload->request);
}

static void sink_host_copy_in(const struct net_comm *comm, const struct net_request *request,
                              const uint8_t *data, uint64_t bytes)
{
    (void)comm;
    memcpy(request->data, data, bytes);
}

const struct sink_ops sink_host = {.in_host = true,
                                   .next = sink_next_at_place,
                                   .filled = sink_filled_at_place,
                                   .complete = sink_complete_receive,
                                   .copy_in = sink_host_copy_in};

static unsigned sink_parts_scatter(struct net_comm *comm, unsigned socket, uint64_t room,
                                   struct iovec *list, unsigned most)
{
    const struct rx_payload *payload = &comm->rx.incoming[socket].payload;
    uint64_t covered;

    return parts_list(payload->request, payload->at, room, list, most, &covered);
}

static void sink_parts_filled(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    comm->rx.incoming[socket].payload.at += bytes;
}

static void sink_parts_copy_in(const struct net_comm *comm, const struct net_request *request,
                               const uint8_t *data, uint64_t bytes)
{
    (void)comm;
    parts_copy_in(request, data, bytes);
}

const struct sink_ops sink_parts = {.in_host = true,
                                    .scatter = sink_parts_scatter,
                                    .filled = sink_parts_filled,
                                    .complete = sink_complete_receive,
                                    .copy_in = sink_parts_copy_in};

struct iovec sink_discard_next(struct net_comm *comm, unsigned socket, uint8_t *scratch,
                               uint64_t room)
{
    (void)comm;
    (void)socket;
    return (struct iovec){.iov_base = scratch,
                          .iov_len = room < SINK_SCRATCH_BYTES ? room : SINK_SCRATCH_BYTES};
}

void sink_discard_filled(struct net_comm *comm, unsigned socket, uint64_t bytes)
{
    (void)comm;
    (void)socket;
    (void)bytes;
}

static void sink_discard_complete(struct net_comm *comm, const struct rx_payload *payload)
{
    (void)comm;
    (void)payload;
}

const struct sink_ops sink_discard = {
    .next = sink_discard_next, .filled = sink_discard_filled, .complete = sink_discard_complete};
