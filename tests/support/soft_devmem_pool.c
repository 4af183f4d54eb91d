/*
 * Puts software devmem in the place of a NIC: linked to the library, this object has
 * UCCL_TCPX_SOFT_DEVMEM read, and comms receive through the NIC that this number makes up.
 */
#include "base/config.h"
#include "base/parse.h"
#include "net/devmem/devmem.h"
#include "tests/support/soft_devmem.h"

enum { MOST_BYTES = 64 << 20 };

/* The seed also chooses what kind of NIC it is: 16 to 31 split all headers, as one should. */
static struct soft_devmem_options nic_of(const struct config *config)
{
    static const uint32_t largest[] = {0, 1448, 2048, 300};
    uint64_t seed = config->soft_devmem;
    bool splits_all = seed / 16 % 2 == 1;
    /* It has no rings to fill, and goes through its pages at random. */
    uint64_t bytes = config->devmem_bytes < MOST_BYTES ? config->devmem_bytes : MOST_BYTES;

    return (struct soft_devmem_options){.seed = seed,
                                        .pool_bytes = bytes / SOFT_DEVMEM_PAGE * SOFT_DEVMEM_PAGE,
                                        .largest_fragment = largest[seed % 4],
                                        .full_percent = 60,
                                        .fragments_per_page = 1 + (uint32_t)(seed / 4 % 2),
                                        .unaligned_percent = 20,
                                        .linear_percent = splits_all ? 0 : 2,
                                        .plain_percent = splits_all ? 0 : 1};
}

static int soft_open(struct devmem_memory *memory)
{
    const struct config *config;
    struct soft_devmem_options nic;
    struct soft_devmem_pool *pool;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    nic = nic_of(config);
    result = soft_devmem_pool_create(memory->gpu, &nic, &pool);
    if (result != TCPX_SUCCESS)
        return result;
    memory->own = pool;
    memory->memory = *soft_devmem_pool_memory(pool);
    memory->dmabuf_id = soft_devmem_pool_id(pool);
    return TCPX_SUCCESS;
}

static void soft_close(struct devmem_memory *memory)
{
    soft_devmem_pool_destroy(memory->own);
}

static int soft_open_socket(struct devmem_memory *memory, struct devmem_socket *socket)
{
    struct soft_devmem *own;
    int result = soft_devmem_open(memory->own, socket->fd, &own);

    if (result == TCPX_SUCCESS)
        socket->own = own;
    return result;
}

static void soft_close_socket(struct devmem_socket *socket)
{
    soft_devmem_close(socket->own);
}

static ssize_t soft_receive(struct devmem_socket *socket, struct msghdr *message, int flags)
{
    return soft_devmem_recvmsg(socket->own, message, flags);
}

static int soft_return_tokens(struct devmem_socket *socket, const struct devmem_token_range *ranges,
                              unsigned count)
{
    return soft_devmem_dontneed(socket->own, ranges, count);
}

static uint64_t soft_starved(const struct devmem_socket *socket)
{
    struct soft_devmem_statistics statistics;

    soft_devmem_get_statistics(socket->own, &statistics);
    return statistics.starved;
}

static const struct devmem_pool_ops soft_ops = {
    .open = soft_open,
    .close = soft_close,
    .open_socket = soft_open_socket,
    .close_socket = soft_close_socket,
    .receive = soft_receive,
    .return_tokens = soft_return_tokens,
    .starved = soft_starved,
};

static int soft_read(const char *value, struct config *config)
{
    if (parse_number(value, &config->soft_devmem) && config->soft_devmem <= UINT32_MAX)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT,
                     "%s=%.200s is not valid: expected a whole number from "
                     "0 to 4294967295",
                     CONFIG_SOFT_DEVMEM, value);
}

__attribute__((constructor)) static void soft_devmem_register(void)
{
    devmem_pool_set_soft(&soft_ops);
    config_set_test_reader(CONFIG_SOFT_DEVMEM, soft_read);
}
