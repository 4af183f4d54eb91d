/*
 * The part of NCCL's interface that the measurements use, taken from libnccl at run time: nothing
 * of NCCL is needed to build. Types and numbers are NCCL's ABI (2.19 and later) under names of our
 * own.
 */
#ifndef TCPX_BENCH_NCCL_API_H
#define TCPX_BENCH_NCCL_API_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct nccl_comm_object *nccl_comm;
typedef int nccl_result;

/* By value in calls: NCCL's ABI. */
struct nccl_id {
    char bytes[128];
};

enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_UINT8 = 1, NCCL_FLOAT32 = 7 };
enum { NCCL_SUM = 0 };

/* clang-format off */
#define NCCL_ENTRY_POINTS(ENTRY)                                                                   \
    ENTRY(nccl_result, ncclGetVersion, (int *version))                                             \
    ENTRY(nccl_result, ncclGetUniqueId, (struct nccl_id *id))                                      \
    ENTRY(nccl_result, ncclCommInitRank, (nccl_comm *comm, int ranks, struct nccl_id id, int rank))\
    ENTRY(nccl_result, ncclCommSplit,                                                              \
          (nccl_comm comm, int color, int key, nccl_comm *part, void *config))                     \
    ENTRY(nccl_result, ncclCommDestroy, (nccl_comm comm))                                          \
    ENTRY(nccl_result, ncclCommAbort, (nccl_comm comm))                                            \
    ENTRY(nccl_result, ncclCommGetAsyncError, (nccl_comm comm, nccl_result *error))                \
    ENTRY(const char *, ncclGetErrorString, (nccl_result result))                                  \
    ENTRY(const char *, ncclGetLastError, (nccl_comm comm))                                        \
    ENTRY(nccl_result, ncclCommRegister,                                                           \
          (nccl_comm comm, void *buffer, size_t bytes, void **handle))                             \
    ENTRY(nccl_result, ncclCommDeregister, (nccl_comm comm, void *handle))                         \
    ENTRY(nccl_result, ncclGroupStart, (void))                                                     \
    ENTRY(nccl_result, ncclGroupEnd, (void))                                                       \
    ENTRY(nccl_result, ncclSend,                                                                   \
          (const void *from, size_t count, int type, int peer, nccl_comm comm, void *stream))      \
    ENTRY(nccl_result, ncclRecv,                                                                   \
          (void *to, size_t count, int type, int peer, nccl_comm comm, void *stream))              \
    ENTRY(nccl_result, ncclAllReduce, (const void *from, void *to, size_t count, int type,         \
                                       int sum, nccl_comm comm, void *stream))                     \
    ENTRY(nccl_result, ncclAllGather, (const void *from, void *to, size_t count, int type,         \
                                       nccl_comm comm, void *stream))                              \
    ENTRY(nccl_result, ncclReduceScatter, (const void *from, void *to, size_t count, int type,     \
                                           int sum, nccl_comm comm, void *stream))                 \
    ENTRY(nccl_result, ncclBroadcast, (const void *from, void *to, size_t count, int type,         \
                                       int root, nccl_comm comm, void *stream))                    \
    ENTRY(nccl_result, ncclReduce, (const void *from, void *to, size_t count, int type, int sum,   \
                                    int root, nccl_comm comm, void *stream))
/* clang-format on */

struct nccl_api {
#define NCCL_ENTRY_MEMBER(type, name, arguments) type(*name) arguments;
    NCCL_ENTRY_POINTS(NCCL_ENTRY_MEMBER)
#undef NCCL_ENTRY_MEMBER
};

/* `path` may be empty: then by NCCL's usual names. False leaves the reason in `why`. */
static inline bool nccl_load(const char *path, struct nccl_api *api, char *why, size_t bytes)
{
    void *library = path[0] != '\0' ? dlopen(path, RTLD_NOW) : dlopen("libnccl.so.2", RTLD_NOW);

    if (library == NULL && path[0] == '\0')
        library = dlopen("libnccl.so", RTLD_NOW);
    if (library == NULL) {
        snprintf(why, bytes, "no libnccl: %s", dlerror());
        return false;
    }
#define NCCL_ENTRY_LOAD(type, name, arguments)                                                     \
    *(void **)&api->name = dlsym(library, #name);                                                  \
    if (api->name == NULL) {                                                                       \
        snprintf(why, bytes, "no " #name " in libnccl: it is older than 2.19");                    \
        return false;                                                                              \
    }
    NCCL_ENTRY_POINTS(NCCL_ENTRY_LOAD)
#undef NCCL_ENTRY_LOAD
    return true;
}

#endif
