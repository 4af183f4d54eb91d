/*
 * A NIC that exists in ioctl() only, as the interface fake0: receive queues, a hash and rules. It
 * lies in shared memory, so that several processes can work on it; a program includes this once.
 */
#ifndef TCPX_TESTS_UNIT_FAKE_NIC_H
#define TCPX_TESTS_UNIT_FAKE_NIC_H

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAKE_NIC "fake0"

enum { FAKE_PLACES = 64, FAKE_ENTRIES = 16 };

struct fake_nic {
    atomic_flag busy;
    unsigned queues;
    bool rules_on;
    bool chooses; /* places of rules */
    bool has_no_hash;
    int refusal; /* an errno for every change; 0: they are done */
    unsigned changes;

    uint8_t transform;
    bool was_set; /* the table was chosen by somebody, and not by the kernel */
    uint32_t table[FAKE_ENTRIES];

    bool is_used[FAKE_PLACES];
    struct ethtool_rx_flow_spec rules[FAKE_PLACES];
    unsigned overwritten; /* rules that another took the place of */
};

static struct fake_nic *fake_nic;

/* Called in each ioctl. */
static void (*fake_nic_during)(void);

static inline void fake_nic_reset(unsigned queues)
{
    if (fake_nic == NULL)
        fake_nic =
            mmap(NULL, sizeof *fake_nic, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(fake_nic, 0, sizeof *fake_nic);
    fake_nic->queues = queues;
    fake_nic->rules_on = true;
    fake_nic->transform = 1;
    for (uint32_t i = 0; i < FAKE_ENTRIES; i++)
        fake_nic->table[i] = i % queues;
}

static inline unsigned fake_nic_rules(void)
{
    unsigned count = 0;

    for (int i = 0; i < FAKE_PLACES; i++)
        count += fake_nic->is_used[i];
    return count;
}

/* --- the hash --- */

static int fake_set_table(const uint32_t *table, uint32_t entries)
{
    for (uint32_t i = 0; i < FAKE_ENTRIES; i++)
        fake_nic->table[i] = entries == 0 ? i % fake_nic->queues : table[i];
    fake_nic->was_set = entries != 0;
    return 0;
}

static int fake_hash(struct ethtool_rxfh *command, bool set)
{
    uint8_t *transform = &command->hfunc + 1; /* newer headers have a name for it */

    if (fake_nic->has_no_hash)
        return EOPNOTSUPP;
    if ((command->indir_size != 0 && command->indir_size != FAKE_ENTRIES) ||
        command->key_size != 0 || command->rss_context != 0)
        return EINVAL;
    if (set && *transform != fake_nic->transform)
        return EDOM; /* the kernel would change it */
    if (set)
        return fake_set_table(command->rss_config, command->indir_size);
    if (command->indir_size != 0)
        memcpy(command->rss_config, fake_nic->table, sizeof fake_nic->table);
    command->indir_size = FAKE_ENTRIES;
    *transform = fake_nic->transform;
    return 0;
}

/* --- rules --- */

static int fake_list_rules(struct ethtool_rxnfc *command)
{
    uint32_t count = 0;

    if (command->rule_cnt < fake_nic_rules())
        return EMSGSIZE;
    for (uint32_t i = 0; i < FAKE_PLACES; i++)
        if (fake_nic->is_used[i])
            command->rule_locs[count++] = i;
    command->rule_cnt = count;
    command->data = FAKE_PLACES;
    return 0;
}

static int fake_insert(struct ethtool_rxnfc *command)
{
    uint32_t place = command->fs.location;

    if (fake_nic->chooses != (place == RX_CLS_LOC_ANY))
        return EINVAL;
    for (uint32_t i = 0; fake_nic->chooses && i < FAKE_PLACES; i++)
        if (!fake_nic->is_used[i])
            place = i;
    if (place >= FAKE_PLACES)
        return ENOSPC;
    fake_nic->overwritten += fake_nic->is_used[place];
    fake_nic->is_used[place] = true;
    fake_nic->rules[place] = command->fs;
    fake_nic->rules[place].location = place;
    command->fs.location = place;
    return 0;
}

static int fake_rules(struct ethtool_rxnfc *command)
{
    uint32_t place = command->fs.location;

    if (!fake_nic->rules_on)
        return EOPNOTSUPP;
    switch (command->cmd) {
    case ETHTOOL_GRXCLSRLCNT:
        command->rule_cnt = fake_nic_rules();
        command->data = fake_nic->chooses ? RX_CLS_LOC_SPECIAL : 0;
        return 0;
    case ETHTOOL_GRXCLSRLALL:
        return fake_list_rules(command);
    case ETHTOOL_SRXCLSRLINS:
        return fake_insert(command);
    default:
        break;
    }
    if (place >= FAKE_PLACES || !fake_nic->is_used[place])
        return ENOENT;
    if (command->cmd == ETHTOOL_GRXCLSRULE)
        command->fs = fake_nic->rules[place];
    else
        fake_nic->is_used[place] = false;
    return 0;
}

/* --- */

static bool fake_changes(uint32_t command)
{
    return command == ETHTOOL_SRSSH || command == ETHTOOL_SRXCLSRLINS ||
           command == ETHTOOL_SRXCLSRLDEL;
}

static int fake_ethtool(void *data)
{
    uint32_t command;

    memcpy(&command, data, sizeof command);
    if (fake_changes(command) && fake_nic->refusal != 0)
        return fake_nic->refusal;
    fake_nic->changes += fake_changes(command);
    switch (command) {
    case ETHTOOL_GRXRINGS:
        ((struct ethtool_rxnfc *)data)->data = fake_nic->queues;
        return 0;
    case ETHTOOL_GFLAGS:
        ((struct ethtool_value *)data)->data = fake_nic->rules_on ? ETH_FLAG_NTUPLE : 0;
        return 0;
    case ETHTOOL_GRSSH:
    case ETHTOOL_SRSSH:
        return fake_hash(data, command == ETHTOOL_SRSSH);
    case ETHTOOL_GRXCLSRLCNT:
    case ETHTOOL_GRXCLSRLALL:
    case ETHTOOL_GRXCLSRULE:
    case ETHTOOL_SRXCLSRLINS:
    case ETHTOOL_SRXCLSRLDEL:
        return fake_rules(data);
    default:
        return EOPNOTSUPP;
    }
}

#ifdef __GLIBC__
typedef unsigned long fake_request;
#else /* as in POSIX and musl */
typedef int fake_request;
#endif

/* Instead of the library's. What is not for the fake goes on to the kernel. */
int ioctl(int fd, fake_request request, ...)
{
    struct ifreq *interface;
    va_list arguments;
    void *argument;
    int error;

    va_start(arguments, request);
    argument = va_arg(arguments, void *);
    va_end(arguments);
    interface = argument;
    if (request != SIOCETHTOOL || fake_nic == NULL || strcmp(interface->ifr_name, FAKE_NIC) != 0)
        return (int)syscall(SYS_ioctl, fd, request, argument);
    if (fake_nic_during != NULL)
        fake_nic_during();
    while (atomic_flag_test_and_set(&fake_nic->busy))
        ;
    error = fake_ethtool(interface->ifr_data);
    atomic_flag_clear(&fake_nic->busy);
    errno = error;
    return error == 0 ? 0 : -1;
}

#endif
