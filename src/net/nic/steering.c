/* Adds and removes rules under the journal's lock, so that processes never choose one location. */
#include "net/nic/nic.h"

#include "base/clock.h"
#include "base/log.h"
#include "net/nic/rule_journal.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { LOCK_PATIENCE_MS = 2000 };

int steering_describe(int socket, struct nic_rule *rule)
{
    struct nic_rule made = {0};
    socklen_t length = sizeof made.to;

    if (getsockname(socket, (struct sockaddr *)&made.to, &length) != 0)
        return error_system(errno, "the address of a socket that is to be steered");
    length = sizeof made.from;
    if (getpeername(socket, (struct sockaddr *)&made.from, &length) != 0)
        return error_system(errno, "the peer of a socket that is to be steered");
    if (socket_address_length(&made.to) == 0 || socket_address_length(&made.from) == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a socket that is to be steered must be of IPv4 or IPv6");
    socket_address_unmap(&made.from);
    socket_address_unmap(&made.to);
    *rule = made;
    return TCPX_SUCCESS;
}

static const char *steering_lock_reason(int error, char room[ERROR_REASON_BYTES])
{
    return error == EWOULDBLOCK ? "another process keeps it locked" : error_reason(error, room);
}

/* Once is enough: the reason is the same for all rules. Any memory order would do. */
static void steering_warn_unrecorded(const char *interface, const char *path, int error)
{
    static atomic_bool warned;
    char reason[ERROR_REASON_BYTES];

    if (!atomic_exchange(&warned, true))
        log_warn("%s: rules are not recorded, and would stay if this process were killed: %s: %s",
                 interface, path, steering_lock_reason(error, reason));
}

/* A location has one rule: a line about an earlier one there is out of date. */
static bool steering_is_elsewhere(void *added, const struct rule_line *line)
{
    return line->rule.location != ((const struct rule_line *)added)->rule.location;
}

int steering_begin(const char *interface, int socket, unsigned queue, uint64_t patience_ends,
                   struct nic_rule *rule)
{
    struct rule_journal journal;
    struct rule_line line;
    int error;
    int result = steering_describe(socket, &line.rule);

    if (result != TCPX_SUCCESS)
        return result;
    line.rule.queue = queue;
    error = rule_journal_open(interface, RULE_JOURNAL_LOCK, 0, &journal);
    if (error == EWOULDBLOCK && !deadline_passed(patience_ends))
        return error_set(TCPX_IN_PROGRESS, "%s: another process changes its rules", interface);
    if (error != 0)
        steering_warn_unrecorded(interface, journal.path, error);
    result = nic_rule_add(interface, &line.rule);
    if (result == TCPX_SUCCESS)
        *rule = line.rule;
    if (error == 0 && result == TCPX_SUCCESS) {
        if (rule_owner_self(&line.owner))
            rule_journal_rewrite(&journal, steering_is_elsewhere, &line, &line);
        else
            log_debug("%s: a rule is not recorded, since /proc does not show this process",
                      journal.path);
    }
    socket_close(&journal.lock);
    return result;
}

/* False: it could not be removed, and stays in the journal for a later attempt. */
static bool steering_remove_rule(const char *interface, const struct nic_rule *rule, bool *removed)
{
    *removed = false;
    if (nic_rule_remove(interface, rule, removed) == TCPX_SUCCESS)
        return true;
    log_debug("%s", error_text());
    return false;
}

static bool steering_is_other(void *ended, const struct rule_line *line)
{
    char one[RULE_LINE_BYTES];
    char other[RULE_LINE_BYTES];

    rule_line_format(ended, one);
    rule_line_format(line, other);
    return strcmp(one, other) != 0;
}

void steering_end(const char *interface, const struct nic_rule *rule)
{
    struct rule_line line = {.rule = *rule};
    struct rule_journal journal;
    bool removed;
    int error = rule_journal_open(interface, RULE_JOURNAL_LOCK, LOCK_PATIENCE_MS, &journal);

    if (steering_remove_rule(interface, rule, &removed) && error == 0 &&
        rule_owner_self(&line.owner))
        rule_journal_rewrite(&journal, steering_is_other, &line, NULL);
    socket_close(&journal.lock);
}

struct steering_cleaning {
    const char *interface;
    unsigned removed;
};

static bool steering_is_in_use(void *context, const struct rule_line *line)
{
    struct steering_cleaning *cleaning = context;
    bool removed;

    if (!rule_owner_is_gone(&line->owner) ||
        !steering_remove_rule(cleaning->interface, &line->rule, &removed))
        return true;
    cleaning->removed += removed;
    return false;
}

unsigned steering_clean(const char *interface)
{
    struct steering_cleaning cleaning = {.interface = interface};
    struct rule_journal journal;

    if (!rule_journal_exists(interface) ||
        rule_journal_open(interface, RULE_JOURNAL_LOCK, LOCK_PATIENCE_MS, &journal) != 0)
        return 0;
    rule_journal_rewrite(&journal, steering_is_in_use, &cleaning, NULL);
    socket_close(&journal.lock);
    if (cleaning.removed > 0)
        log_debug("%s: removed %u rule%s of processes that are gone", interface, cleaning.removed,
                  cleaning.removed == 1 ? "" : "s");
    return cleaning.removed;
}

int steering_lock(const char *interface)
{
    char reason[ERROR_REASON_BYTES];
    struct rule_journal journal;
    int error = rule_journal_open(interface, RULE_JOURNAL_SETUP, LOCK_PATIENCE_MS, &journal);

    if (error != 0)
        log_warn("%s: other processes cannot be kept from changing it at the same time: %s: %s",
                 interface, journal.path, steering_lock_reason(error, reason));
    return journal.lock;
}

void steering_unlock(int lock)
{
    socket_close(&lock);
}
