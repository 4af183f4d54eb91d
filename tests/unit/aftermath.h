/*
 * What must hold after every error that a call returns for a transfer or a request: its memory is
 * the caller's again. A test gives the memory of each failed call to aftermath_of(), which
 * overwrites and remembers it; aftermath_look() finds every byte that was written there later. The
 * memory stays allocated until then. Plugin suites use it without tcpx: `write` and `read` are NULL
 * for host memory, and else those of the GPU.
 */
#ifndef TCPX_TESTS_AFTERMATH_H
#define TCPX_TESTS_AFTERMATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { AFTERMATH_MOST = 256, AFTERMATH_BYTE = 0xc3 };

/* tcpx_gpu_write() or tcpx_gpu_read(); 0: it has succeeded. */
typedef int aftermath_copy_call(void *to, const void *from, uint64_t bytes);

struct aftermath_memory {
    void *address;
    uint64_t bytes;
    aftermath_copy_call *read;
};

struct aftermath {
    unsigned count;
    struct aftermath_memory memories[AFTERMATH_MOST];
};

/* False: there is no place, or the memory cannot be written. */
static inline bool aftermath_of(struct aftermath *aftermath, void *address, uint64_t bytes,
                                aftermath_copy_call *write, aftermath_copy_call *read)
{
    uint8_t *pattern = malloc(bytes + 1);
    bool written = pattern != NULL && aftermath->count < AFTERMATH_MOST;

    if (written) {
        memset(pattern, AFTERMATH_BYTE, bytes);
        if (write == NULL)
            memcpy(address, pattern, bytes);
        else
            written = write(address, pattern, bytes) == 0;
        aftermath->memories[aftermath->count++] =
            (struct aftermath_memory){.address = address, .bytes = bytes, .read = read};
    }
    free(pattern);
    return written;
}

/* How many bytes are not those that aftermath_of() wrote; all of them where they cannot be read. */
static inline uint64_t aftermath_count_wrong(const struct aftermath_memory *memory)
{
    uint8_t *seen = calloc(1, memory->bytes + 1);
    uint64_t wrong = 0;

    if (seen == NULL ||
        (memory->read != NULL && memory->read(seen, memory->address, memory->bytes) != 0)) {
        free(seen);
        return memory->bytes;
    }
    if (memory->read == NULL)
        memcpy(seen, memory->address, memory->bytes);
    for (uint64_t i = 0; i < memory->bytes; i++)
        wrong += seen[i] != AFTERMATH_BYTE;
    free(seen);
    return wrong;
}

/*
 * Looks again after `later_ms`, in which everything that was still in flight arrives, and forgets
 * the memories. Returns how many bytes were overwritten.
 */
static inline uint64_t aftermath_look(struct aftermath *aftermath, unsigned later_ms)
{
    uint64_t wrong = 0;

    nanosleep(&(struct timespec){.tv_sec = later_ms / 1000, .tv_nsec = later_ms % 1000 * 1000000L},
              NULL);
    for (unsigned i = 0; i < aftermath->count; i++)
        wrong += aftermath_count_wrong(&aftermath->memories[i]);
    aftermath->count = 0;
    return wrong;
}

#endif
