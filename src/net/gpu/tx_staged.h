/*
 * The source of a send from GPU memory through host memory: slices are copied to pinned slots ahead
 * of the sockets that will take them, several at a time, the oldest send first.
 */
#ifndef TCPX_NET_GPU_TX_STAGED_H
#define TCPX_NET_GPU_TX_STAGED_H

#include "net/gpu/comm_gpu.h"

extern const struct source_ops source_staged;

/* The operations of mover.h. */
void tx_staged_prepare(struct net_comm *comm);
unsigned tx_staged_count_pieces(const struct net_comm *comm);
bool tx_staged_next_piece(struct net_comm *comm, struct tx_piece *piece);
void tx_staged_take_piece(struct net_comm *comm);
void tx_staged_piece_sent(struct net_comm *comm, void *piece);

/* Pieces that no socket will send any more: the comm has failed, or is closed. */
void tx_staged_drop_pieces(struct net_comm *comm);
void tx_staged_close(struct net_comm *comm);

/* A send was cancelled: its pieces that are ready are dropped. */
void tx_staged_forget(struct net_comm *comm, const struct net_request *request);

#endif
