/* Chooses the backend (UCCL_TCPX_GPU), checks arguments, and hands each call to it. */
#include "gpu/gpu.h"

#include "abi/unpack_queue.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "gpu/cuda.h"
#include "gpu/gpu_ops.h"
#include "gpu/host.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

struct choice {
    const struct gpu_ops *ops;
    int count;
    char reason[1024];
};

/* Held while `choice` is made. Readers without the lock acquire `chosen`, which is set last. */
static pthread_mutex_t choice_lock = PTHREAD_MUTEX_INITIALIZER;
static struct choice choice;
static atomic_bool chosen;

static int choice_start(struct choice *fresh, const struct gpu_ops *ops)
{
    fresh->ops = ops;
    return ops->start(&fresh->count);
}

static int choose_backend(struct choice *fresh)
{
    const struct config *config;
    char before[1024];
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    if (config->gpu != CONFIG_GPU_AUTO) {
        snprintf(fresh->reason, sizeof fresh->reason, "UCCL_TCPX_GPU asks for it");
        return choice_start(fresh, config->gpu == CONFIG_GPU_CUDA ? &gpu_cuda_ops : &gpu_host_ops);
    }
    snprintf(before, sizeof before, "%s", error_text());
    if (choice_start(fresh, &gpu_cuda_ops) == TCPX_SUCCESS) {
        snprintf(fresh->reason, sizeof fresh->reason, "a CUDA driver and device are there");
        return TCPX_SUCCESS;
    }
    snprintf(fresh->reason, sizeof fresh->reason, "no CUDA: %s", error_text());
    error_keep("%s", before); /* that was no failure of the caller's */
    return choice_start(fresh, &gpu_host_ops);
}

static int choice_get(const struct choice **out)
{
    int result = fork_watch();

    /* Before the lock: in a forked child it may be held by a thread that is not there. */
    if (result == TCPX_SUCCESS)
        result = fork_check();
    if (result != TCPX_SUCCESS)
        return result;
    /* acquire: pairs with the release below, so that the choice is seen whole */
    if (!atomic_load_explicit(&chosen, memory_order_acquire)) {
        pthread_mutex_lock(&choice_lock);
        if (!atomic_load_explicit(&chosen, memory_order_relaxed)) {
            result = choose_backend(&choice);
            if (result == TCPX_SUCCESS) {
                log_tcpx("GPU layer: %s, %d device(s) (%s)", choice.ops->name, choice.count,
                         choice.reason);
                atomic_store_explicit(&chosen, true, memory_order_release);
            }
        }
        pthread_mutex_unlock(&choice_lock);
    }
    if (result == TCPX_SUCCESS)
        *out = &choice;
    return result;
}

/* As choice_get(), for a GPU that must exist. */
static int choice_get_for(int index, const struct choice **out)
{
    int result = choice_get(out);

    if (result == TCPX_SUCCESS && (index < 0 || index >= (*out)->count))
        return error_set(TCPX_INVALID_ARGUMENT, "there is no GPU %d: the GPUs are 0 to %d (%s)",
                         index, (*out)->count - 1, (*out)->ops->name);
    return result;
}

/* --- devices ------------------------------------------------------------------------------- */

int gpu_count(int *count)
{
    const struct choice *current;
    int result = choice_get(&current);

    if (result == TCPX_SUCCESS)
        *count = current->count;
    return result;
}

int gpu_properties(int index, struct tcpx_gpu_properties *properties)
{
    const struct choice *current;
    int result = choice_get_for(index, &current);

    return result != TCPX_SUCCESS ? result : current->ops->properties(index, properties);
}

int gpu_of_caller_or_none(int *index)
{
    const struct choice *current;
    int result = choice_get(&current);

    if (result != TCPX_SUCCESS)
        return result;
    if (current->ops->of_caller != NULL)
        return current->ops->of_caller(index);
    *index = 0;
    return TCPX_SUCCESS;
}

int gpu_of_caller(int *index)
{
    int result = gpu_of_caller_or_none(index);

    if (result == TCPX_SUCCESS && *index < 0)
        *index = 0;
    return result;
}

