/* The journal of rules of the fake NIC, in a folder of the test's own. */
#ifndef TCPX_TESTS_UNIT_JOURNAL_H
#define TCPX_TESTS_UNIT_JOURNAL_H

#include "net/nic/rule_journal.h"
#include "tests/unit/fake_nic.h"
#include "tests/unit/tree.h"

#include <fcntl.h>
#include <sys/file.h>

enum { JOURNAL_QUEUES = 8 };

/* A NIC without rules, and an empty folder; 0, as a setup of cmocka returns it. */
static inline int journal_make(void)
{
    fake_nic_reset(JOURNAL_QUEUES);
    if (tree_make() != 0)
        return -1;
    rule_journal_use(tree_root, NULL);
    return 0;
}

/* A file of the journal; a later call overwrites it. */
static inline const char *journal_path(const char *ending)
{
    static char paths[8][PATH_MAX];
    static unsigned next;
    struct stat status;

    next = (next + 1) % COUNT_OF(paths);
    assert_int_equal(stat("/proc/self/ns/net", &status), 0);
    snprintf(paths[next], sizeof paths[next], "%s",
             tree_path("/steering-%llu-" FAKE_NIC "%s", (unsigned long long)status.st_ino, ending));
    return paths[next];
}

/* A descriptor of its own has the lock as another process would. */
static inline int journal_hold_lock(void)
{
    int fd = open(journal_path(".lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    return fd;
}

#endif
