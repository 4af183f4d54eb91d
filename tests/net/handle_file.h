/* How two programs of a test hand a handle over: through a file that both name. */
#ifndef TCPX_TESTS_HANDLE_FILE_H
#define TCPX_TESTS_HANDLE_FILE_H

#include "base/error.h"
#include "net/wire/handle.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

/* Whoever finds the file finds all of it. */
static inline int write_handle(const char *path, const uint8_t handle[NET_HANDLE_BYTES])
{
    char temporary[4096];
    FILE *file;
    bool written;

    if (snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary)
        return error_set(TCPX_INVALID_ARGUMENT, "the name of the handle's file is too long");
    file = fopen(temporary, "w");
    if (file == NULL)
        return error_system(errno, "cannot write %s", temporary);
    written = fwrite(handle, NET_HANDLE_BYTES, 1, file) == 1;
    if (fclose(file) != 0 || !written || rename(temporary, path) != 0)
        return error_system(errno, "cannot write %s", path);
    return TCPX_SUCCESS;
}

#endif
