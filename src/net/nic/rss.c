/*
 * A table that the kernel would choose itself for the queues it uses was not set by another
 * program, and may be replanned at any time; any other one is restored only if nothing has changed
 * it since.
 */
#include "net/nic/nic.h"

#include "base/log.h"
#include "net/nic/ethtool.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ENTRIES = 1 << 16 };

struct nic_hash {
    struct ethtool_rxfh *head; /* the command that read the table, and what sets one */
    uint32_t *before;
    uint32_t *after;
};

/* --- plans --------------------------------------------------------------------------------- */

/* The queues that entries can lead to; returns how many. */
static unsigned rss_choose_queues(const uint32_t *table, uint32_t entries, unsigned queues,
                                  const bool avoid[NIC_MOST_QUEUES],
                                  uint32_t chosen[NIC_MOST_QUEUES])
{
    bool used[NIC_MOST_QUEUES] = {false};
    unsigned count = 0;

    for (uint32_t i = 0; i < entries; i++)
        if (table[i] < NIC_MOST_QUEUES)
            used[table[i]] = true;
    for (unsigned i = 0; i < NIC_MOST_QUEUES; i++)
        if (used[i] && !avoid[i])
            chosen[count++] = i;
    for (unsigned i = 0, unused = count == 0; unused && i < queues && i < NIC_MOST_QUEUES; i++)
        if (!avoid[i])
            chosen[count++] = i;
    return count;
}

/* From the last queue down: a program that spreads packets evenly would not do that. */
bool nic_hash_plan(const uint32_t *table, uint32_t entries, unsigned queues,
                   const bool avoid[NIC_MOST_QUEUES], uint32_t *planned)
{
    uint32_t chosen[NIC_MOST_QUEUES];
    unsigned count = rss_choose_queues(table, entries, queues, avoid, chosen);
    unsigned next = 0;

    if (count == 0)
        return false;
    for (uint32_t i = 0; i < entries; i++)
        planned[i] = table[i] < NIC_MOST_QUEUES && avoid[table[i]]
                         ? chosen[count - 1 - next++ % count]
                         : table[i];
    return true;
}

/* The kernel's own table, without these queues. */
static bool rss_plan_default(uint32_t entries, unsigned queues, const bool avoid[NIC_MOST_QUEUES],
                             uint32_t *planned)
{
    if (queues == 0)
        return false;
    for (uint32_t i = 0; i < entries; i++)
        planned[i] = i % queues;
    return nic_hash_plan(planned, entries, queues, avoid, planned);
}

/* Whether it is the kernel's own table without the queues that it does not use. */
static bool rss_is_default(const uint32_t *table, uint32_t entries, unsigned queues,
                           uint32_t *scratch)
{
    bool unused[NIC_MOST_QUEUES];

    memset(unused, true, sizeof unused);
    for (uint32_t i = 0; i < entries; i++)
        if (table[i] < NIC_MOST_QUEUES)
            unused[table[i]] = false;
    return rss_plan_default(entries, queues, unused, scratch) &&
           memcmp(table, scratch, entries * sizeof *table) == 0;
}

/* --- the NIC's table ----------------------------------------------------------------------- */

/* NULL: the default. 0, or an errno. */
static int rss_set(const char *interface, const struct nic_hash *hash, const uint32_t *table)
{
    uint32_t entries = table != NULL ? hash->head->indir_size : 0;
    struct ethtool_rxfh *block = malloc(sizeof *block + entries * sizeof *table);
    int error;

    if (block == NULL)
        return ENOMEM;
    *block = *hash->head;
    block->cmd = ETHTOOL_SRSSH;
    block->indir_size = entries;
    if (table != NULL)
        memcpy(block->rss_config, table, entries * sizeof *table);
    error = ethtool_call(interface, block);
    free(block);
    return error;
}

/* The table of the NIC, and room for another one. NULL: *error is the errno. */
static struct nic_hash *rss_read(const char *interface, int *error)
{
    struct ethtool_rxfh size = {.cmd = ETHTOOL_GRSSH};
    struct nic_hash *hash;

