/* Records of the receiver, as they arrive. */
#include "net/comm/tx_reverse.h"

#include "net/comm/fail.h"
#include "net/comm/tx_cancel.h"
#include "net/comm/tx_match.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* One record; *used: its bytes, 0 if it is not complete yet. */
static int tx_reverse_record(struct net_comm *comm, const uint8_t *bytes, size_t have, size_t *used)
{
    struct wire_record record;

    *used = 0;
    if (have < WIRE_RECORD_BYTES)
        return TCPX_SUCCESS;
    if (wire_record_read(bytes, WIRE_REVERSE, &record) != WIRE_FINE)
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: %s", comm->link.peer,
                         error_text());
    if (record.type == WIRE_ABORT && have < WIRE_RECORD_BYTES + record.length)
        return TCPX_SUCCESS;
    *used = WIRE_RECORD_BYTES;
    switch (record.type) {
    case WIRE_POST:
        return tx_match_post(comm, &record);
    case WIRE_CREDIT:
        return tx_match_credit(comm, record.offset);
    case WIRE_CANCEL:
        tx_cancelled_by_receiver(comm, record.sequence);
        return TCPX_SUCCESS;
    case WIRE_ABORT:
        return error_set(TCPX_REMOTE_ERROR, "%s gave up with %s: %.*s", comm->link.peer,
                         tcpx_result_name((int)record.sequence), (int)record.length,
                         (const char *)bytes + WIRE_RECORD_BYTES);
    default:
        return error_set(TCPX_REMOTE_ERROR, "%s broke the protocol: a second READY",
                         comm->link.peer);
    }
}

static int tx_reverse_records(struct net_comm *comm)
{
    struct comm_tx *tx = &comm->tx;
    size_t at = 0;
    size_t used = 1;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && used != 0) {
        result = tx_reverse_record(comm, tx->input + at, tx->input_bytes - at, &used);
        at += used;
    }
    tx->input_bytes -= at;
    memmove(tx->input, tx->input + at, tx->input_bytes);
    return result;
}

static bool tx_reverse_any_lane_busy(const struct net_comm *comm)
{
    for (unsigned i = 0; i < comm->link.sockets; i++)
        if (comm->lanes[i].busy)
            return true;
    return false;
}

/*
 * A read that did not fill its room has emptied the socket. The number of reads is bounded, so that
 * a peer that floods this socket holds neither the caller nor an I/O thread.
 */
enum lane_wait tx_read_reverse(struct net_comm *comm)
{
    enum { MOST_READS = 8 };
    struct comm_tx *tx = &comm->tx;

    COMM_LOCKED(comm);
    for (int reads = 0; comm->result == TCPX_SUCCESS; reads++) {
        int result;
        size_t room = sizeof tx->input - tx->input_bytes;
        ssize_t got;
        int error;

        if (reads == MOST_READS)
            return LANE_MORE;
        comm_lock_release(&comm->lock);
        got = recv(comm->link.reverse, tx->input + tx->input_bytes, room, MSG_DONTWAIT);
        error = errno;
        comm_lock_take(&comm->lock);
        if (got < 0 && error == EINTR)
            continue;
        if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK))
            break;
        if (got < 0) {
            error_keep_system(error, "the connection from %s broke", comm->link.peer);
            result = TCPX_REMOTE_ERROR;
        } else if (got == 0 && tx_reverse_any_lane_busy(comm)) {
            tx->reverse_ended = true; /* looked at again when the call of that lane returns: */
            break;                    /* perhaps it sends the last bytes */
        } else if (got == 0) {
            result = error_set(TCPX_REMOTE_ERROR, "the receiver at %s has closed the comm",
                               comm->link.peer);
        } else {
            tx->input_bytes += (size_t)got;
            result = tx_reverse_records(comm);
            tx_match_open_waiting(comm);
            tx->can_send_more = true;
        }
        if (result != TCPX_SUCCESS)
            comm_fail(comm, result);
        if ((size_t)got < room && !comm->lanes[comm_reverse_lane(comm)].peer_has_ended)
            break;
    }
    return LANE_FOR_INPUT;
}
