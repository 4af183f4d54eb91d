/*
 * The parser of devmem control messages: one walk over the control buffer that appends as it goes.
 * It reads through memcpy and checks every length itself, because CMSG_NXTHDR ends silently where a
 * chain is broken.
 */
#include "net/devmem/control_messages.h"

#include <inttypes.h>
#include <string.h>

#include "base/checked.h"

struct layout {
    const char *kernel;
    int linear_type;
    int device_type;
    size_t payload_size;
};

static const struct layout layouts[] = {
    [DEVMEM_LAYOUT_MAINLINE] = {"mainline", DEVMEM_SCM_LINEAR, DEVMEM_SCM_DMABUF,
                                sizeof(struct devmem_fragment)},
    [DEVMEM_LAYOUT_LEGACY] = {"legacy", DEVMEM_LEGACY_SCM_LINEAR, DEVMEM_LEGACY_SCM_DEVICE,
                              sizeof(struct devmem_legacy_fragment)},
};

#define LAYOUT_COUNT (sizeof layouts / sizeof *layouts)

struct control_message {
    int level;
    int type;
    const unsigned char *payload;
    size_t payload_size;
};

struct walk {
    const struct devmem_call *call;
    const struct layout *layout;
    struct scatter_list *scatter;
    struct token_list *tokens;
    size_t position;     /* in the control buffer */
    uint32_t number;     /* of the current message, from 0, for the texts */
    uint64_t bytes;      /* described so far */
    uint64_t host_bytes; /* of them in the iovec */
    bool described;      /* there was a devmem message */
    int result;
};

/* Later problems mostly follow from the first, so that one is kept. */
#define NOTE_PROBLEM(walk, ...)                                                                    \
    do {                                                                                           \
        if ((walk)->result == TCPX_SUCCESS)                                                        \
            (walk)->result = error_set(TCPX_SYSTEM_ERROR, __VA_ARGS__);                            \
    } while (0)
#define NOTE_MESSAGE(walk, format, ...)                                                            \
    NOTE_PROBLEM(walk, "control message %" PRIu32 ": " format, (walk)->number, __VA_ARGS__)

/* False at the end of the control buffer, and where it cannot be read on. */
static bool cmsg_next_message(struct walk *walk, struct control_message *message)
{
    const struct msghdr *whole = walk->call->message;
    size_t rest = whole->msg_controllen - walk->position;
    const unsigned char *at;
    struct cmsghdr header;
    size_t length;

    if (rest == 0)
        return false;
    if (rest < sizeof header) {
        NOTE_MESSAGE(walk, "%zu bytes left, a header has %zu", rest, sizeof header);
        return false;
    }
    at = (const unsigned char *)whole->msg_control + walk->position;
    memcpy(&header, at, sizeof header);
    length = header.cmsg_len;
    if (length < CMSG_LEN(0) || length > rest) {
        NOTE_MESSAGE(walk, "length %zu, possible are %zu to %zu", length, (size_t)CMSG_LEN(0),
                     rest);
        return false;
    }
    message->level = header.cmsg_level;
    message->type = header.cmsg_type;
    message->payload = at + CMSG_LEN(0);
    message->payload_size = length - CMSG_LEN(0);

    /* The padding of the last message may be missing. */
    walk->position += rest - length < CMSG_ALIGN(length) - length ? rest : CMSG_ALIGN(length);
    return true;
}

static bool cmsg_is_requested_extra(const struct control_message *message)
{
    if (message->level == DEVMEM_SOL_TCP)
        return message->type == DEVMEM_TCP_CM_INQ;
    if (message->level != SOL_SOCKET)
        return false;
    switch (message->type) {
    case DEVMEM_SCM_TIMESTAMP:
    case DEVMEM_SCM_TIMESTAMPNS:
    case DEVMEM_SCM_TIMESTAMPING:
    case DEVMEM_SCM_TIMESTAMP_NEW:
    case DEVMEM_SCM_TIMESTAMPNS_NEW:
    case DEVMEM_SCM_TIMESTAMPING_NEW:
        return true;
    default:
        return false;
    }
}

static bool cmsg_is_devmem(const struct layout *layout, const struct control_message *message)
{
    return message->level == SOL_SOCKET &&
           (message->type == layout->linear_type || message->type == layout->device_type);
}

static void cmsg_note_foreign(struct walk *walk, const struct control_message *message)
{
    for (size_t i = 0; i < LAYOUT_COUNT; i++) {
        if (!cmsg_is_devmem(&layouts[i], message))
            continue;
        NOTE_MESSAGE(walk, "type %d is of the %s kernel, expected the %s one", message->type,
                     layouts[i].kernel, walk->layout->kernel);
        return;
    }
    NOTE_MESSAGE(walk, "unknown level %d type %d", message->level, message->type);
}

/* Brings either payload into the mainline form, whose id and flags the legacy kernel lacks. */
static struct devmem_fragment cmsg_read_payload(const struct walk *walk,
                                                const unsigned char *payload)
{
    struct devmem_fragment fragment;
    struct devmem_legacy_fragment legacy;

    if (walk->call->layout == DEVMEM_LAYOUT_MAINLINE) {
        memcpy(&fragment, payload, sizeof fragment);
        return fragment;
    }
    memcpy(&legacy, payload, sizeof legacy);
    return (struct devmem_fragment){
        .offset = legacy.offset,
        .size = legacy.size,
        .token = legacy.token,
        .dmabuf_id = walk->call->dmabuf_id,
    };
}

