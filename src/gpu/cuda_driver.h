/*
 * The part of the CUDA driver's interface that we use, taken from libcuda.so.1 at run time: nothing
 * of CUDA is needed to build or to start. Types and numbers are the driver's ABI under names of our
 * own; tests/unit/test_cuda_abi.c compares them with cuda.h where there is one.
 */
#ifndef TCPX_GPU_CUDA_DRIVER_H
#define TCPX_GPU_CUDA_DRIVER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_address;
typedef struct cu_context_object *cu_context;
typedef struct cu_stream_object *cu_stream;
typedef struct cu_event_object *cu_event;
typedef struct cu_module_object *cu_module;
typedef struct cu_function_object *cu_function;

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_DEINITIALIZED = 4,
    CU_NO_DEVICE = 100,
    CU_NOT_READY = 600,
    CU_CONTEXT_DESTROYED = 709,
    CU_NOT_SUPPORTED = 801,
};

enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_COMPUTE_MAJOR = 75,
    CU_ATTRIBUTE_COMPUTE_MINOR = 76,
    CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS = 117,
    CU_ATTRIBUTE_RDMA_WRITES_ORDERING = 118,
    CU_ATTRIBUTE_DMABUF = 124,
};

enum {
    CU_POINTER_MEMORY_TYPE = 2,
    CU_POINTER_HOST = 4,
    CU_POINTER_IS_MANAGED = 8,
    CU_POINTER_DEVICE_ORDINAL = 9,
    CU_POINTER_RANGE_START = 11,
    CU_POINTER_RANGE_SIZE = 12,
    CU_POINTER_MAPPING_SIZE = 18,
    CU_POINTER_MAPPING_BASE = 19,
};

enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2 };
enum { CU_HOST_REGISTER_PORTABLE = 1, CU_HOST_REGISTER_DEVICEMAP = 2 };
enum { CU_STREAM_NONBLOCKING = 1 };
enum { CU_EVENT_NO_TIMING = 2 };
enum { CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_NONE = 0 };
enum { CU_HANDLE_DMABUF = 1, CU_DMABUF_OVER_PCIE = 1 };
enum { CU_FLUSH_OPTION_HOST = 1, CU_FLUSH_TARGET_CONTEXT = 0, CU_FLUSH_TO_OWNER = 100 };
enum { CU_JIT_ERROR_LOG = 5, CU_JIT_ERROR_LOG_BYTES = 6 };

/* Rows between memories that may lie apart; the driver's CUDA_MEMCPY2D, with its arrays left out.
 */
struct cu_rows {
    size_t from_x;
    size_t from_y;
    int from_kind; /* CU_MEMORY_... */
    const void *from_host;
    cu_address from_device;
    void *from_array;
    size_t from_pitch; /* bytes from one row to the next, at least those of a row */
    size_t to_x;
    size_t to_y;
    int to_kind;
    void *to_host;
    cu_address to_device;
    void *to_array;
    size_t to_pitch;
    size_t row_bytes;
    size_t rows;
};

/*
 * NEEDED(name, arguments) and OPTIONAL(name, arguments), by the driver's own versioned names. What
 * is optional came after CUDA 11.4, and its absence is an error only where it is used.
 */
