/* What a lane, one socket of a comm, waits for after a thread has moved it on. */
#ifndef TCPX_NET_COMM_LANE_WAIT_H
#define TCPX_NET_COMM_LANE_WAIT_H

enum lane_wait {
    LANE_IDLE,         /* something to do */
    LANE_FOR_INPUT,    /* bytes of the peer */
    LANE_FOR_ROOM,     /* room in the socket */
    LANE_FOR_ARRIVALS, /* notices that zero-copy sends have arrived */
    LANE_SOON,         /* a copy of the GPU */
    LANE_MORE,         /* nothing: its turn is over */
    LANE_BUSY,         /* it was not moved on: another thread has it */
};

#endif
