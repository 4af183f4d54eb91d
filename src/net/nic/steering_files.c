/* The folder is chosen again in each call, so that all processes of a user choose the same one. */
#include "net/nic/steering_files.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * /run/tcpx can be read by all users, since the daemon of another plugin keeps its sockets there.
 * The folder of a single user is below /tmp, and only that user can read it.
 */
enum { SHARED_MODE = 0755, OWN_MODE = 0700, FILE_MODE = 0600 };

/* Changed by tests only, before anything else. */
static const char *first = "/run/tcpx";
static const char *second = "/tmp/tcpx-"; /* and the number of the user */

void steering_files_use(const char *new_first, const char *new_second)
{
    first = new_first;
    second = new_second;
}

/* 0 if only this user and root can write to the folder; or an errno. */
static int steering_files_check_folder(const char *path)
{
    struct stat status;

    if (lstat(path, &status) != 0)
        return errno;
    if (!S_ISDIR(status.st_mode))
        return ENOTDIR;
    if ((status.st_uid != geteuid() && status.st_uid != 0) ||
        (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        log_debug("%s is not used: users other than %u could change it", path, geteuid());
        return EPERM;
    }
    return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

static int steering_files_try_folder(const char *path, bool make, mode_t mode)
{
    if (make && mkdir(path, mode) != 0 && errno != EEXIST)
        return errno;
    return steering_files_check_folder(path);
}

int steering_files_folder(bool make, char path[PATH_MAX])
{
    int error;

    snprintf(path, PATH_MAX, "%s", first);
    error = steering_files_try_folder(path, make, SHARED_MODE);
    if (error == 0 || second == NULL)
        return error;
    snprintf(path, PATH_MAX, "%s%u", second, geteuid());
    return steering_files_try_folder(path, make, OWN_MODE);
}

/* 0 if it is a file of this user, whose mode is corrected; or an errno. */
static int steering_files_check(int fd)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return errno;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
        return EPERM;
    if ((status.st_mode & 077) != 0 && fchmod(fd, FILE_MODE) != 0)
        return errno;
    return 0;
}

int steering_files_open(const char *path, int flags, int *fd)
{
    int opened = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
    int error = opened >= 0 ? steering_files_check(opened) : errno;

    if (error != 0) {
        if (opened >= 0)
            close(opened);
        return error;
    }
    *fd = opened;
    return 0;
}
