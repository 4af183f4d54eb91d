/* Memory, sends and receives of a comm, with the arguments of NCCL's newest table. */
#ifndef TCPX_NCCL_PLUGIN_REQUEST_H
#define TCPX_NCCL_PLUGIN_REQUEST_H

#include <stddef.h>

/* *out: the memory, for the calls below; NULL for host memory. */
int plugin_register(void *raw_comm, void *data, size_t bytes, int type, void **out);
int plugin_deregister(void *raw_comm, void *memory);

/*
 * *out is written in every case: a request; NULL if the comm is busy, and after a failure. Messages
 * are in order, whatever their tags are.
 */
int plugin_isend(void *raw_comm, void *data, size_t bytes, int tag, void *memory, void *profile,
                 void **out);
int plugin_irecv(void *raw_comm, int count, void **data, size_t *room, int *tags, void **memory,
                 void **profiles, void **out);
int plugin_test(void *request, int *done, int *bytes);
int plugin_consumed(void *raw_comm, int count, void *request);

#endif