    *error = ethtool_call(interface, &size);
    if (*error == 0 && (size.indir_size == 0 || size.indir_size > MOST_ENTRIES))
        *error = size.indir_size == 0 ? EOPNOTSUPP : EOVERFLOW;
    if (*error != 0)
        return NULL;
    hash = calloc(1, sizeof *hash + sizeof size + sizeof *hash->before * size.indir_size * 2);
    if (hash == NULL) {
        *error = ENOMEM;
        return NULL;
    }
    hash->head = (struct ethtool_rxfh *)(hash + 1);
    hash->head->cmd = ETHTOOL_GRSSH;
    hash->head->indir_size = size.indir_size;
    hash->before = hash->head->rss_config;
    hash->after = hash->before + size.indir_size;
    *error = ethtool_call(interface, hash->head);
    /* Only the table is set: the hash function and its key stay as they are. */
    hash->head->key_size = 0;
    hash->head->hfunc = 0;
    if (*error == 0)
        return hash;
    free(hash);
    return NULL;
}

int nic_hash_avoid(const char *interface, const bool avoid[NIC_MOST_QUEUES],
                   struct nic_hash **before)
{
    struct nic_hash *hash;
    bool planned;
    unsigned queues;
    int error;
    int result = nic_count_queues(interface, &queues);

    if (result != TCPX_SUCCESS)
        return result;
    hash = rss_read(interface, &error);
    if (hash == NULL)
        return ethtool_refused(error, "%s: cannot read how its hash spreads packets over queues",
                               interface);
    planned = rss_is_default(hash->before, hash->head->indir_size, queues, hash->after)
                  ? rss_plan_default(hash->head->indir_size, queues, avoid, hash->after)
                  : nic_hash_plan(hash->before, hash->head->indir_size, queues, avoid, hash->after);
    if (!planned) {
        result = error_set(TCPX_INVALID_USAGE,
                           "%s: of its %u receive queue%s none would be left for other traffic; "
                           "'ethtool -L %s' can give it more",
                           interface, queues, queues == 1 ? "" : "s", interface);
    } else if (memcmp(hash->before, hash->after, hash->head->indir_size * sizeof *hash->after) !=
               0) {
        error = rss_set(interface, hash, hash->after);
        if (error == 0) {
            *before = hash;
            return TCPX_SUCCESS;
        }
        result =
            ethtool_refused(error, "%s: cannot lead ordinary traffic away from queues", interface);
    } else {
        *before = NULL;
    }
    free(hash);
    return result;
}

/*
 * now->after is where the new table goes. 0, or an errno. A table of no entries stands for the
 * default. Only with it does the kernel forget that a program has set the table, and allow the
 * number of queues to change again.
 */
static int rss_put_back(const char *interface, struct nic_hash *now, const struct nic_hash *before,
                        const bool still[NIC_MOST_QUEUES])
{
    bool any_bound = memchr(still, true, NIC_MOST_QUEUES) != NULL;
    unsigned queues = 0;

    if (nic_count_queues(interface, &queues) != TCPX_SUCCESS)
        return ENODEV;
    if (rss_is_default(now->before, now->head->indir_size, queues, now->after)) {
        if (!rss_plan_default(now->head->indir_size, queues, still, now->after))
            return EINVAL;
        if (!any_bound && rss_set(interface, now, NULL) == 0)
            return 0;
        return rss_set(interface, now, now->after);
    }
    if (before == NULL || any_bound)
        return 0;
    if (now->head->indir_size != before->head->indir_size ||
        memcmp(now->before, before->after, before->head->indir_size * sizeof *before->after) != 0) {
        log_debug("%s: another program changed how its hash spreads packets; it stays so",
                  interface);
        return 0;
    }
    return rss_set(interface, before, before->before);
}

void nic_hash_restore(const char *interface, struct nic_hash *before,
                      const bool still[NIC_MOST_QUEUES])
{
    int error = 0;
    struct nic_hash *now = rss_read(interface, &error);

    if (now != NULL)
        error = rss_put_back(interface, now, before, still);
    if (error != 0)
        log_debug("%s: its hash could not be put back: %s", interface, strerror(error));
    free(now);
    free(before);
}
