/*
 * A kernel that is given a wild address: the error comes back as a result with the address or the
 * driver's name for it, and the process can still clean up and go on. On a real GPU the context is
 * lost with it, so this is a program of its own.
 */
#include "tests/gpu/gpu_test.h"
#include "tests/support/suite.h"

#include "abi/unpack_queue.h"

TEST(test_unpack_to_nowhere)
{
    struct gpu *gpu;
    struct gpu_stream *stream;
    struct gpu_memory memory;
    struct gpu_pinned pinned;
    struct unpack_descriptor *descriptor;

    assert_success(gpu_open(0, &gpu));
    assert_success(gpu_stream_create(gpu, &stream));
    assert_success(gpu_memory_alloc(gpu, 4096, 4096, &memory));
    assert_success(gpu_pinned_alloc(gpu, 4096, &pinned));
    descriptor = pinned.host;
    *descriptor = (struct unpack_descriptor){.length = 64, .destination_offset = (uint64_t)1 << 52};
    assert_success(gpu_unpack(stream,
                              &(struct gpu_unpack_list){.bounce = memory.address,
                                                        .destination = memory.address,
                                                        .descriptors = pinned.device,
                                                        .count = 1},
                              1, UINT32_MAX));
    assert_error(drain(gpu, stream), TCPX_CUDA_ERROR, "");
    print_message("# %s\n", tcpx_last_error());
    /* nothing that follows on this stream pretends to have worked */
    assert_int_not_equal(gpu_set(stream, memory.address, 0, 1) == TCPX_SUCCESS ? drain(gpu, stream)
                                                                               : TCPX_CUDA_ERROR,
                         TCPX_SUCCESS);
    gpu_pinned_free(gpu, &pinned);
    gpu_memory_free(gpu, &memory);
    gpu_stream_destroy(stream);
    gpu_close(gpu);
}

SUITE(.name = "a faulting kernel");
