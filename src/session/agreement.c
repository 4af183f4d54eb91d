/* The codec of an agreement, as strict as that of net/wire/wire.h, and the comparison. */
#include "session/agreement.h"

#include <endian.h>
#include <inttypes.h>
#include <string.h>

/* In the field `unpack`. */
#define TAKES_FEWER_CHANNELS ((uint32_t)1 << 31)
#define ALLOWS_WINDOWS       ((uint32_t)1 << 30)

struct head_layout {
    uint32_t version;
    uint32_t channels;
    uint32_t table_version;
    uint32_t unpack;
    uint64_t chunk_bytes;
    uint64_t process;
    char transport[AGREEMENT_NAME_BYTES];
    char host[AGREEMENT_NAME_BYTES];
    char name[AGREEMENT_NAME_BYTES];
    uint8_t nonce[AGREEMENT_NONCE_BYTES];
} __attribute__((packed));

_Static_assert(sizeof(struct head_layout) == AGREEMENT_HEAD_BYTES, "numbers, names and a nonce");

static size_t handles_bytes(uint32_t channels)
{
    return (size_t)channels * AGREEMENT_HANDLE_BYTES;
}

/* Into a name of zeros, so that nothing of the memory behind the end travels. */
static void write_name(const char from[AGREEMENT_NAME_BYTES], char to[AGREEMENT_NAME_BYTES])
{
    memcpy(to, from, strnlen(from, AGREEMENT_NAME_BYTES - 1));
}

size_t agreement_encode(const struct agreement *agreement, uint8_t bytes[AGREEMENT_BYTES])
{
    struct head_layout head = {
        .version = htole32(agreement->version),
        .channels = htole32(agreement->channels),
        .table_version = htole32(agreement->table_version),
        .unpack = htole32(agreement->unpack | (agreement->takes_fewer ? TAKES_FEWER_CHANNELS : 0) |
                          (agreement->windows ? ALLOWS_WINDOWS : 0)),
        .chunk_bytes = htole64(agreement->chunk_bytes),
        .process = htole64(agreement->process),
    };

    if (agreement->channels < 1 || agreement->channels > AGREEMENT_CHANNELS)
        return 0;
    write_name(agreement->transport, head.transport);
    write_name(agreement->host, head.host);
    write_name(agreement->name, head.name);
    memcpy(head.nonce, agreement->nonce, sizeof head.nonce);
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, agreement->handles, handles_bytes(agreement->channels));
    return sizeof head + handles_bytes(agreement->channels);
}

static int check_name(const char name[AGREEMENT_NAME_BYTES], const char *what)
{
    size_t length = strnlen(name, AGREEMENT_NAME_BYTES);

    if (length == AGREEMENT_NAME_BYTES)
        return error_set(TCPX_REMOTE_ERROR,
                         "agreement: the name of its %s does not end within %d bytes", what,
                         AGREEMENT_NAME_BYTES);
    for (size_t i = 0; i < length; i++)
        if (name[i] < 0x20 || name[i] > 0x7e)
            return error_set(TCPX_REMOTE_ERROR,
                             "agreement: byte %zu of the name of its %s is 0x%02x, not printable",
                             i, what, (uint8_t)name[i]);
    for (size_t i = length; i < AGREEMENT_NAME_BYTES; i++)
        if (name[i] != '\0')
            return error_set(TCPX_REMOTE_ERROR,
                             "agreement: byte %zu behind the name of its %s is 0x%02x, expected 0",
                             i, what, (uint8_t)name[i]);
    return TCPX_SUCCESS;
}

static int check_numbers(uint32_t channels, uint64_t chunk_bytes)
{
    if (channels < 1 || channels > AGREEMENT_CHANNELS)
        return error_set(TCPX_REMOTE_ERROR, "agreement: %" PRIu32 " channels, possible are 1 to %d",
                         channels, AGREEMENT_CHANNELS);
    if (chunk_bytes < 1 || chunk_bytes > AGREEMENT_MOST_CHUNK_BYTES)
        return error_set(TCPX_REMOTE_ERROR,
                         "agreement: chunks of %" PRIu64 " bytes, possible are 1 to %" PRIu64,
                         chunk_bytes, AGREEMENT_MOST_CHUNK_BYTES);
    return TCPX_SUCCESS;
}

