/* Allocations of the emulated GPUs: a list of aliases and the pages behind them. */
#include "gpu/host_memory.h"

#include "base/checked.h"
#include "gpu/gpu_ops.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct range {
    struct range *next;
    gpu_address alias;
    uint64_t bytes;    /* as asked for: what lies behind it in the last page is out of bounds */
    uint64_t reserved; /* of address space, in whole pages */
    void *pages;       /* its own, or the caller's where it is pinned */
    int memfd;
    int device;
    enum gpu_pointer_kind kind;
};

/* Guards the list below. Operations on the memory hold it shared while they run. */
static pthread_rwlock_t ranges_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges;

/* The allocation whose alias contains `address`. */
static struct range *find_alias(gpu_address address)
{
    struct range *range = ranges;

    while (range != NULL && address - range->alias >= range->bytes)
        range = range->next;
    return range;
}

/* The pinned allocation whose host pages contain `address`. */
static struct range *find_pinned_pages(gpu_address address)
{
    struct range *range = ranges;

    while (range != NULL &&
           (range->kind != GPU_POINTER_PINNED || address - (uintptr_t)range->pages >= range->bytes))
        range = range->next;
    return range;
}

static uint64_t device_bytes_used(int device)
{
    uint64_t sum = 0;

    for (const struct range *range = ranges; range != NULL; range = range->next)
        if (range->device == device && range->kind == GPU_POINTER_DEVICE)
            sum += range->bytes;
    return sum;
}

/* Address space only, aligned: what lies around the aligned part is given back. */
static int reserve_alias(uint64_t bytes, uint64_t alignment, gpu_address *alias)
{
    uint64_t padded;
    uint64_t before;
    char *space;

    if (alignment < PAGE_BYTES)
        alignment = PAGE_BYTES;
    if (!checked_add(bytes, alignment - PAGE_BYTES, &padded))
        return error_system(ENOMEM, "%llu bytes aligned to %llu", (unsigned long long)bytes,
                            (unsigned long long)alignment);
    space = mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return error_system(errno, "cannot reserve %llu bytes of address space",
                            (unsigned long long)padded);
    before = -(uintptr_t)space & (alignment - 1);
    if (before != 0)
        munmap(space, before);
    if (padded - before > bytes)
        munmap(space + before + bytes, padded - before - bytes);
    *alias = (uintptr_t)space + before;
    return TCPX_SUCCESS;
}

