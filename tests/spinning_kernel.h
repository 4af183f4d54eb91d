/*
 * A kernel that spins until it is let go, as NCCL's do while they wait for the network, and another
 * one queued behind it on the same stream. With CUDA_DEVICE_MAX_CONNECTIONS=1 everything that has
 * to pass through the channel of the kernels waits for the second. Works with the CUDA driver and
 * with the stand-in of tests/fakecuda, in the context that is current. The kernel ends by itself
 * after SPIN_SECONDS, so that what is blocked is a failure and no hang.
 */
#ifndef TCPX_TESTS_SPINNING_KERNEL_H
#define TCPX_TESTS_SPINNING_KERNEL_H

#include "tests/fakecuda/fakecuda.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SPIN_SECONDS = 5, SPIN_THREADS = 256, SPIN_PAGE = 4096 };

/* Words in mapped memory, each in a cache line of its own. */
struct spinner_words {
    _Alignas(64) uint32_t until;
    _Alignas(64) uint32_t begun;
    _Alignas(64) uint32_t ended;
};

#define SPINNER_CALLS(CALL)                                                                        \
    CALL(cuModuleLoadDataEx, void **module, const void *image, unsigned count, int *options,       \
         void **values)                                                                            \
    CALL(cuModuleGetFunction, void **function, void *module, const char *name)                     \
    CALL(cuModuleUnload, void *module)                                                             \
    CALL(cuLaunchKernel, void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,        \
         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,              \
         void *stream, void **arguments, void **extra)                                             \
    CALL(cuStreamCreate, void **stream, unsigned flags)                                            \
    CALL(cuStreamDestroy_v2, void *stream)                                                         \
    CALL(cuMemHostRegister_v2, void *pages, size_t bytes, unsigned flags)                          \
    CALL(cuMemHostUnregister, void *pages)                                                         \
    CALL(cuMemHostGetDevicePointer_v2, uint64_t *address, void *pages, unsigned flags)

struct spinner {
#define SPINNER_MEMBER(name, ...) int (*name)(__VA_ARGS__);
    SPINNER_CALLS(SPINNER_MEMBER)
#undef SPINNER_MEMBER
    void *module;
    void *spin;
    void *nothing;
    void *stream;
    struct spinner_words *words;
    uint64_t words_on_gpu;
};

/* clang-format off */
static const char spinner_ptx[] =
    "\n.version 7.0"
    "\n.target sm_75"
    "\n.address_size 64"
    "\n.visible .entry test_spin(.param .align 8 .b8 argument[32])"
    "\n{"
    "\n    .reg .pred %p<3>;"
    "\n    .reg .b32 %r<3>;"
    "\n    .reg .b64 %rd<8>;"
    "\n    ld.param.u64 %rd1, [argument];"
    "\n    ld.param.u64 %rd2, [argument+8];"
    "\n    ld.param.u64 %rd3, [argument+16];"
    "\n    ld.param.u64 %rd4, [argument+24];"
    "\n    mov.u32 %r1, 1;"
    "\n    st.volatile.u32 [%rd2], %r1;"
    "\n    membar.sys;"
    "\n    mov.u64 %rd5, %globaltimer;"
    "\nagain:"
    "\n    ld.volatile.u32 %r2, [%rd1];"
    "\n    setp.ne.u32 %p1, %r2, 0;"
    "\n    @%p1 bra over;"
    "\n    mov.u64 %rd6, %globaltimer;"
    "\n    sub.u64 %rd7, %rd6, %rd5;"
    "\n    setp.lt.u64 %p2, %rd7, %rd4;"
    "\n    @%p2 bra again;"
    "\nover:"
    "\n    st.volatile.u32 [%rd3], %r1;"
    "\n    membar.sys;"
    "\n    ret;"
    "\n}"
    "\n.visible .entry test_nothing(.param .align 8 .b8 argument[32])"
    "\n{"
    "\n    ret;"
    "\n}"
    "\n";