int gpu_backend(const char **name, const char **reason)
{
    const struct choice *current;
    int result = choice_get(&current);

    if (result != TCPX_SUCCESS)
        return result;
    *name = current->ops->name;
    *reason = current->reason;
    return TCPX_SUCCESS;
}

int gpu_open(int index, struct gpu **gpu)
{
    const struct choice *current;
    int result = choice_get_for(index, &current);

    return result != TCPX_SUCCESS ? result : current->ops->open(index, gpu);
}

/* In a forked child nothing of the parent's can be given back; the child's exit does it. */
static bool can_release(const void *object)
{
    return object != NULL && fork_check() == TCPX_SUCCESS;
}

void gpu_close(struct gpu *gpu)
{
    if (can_release(gpu))
        gpu->ops->close(gpu);
}

int gpu_enter(struct gpu *gpu, struct gpu_scope *scope)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS || gpu->ops->enter == NULL)
        return result;
    return gpu->ops->enter(gpu, scope);
}

void gpu_leave(struct gpu *gpu, const struct gpu_scope *scope)
{
    if (gpu->ops->leave != NULL)
        gpu->ops->leave(scope);
}

/* --- memory -------------------------------------------------------------------------------- */

int gpu_memory_alloc(struct gpu *gpu, uint64_t bytes, uint64_t alignment, struct gpu_memory *memory)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (bytes == 0)
        return error_set(TCPX_INVALID_ARGUMENT, "cannot allocate 0 bytes of GPU memory");
    if (!is_power_of_two(alignment))
        return error_set(TCPX_INVALID_ARGUMENT, "alignment %llu is not a power of two",
                         (unsigned long long)alignment);
    return gpu->ops->memory_alloc(gpu, bytes, alignment, memory);
}

void gpu_memory_free(struct gpu *gpu, struct gpu_memory *memory)
{
    if (memory->bytes != 0 && can_release(gpu))
        gpu->ops->memory_free(gpu, memory);
    *memory = (struct gpu_memory){0};
}

/* Shared, so that a fork() does not move the parent's pages away from under the GPU. */
static void *map_shared(uint64_t bytes, void *wanted)
{
    return mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/*
 * The GPU has registered memory at the address that the CPU has it at, as a rule. Where the wanted
 * address is taken, the kernel chooses another one.
 */
static void *map_shared_near(uint64_t bytes, gpu_address from)
{
    const uint64_t REACH = (uint64_t)1 << 32;
    const uint64_t STEP = 64 << 20;

    for (uint64_t ahead = 0; from != 0 && ahead < REACH && bytes <= REACH - ahead; ahead += STEP) {
        void *wanted = (void *)(uintptr_t)(from + ahead);
        void *pages = map_shared(bytes, wanted);

        if (pages == wanted)
            return pages;
        if (pages != MAP_FAILED)
            munmap(pages, bytes);
    }
    return map_shared(bytes, NULL);
}

int gpu_pinned_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_pinned *out)
{
    return gpu_pinned_alloc_near(gpu, bytes, 0, out);
}

int gpu_pinned_alloc_near(struct gpu *gpu, uint64_t bytes, gpu_address from, struct gpu_pinned *out)
{
    struct gpu_pinned pinned;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (bytes == 0 || !checked_align_up(bytes, PAGE_BYTES, &pinned.bytes))
        return error_set(TCPX_INVALID_ARGUMENT, "cannot allocate %llu bytes of pinned memory",
                         (unsigned long long)bytes);
    pinned.host = map_shared_near(pinned.bytes, from);
    if (pinned.host == MAP_FAILED)
        return error_system(errno, "cannot map %llu bytes of memory",
                            (unsigned long long)pinned.bytes);
    result = gpu->ops->pinned_register(gpu, &pinned);
    if (result == TCPX_SUCCESS)
        *out = pinned;
    else
        munmap(pinned.host, pinned.bytes);
    /* A driver may not take every address. */
    return result != TCPX_SUCCESS && from != 0 ? gpu_pinned_alloc(gpu, bytes, out) : result;
}

void gpu_pinned_free(struct gpu *gpu, struct gpu_pinned *pinned)
{
    if (pinned->bytes != 0 && can_release(gpu)) {
        gpu->ops->pinned_unregister(gpu, pinned);
        munmap(pinned->host, pinned->bytes);
    }
    *pinned = (struct gpu_pinned){0};
}

