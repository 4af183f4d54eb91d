/*
 * Finds free queues, binds memory to them, and keeps other traffic away from them; and the two
 * system calls of a socket whose payload arrives there.
 */
#include "net/devmem/devmem_queues.h"

#include "base/config.h"
#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* UCCL_TCPX_DEVMEM_QUEUES is 64 at most; automatic is few, since each has a ring full of pages. */
enum { MOST = 64, MOST_AUTOMATIC = 4 };

/* Whole 2 MiB pages of the GPU, so that the NIC gets few and large pieces. */
enum { ALIGNMENT = 2 << 20 };

/* What a pool has of its NIC. */
struct queues {
    const char *interface;
    unsigned ifindex;
    unsigned numbers[MOST];
    unsigned count;
    atomic_uint next; /* without a lock; any order would do: it only spreads connections */
    struct nic_binding binding;
    atomic_flag unbound;   /* set by the thread that ends the binding; any order would do */
    struct nic_hash *hash; /* as it was */
};

/* --- what can be checked before anything is changed ------------------------------------------ */

static int queues_check_rules_and_count(const char *interface)
{
    bool has_rules;
    unsigned queues;
    int result = nic_has_rules(interface, &has_rules);

    if (result == TCPX_SUCCESS && !has_rules)
        return error_set(TCPX_SYSTEM_ERROR,
                         "%s does not steer connections: ntuple filters are off (ethtool -K %s "
                         "ntuple on)",
                         interface, interface);
    if (result == TCPX_SUCCESS)
        result = nic_count_queues(interface, &queues);
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
static int queues_check_all(const char *interface)
{
    struct nic_rings rings;
    char no_split[256] = "";
    bool receives;
    bool sends;
    int os_error = 0;
    int result = nic_kernel_binds(&receives, &sends);

    if (result == TCPX_SUCCESS && !receives)
        return error_set(TCPX_SYSTEM_ERROR,
                         "this kernel cannot receive into device memory (Linux 6.12 can)");
    if (result == TCPX_SUCCESS)
        result = nic_get_rings(interface, &rings, &os_error);
    if (result != TCPX_SUCCESS && os_error != EOPNOTSUPP)
        return result;
    if (result != TCPX_SUCCESS)
        snprintf(no_split, sizeof no_split, "%s", error_text());
    result = nic_check_privilege();
    if (result == TCPX_SUCCESS)
        result = queues_check_rules_and_count(interface);
    return result != TCPX_SUCCESS && *no_split != '\0' ? error_set(result, "%s", no_split) : result;
}

/* --- finding --------------------------------------------------------------------------------- */

/* The last ones that are not bound: ordinary traffic is more likely to count on the first. */
static int queues_find_free(struct queues *queues, const bool bound[NIC_MOST_QUEUES])
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

static void queues_let_others_in(struct queues *queues)
{
    bool still[NIC_MOST_QUEUES];

    /* Where the bound queues are not known, the hash stays as it is. */
    if (nic_find_bound_queues(queues->ifindex, still) != TCPX_SUCCESS) {
        log_debug("%s", error_text());
        memset(still, true, sizeof still);
    }
    nic_hash_restore(queues->interface, queues->hash, still);
}

static int queues_bind_free(struct queues *queues, int dmabuf)
{
    bool bound[NIC_MOST_QUEUES];
    int result = nic_find_bound_queues(queues->ifindex, bound);

    if (result == TCPX_SUCCESS)
        result = queues_find_free(queues, bound);
    if (result == TCPX_SUCCESS)
        result = nic_split_headers(queues->interface);
    /* Ordinary connections must not arrive in device memory: their owner cannot read it. */
    for (unsigned i = 0; i < queues->count && result == TCPX_SUCCESS; i++)
        bound[queues->numbers[i]] = true;
    if (result == TCPX_SUCCESS)
        result = nic_hash_avoid(queues->interface, bound, &queues->hash);
    if (result != TCPX_SUCCESS)
        return result;
    result = nic_bind_receive(queues->ifindex, queues->numbers, queues->count, dmabuf,
                              &queues->binding, NULL);
    if (result != TCPX_SUCCESS) {
        char why[256];

        snprintf(why, sizeof why, "%s", error_text());
        queues_let_others_in(queues);
        return error_set(result, "%s", why);
    }
    return TCPX_SUCCESS;
}

static int queues_acquire(struct queues *queues, struct devmem_memory *memory)
{
    unsigned stale;
    int dmabuf = -1;
    int lock;
    int result =
        gpu_export_dmabuf(memory->gpu, memory->memory.address, memory->memory.bytes, &dmabuf);

    if (result != TCPX_SUCCESS)
        return result;
    /* One process at a time: another could choose the same queue, or let traffic in. */
    lock = steering_lock(queues->interface);
    result = queues_bind_free(queues, dmabuf);
    steering_unlock(lock);
    close(dmabuf); /* the binding holds the memory by itself */
    if (result != TCPX_SUCCESS)
        return result;
    stale = steering_clean(queues->interface);
    if (stale > 0)
        log_tcpx("%s: %u rules of processes that are gone were removed", queues->interface, stale);
    log_tcpx("%s: device memory is bound to %u of its receive queues, the first is %u",
             queues->interface, queues->count, queues->numbers[0]);
    return TCPX_SUCCESS;
}

/* --- operations of a pool -------------------------------------------------------------------- */

static int queues_open(struct devmem_memory *memory)
{
    const struct config *config;
    struct queues *queues;
    uint64_t bytes;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        result = queues_check_all(memory->interface);
    if (result != TCPX_SUCCESS)
        return result;
    queues = calloc(1, sizeof *queues);
    if (queues == NULL)
        return error_system(ENOMEM, "receive queues");
    queues->interface = memory->interface;
    queues->ifindex = memory->ifindex;
    queues->binding.socket = -1;
    atomic_flag_clear(&queues->unbound);
    bytes = (config->devmem_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    result = gpu_memory_alloc(memory->gpu, bytes, ALIGNMENT, &memory->memory);
    if (result != TCPX_SUCCESS)
        goto free_queues;
    result = queues_acquire(queues, memory);
    if (result != TCPX_SUCCESS)
        goto free_memory;
    memory->own = queues;
    memory->dmabuf_id = queues->binding.id;
    return TCPX_SUCCESS;

free_memory:
    gpu_memory_free(memory->gpu, &memory->memory);
free_queues:
    free(queues);
    return result;
}

static void queues_unbind(struct devmem_memory *memory)
{
    struct queues *queues = memory->own;

    if (!atomic_flag_test_and_set(&queues->unbound))
        nic_unbind(&queues->binding);
}

static void queues_close(struct devmem_memory *memory)
{
    struct queues *queues = memory->own;
    int lock = steering_lock(queues->interface);

    queues_unbind(memory);
    queues_let_others_in(queues);
    steering_unlock(lock);
    free(queues);
    gpu_memory_free(memory->gpu, &memory->memory);
}

static unsigned queues_next(struct devmem_memory *memory)
{
    struct queues *queues = memory->own;

    return queues->numbers[atomic_fetch_add(&queues->next, 1) % queues->count];
}

static int queues_count_out(struct devmem_memory *memory, uint64_t *pages)
{
    return nic_count_pages_out(memory->ifindex, memory->dmabuf_id, pages);
}

static ssize_t queues_receive(struct devmem_socket *socket, struct msghdr *message, int flags)
{
    return recvmsg(socket->fd, message, flags);
}

static int queues_return_tokens(struct devmem_socket *socket,
                                const struct devmem_token_range *ranges, unsigned count)
{
    return setsockopt(socket->fd, SOL_SOCKET, DEVMEM_SO_DONTNEED, ranges,
                      (socklen_t)(count * sizeof *ranges));
}

const struct devmem_pool_ops devmem_queues_ops = {
    .open = queues_open,
    .close = queues_close,
    .next_queue = queues_next,
    .unbind = queues_unbind,
    .count_out = queues_count_out,
    .receive = queues_receive,
    .return_tokens = queues_return_tokens,
};
