/* The 128 bytes of a handle; all numbers are little endian, address and port as on the wire of IP.
 */
#include "net/wire/wire.h"

#include "net/socket/socket.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

struct layout {
    uint32_t magic;
    uint16_t version;
    uint8_t family;  /* 4 or 6 */
    uint8_t framing; /* enum wire_framing */
    uint16_t port;
    uint16_t least_version; /* 0 in version 1 */
    uint32_t scope;         /* of a link-local IPv6 address */
    uint8_t address[16];
    uint8_t token[WIRE_TOKEN_BYTES];
    uint64_t process;
    uint64_t attempt;
    /* Each a family, 4 or 6, and its 4 or 16 bytes; 0 ends them. Older versions ignore them. */
    uint8_t others[64];
} __attribute__((packed));

_Static_assert(sizeof(struct layout) == NET_HANDLE_BYTES, "a handle has 128 bytes");

static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static uint64_t process_number;
static int process_result;

static void handle_choose_process(void)
{
    process_result = socket_random(&process_number, sizeof process_number);
}

int net_handle_process(uint64_t *process)
{
    pthread_once(&process_once, handle_choose_process);
    if (process_result != TCPX_SUCCESS)
        return error_set(process_result, "there are no random numbers");
    *process = process_number;
    return TCPX_SUCCESS;
}

static uint8_t handle_family(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? 4 : 6;
}

static void handle_write_others(const struct net_handle *handle, struct layout *layout)
{
    size_t used = 0;

    for (unsigned i = 0; i < handle->other_count; i++) {
        const union socket_address any = {.storage = handle->others[i]};
        size_t length;
        const void *address = socket_address_bytes(&any, &length);

        if (used + 1 + length > sizeof layout->others)
            return;
        layout->others[used] = handle_family(&any.storage);
        memcpy(layout->others + used + 1, address, length);
        used += 1 + length;
    }
}

void net_handle_write(const struct net_handle *handle, uint8_t bytes[NET_HANDLE_BYTES])
{
    const union socket_address any = {.storage = handle->address};
    size_t length;
    const void *address = socket_address_bytes(&any, &length);
    struct layout layout = {
        .magic = htole32(WIRE_MAGIC),
        .version = htole16(WIRE_VERSION),
        .least_version = htole16(WIRE_LEAST_VERSION),
        .family = handle_family(&handle->address),
        .framing = (uint8_t)handle->framing,
        .port = any.ipv4.sin_port, /* at the same place in both families */
        .scope = any.storage.ss_family == AF_INET ? 0 : htole32(any.ipv6.sin6_scope_id),
        .process = htole64(handle->process),
        .attempt = htole64(handle->attempt),
    };

    memcpy(layout.address, address, length);
    memcpy(layout.token, handle->token, sizeof layout.token);
    handle_write_others(handle, &layout);
    memcpy(bytes, &layout, sizeof layout);
}

/* `bytes`: as many as the family has. */
static struct sockaddr_storage handle_address(uint8_t family, const uint8_t *bytes, uint16_t port,
                                              uint32_t scope)
{
    union socket_address any = {0};

    if (family == 4) {
        any.ipv4.sin_family = AF_INET;
        memcpy(&any.ipv4.sin_addr, bytes, sizeof any.ipv4.sin_addr);
    } else {
        any.ipv6.sin6_family = AF_INET6;
        any.ipv6.sin6_scope_id = scope;
        memcpy(&any.ipv6.sin6_addr, bytes, sizeof any.ipv6.sin6_addr);
    }
    any.ipv4.sin_port = port; /* at the same place in both families */
    return any.storage;
}

static int handle_read_others(const struct layout *layout, struct net_handle *handle)
{
    const uint8_t *at = layout->others;
    const uint8_t *end = at + sizeof layout->others;

    while (at < end && *at != 0) {
        size_t length = *at == 4 ? 4 : 16;

        if ((*at != 4 && *at != 6) || length > (size_t)(end - at) - 1)
            return error_set(TCPX_INVALID_ARGUMENT,
                             "further address %u of the handle is of family %u and has %zu bytes",
                             handle->other_count, *at, (size_t)(end - at) - 1);
        handle->others[handle->other_count++] = handle_address(*at, at + 1, layout->port, 0);
        at += 1 + length;
    }
    return TCPX_SUCCESS;
}

int net_handle_read(const uint8_t bytes[NET_HANDLE_BYTES], struct net_handle *handle)
{
    struct net_handle fresh = {0};
    struct versions versions;
    struct layout layout;
    int result;

    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.magic) != WIRE_MAGIC)
        return error_set(TCPX_INVALID_ARGUMENT, "this is not a handle of a tcpx listener");
    versions.greatest = le16toh(layout.version);
    versions.least = versions.greatest == 1 ? 1 : le16toh(layout.least_version);
    if (versions_common(wire_versions, versions) == 0)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the handle is of protocol versions %u to %u, and this side speaks %d to "
                         "%d",
                         versions.least, versions.greatest, WIRE_LEAST_VERSION, WIRE_VERSION);
    if (layout.family != 4 && layout.family != 6)
        return error_set(TCPX_INVALID_ARGUMENT, "the handle is for address family %u",
                         layout.family);
    if (layout.framing != WIRE_INLINE && layout.framing != WIRE_SEPARATE)
        return error_set(TCPX_INVALID_ARGUMENT, "the handle is for links of framing %u",
                         layout.framing);
    fresh.address =
        handle_address(layout.family, layout.address, layout.port, le32toh(layout.scope));
    result = handle_read_others(&layout, &fresh);
    if (result != TCPX_SUCCESS)
        return result;
    memcpy(fresh.token, layout.token, sizeof fresh.token);
    fresh.framing = (enum wire_framing)layout.framing;
    fresh.process = le64toh(layout.process);
    fresh.attempt = le64toh(layout.attempt);
    *handle = fresh;
    return TCPX_SUCCESS;
}