int gpu_classify(const void *address, uint64_t bytes, struct gpu_pointer *pointer)
{
    const struct choice *current;
    uint64_t end;
    int result = choice_get(&current);

    if (result != TCPX_SUCCESS)
        return result;
    if (address == NULL || bytes == 0 || !checked_add((uintptr_t)address, bytes, &end))
        return error_set(TCPX_INVALID_ARGUMENT, "%llu bytes at %p are not a range of memory",
                         (unsigned long long)bytes, address);
    return current->ops->classify((uintptr_t)address, bytes, pointer);
}

int gpu_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (bytes == 0 || address % PAGE_BYTES != 0 || bytes % PAGE_BYTES != 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "cannot export %llu bytes at 0x%llx as a dma-buf: address and size must "
                         "be multiples of %d",
                         (unsigned long long)bytes, (unsigned long long)address, PAGE_BYTES);
    return gpu->ops->export_dmabuf(gpu, address, bytes, fd);
}

/* --- streams and events -------------------------------------------------------------------- */

#define FORWARD_UNLESS(is_done, name, parameters, owner, arguments)                                \
    int gpu_##name parameters                                                                      \
    {                                                                                              \
        int result = fork_check();                                                                 \
                                                                                                   \
        return result != TCPX_SUCCESS || (is_done) ? result : (owner)->ops->name arguments;        \
    }
#define FORWARD(...)       FORWARD_UNLESS(false, __VA_ARGS__)
#define FORWARD_BYTES(...) FORWARD_UNLESS(bytes == 0, __VA_ARGS__)
GPU_FORWARDED(FORWARD)
GPU_COPIES(FORWARD_BYTES)

void gpu_stream_destroy(struct gpu_stream *stream)
{
    if (can_release(stream))
        stream->gpu->ops->stream_destroy(stream);
}

void gpu_event_destroy(struct gpu_event *event)
{
    if (can_release(event))
        event->gpu->ops->event_destroy(event);
}

int gpu_event_wait(struct gpu_event *event, uint64_t deadline)
{
    enum { SPINS = 1000, YIELDS = 2000 };
    const struct timespec pause = {.tv_nsec = 50000};

    for (unsigned turn = 0;; turn += turn < YIELDS) {
        bool done;
        int result = gpu_event_query(event, &done);

        if (result != TCPX_SUCCESS || done)
            return result;
        if (deadline_passed(deadline))
            return error_set(TCPX_IN_PROGRESS, "work on GPU %d was not done at the deadline",
                             event->gpu->index);
        if (turn >= YIELDS)
            nanosleep(&pause, NULL);
        else if (turn >= SPINS)
            sched_yield();
    }
}

int gpu_stream_wait_caller_event(struct gpu_stream *stream, void *caller_event)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (caller_event == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "the event to wait for is NULL");
    return stream->gpu->ops->stream_wait_caller_event(stream, caller_event);
}

/* --- kernels ------------------------------------------------------------------------------- */

enum {
    /* Of fill and verify: how much one warp does, so that small ranges do not start idle blocks. */
    PATTERN_BYTES_PER_WARP = 2048,
    /* Of copy: what one warp copies at once, unless there is more than all warps together can. */
    SMALLEST_PIECE = 2048,
    LARGEST_PIECE = 65536,
    /*
     * Of unpack: more warps than run at once, so that slow ones delay no others; but few enough
     * that each reads several descriptors at once, up to one a lane.
     */
    BATCHES_PER_WARP = 8,
    LARGEST_BATCH = 32,
};

