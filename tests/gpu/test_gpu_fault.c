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
    struct unpack_descriptor *descriptor;
    struct rig rig;

    assert_int_equal(rig_open(&rig, 4096), 0);
    descriptor = rig.pinned.host;
    *descriptor = (struct unpack_descriptor){.length = 64, .destination_offset = (uint64_t)1 << 52};
    assert_success(gpu_unpack(rig.stream,
                              &(struct gpu_unpack_list){.bounce = rig.memory.address,
                                                        .destination = rig.memory.address,
                                                        .descriptors = rig.pinned.device,
                                                        .count = 1},
                              1, UINT32_MAX));
    assert_error(drain(rig.gpu, rig.stream), TCPX_CUDA_ERROR, "");
    print_message("# %s\n", tcpx_last_error());
    /* nothing that follows on this stream pretends to have worked */
    assert_int_not_equal(gpu_set(rig.stream, rig.memory.address, 0, 1) == TCPX_SUCCESS
                             ? drain(rig.gpu, rig.stream)
                             : TCPX_CUDA_ERROR,
                         TCPX_SUCCESS);
    rig_close(&rig);
}

SUITE(.name = "a faulting kernel");
