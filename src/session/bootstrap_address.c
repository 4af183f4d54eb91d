/* From the name of a host to its addresses. */
#include "session/bootstrap_address.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Without the brackets around an IPv6 address. */
static int bootstrap_copy_host(const char *host, char *copy, size_t room)
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
    int result = bootstrap_copy_host(host, name, sizeof name);

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