int gpu_unpack(struct gpu_stream *stream, const struct gpu_unpack_list *lists, uint32_t list_count,
               uint32_t longest)
{
    struct kernel_unpack argument = {.list_count = list_count, .longest = longest};
    uint64_t most = 0;
    uint64_t batch;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (list_count > GPU_UNPACK_LISTS)
        return error_set(TCPX_INVALID_ARGUMENT, "%u lists in one unpack, but %d at most",
                         list_count, GPU_UNPACK_LISTS);
    for (uint32_t i = 0; i < list_count; i++) {
        if (lists[i].descriptors % _Alignof(struct unpack_descriptor) != 0)
            return error_set(
                TCPX_INVALID_ARGUMENT, "descriptors at 0x%llx are not %zu-byte aligned",
                (unsigned long long)lists[i].descriptors, _Alignof(struct unpack_descriptor));
        argument.lists[i] = lists[i];
        if (lists[i].count > most)
            most = lists[i].count;
    }
    if (most == 0)
        return TCPX_SUCCESS;
    batch = (most - 1) / ((uint64_t)stream->gpu->warps * BATCHES_PER_WARP) + 1;
    argument.batch = batch < LARGEST_BATCH ? (uint32_t)batch : LARGEST_BATCH;
    return stream->gpu->ops->launch(stream, GPU_KERNEL_UNPACK, &argument,
                                    (most - 1) / argument.batch + 1);
}

/* The smallest piece that does not give the warps more than one each, within limits. */
static uint32_t choose_piece(const struct gpu_run *runs, uint32_t count, uint32_t warps)
{
    uint32_t piece = SMALLEST_PIECE;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += runs[i].bytes;
    while (piece < LARGEST_PIECE && bytes / piece > warps)
        piece *= 2;
    return piece;
}

int gpu_copy_runs(struct gpu_stream *stream, const struct gpu_run *runs, uint32_t count)
{
    struct kernel_copy argument = {.run_count = count};
    uint64_t pieces = 0;
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (count > GPU_COPY_RUNS)
        return error_set(TCPX_INVALID_ARGUMENT, "%u runs in one copy, but %d at most", count,
                         GPU_COPY_RUNS);
    argument.piece = choose_piece(runs, count, stream->gpu->warps);
    for (uint32_t i = 0; i < count; i++) {
        argument.runs[i] = runs[i];
        argument.first_piece[i] = (uint32_t)pieces;
        pieces += runs[i].bytes / argument.piece + (runs[i].bytes % argument.piece != 0);
        if (pieces > UINT32_MAX)
            return error_set(TCPX_INVALID_ARGUMENT, "run %u has %llu bytes: too many to count", i,
                             (unsigned long long)runs[i].bytes);
    }
    argument.first_piece[count] = (uint32_t)pieces;
    if (pieces == 0)
        return TCPX_SUCCESS;
    return stream->gpu->ops->launch(stream, GPU_KERNEL_COPY, &argument, pieces);
}

int gpu_fill_pattern(struct gpu_stream *stream, gpu_address at, uint64_t bytes, uint64_t seed,
                     uint64_t position)
{
    const struct kernel_fill argument = {
        .at = at, .bytes = bytes, .seed = seed, .position = position};
    int result = fork_check();

    if (result != TCPX_SUCCESS || bytes == 0)
        return result;
    return stream->gpu->ops->launch(stream, GPU_KERNEL_FILL, &argument,
                                    bytes / PATTERN_BYTES_PER_WARP + 1);
}

int gpu_verify_pattern(struct gpu_stream *stream, gpu_address at, uint64_t bytes, uint64_t seed,
                       uint64_t position, gpu_address result_at)
{
    const struct kernel_verify argument = {
        .expected = {.at = at, .bytes = bytes, .seed = seed, .position = position},
        .result = result_at};
    int result;

    if (result_at % _Alignof(struct gpu_verify_result) != 0)
        return error_set(TCPX_INVALID_ARGUMENT, "a result at 0x%llx is not 8-byte aligned",
                         (unsigned long long)result_at);
    result = gpu_set(stream, result_at, 0, sizeof(uint64_t));
    if (result == TCPX_SUCCESS)
        result = gpu_set(stream, result_at + sizeof(uint64_t), 0xff, sizeof(uint64_t));
    if (result != TCPX_SUCCESS || bytes == 0)
        return result;
    return stream->gpu->ops->launch(stream, GPU_KERNEL_VERIFY, &argument,
                                    bytes / PATTERN_BYTES_PER_WARP + 1);
}

/* --- the public calls ---------------------------------------------------------------------- */

int tcpx_gpu_count(int *count)
{
    if (count == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_count: count is NULL");
    return gpu_count(count);
}

int tcpx_gpu_get_properties(int index, struct tcpx_gpu_properties *properties)
{
    if (properties == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_gpu_get_properties: properties is NULL");
    return gpu_properties(index, properties);
}