/* In a memfd, which a dma-buf can be made of; shared, so that a fork() does not move them away. */
static int map_pages(struct range *range)
{
    int saved_errno;

    range->memfd = memfd_create("tcpx", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (range->memfd < 0)
        return error_system(errno, "memfd_create");
    /* Shrinking would turn accesses into SIGBUS, and a dma-buf refuses a memfd that may shrink. */
    if (ftruncate(range->memfd, (off_t)range->reserved) == 0 &&
        fcntl(range->memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
        range->pages =
            mmap(NULL, range->reserved, PROT_READ | PROT_WRITE, MAP_SHARED, range->memfd, 0);
        if (range->pages != MAP_FAILED)
            return TCPX_SUCCESS;
    }
    saved_errno = errno;
    close(range->memfd);
    return error_system(saved_errno, "a memfd of %llu bytes", (unsigned long long)range->reserved);
}

static void unmap_pages(const struct range *range)
{
    if (range->kind != GPU_POINTER_DEVICE)
        return;
    munmap(range->pages, range->reserved);
    close(range->memfd);
}

/* Pages of its own, unless the caller has registered some, and the alias for them. */
static int map_range(struct range *range, uint64_t alignment)
{
    int result = TCPX_SUCCESS;

    if (!checked_align_up(range->bytes, PAGE_BYTES, &range->reserved))
        return error_system(ENOMEM, "%llu bytes", (unsigned long long)range->bytes);
    if (range->kind == GPU_POINTER_DEVICE)
        result = map_pages(range);
    if (result != TCPX_SUCCESS)
        return result;
    result = reserve_alias(range->reserved, alignment, &range->alias);
    if (result != TCPX_SUCCESS)
        unmap_pages(range);
    return result;
}

/* With the lock. */
static int add_range(const struct range *wanted, uint64_t alignment, gpu_address *alias)
{
    struct range *range = malloc(sizeof *range);
    int result;

    if (range == NULL)
        return error_system(ENOMEM, "an allocation");
    *range = *wanted;
    result = map_range(range, alignment);
    if (result != TCPX_SUCCESS) {
        free(range);
        return result;
    }
    range->next = ranges;
    ranges = range;
    *alias = range->alias;
    return TCPX_SUCCESS;
}

uint64_t host_memory_used(int device)
{
    uint64_t used;

    pthread_rwlock_rdlock(&ranges_lock);
    used = device_bytes_used(device);
    pthread_rwlock_unlock(&ranges_lock);
    return used;
}

int host_memory_map(int device, uint64_t bytes, uint64_t alignment, uint64_t limit,
                    struct gpu_memory *memory)
{
    const struct range range = {.bytes = bytes, .device = device, .kind = GPU_POINTER_DEVICE};
    gpu_address alias;
    uint64_t used;
    int result;

    pthread_rwlock_wrlock(&ranges_lock);
    used = device_bytes_used(device);
    if (used > limit || bytes > limit - used)
        result = error_set(TCPX_CUDA_ERROR,
                           "emulated GPU %d is out of memory: %llu bytes asked for, %llu of %llu "
                           "in use (UCCL_TCPX_HOST_GPU_MEMORY)",
                           device, (unsigned long long)bytes, (unsigned long long)used,
                           (unsigned long long)limit);
    else
        result = add_range(&range, alignment, &alias);
    pthread_rwlock_unlock(&ranges_lock);
    if (result == TCPX_SUCCESS)
        *memory = (struct gpu_memory){.address = alias, .bytes = bytes, .allocation = alias};
    return result;
}

int host_memory_register(int device, void *pages, uint64_t bytes, gpu_address *alias)
{
    const struct range range = {
        .bytes = bytes, .pages = pages, .memfd = -1, .device = device, .kind = GPU_POINTER_PINNED};
    int result;

    pthread_rwlock_wrlock(&ranges_lock);
    result = add_range(&range, PAGE_BYTES, alias);
    pthread_rwlock_unlock(&ranges_lock);
    return result;
}

void host_memory_unmap(gpu_address alias)
{
    struct range **link = &ranges;
    struct range *range;

    pthread_rwlock_wrlock(&ranges_lock);
    range = find_alias(alias);
    while (range != NULL && *link != range)
        link = &(*link)->next;
    if (range != NULL) {
        *link = range->next;
        munmap((void *)(uintptr_t)range->alias, range->reserved);
        unmap_pages(range);
        free(range);
    }
    pthread_rwlock_unlock(&ranges_lock);
}

int host_classify(gpu_address address, uint64_t bytes, struct gpu_pointer *pointer)
{
    const struct range *range;
    uint64_t base = address;
    int result = TCPX_SUCCESS;

    pthread_rwlock_rdlock(&ranges_lock);
    if ((range = find_alias(address)) != NULL)
        base = range->alias;
    else if ((range = find_pinned_pages(address)) != NULL)
        base = (uintptr_t)range->pages;
    if (range != NULL && !range_inside(address - base, bytes, range->bytes))
        result =
            error_set(TCPX_INVALID_ARGUMENT,
                      "%llu bytes at 0x%llx reach beyond the allocation of %llu bytes at 0x%llx",
                      (unsigned long long)bytes, (unsigned long long)address,
                      (unsigned long long)range->bytes, (unsigned long long)base);
    else
        *pointer = (struct gpu_pointer){.kind = range != NULL ? range->kind : GPU_POINTER_HOST,
                                        .device = range != NULL ? range->device : -1,
                                        .base = base,
                                        .bytes = range != NULL ? range->bytes : bytes,
                                        .one_allocation = true,
                                        .host = range == NULL ? (void *)address
                                                : range->kind == GPU_POINTER_PINNED
                                                    ? (char *)range->pages + (address - base)
                                                    : NULL};
    pthread_rwlock_unlock(&ranges_lock);
    return result;
}

void host_memory_hold(void)
{
    pthread_rwlock_rdlock(&ranges_lock);
}

void host_memory_release(void)
{
    pthread_rwlock_unlock(&ranges_lock);
}

void *host_memory_resolve(gpu_address address, uint64_t bytes)
{
    const struct range *range = find_alias(address);

    if (range == NULL || !range_inside(address - range->alias, bytes, range->bytes))
        return NULL;
    return (char *)range->pages + (address - range->alias);
}

void *host_memory_use(const char *what, gpu_address address, uint64_t bytes)
{
    void *at = host_memory_resolve(address, bytes);

    if (at == NULL)
        error_keep("%s of %llu bytes at 0x%llx: not inside GPU memory", what,
                   (unsigned long long)bytes, (unsigned long long)address);
    return at;
}

bool host_memory_is_registered(uint64_t address, uint64_t bytes)
{
    const struct range *range = find_pinned_pages(address);

    return range != NULL && range_inside(address - (uintptr_t)range->pages, bytes, range->bytes);
}

int host_memory_file(gpu_address address, uint64_t bytes, int *memfd, uint64_t *offset)
{
    const struct range *range;
    int result = TCPX_SUCCESS;

    pthread_rwlock_rdlock(&ranges_lock);
    range = find_alias(address);
    /* Its last page is all its own. */
    if (range == NULL || range->memfd < 0 ||
        !range_inside(address - range->alias, bytes, range->reserved)) {
        result = error_set(TCPX_INVALID_ARGUMENT,
                           "%llu bytes at 0x%llx are not inside one allocation of an emulated GPU",
                           (unsigned long long)bytes, (unsigned long long)address);
    } else {
        *memfd = range->memfd;
        *offset = address - range->alias;
    }
    pthread_rwlock_unlock(&ranges_lock);
    return result;
}