static void cmsg_append_fragment(struct walk *walk, enum scatter_source source, uint64_t offset,
                                 uint64_t length)
{
    const struct scatter_fragment fragment = {
        .source_offset = offset,
        .destination_offset = walk->call->destination_offset + walk->bytes,
        .length = length,
        .source = source,
    };

    walk->bytes += length;
    if (!scatter_list_add(walk->scatter, &fragment))
        NOTE_MESSAGE(walk, "all %" PRIu32 " fragments are in use", walk->scatter->capacity);
}

static void cmsg_take_device(struct walk *walk, const struct devmem_fragment *fragment)
{
    if (!token_list_add(walk->tokens, fragment->token))
        NOTE_MESSAGE(walk, "all %" PRIu32 " token ranges are in use", walk->tokens->capacity);
    if (fragment->flags != 0)
        NOTE_MESSAGE(walk, "flags 0x%" PRIx32 ", expected 0", fragment->flags);
    if (fragment->dmabuf_id != walk->call->dmabuf_id)
        NOTE_MESSAGE(walk, "dma-buf %" PRIu32 ", expected %" PRIu32, fragment->dmabuf_id,
                     walk->call->dmabuf_id);
    if (!range_inside(fragment->offset, fragment->size, walk->call->pool_size))
        NOTE_MESSAGE(walk, "offset %" PRIu64 " length %" PRIu32 " in a pool of %" PRIu64 " bytes",
                     fragment->offset, fragment->size, walk->call->pool_size);
    cmsg_append_fragment(walk, SCATTER_POOL, fragment->offset, fragment->size);
    walk->scatter->device_fragments++;
    walk->scatter->device_bytes += fragment->size;
}

static void cmsg_take_host(struct walk *walk, uint64_t length)
{
    const struct devmem_call *call = walk->call;
    uint64_t room = call->host_size - call->host_offset;

    if (!range_inside(walk->host_bytes, length, room))
        NOTE_PROBLEM(walk,
                     "%" PRIu64 " bytes after %" PRIu64 " in a host buffer with room for %" PRIu64,
                     length, walk->host_bytes, room);
    cmsg_append_fragment(walk, SCATTER_HOST, call->host_offset + walk->host_bytes, length);
    walk->host_bytes += length;
}

static void cmsg_take_message(struct walk *walk, const struct control_message *message)
{
    struct devmem_fragment fragment;

    if (cmsg_is_requested_extra(message))
        return;
    if (!cmsg_is_devmem(walk->layout, message)) {
        cmsg_note_foreign(walk, message);
        return;
    }
    walk->described = true;
    if (message->payload_size != walk->layout->payload_size) {
        NOTE_MESSAGE(walk, "type %d with %zu bytes, expected %zu", message->type,
                     message->payload_size, walk->layout->payload_size);
        return;
    }
    fragment = cmsg_read_payload(walk, message->payload);
    if (message->type == walk->layout->device_type) {
        cmsg_take_device(walk, &fragment);
    } else {
        cmsg_take_host(walk, fragment.size);
        walk->scatter->linear_bytes += fragment.size;
    }
}

static void cmsg_take_call(struct walk *walk)
{
    struct control_message message;
    uint64_t received = (uint64_t)walk->call->received;

    if (walk->call->message->msg_flags & MSG_CTRUNC)
        NOTE_PROBLEM(
            walk, "control messages were cut off after %zu bytes, with %" PRIu64 " bytes received",
            (size_t)walk->call->message->msg_controllen, received);
    for (; cmsg_next_message(walk, &message); walk->number++)
        cmsg_take_message(walk, &message);

    if (!walk->described && walk->result == TCPX_SUCCESS && received > 0) {
        cmsg_take_host(walk, received);
        walk->scatter->plain_bytes += received;
    }
    if (walk->bytes != received)
        NOTE_PROBLEM(
            walk, "recvmsg gave %" PRIu64 " bytes, %" PRIu32 " control messages describe %" PRIu64,
            received, walk->number, walk->bytes);
}

static int cmsg_check_call(const struct devmem_call *call)
{
    uint64_t end;

    if ((size_t)call->layout >= LAYOUT_COUNT)
        return error_set(TCPX_INVALID_ARGUMENT, "unknown layout %d of devmem", (int)call->layout);
    if (call->received < 0)
        return error_set(TCPX_INVALID_ARGUMENT, "recvmsg failed with %zd", call->received);
    if (call->message->msg_control == NULL && call->message->msg_controllen != 0)
        return error_set(TCPX_INVALID_ARGUMENT, "%zu bytes of control messages at no address",
                         (size_t)call->message->msg_controllen);
    if (!checked_add(call->destination_offset, (uint64_t)call->received, &end))
        return error_set(TCPX_INVALID_ARGUMENT, "%zd bytes at destination offset %" PRIu64,
                         call->received, call->destination_offset);
    if (call->host_offset > call->host_size)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "offset %" PRIu64 " in a host buffer of %" PRIu64 " bytes",
                         call->host_offset, call->host_size);
    return TCPX_SUCCESS;
}

int control_messages_read(const struct devmem_call *call, struct scatter_list *scatter,
                          struct token_list *tokens)
{
    const struct scatter_list before = *scatter;
    struct walk walk = {.call = call, .scatter = scatter, .tokens = tokens};
    int result = cmsg_check_call(call);

    if (result != TCPX_SUCCESS)
        return result;
    walk.layout = &layouts[call->layout];
    cmsg_take_call(&walk);
    if (walk.result != TCPX_SUCCESS)
        *scatter = before;
    return walk.result;
}

size_t control_messages_space(enum devmem_layout layout, uint32_t fragments)
{
    return CMSG_SPACE(layouts[layout].payload_size) * (size_t)fragments;
}
