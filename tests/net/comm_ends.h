/*
 * How two programs of a test make a comm: its handle goes through a file that both name. Whoever
 * waits for the other does so until the program's own time limit.
 */
#ifndef TCPX_TESTS_COMM_ENDS_H
#define TCPX_TESTS_COMM_ENDS_H

#include "base/error.h"
#include "net/transport.h"
#include "tests/support/basics.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

/* Whoever finds the file finds all of it. */
static inline int write_handle(const char *path, const uint8_t handle[NET_HANDLE_BYTES])
{
    char temporary[4096];
    FILE *file;
    bool written;

    if (snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary)
        return error_set(TCPX_INVALID_ARGUMENT, "the name of the handle's file is too long");
    file = fopen(temporary, "w");
    if (file == NULL)
        return error_system(errno, "cannot write %s", temporary);
    written = fwrite(handle, NET_HANDLE_BYTES, 1, file) == 1;
    if (fclose(file) != 0 || !written || rename(temporary, path) != 0)
        return error_system(errno, "cannot write %s", path);
    return TCPX_SUCCESS;
}

static inline int read_handle(const char *path, uint8_t handle[NET_HANDLE_BYTES])
{
    bool whole;
    FILE *file;

    while ((file = fopen(path, "r")) == NULL && errno == ENOENT)
        nap_ms(1);
    if (file == NULL)
        return error_system(errno, "cannot read %s", path);
    whole = fread(handle, NET_HANDLE_BYTES, 1, file) == 1;
    fclose(file);
    return whole ? TCPX_SUCCESS
                 : error_set(TCPX_INVALID_ARGUMENT, "%s does not hold a handle", path);
}

/* The receiving end, of the next link that arrives. */
static inline int accept_comm(struct net_listener *listener, struct net_comm **comm)
{
    struct net_link link;
    bool accepted = false;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && !accepted) {
        result = net_accept(listener, &link, &accepted);
        nap_us(200);
    }
    return result == TCPX_SUCCESS ? net_comm_create(&link, NET_RECEIVER, comm) : result;
}

/* The sending end, to the listener whose handle is in the file. */
static inline int connect_comm(const struct net_device *device,
                               const struct net_link_options *options, const char *file,
                               struct net_comm **comm)
{
    uint8_t handle[NET_HANDLE_BYTES];
    struct net_link link;
    bool connected = false;
    int result = read_handle(file, handle);

    while (result == TCPX_SUCCESS && !connected) {
        result = net_connect(device, options, handle, &link, &connected);
        nap_us(200);
    }
    return result == TCPX_SUCCESS ? net_comm_create(&link, NET_SENDER, comm) : result;
}

#endif
