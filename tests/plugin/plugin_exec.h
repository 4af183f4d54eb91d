/*
 * This program again, in a process of its own with an environment of its own: the configuration is
 * read once per process, and some of what is tested ends a process or is about its beginning. What
 * such a child finds wrong is its exit status: there is no cmocka there.
 */
#ifndef TCPX_TESTS_PLUGIN_EXEC_H
#define TCPX_TESTS_PLUGIN_EXEC_H

#include "tests/plugin/plugin_test.h"

#include <spawn.h>
#include <sys/wait.h>

struct exec_child {
    const char *name;
    int (*run)(void);
};

/* In main: calls the child that is named, and exits; returns where none is. */
static inline void exec_dispatch(int argc, char **argv, const struct exec_child *children,
                                 size_t count)
{
    if (argc < 2)
        return;
    for (size_t i = 0; i < count; i++)
        if (strcmp(argv[1], children[i].name) == 0)
            exit(children[i].run());
    exit(126);
}

/* Runs a child with these variables and no others; the list ends with NULL. Its wait status. */
static inline int exec_child(const char *name, const char *const *variables)
{
    char plugin[4200];
    char program[4096];
    char *arguments[] = {program, (char *)(uintptr_t)name, NULL};
    char *environment[32] = {plugin};
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    int status = -1;
    pid_t pid;

    assert_true(length > 0);
    program[length] = '\0';
    snprintf(plugin, sizeof plugin, "TCPX_TEST_PLUGIN=%s", plugin_path());
    for (int i = 0; variables[i] != NULL; i++) {
        assert_true(i < 30);
        environment[i + 1] = (char *)(uintptr_t)variables[i];
    }
    assert_int_equal(posix_spawn(&pid, program, NULL, NULL, arguments, environment), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

#endif