/* clang-format off */
#define CUDA_ENTRY_POINTS(NEEDED, OPTIONAL)                                                        \
    NEEDED(cuInit, (unsigned flags))                                                               \
    NEEDED(cuGetErrorName, (cu_result error, const char **name))                                   \
    NEEDED(cuGetErrorString, (cu_result error, const char **text))                                 \
    NEEDED(cuDeviceGetCount, (int *count))                                                         \
    NEEDED(cuDeviceGet, (cu_device *device, int ordinal))                                          \
    NEEDED(cuDeviceGetName, (char *name, int length, cu_device device))                            \
    NEEDED(cuDeviceTotalMem_v2, (size_t *bytes, cu_device device))                                 \
    NEEDED(cuDeviceGetAttribute, (int *value, int attribute, cu_device device))                    \
    NEEDED(cuDeviceGetPCIBusId, (char *address, int length, cu_device device))                     \
    NEEDED(cuDevicePrimaryCtxRetain, (cu_context *context, cu_device device))                      \
    NEEDED(cuDevicePrimaryCtxRelease_v2, (cu_device device))                                       \
    NEEDED(cuCtxGetCurrent, (cu_context *context))                                                 \
    NEEDED(cuCtxGetDevice, (cu_device *device))                                                    \
    NEEDED(cuCtxPushCurrent_v2, (cu_context context))                                              \
    NEEDED(cuCtxPopCurrent_v2, (cu_context *context))                                              \
    NEEDED(cuThreadExchangeStreamCaptureMode, (int *mode))                                         \
    NEEDED(cuMemGetInfo_v2, (size_t *available, size_t *all))                                      \
    NEEDED(cuMemAlloc_v2, (cu_address *address, size_t bytes))                                     \
    NEEDED(cuMemFree_v2, (cu_address address))                                                     \
    NEEDED(cuMemHostRegister_v2, (void *pages, size_t bytes, unsigned flags))                      \
    NEEDED(cuMemHostUnregister, (void *pages))                                                     \
    NEEDED(cuMemHostGetDevicePointer_v2, (cu_address *address, void *pages, unsigned flags))       \
    NEEDED(cuPointerGetAttributes,                                                                 \
           (unsigned count, int *attributes, void **values, cu_address address))                   \
    NEEDED(cuStreamCreate, (cu_stream *stream, unsigned flags))                                    \
    NEEDED(cuStreamDestroy_v2, (cu_stream stream))                                                 \
    NEEDED(cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))                  \
    NEEDED(cuStreamIsCapturing, (cu_stream stream, int *status))                                   \
    NEEDED(cuEventCreate, (cu_event *event, unsigned flags))                                       \
    NEEDED(cuEventDestroy_v2, (cu_event event))                                                    \
    NEEDED(cuEventRecord, (cu_event event, cu_stream stream))                                      \
    NEEDED(cuEventQuery, (cu_event event))                                                         \
    NEEDED(cuMemcpyHtoDAsync_v2,                                                                   \
           (cu_address to, const void *from, size_t bytes, cu_stream stream))                      \
    NEEDED(cuMemcpyDtoHAsync_v2, (void *to, cu_address from, size_t bytes, cu_stream stream))      \
    NEEDED(cuMemcpyDtoDAsync_v2,                                                                   \
           (cu_address to, cu_address from, size_t bytes, cu_stream stream))                       \
    NEEDED(cuMemcpy2DAsync_v2, (const struct cu_rows *copy, cu_stream stream))                     \
    NEEDED(cuMemsetD8Async,                                                                        \
           (cu_address at, unsigned char value, size_t bytes, cu_stream stream))                   \
    NEEDED(cuModuleLoadDataEx,                                                                     \
           (cu_module *module, const void *image, unsigned count, int *options, void **values))    \
    NEEDED(cuModuleUnload, (cu_module module))                                                     \
    NEEDED(cuModuleGetFunction, (cu_function *function, cu_module module, const char *name))       \
    NEEDED(cuLaunchKernel,                                                                         \
           (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,               \
            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,           \
            cu_stream stream, void **arguments, void **extra))                                     \
    OPTIONAL(cuMemGetHandleForAddressRange,                                                        \
             (void *handle, cu_address address, size_t bytes, int type, unsigned long long flags)) \
    OPTIONAL(cuFlushGPUDirectRDMAWrites, (int target, int scope))
/* clang-format on */

struct cuda_driver {
#define CUDA_ENTRY_MEMBER(name, arguments) cu_result(*name) arguments;
    CUDA_ENTRY_POINTS(CUDA_ENTRY_MEMBER, CUDA_ENTRY_MEMBER)
#undef CUDA_ENTRY_MEMBER
};

/* The loaded driver; all of it but the optional entry points, which may be NULL. */
extern struct cuda_driver cuda;

/* Loads the library once and fills `cuda`. Called under gpu.c's lock. */
MUST_CHECK int cuda_driver_load(void);

/* Keeps "what: CUDA_ERROR_NAME (its meaning)"; its value is TCPX_CUDA_ERROR. */
#define cuda_error(error, ...) (cuda_keep_error(error, __VA_ARGS__), (int)TCPX_CUDA_ERROR)

/* TCPX_SUCCESS, or the same for a call of the driver that fails. */
#define cuda_try(call, ...)                                                                        \
    ({                                                                                             \
        cu_result error_ = (call);                                                                 \
        error_ == CU_OK ? (int)TCPX_SUCCESS : cuda_error(error_, __VA_ARGS__);                     \
    })

void cuda_keep_error(cu_result error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
