/* Finds free queues, binds memory to them, and keeps other traffic away from them. */
#include "net/devmem/devmem_queues.h"

#include "base/config.h"
#include "base/log.h"
#include "net/nic/nic.h"

#include <errno.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UCCL_TCPX_DEVMEM_QUEUES is 64 at most; automatic is few, since each has a ring full of pages. */
enum { MOST = 64, MOST_AUTOMATIC = 4 };

struct devmem_queues {
    char interface[IFNAMSIZ];
    unsigned ifindex;
    unsigned numbers[MOST];
    unsigned count;
    atomic_uint next;
    struct nic_binding binding;
    uint32_t id;           /* of the binding, also when it has ended */
    struct nic_hash *hash; /* as it was */
};

/* --- what can be checked before anything is changed ------------------------------------------ */

static int check_kernel(void)
{
    bool receives;
    bool sends;
    int result = nic_kernel_binds(&receives, &sends);

    if (result == TCPX_SUCCESS && !receives)
        return error_set(TCPX_SYSTEM_ERROR,
                         "this kernel cannot receive into device memory (Linux 6.12 can)");
    return result;
}

static int check_rules(const char *interface)
{
    bool has_rules;
    int result = nic_has_rules(interface, &has_rules);

    if (result == TCPX_SUCCESS && !has_rules)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s does not steer connections: ntuple filters are off (ethtool -K %s "
                         "ntuple on)",
                         interface, interface);
    return result;
}

static int check_queues(const char *interface)
{
    unsigned queues;
    int result = nic_count_queues(interface, &queues);

    if (result == TCPX_SUCCESS && queues < 2)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s has one receive queue: device memory takes one for itself alone "
                         "(ethtool -L %s combined N)",
                         interface, interface);
    return result;
}

/*
 * A driver that does not report header split may support it nevertheless: mlx5 reports it only
 * after it has been set once. Where something else is missing, too, it is more likely that it does
 * not.
 */
int devmem_queues_possible(const char *interface)
{
    struct nic_rings rings;
    char no_split[256] = "";
    int os_error = 0;
    int result = check_kernel();

    if (result == TCPX_SUCCESS)
        result = nic_get_rings(interface, &rings, &os_error);
    if (result != TCPX_SUCCESS && os_error != EOPNOTSUPP)
        return result;
    if (result != TCPX_SUCCESS)
        snprintf(no_split, sizeof no_split, "%s", error_text());
    result = nic_check_privilege();
    if (result == TCPX_SUCCESS)
        result = check_rules(interface);
    if (result == TCPX_SUCCESS)
        result = check_queues(interface);
    return result != TCPX_SUCCESS && *no_split != '\0' ? error_set(result, "%s", no_split) : result;
}

/* --- finding --------------------------------------------------------------------------------- */

/* The last ones that are not bound: ordinary traffic is more likely to count on the first. */
static int find_free(struct devmem_queues *queues, const bool bound[NIC_MOST_QUEUES])
{
    const struct config *config;
    unsigned all = 0;
    unsigned wanted;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = nic_count_queues(queues->interface, &all);
    if (result != TCPX_SUCCESS)
        return result;
    wanted = all / 4 < MOST_AUTOMATIC ? all / 4 : MOST_AUTOMATIC;
    if (config->devmem_queues != CONFIG_AUTO)
        wanted = (unsigned)config->devmem_queues;
    wanted = wanted < 1 ? 1 : wanted;
    queues->count = 0;
    /* Queue 0 stays with ordinary traffic. */
    for (unsigned i = all; i > 1 && queues->count < wanted; i--)
        if (!bound[i - 1])
            queues->numbers[queues->count++] = i - 1;
    if (queues->count == 0)
        return error_set(TCPX_SYSTEM_ERROR,
                         "no receive queue of %s is free: of %u all but the first are bound to "
                         "somebody's memory",
                         queues->interface, all);
    return TCPX_SUCCESS;
}

/* --- binding --------------------------------------------------------------------------------- */

/* Ordinary connections must not arrive in device memory, where their owner cannot read them. */
static int keep_others_away(struct devmem_queues *queues, bool bound[NIC_MOST_QUEUES])
{
    for (unsigned i = 0; i < queues->count; i++)
        bound[queues->numbers[i]] = true;
    return nic_hash_avoid(queues->interface, bound, &queues->hash);
}

static void let_others_in(struct devmem_queues *queues)
{
    bool still[NIC_MOST_QUEUES];

    /* Where the bound queues are not known, the hash stays as it is. */
    if (nic_find_bound_queues(queues->ifindex, still) != TCPX_SUCCESS) {
        log_debug("%s", error_text());
        memset(still, true, sizeof still);
    }
    nic_hash_restore(queues->interface, queues->hash, still);
}

static int bind_free(struct devmem_queues *queues, int dmabuf)
{
    bool bound[NIC_MOST_QUEUES];
    int result = nic_find_bound_queues(queues->ifindex, bound);

    if (result == TCPX_SUCCESS)
        result = find_free(queues, bound);
    if (result == TCPX_SUCCESS)
        result = nic_split_headers(queues->interface);
    if (result == TCPX_SUCCESS)
        result = keep_others_away(queues, bound);
    if (result != TCPX_SUCCESS)
        return result;
    result = nic_bind_receive(queues->ifindex, queues->numbers, queues->count, dmabuf,
                              &queues->binding, NULL);
    if (result != TCPX_SUCCESS) {
        char why[256];

        snprintf(why, sizeof why, "%s", error_text());
        let_others_in(queues);
        return error_set(result, "%s", why);
    }
    return TCPX_SUCCESS;
}

/* One process at a time: another could choose the same queue, or let traffic in. */
static int bind_locked(struct devmem_queues *queues, int dmabuf)
{
    int lock = steering_lock(queues->interface);
    int result = bind_free(queues, dmabuf);

    steering_unlock(lock);
    return result;
}

int devmem_queues_bind(const char *interface, unsigned ifindex, int dmabuf,
                       struct devmem_queues **out)
{
    struct devmem_queues *queues = calloc(1, sizeof *queues);
    unsigned stale;
    int result;

    if (queues == NULL)
        return error_system(ENOMEM, "receive queues");
    snprintf(queues->interface, sizeof queues->interface, "%s", interface);
    queues->ifindex = ifindex;
    queues->binding.socket = -1;
    result = bind_locked(queues, dmabuf);
    if (result != TCPX_SUCCESS) {
        free(queues);
        return result;
    }
    queues->id = queues->binding.id;
    stale = steering_clean(interface);
    if (stale > 0)
        log_tcpx("%s: %u rules of processes that are gone were removed", interface, stale);
    log_tcpx("%s: device memory is bound to %u of its receive queues, the first is %u", interface,
             queues->count, queues->numbers[0]);
    *out = queues;
    return TCPX_SUCCESS;
}

void devmem_queues_unbind(struct devmem_queues *queues)
{
    nic_unbind(&queues->binding);
}

void devmem_queues_release(struct devmem_queues *queues)
{
    int lock;

    if (queues == NULL)
        return;
    lock = steering_lock(queues->interface);
    nic_unbind(&queues->binding);
    let_others_in(queues);
    steering_unlock(lock);
    free(queues);
}

uint32_t devmem_queues_id(const struct devmem_queues *queues)
{
    return queues->id;
}

unsigned devmem_queues_next(struct devmem_queues *queues)
{
    return queues->numbers[atomic_fetch_add(&queues->next, 1) % queues->count];
}

int devmem_queues_count_out(const struct devmem_queues *queues, uint64_t *pages)
{
    return nic_count_pages_out(queues->ifindex, queues->id, pages);
}
