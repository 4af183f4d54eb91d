/* From the name of a host to its addresses, and from an address to its name. */
#include "session/bootstrap_address.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Without the brackets that a host may stand in. */
static int copy_host(const char *host, char *copy, size_t room)
{
    size_t length = strlen(host);
    bool brackets = length >= 2 && host[0] == '[' && host[length - 1] == ']';

    if (brackets) {
        host++;
        length -= 2;
    }
    if (length == 0 || length >= room)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the name of a host has %zu characters, possible are 1 to %zu", length,
                         room - 1);
    memcpy(copy, host, length);
    copy[length] = '\0';
    return TCPX_SUCCESS;
}

int bootstrap_resolve(const char *host, uint16_t port, int flags, struct addrinfo **list,
                      bool *passing)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char name[NI_MAXHOST];
    char service[8];
    int error;
    int result = copy_host(host, name, sizeof name);

    *passing = false;
    if (result != TCPX_SUCCESS)
        return result;
    snprintf(service, sizeof service, "%u", port);
    error = getaddrinfo(name, service, &hints, list);
    if (error == 0)
        return TCPX_SUCCESS;
    *passing = error == EAI_AGAIN;
    if (error == EAI_SYSTEM)
        return error_system(errno, "cannot resolve %s", name);
    return error_set(TCPX_INVALID_ARGUMENT, "cannot resolve %s: %s", name, gai_strerror(error));
}

void bootstrap_address_copy(const struct addrinfo *from, struct sockaddr_storage *to)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from->ai_addr, from->ai_addrlen < sizeof *to ? from->ai_addrlen : sizeof *to);
}

void bootstrap_address_name(const struct sockaddr_storage *address, char name[SOCKET_NAME_BYTES])
{
    union socket_address any = {.storage = *address};
    union socket_address plain = {0};

    if (address->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&any.ipv6.sin6_addr)) {
        socket_address_name(address, name);
        return;
    }
    plain.ipv4.sin_family = AF_INET;
    plain.ipv4.sin_port = any.ipv6.sin6_port;
    memcpy(&plain.ipv4.sin_addr, any.ipv6.sin6_addr.s6_addr + 12, sizeof plain.ipv4.sin_addr);
    socket_address_name(&plain.storage, name);
}
