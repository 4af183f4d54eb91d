/*
 * tcpx: GPU memory between hosts, over TCP.
 *
 * Every function that can fail returns one of enum tcpx_result; its outputs are written only on
 * TCPX_SUCCESS. The exact cause of a failure is the text of tcpx_last_error().
 * Every function may be called from any thread. In a child made by fork() they return
 * TCPX_INVALID_USAGE: a GPU and its threads do not survive a fork.
 */
#ifndef TCPX_H
#define TCPX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TCPX_VERSION_MAJOR 0
#define TCPX_VERSION_MINOR 1
#define TCPX_VERSION_PATCH 0

#if defined(__GNUC__)
#define TCPX_API   __attribute__((visibility("default")))
#define TCPX_CHECK __attribute__((warn_unused_result))
#else
#define TCPX_API
#define TCPX_CHECK
#endif

/* The numbers are those of ncclResult_t, so that a result can cross a network plugin's table. */
enum tcpx_result {
    TCPX_SUCCESS = 0,
    TCPX_CUDA_ERROR = 1,       /* the GPU or its driver refused */
    TCPX_SYSTEM_ERROR = 2,     /* a system call failed: no memory, a broken connection, ... */
    TCPX_INTERNAL_ERROR = 3,   /* a promise inside tcpx was broken: a bug */
    TCPX_INVALID_ARGUMENT = 4, /* an argument or a variable of the environment is not understood */
    TCPX_INVALID_USAGE = 5,    /* a call that is right by itself, but not here or not now */
    TCPX_REMOTE_ERROR = 6,     /* the peer failed */
    TCPX_IN_PROGRESS = 7       /* a deadline passed; the operation itself goes on */
};

/* The version of the library that is running, as "0.1.0". Never fails. */
TCPX_API const char *tcpx_version(void);

/* The name of a result, as "TCPX_SYSTEM_ERROR"; "unknown result" for any other number. */
TCPX_API const char *tcpx_result_name(int result);

/*
 * Why the latest failed call of this thread failed, in one line; "" if none has. The text stays
 * valid and unchanged until the next failure in this thread.
 */
TCPX_API const char *tcpx_last_error(void);

/*
 * GPUs. Where there is no CUDA driver or no device, tcpx works on emulated GPUs whose memory is
 * ordinary memory (environment variable UCCL_TCPX_GPU).
 */
struct tcpx_gpu_properties {
    char name[256];     /* "NVIDIA H200", "emulated GPU 0" */
    char backend[16];   /* "cuda" or "host" (emulated) */
    char pci_path[256]; /* its folder under /sys/devices; "" if it is not on a PCI bus */
    int numa_node;      /* -1: unknown */
    int dmabuf;         /* 1: its memory can be exported as a dma-buf, for devmem TCP */
    int compute_major;  /* compute capability; 0 when emulated */
    int compute_minor;
    uint64_t memory_bytes; /* all of its memory, free or not */
};

/* How many GPUs there are; at least one on success. */
TCPX_API TCPX_CHECK int tcpx_gpu_count(int *count);

/* Describes GPU `index`, 0 to count - 1. */
TCPX_API TCPX_CHECK int tcpx_gpu_get_properties(int index, struct tcpx_gpu_properties *properties);

#ifdef __cplusplus
}
#endif

#endif
