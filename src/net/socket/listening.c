/* bind() and listen(), with the fallbacks of listening.h. */
#include "net/socket/listening.h"

#include "net/socket/socket.h"

#include <errno.h>
#include <string.h>

enum { BACKLOG = 4096 };

uint16_t listening_port(const struct sockaddr_storage *address)
{
    union socket_address any = {.storage = *address};

    return ntohs(any.ipv4.sin_port); /* both families have it in the same place */
}

void listening_set_port(struct sockaddr_storage *address, uint16_t number)
{
    union socket_address any = {.storage = *address};

    any.ipv4.sin_port = htons(number);
    *address = any.storage;
}

bool listening_is_any(const struct sockaddr_storage *address)
{
    static const uint8_t zeros[16];
    union socket_address any = {.storage = *address};
    size_t length;
    const void *bytes = socket_address_bytes(&any, &length);

    return memcmp(bytes, zeros, length) == 0;
}

/* SO_REUSEADDR: a program that is started again gets its port again. A negative result: errno. */
static int listening_on(const struct half_open_table *table, const struct sockaddr_storage *address,
                        int *fd, struct sockaddr_storage *bound)
{
    const int on = 1;
    const int off = 0;
    socklen_t length = sizeof *bound;
    int result = socket_open(address->ss_family, fd);
    int error;

    if (result != TCPX_SUCCESS)
        return result;
    memset(bound, 0, sizeof *bound);
    if ((address->ss_family != AF_INET6 ||
         setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        half_open_listen(table, *fd, address, BACKLOG) &&
        getsockname(*fd, (struct sockaddr *)bound, &length) == 0)
        return TCPX_SUCCESS;
    error = errno;
    socket_close(fd);
    return -error;
}

/* As listening_on(). All addresses: a socket of IPv6 accepts IPv4, too, where there is IPv6. */
static int listening_try(const struct half_open_table *table,
                         const struct sockaddr_storage *address, int *fd,
                         struct sockaddr_storage *bound)
{
    union socket_address ipv4 = {
        .ipv4 = {.sin_family = AF_INET, .sin_port = htons(listening_port(address))}};
    int result = listening_on(table, address, fd, bound);

    if (address->ss_family == AF_INET6 && listening_is_any(address) &&
        (result == -EADDRNOTAVAIL || result == -EAFNOSUPPORT || result > 0))
        result = listening_on(table, &ipv4.storage, fd, bound);
    return result;
}

int listening_open(const struct half_open_table *table, struct sockaddr_storage address,
                   const struct config_ports *range, int *fd, struct sockaddr_storage *bound)
{
    bool anywhere = listening_port(&address) == 0 && range->first != 0;
    unsigned first = anywhere ? range->first : listening_port(&address);
    unsigned last = anywhere ? range->last : first;
    char name[SOCKET_NAME_BYTES];
    int result = -EADDRINUSE;

    for (unsigned number = first; number <= last && result == -EADDRINUSE; number++) {
        listening_set_port(&address, (uint16_t)number);
        result = listening_try(table, &address, fd, bound);
    }
    if (result >= 0)
        return result;
    if (anywhere && result == -EADDRINUSE)
        return error_system(EADDRINUSE,
                            "cannot listen on a port of UCCL_TCPX_PORT=%u-%u: each process of this "
                            "host needs one",
                            first, last);
    socket_address_name(&address, name);
    return error_system(-result, "cannot listen on %s", name);
}