/* Before the rest is looked at: another version may have another length. */
static int check_version(const uint8_t *bytes, size_t length)
{
    uint32_t version;

    if (length < sizeof version)
        return error_set(TCPX_REMOTE_ERROR, "agreement: %zu bytes, expected at least %zu", length,
                         sizeof version);
    memcpy(&version, bytes, sizeof version);
    if (le32toh(version) < SESSION_LEAST_VERSION || le32toh(version) > SESSION_VERSION)
        return error_set(TCPX_INVALID_USAGE,
                         "the peer speaks version %" PRIu32
                         " of the session protocol, this side versions %d to %d",
                         le32toh(version), SESSION_LEAST_VERSION, SESSION_VERSION);
    return TCPX_SUCCESS;
}

static int read_head(const uint8_t *bytes, size_t length, struct head_layout *head)
{
    int result = check_version(bytes, length);

    if (result != TCPX_SUCCESS)
        return result;
    if (length < sizeof *head)
        return error_set(TCPX_REMOTE_ERROR, "agreement: %zu bytes, expected at least %zu", length,
                         sizeof *head);
    memcpy(head, bytes, sizeof *head);
    result = check_numbers(le32toh(head->channels), le64toh(head->chunk_bytes));
    if (result == TCPX_SUCCESS)
        result = check_name(head->transport, "transport");
    if (result == TCPX_SUCCESS && head->transport[0] == '\0')
        result = error_set(TCPX_REMOTE_ERROR, "agreement: its transport has no name");
    if (result == TCPX_SUCCESS)
        result = check_name(head->host, "host");
    if (result == TCPX_SUCCESS)
        result = check_name(head->name, "program");
    return result;
}

int agreement_decode(const uint8_t *bytes, size_t length, struct agreement *agreement)
{
    struct head_layout head;
    uint32_t channels;
    int result = read_head(bytes, length, &head);

    if (result != TCPX_SUCCESS)
        return result;
    channels = le32toh(head.channels);
    if (length != sizeof head + handles_bytes(channels))
        return error_set(TCPX_REMOTE_ERROR,
                         "agreement: %zu bytes, expected are %zu for %" PRIu32 " channels", length,
                         sizeof head + handles_bytes(channels), channels);
    *agreement = (struct agreement){
        .version = le32toh(head.version),
        .table_version = le32toh(head.table_version),
        .channels = channels,
        .chunk_bytes = le64toh(head.chunk_bytes),
        .unpack = le32toh(head.unpack) & ~(TAKES_FEWER_CHANNELS | ALLOWS_WINDOWS),
        .takes_fewer = (le32toh(head.unpack) & TAKES_FEWER_CHANNELS) != 0,
        .windows = (le32toh(head.unpack) & ALLOWS_WINDOWS) != 0,
        .process = le64toh(head.process),
    };
    memcpy(agreement->transport, head.transport, sizeof agreement->transport);
    memcpy(agreement->host, head.host, sizeof agreement->host);
    memcpy(agreement->name, head.name, sizeof agreement->name);
    memcpy(agreement->nonce, head.nonce, sizeof agreement->nonce);
    memcpy(agreement->handles, bytes + sizeof head, handles_bytes(channels));
    return TCPX_SUCCESS;
}

static int report_difference(const char *what, uint64_t mine, uint64_t theirs, const char *host,
                             const char *hint)
{
    return error_set(TCPX_INVALID_USAGE, "%s: %" PRIu64 " here, %" PRIu64 " at %s%s", what, mine,
                     theirs, host, hint);
}

int agreement_compare(const struct agreement *mine, const struct agreement *theirs)
{
    const char *host = theirs->host[0] != '\0' ? theirs->host : "the peer";

    if (mine->version != theirs->version)
        return report_difference("version of the session protocol", mine->version, theirs->version,
                                 host, "");
    if (strncmp(mine->transport, theirs->transport, AGREEMENT_NAME_BYTES) != 0)
        return error_set(TCPX_INVALID_USAGE, "transport: %s here, %s at %s (UCCL_TCPX_PLUGIN_PATH)",
                         mine->transport, theirs->transport, host);
    if (mine->channels > theirs->channels
            ? !mine->takes_fewer
            : mine->channels < theirs->channels && !theirs->takes_fewer)
        return report_difference("channels", mine->channels, theirs->channels, host,
                                 " (UCCL_TCPX_NUM_CHANNELS)");
    if (mine->chunk_bytes != theirs->chunk_bytes)
        return report_difference("chunk bytes", mine->chunk_bytes, theirs->chunk_bytes, host,
                                 " (UCCL_TCPX_CHUNK_BYTES)");
    return TCPX_SUCCESS;
}
