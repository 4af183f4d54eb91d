/* A folder of files that a test makes, and that is removed with all that is in it. */
#ifndef TCPX_TESTS_UNIT_TREE_H
#define TCPX_TESTS_UNIT_TREE_H

#include "tests/unit/checks.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char tree_root[PATH_MAX];

/* 0, as a setup of cmocka returns it. */
static inline int tree_make(void)
{
    snprintf(tree_root, sizeof tree_root, "/tmp/tcpx-unit.XXXXXX");
    return mkdtemp(tree_root) == NULL ? -1 : 0;
}

static inline int tree_remove_entry(const char *path, const struct stat *status, int type,
                                    struct FTW *position)
{
    (void)status;
    (void)type;
    (void)position;
    return remove(path);
}

static inline int tree_remove(void)
{
    return nftw(tree_root, tree_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path in the tree, which the next call overwrites, with all folders above it made. */
__attribute__((format(printf, 1, 2))) static inline const char *tree_path(const char *format, ...)
{
    static char whole[2 * PATH_MAX];
    size_t length = (size_t)snprintf(whole, sizeof whole, "%s", tree_root);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(whole + length, sizeof whole - length, format, arguments);
    va_end(arguments);
    for (char *at = whole + length + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            assert_true(mkdir(whole, 0755) == 0 || errno == EEXIST);
            *at = '/';
        }
    return whole;
}

/* `path` is the whole path, as tree_path() returns it. */
static inline void tree_put_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static inline void tree_put(const char *path, const char *text)
{
    tree_put_bytes(path, text, strlen(text));
}

static inline cpu_set_t cpus_from(int first, int count)
{
    cpu_set_t cpus;

    CPU_ZERO(&cpus);
    for (int i = 0; i < count; i++)
        CPU_SET(first + i, &cpus);
    return cpus;
}

#endif
