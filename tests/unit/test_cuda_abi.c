/*
 * Our own declarations of the CUDA driver's interface against cuda.h, where there is one: numbers
 * here, and the prototypes by the compiler.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAVE_CUDA_H 1
#endif

/* cuda.h has macros of the plain names for the versioned ones; ours are the versioned ones. */
#include "gpu/cuda_driver.h"
#include "tests/skip.h"

#ifdef HAVE_CUDA_H

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_CONTEXT_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTRIBUTE_COMPUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTRIBUTE_COMPUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_ATTRIBUTE_RDMA_FLUSH_OPTIONS, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME(CU_ATTRIBUTE_RDMA_WRITES_ORDERING, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME(CU_ATTRIBUTE_DMABUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME(CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(CU_POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(CU_POINTER_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME(CU_POINTER_MAPPING_BASE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME(CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_HOST_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CU_STREAM_NONBLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CU_HANDLE_DMABUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(CU_FLUSH_OPTION_HOST, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
SAME(CU_FLUSH_TARGET_CONTEXT, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME(CU_FLUSH_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME(CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BUFFER);
SAME(CU_JIT_ERROR_LOG_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
_Static_assert(sizeof(cu_address) == sizeof(CUdeviceptr), "CUdeviceptr");
_Static_assert(sizeof(cu_device) == sizeof(CUdevice), "CUdevice");
_Static_assert(sizeof(cu_result) == sizeof(CUresult), "CUresult");

#define SAME_PLACE(ours, theirs)                                                                   \
    _Static_assert(offsetof(struct cu_rows, ours) == offsetof(CUDA_MEMCPY2D, theirs), #theirs)

SAME_PLACE(from_x, srcXInBytes);
SAME_PLACE(from_y, srcY);
SAME_PLACE(from_kind, srcMemoryType);
SAME_PLACE(from_host, srcHost);
SAME_PLACE(from_device, srcDevice);
SAME_PLACE(from_array, srcArray);
SAME_PLACE(from_pitch, srcPitch);
SAME_PLACE(to_x, dstXInBytes);
SAME_PLACE(to_y, dstY);
SAME_PLACE(to_kind, dstMemoryType);
SAME_PLACE(to_host, dstHost);
SAME_PLACE(to_device, dstDevice);
SAME_PLACE(to_array, dstArray);
SAME_PLACE(to_pitch, dstPitch);
SAME_PLACE(row_bytes, WidthInBytes);
SAME_PLACE(rows, Height);
_Static_assert(sizeof(struct cu_rows) == sizeof(CUDA_MEMCPY2D), "CUDA_MEMCPY2D");

#endif

static void test_the_interface_is_cuda_h(void **state)
{
    (void)state;
#ifdef HAVE_CUDA_H
    print_message("# compiled against cuda.h %d\n", CUDA_VERSION);
#else
    skip_because("there is no cuda.h on this machine");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_interface_is_cuda_h)};

    return cmocka_run_group_tests_name("cuda abi", tests, NULL, NULL);
}
