/* Memory that ends where a page begins that cannot be touched: one byte too far is a crash. */
#ifndef TCPX_TESTS_SUPPORT_GUARD_PAGE_H
#define TCPX_TESTS_SUPPORT_GUARD_PAGE_H

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* The end of `room` bytes; NULL: no memory. */
static inline void *guard_page_after(size_t room)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (room + page - 1) / page * page;
    char *area =
        mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (area == MAP_FAILED || mprotect(area + whole, page, PROT_NONE) != 0)
        return NULL;
    return area + whole;
}

#endif
