/* Shared pages by mmap, with or without a memfd behind them. */
#include "gpu/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static int make_memfd(uint64_t bytes, int *memfd)
{
    int fd = memfd_create("tcpx", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int saved_errno;

    if (fd < 0)
        return error_system(errno, "memfd_create");
    /* Shrinking would turn accesses into SIGBUS, and a dma-buf refuses a memfd that may shrink. */
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
        *memfd = fd;
        return TCPX_SUCCESS;
    }
    saved_errno = errno;
    close(fd);
    return error_system(saved_errno, "a memfd of %llu bytes", (unsigned long long)bytes);
}

int pages_map(uint64_t bytes, void **pages, int *memfd)
{
    int fd = -1;
    void *mapped;
    int saved_errno;
    int result = memfd != NULL ? make_memfd(bytes, &fd) : TCPX_SUCCESS;

    if (result != TCPX_SUCCESS)
        return result;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | (memfd != NULL ? 0 : MAP_ANONYMOUS), fd, 0);
    if (mapped == MAP_FAILED) {
        saved_errno = errno;
        if (fd >= 0)
            close(fd);
        return error_system(saved_errno, "cannot map %llu bytes of memory",
                            (unsigned long long)bytes);
    }
    *pages = mapped;
    if (memfd != NULL)
        *memfd = fd;
    return TCPX_SUCCESS;
}

void pages_unmap(void *pages, uint64_t bytes, int memfd)
{
    munmap(pages, bytes);
    if (memfd >= 0)
        close(memfd);
}
