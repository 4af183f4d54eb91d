/*
 * NIXL's results of a call, by the names and numbers of nixl_status_t. The file compiles as C and
 * C++.
 */
#ifndef TCPX_ABI_NIXL_STATUS_H
#define TCPX_ABI_NIXL_STATUS_H

enum nixl_status {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_NOT_POSTED = -1,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10 /* the agent drops what it knows of the peer */
};

#endif