/* clang-format on */

/* Whether the driver was told to pass all kernels through one channel. */
static inline bool spinner_has_one_channel(void)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    return connections != NULL && strcmp(connections, "1") == 0;
}

/* False: there is no driver, or it refuses; what is open is left to the process's end then. */
static inline bool spinner_open(struct spinner *spinner)
{
    enum { PORTABLE_AND_MAPPED = 3, NON_BLOCKING = 1 };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    bool has_all = driver != NULL;

    *spinner = (struct spinner){.module = NULL};
#define SPINNER_FIND(name, ...)                                                                    \
    *(void **)&spinner->name = has_all ? dlsym(driver, #name) : NULL;                              \
    has_all = has_all && spinner->name != NULL;
    SPINNER_CALLS(SPINNER_FIND)
#undef SPINNER_FIND
    if (!has_all)
        return false;
    spinner->words =
        mmap(NULL, SPIN_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return spinner->words != MAP_FAILED &&
           spinner->cuModuleLoadDataEx(&spinner->module, spinner_ptx, 0, NULL, NULL) == 0 &&
           spinner->cuModuleGetFunction(&spinner->spin, spinner->module, "test_spin") == 0 &&
           spinner->cuModuleGetFunction(&spinner->nothing, spinner->module, "test_nothing") == 0 &&
           spinner->cuStreamCreate(&spinner->stream, NON_BLOCKING) == 0 &&
           spinner->cuMemHostRegister_v2(spinner->words, SPIN_PAGE, PORTABLE_AND_MAPPED) == 0 &&
           spinner->cuMemHostGetDevicePointer_v2(&spinner->words_on_gpu, spinner->words, 0) == 0;
}

static inline bool spinner_wait_for(const uint32_t *word)
{
    const struct timespec pause = {.tv_nsec = 100000};

    for (int i = 0; i < 4 * SPIN_SECONDS * 10000; i++) {
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 0)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

static inline bool spinner_launch(struct spinner *spinner, void *function)
{
    struct fakecuda_spin argument = {
        .until = spinner->words_on_gpu + offsetof(struct spinner_words, until),
        .begun = spinner->words_on_gpu + offsetof(struct spinner_words, begun),
        .ended = spinner->words_on_gpu + offsetof(struct spinner_words, ended),
        .most_ns = SPIN_SECONDS * (uint64_t)1000000000};
    void *arguments[] = {&argument};

    return spinner->cuLaunchKernel(function, 1, 1, 1, SPIN_THREADS, 1, 1, 0, spinner->stream,
                                   arguments, NULL) == 0;
}

/* True: one kernel spins, and the other one is queued behind it. */
static inline bool spinner_start(struct spinner *spinner)
{
    memset(spinner->words, 0, sizeof *spinner->words);
    return spinner_launch(spinner, spinner->spin) && spinner_launch(spinner, spinner->nothing) &&
           spinner_wait_for(&spinner->words->begun);
}

/* Whether it has spun all the time: what was done meanwhile did not wait for it. */
static inline bool spinner_still_spins(const struct spinner *spinner)
{
    return __atomic_load_n(&spinner->words->begun, __ATOMIC_ACQUIRE) != 0 &&
           __atomic_load_n(&spinner->words->ended, __ATOMIC_ACQUIRE) == 0;
}

/* Lets it go; false: it did not end. */
static inline bool spinner_stop(struct spinner *spinner)
{
    __atomic_store_n(&spinner->words->until, 1, __ATOMIC_RELEASE);
    return spinner_wait_for(&spinner->words->ended);
}

static inline bool spinner_close(struct spinner *spinner)
{
    bool closed = spinner->cuStreamDestroy_v2(spinner->stream) == 0 &&
                  spinner->cuModuleUnload(spinner->module) == 0 &&
                  spinner->cuMemHostUnregister(spinner->words) == 0;

    munmap(spinner->words, SPIN_PAGE);
    return closed;
}

#endif
