/* A request, and the list that it is made of. */
#ifndef TCPX_NIXL_PLUGIN_REQUEST_LIST_H
#define TCPX_NIXL_PLUGIN_REQUEST_LIST_H

#include "nixl_plugin/agent.h"

struct item {
    struct nixl_region *region;
    struct nixl_remote *remote;
    uint64_t offset;
    uint64_t remote_offset;
    uint64_t bytes;
};

struct nixl_request {
    struct nixl_agent *agent;
    struct peer *peer;
    bool is_read;
    struct item *items;
    size_t count;
    size_t capacity;
    struct operation *operations;
    size_t operation_count;

    size_t left; /* operations that are not over */
    enum nixl_status status;
    enum nixl_status outcome; /* so far, while it is under way */
    uint64_t deadline;
    bool is_late; /* it was cancelled at its deadline, which is now that of the peer's answer */
    struct notice_note note; /* of its only operation */
    char *notice;            /* of several operations */
    size_t notice_length;
    struct nixl_request *next_composed;
    bool is_composed;
};

#endif
