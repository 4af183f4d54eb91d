/* The process that has added a rule, and whether it is gone. */
#ifndef TCPX_NET_NIC_RULE_OWNER_H
#define TCPX_NET_NIC_RULE_OWNER_H

#include <stdbool.h>
#include <stdint.h>

struct rule_owner {
    int pid;
    uint64_t started;    /* in ticks after the boot: a later process can have the same pid */
    uint64_t name_space; /* of process ids; a process of another one cannot be looked up */
};

/* This process; false if /proc does not show it. */
bool rule_owner_self(struct rule_owner *owner);

bool rule_owner_is_gone(const struct rule_owner *owner);

/* The namespace of a kind ("pid", "net") that this thread is in; 0: unknown. */
uint64_t rule_owner_name_space(const char *kind);

#endif
