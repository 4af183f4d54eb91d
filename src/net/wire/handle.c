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
    uint16_t reserved_too;
    uint32_t scope; /* of a link-local IPv6 address */
    uint8_t address[16];
    uint8_t token[WIRE_TOKEN_BYTES];
    uint64_t process;
    uint64_t attempt;
} __attribute__((packed));

_Static_assert(sizeof(struct layout) <= NET_HANDLE_BYTES, "a handle has 128 bytes");

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

void net_handle_write(const struct net_handle *handle, uint8_t bytes[NET_HANDLE_BYTES])
{
    const union socket_address any = {.storage = handle->address};
    bool is_ipv4 = handle->address.ss_family == AF_INET;
    size_t length;
    const void *address = socket_address_bytes(&any, &length);
    struct layout layout = {
        .magic = htole32(WIRE_MAGIC),
        .version = htole16(WIRE_VERSION),
        .family = is_ipv4 ? 4 : 6,
        .framing = (uint8_t)handle->framing,
        .port = any.ipv4.sin_port, /* at the same place in both families */
        .scope = is_ipv4 ? 0 : htole32(any.ipv6.sin6_scope_id),
        .process = htole64(handle->process),
        .attempt = htole64(handle->attempt),
    };

    memcpy(layout.address, address, length);
    memcpy(layout.token, handle->token, sizeof layout.token);
    memset(bytes, 0, NET_HANDLE_BYTES);
    memcpy(bytes, &layout, sizeof layout);
}

int net_handle_read(const uint8_t bytes[NET_HANDLE_BYTES], struct net_handle *handle)
{
    struct net_handle fresh = {0};
    union socket_address any = {0};
    struct layout layout;

    memcpy(&layout, bytes, sizeof layout);
    if (le32toh(layout.magic) != WIRE_MAGIC)
        return error_set(TCPX_INVALID_ARGUMENT, "this is not a handle of a tcpx listener");
    if (le16toh(layout.version) != WIRE_VERSION)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the handle is of protocol version %u, and this is version %u",
                         le16toh(layout.version), WIRE_VERSION);
    if (layout.family != 4 && layout.family != 6)
        return error_set(TCPX_INVALID_ARGUMENT, "the handle is for address family %u",
                         layout.family);
    if (layout.framing != WIRE_INLINE && layout.framing != WIRE_SEPARATE)
        return error_set(TCPX_INVALID_ARGUMENT, "the handle is for links of framing %u",
                         layout.framing);
    if (layout.family == 4) {
        any.ipv4.sin_family = AF_INET;
        any.ipv4.sin_port = layout.port;
        memcpy(&any.ipv4.sin_addr, layout.address, sizeof any.ipv4.sin_addr);
    } else {
        any.ipv6.sin6_family = AF_INET6;
        any.ipv6.sin6_port = layout.port;
        any.ipv6.sin6_scope_id = le32toh(layout.scope);
        memcpy(&any.ipv6.sin6_addr, layout.address, sizeof any.ipv6.sin6_addr);
    }
    fresh.address = any.storage;
    memcpy(fresh.token, layout.token, sizeof fresh.token);
    fresh.framing = (enum wire_framing)layout.framing;
    fresh.process = le64toh(layout.process);
    fresh.attempt = le64toh(layout.attempt);
    *handle = fresh;
    return TCPX_SUCCESS;
}
