/*
 * A record of the rules that processes have added to a NIC, with their owners: what a process that
 * was killed leaves behind is removed by the next one. It is only a hint: lines that cannot be
 * parsed are dropped, and a rule is removed only if the NIC still has exactly this one.
 *
 * The folder is /run/tcpx or, for a user who may not write there, /tmp/tcpx-UID; a folder that
 * other users could change is not used. Only this user can open its files: a process that can open
 * a lock file can hold the lock.
 */
#ifndef TCPX_NET_NIC_RULE_JOURNAL_H
#define TCPX_NET_NIC_RULE_JOURNAL_H

#include "net/nic/nic.h"

#include <limits.h>

/* Files beside the journal. Rules are added and removed under the first, queues chosen under the
 * second. */
#define RULE_JOURNAL_LOCK  "lock"
#define RULE_JOURNAL_SETUP "setup.lock"

struct rule_journal {
    int lock; /* -1: not locked */
    char path[PATH_MAX];
};

/*
 * Locks the journal of an interface in this network namespace. 0, or an errno; EWOULDBLOCK: another
 * process had the lock for all of `patience_ms`. The caller closes journal->lock, which ends the
 * lock.
 */
MUST_CHECK int rule_journal_open(const char *interface, const char *lock_name, unsigned patience_ms,
                                 struct rule_journal *journal);

/* Whether there is anything to read; makes no folder. */
bool rule_journal_exists(const char *interface);

/* The process that has added a rule. */
struct rule_owner {
    int pid;
    uint64_t started;    /* in ticks after the boot: a later process can have the same pid */
    uint64_t name_space; /* of process ids; a process of another one cannot be looked up */
};

/* This process; false if /proc does not show it. */
bool rule_owner_self(struct rule_owner *owner);

bool rule_owner_is_gone(const struct rule_owner *owner);

enum { RULE_LINE_BYTES = 256 };

struct rule_line {
    struct rule_owner owner;
    struct nic_rule rule;
};

/*
 * Replaces the journal by the lines for which `keep` returns true, and by `added`, which may be
 * NULL. A journal that cannot be written stays as it is.
 */
typedef bool rule_journal_keep(void *context, const struct rule_line *line);
void rule_journal_rewrite(const struct rule_journal *journal, rule_journal_keep *keep,
                          void *context, const struct rule_line *added);

/* --- inside, for tests --------------------------------------------------------------------- */

/* Instead of /run/tcpx and /tmp/tcpx-, which the user's number follows; NULL: only the first. */
void rule_journal_use(const char *first, const char *second);

/* A line without its end. False: the text is not one, and *line is left alone. */
MUST_CHECK bool rule_line_parse(const char *text, struct rule_line *line);
void rule_line_format(const struct rule_line *line, char text[RULE_LINE_BYTES]);

#endif
