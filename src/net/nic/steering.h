/*
 * Connections that are steered to receive queues by rules of the NIC, and a record of whose rules
 * these are: a process that is killed leaves them behind, and the next one removes them.
 */
#ifndef TCPX_NET_NIC_STEERING_H
#define TCPX_NET_NIC_STEERING_H

#include "net/nic/nic.h"

/*
 * What arrives on this connected socket goes to `queue` from now on. Never waits for another
 * process: TCPX_IN_PROGRESS while one has the record, to be called again; when the patience has
 * ended, the rule is made without a record.
 */
MUST_CHECK int steering_begin(const char *interface, int socket, unsigned queue,
                              uint64_t patience_ends, struct nic_rule *rule);

/* May wait up to 2 s for another process; then a line stays in the record, which does no harm. */
void steering_end(const char *interface, const struct nic_rule *rule);

/* Removes the rules of processes that are gone; how many. Without a record: 0. */
unsigned steering_clean(const char *interface);

/*
 * Held while a process chooses queues of the NIC and changes its hash: two that do so at once would
 * undo each other's changes. -1: nobody could be kept out, for want of a folder or of patience. The
 * calls above may be made in between.
 */
MUST_CHECK int steering_lock(const char *interface);
void steering_unlock(int lock);

/* --- inside, for tests --------------------------------------------------------------------- */

enum { STEERING_LINE_BYTES = 256 };

struct steering_process {
    int pid;
    uint64_t started;    /* in ticks after the boot: tells it from a later one of the same number */
    uint64_t name_space; /* of process ids; those of another one cannot be looked for */
};

/* What the record says of a rule. */
struct steering_line {
    struct steering_process process;
    struct nic_rule rule;
};

/* Without the end of the line. False: the text is none, and *line is left alone. */
MUST_CHECK bool steering_parse(const char *text, struct steering_line *line);
void steering_format(const struct steering_line *line, char text[STEERING_LINE_BYTES]);

bool steering_is_gone(const struct steering_process *process);

/* The rule for what arrives on a connected socket; its queue and location are 0. */
MUST_CHECK int steering_describe(int socket, struct nic_rule *rule);

#endif
