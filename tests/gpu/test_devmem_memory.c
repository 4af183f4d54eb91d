/*
 * Memory for devmem TCP: what a GPU can export, of a pool and of users' buffers with any address
 * and size, and what is said where no NIC can use it. In a machine whose NIC can,
 * TCPX_TEST_DEVMEM_NIC names it.
 */
#include "net/devmem/devmem.h"
#include "net/nic/nic.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/suite.h"

#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 4096 };
#define MIB ((uint64_t)1 << 20)

static struct gpu *gpu;

static int set_up(void)
{
    return gpu_open(0, &gpu) == TCPX_SUCCESS ? 0 : -1;
}

static int tear_down(void)
{
    gpu_close(gpu);
    return 0;
}

static void skip_without_export(void)
{
    struct tcpx_gpu_properties properties;

    assert_success(gpu_properties(0, &properties));
    if (!properties.dmabuf)
        skip_because("this GPU's memory cannot be exported as a dma-buf");
}

/* As the kernel tells the size of a dma-buf. */
static void check_export(gpu_address address, uint64_t bytes)
{
    int fd = -1;

    assert_success(gpu_export_dmabuf(gpu, address, bytes, &fd));
    assert_int_equal(lseek(fd, 0, SEEK_END), (off_t)bytes);
    close(fd);
}

TEST(test_pools)
{
    static const uint64_t sizes[] = {2 * MIB, 64 * MIB, 256 * MIB};

    skip_without_export();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct gpu_memory memory;

        assert_success(gpu_memory_alloc(gpu, sizes[i], 2 * MIB, &memory));
        assert_int_equal(memory.address % (2 * MIB), 0);
        check_export(memory.address, memory.bytes);
        gpu_memory_free(gpu, &memory);
    }
}

/* The pages around a range, as devmem_source.c binds them. */
TEST(test_buffers_of_users)
{
    uint64_t seed = 7;

    skip_without_export();
    for (int turn = 0; turn < 50; turn++) {
        uint64_t room = PAGE + random_below(&seed, 8 * MIB);
        uint64_t from = random_below(&seed, room - 1);
        uint64_t bytes = 1 + random_below(&seed, room - from - 1);
        struct gpu_memory memory;
        gpu_address start;

        assert_success(gpu_memory_alloc(gpu, room, PAGE, &memory));
        start = (memory.address + from) / PAGE * PAGE;
        check_export(start, (memory.address + from + bytes + PAGE - 1) / PAGE * PAGE - start);
        gpu_memory_free(gpu, &memory);
    }
}

/* A dma-buf keeps its memory: what the NIC still reads is never somebody else's. */
TEST(test_an_export_outlives_its_memory)
{
    struct gpu_memory memory;
    int fd = -1;

    skip_without_export();
    assert_success(gpu_memory_alloc(gpu, 2 * MIB, 2 * MIB, &memory));
    assert_success(gpu_export_dmabuf(gpu, memory.address, memory.bytes, &fd));
    gpu_memory_free(gpu, &memory);
    assert_int_equal(lseek(fd, 0, SEEK_END), (off_t)(2 * MIB));
    close(fd);
}

/* Every device of this machine: a clear no, or a pool that works. */
TEST(test_each_nic_answers)
{
    const char *capable = getenv("TCPX_TEST_DEVMEM_NIC");
    struct net_device devices[NET_DEVICES_MOST];
    struct gpu_memory memory;
    bool kernel_receives;
    bool kernel_sends;
    int count = 0;

    assert_success(nic_kernel_binds(&kernel_receives, &kernel_sends));
    assert_success(net_devices_find_configured(devices, NET_DEVICES_MOST, &count));
    assert_success(gpu_memory_alloc(gpu, 2 * MIB, PAGE, &memory));
    for (int i = 0; i < count; i++) {
        bool should = capable != NULL && strcmp(devices[i].name, capable) == 0;
        struct devmem_source *source = NULL;
        struct devmem_pool *pool = NULL;

        if (should) {
            assert_success(devmem_pool_take(&devices[i], 0, &pool));
            assert_string_equal(pool->memory.interface, capable);
        } else {
            assert_int_not_equal(devmem_pool_take(&devices[i], 0, &pool), TCPX_SUCCESS);
            assert_true(strlen(tcpx_last_error()) > 10);
            print_message("# %s, receiving: %s\n", devices[i].name, tcpx_last_error());
        }
        devmem_pool_give(pool);
        if (devmem_source_take(&devices[i], gpu, memory.address + 100, MIB, &source) !=
            TCPX_SUCCESS) {
            assert_false(should && kernel_sends);
            assert_true(strlen(tcpx_last_error()) > 10);
            print_message("# %s, sending: %s\n", devices[i].name, tcpx_last_error());
        } else {
            assert_true(should);
            assert_int_equal(memory.address + 100 - source->start, (memory.address + 100) % PAGE);
        }
        devmem_source_give(source);
    }
    gpu_memory_free(gpu, &memory);
}

SUITE(.name = "memory for devmem TCP", .set_up = set_up, .tear_down = tear_down);
