/* A listening socket of its own for each listener, or a share of the process's. */
#include "net/socket/port.h"

#include "base/fork.h"
#include "net/socket/listening.h"
#include "net/socket/shared_port.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

struct port {
    int fd;                      /* its own listening socket; -1: it shares the process's */
    struct shared_member member; /* its address is that of the port in any case */
};

int port_open(const struct sockaddr_storage *address, const struct port_sign *sign,
              const struct half_open_table *table, struct port **out)
{
    const struct config *config;
    struct port *port;
    bool joined = false;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    port = calloc(1, sizeof *port);
    if (port == NULL)
        return error_system(ENOMEM, "a listener");
    *port = (struct port){.fd = -1, .member = {.wake_up = -1, .sign = *sign, .address = *address}};
    if (config->ports.first != 0) {
        fork_hold();
        port->member.wake_up = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        result = fork_release(port->member.wake_up) && port->member.wake_up >= 0
                     ? shared_port_join(&port->member, &config->ports, &joined)
                     : error_system(errno, "a listener");
    }
    if (result == TCPX_SUCCESS && !joined)
        result = listening_open(table, *address, &config->ports, &port->fd, &port->member.address);
    if (result != TCPX_SUCCESS) {
        if (port->member.wake_up >= 0)
            fork_close(port->member.wake_up);
        free(port);
        return result;
    }
    *out = port;
    return TCPX_SUCCESS;
}

void port_close(struct port *port)
{
    if (port == NULL)
        return;
    if (port->fd >= 0)
        socket_close(&port->fd);
    else
        shared_port_leave(&port->member);
    if (port->member.wake_up >= 0)
        fork_close(port->member.wake_up);
    free(port);
}

void port_address(const struct port *port, struct sockaddr_storage *address)
{
    *address = port->member.address;
}

int port_accept(struct port *port, struct half_open_table *table, int *fd)
{
    return port->fd >= 0 ? half_open_accept(table, port->fd, fd)
                         : shared_port_accept(&port->member, table, fd);
}

unsigned port_poll(const struct port *port, struct pollfd polled[PORT_POLLED])
{
    if (port->fd < 0)
        return shared_port_poll(&port->member, polled);
    polled[0] = (struct pollfd){.fd = port->fd, .events = POLLIN};
    return 1;
}
