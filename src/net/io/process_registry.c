/*
 * The file is a table that holds no data, only locks. A process owns a row: it locks the first byte
 * of the row, and one byte for each CPU that it may use. Open file description locks: they belong
 * to the descriptor, not to the process, so two copies of this library in one process do not
 * release each other's.
 *
 * The file is never removed, since another process may be about to lock it. One with another layout
 * needs another name.
 */
#include "net/io/process_registry.h"

#include "base/fork.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 512, ROW_BYTES = 1 + CPU_SETSIZE, FILE_MODE = 0600 };

/* --- the file ------------------------------------------------------------------------------ */

/* 0 if it is a file that only this user can open, and so lock; or an errno. */
static int registry_check(int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return errno;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
        return EPERM;
    return 0;
}

int process_registry_open(const char *folder, bool make)
{
    char path[PATH_MAX];
    int error;
    int fd;

    if ((size_t)snprintf(path, sizeof path, "%s/tcpx-processes-%u", folder, geteuid()) >=
        sizeof path)
        return -1;
    fork_hold();
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (make ? O_CREAT : 0), FILE_MODE);
    error = fd < 0 ? errno : 0;
    if (!fork_release(fd))
        return -1;
    if (fd >= 0) {
        error = registry_check(fd);
        if (error != 0)
            fork_close(fd);
    }
    if (error != 0)
        log_debug("processes are not counted in %s: %s", path, strerror(error));
    return error == 0 ? fd : -1;
}

/* --- locks --------------------------------------------------------------------------------- */

/* The lock of another descriptor on some of these bytes, as `lock`; false: there is none. */
static bool registry_find_lock(int registry, off_t first, off_t bytes, struct flock *lock)
{
    *lock =
        (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = bytes};
    return fcntl(registry, F_OFD_GETLK, lock) == 0 && lock->l_type != F_UNLCK;
}

static bool registry_lock(int registry, off_t first, off_t bytes)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = bytes};

    return fcntl(registry, F_OFD_SETLK, &lock) == 0;
}

static off_t byte_of_row(int row)
{
    return (off_t)row * ROW_BYTES;
}

static off_t byte_of_cpu(int row, int cpu)
{
    return byte_of_row(row) + 1 + cpu;
}

/* CPUs of a set that follow each other. */
struct run {
    int first;
    int behind; /* the last */
};

/* The next run behind this one; false: there is none. Begin with {0}. */
static bool next_run(const cpu_set_t *cpus, struct run *run)
{
    run->first = run->behind;
    while (run->first < CPU_SETSIZE && !CPU_ISSET(run->first, cpus))
        run->first++;
    run->behind = run->first;
    while (run->behind < CPU_SETSIZE && CPU_ISSET(run->behind, cpus))
        run->behind++;
    return run->first < run->behind;
}

/* Beginning with another row for each process, so that most find a free one at once. */
static int registry_take_row(int registry)
{
    for (int i = 0; i < ROWS; i++) {
        int row = (getpid() + i) % ROWS;

        if (registry_lock(registry, byte_of_row(row), 1))
            return row;
        if (errno != EAGAIN && errno != EACCES)
            break;
    }
    return -1;
}

bool process_registry_enter(int registry, const cpu_set_t *cpus)
{
    int row = registry_take_row(registry);
    struct run run = {0};

    if (row < 0)
        return false;
    while (next_run(cpus, &run))
        if (!registry_lock(registry, byte_of_cpu(row, run.first), run.behind - run.first))
            return false;
    return true;
}

/* --- counting ------------------------------------------------------------------------------ */

static bool registry_row_has(int registry, int row, const cpu_set_t *cpus)
{
    struct run run = {0};
    struct flock lock;

    while (next_run(cpus, &run))
        if (registry_find_lock(registry, byte_of_cpu(row, run.first), run.behind - run.first,
                               &lock))
            return true;
    return false;
}

/* In rows from `first` on, before `end`. */
static unsigned registry_count_rows(int registry, const cpu_set_t *cpus, int first, int end)
{
    struct flock lock;
    int row = first;

    if (first >= end || !registry_find_lock(registry, byte_of_row(first),
                                            byte_of_row(end) - byte_of_row(first), &lock))
        return 0;
    /* The kernel finds any lock of a range, not the first: there may be others on both sides. */
    if (lock.l_start > byte_of_row(first))
        row = (int)(lock.l_start / ROW_BYTES);
    return registry_count_rows(registry, cpus, first, row) + registry_row_has(registry, row, cpus) +
           registry_count_rows(registry, cpus, row + 1, end);
}

unsigned process_registry_count(int registry, const cpu_set_t *cpus)
{
    return registry_count_rows(registry, cpus, 0, ROWS);
}
