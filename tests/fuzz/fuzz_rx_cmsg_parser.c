/*
 * Fuzzes the parser of devmem control messages. An input is one call of recvmsg: its settings, then
 * either the raw control buffer or short records from which well-formed messages are made, so that
 * both the chain and the meaning of messages are reached. Whatever comes in, the promises of
 * control_messages.h must hold; a broken one ends the program.
 */

#include "tests/fuzz/fuzz.h"

#include "net/devmem/control_messages.h"

#define MAX_FRAGMENTS 64
#define MAX_RANGES    64
#define MAX_CONTROL   8192
#define EARLIER_TOKEN 1000

struct settings {
    uint8_t raw; /* odd: a raw control buffer follows */
    uint8_t layout;
    uint8_t flags;
    uint8_t fragment_capacity;
    uint8_t token_capacity;
    uint8_t wide; /* odd: a large pool and destination offset */
    uint16_t received_delta;
    uint32_t received;
    uint32_t pool_size;
    uint16_t host_offset;
    uint16_t host_size;
} __attribute__((packed));

struct record {
    uint8_t kind;
    uint8_t trim;
    uint16_t size;
    uint32_t offset;
    uint32_t token;
} __attribute__((packed));

struct input {
    struct settings settings;
    unsigned char control[1 + MAX_CONTROL]; /* from 1 on, and so unaligned */
    size_t control_size;
    uint64_t described;
};

static void put(struct input *input, int level, int type, const void *payload, size_t size)
{
    struct cmsghdr header = {.cmsg_len = CMSG_LEN(size), .cmsg_level = level, .cmsg_type = type};
    unsigned char *at = input->control + 1 + input->control_size;

    if (input->control_size + CMSG_SPACE(size) > MAX_CONTROL)
        return;
    memcpy(at, &header, sizeof header);
    memcpy(at + CMSG_LEN(0), payload, size);
    input->control_size += CMSG_SPACE(size);
}

static void put_record(struct input *input, const struct record *record)
{
    static const int extras[] = {29, 35, 37, 63, 64, 65, 1, 80, 97};
    struct devmem_fragment mainline = {
        .offset = record->offset,
        .size = record->size,
        .token = record->token,
        .dmabuf_id = record->kind & 0x40 ? 2 : 1,
        .flags = record->kind & 0x80 ? record->token : 0,
    };
    struct devmem_legacy_fragment legacy = {record->offset, record->size, record->token};
    size_t trim = record->trim < 8 ? record->trim : 0;

    switch (record->kind % 8) {
    case 0:
    case 1:
        put(input, SOL_SOCKET, 79 - record->kind % 8, &mainline, sizeof mainline - trim);
        break;
    case 2:
    case 3:
        put(input, SOL_SOCKET, 101 - record->kind % 8, &legacy, sizeof legacy - trim);
        break;
    case 4:
        put(input, SOL_SOCKET, extras[record->offset % 9], &mainline, record->trim % 25);
        break;
    case 5:
        put(input, 6, 36, &mainline, 4);
        break;
    default:
        put(input, record->trim, (int)record->offset, &mainline, record->size % 25);
        break;
    }
    if (record->kind % 8 < 4)
        input->described += record->size;
}

static void read_input(struct input *input, const uint8_t *data, size_t size)
{
    struct record record;

    memcpy(&input->settings, data, sizeof input->settings);
    data += sizeof input->settings;
    size -= sizeof input->settings;
    if (input->settings.raw & 1) {
        input->control_size = size < MAX_CONTROL ? size : MAX_CONTROL;
        memcpy(input->control + 1, data, input->control_size);
        return;
    }
    for (; size >= sizeof record; data += sizeof record, size -= sizeof record) {
        memcpy(&record, data, sizeof record);
        put_record(input, &record);
    }
}

/* What a call says, found by stepping through its buffer in the simplest way. */
struct reference {
    bool good; /* nothing is wrong with it; there may be too little room */
    uint32_t devmem;
    uint32_t tokens[MAX_CONTROL / 16];
    uint32_t token_count;
    struct scatter_fragment fragments[MAX_CONTROL / 16];
    uint32_t fragment_count;
    uint64_t bytes;
    uint64_t host_bytes;
};

static void expect_fragment(struct reference *reference, const struct devmem_call *call,
                            enum scatter_source source, uint64_t offset, uint64_t length)
{
    uint64_t size = source == SCATTER_HOST ? call->host_size : call->pool_size;

    if (source == SCATTER_HOST) {
        offset = call->host_offset + reference->host_bytes;
        reference->host_bytes += length;
    }
    if (offset > size || length > size - offset)
        reference->good = false;
    if (length > 0)
        reference->fragments[reference->fragment_count++] = (struct scatter_fragment){
            offset, call->destination_offset + reference->bytes, length, source};
    reference->bytes += length;
}

/* Fields by their place in the message, as the kernels write them. */
static void expect_message(struct reference *reference, const struct devmem_call *call,
                           const unsigned char *message, uint64_t length, bool device)
{
    bool mainline = call->layout == DEVMEM_LAYOUT_MAINLINE;
    uint64_t offset = 0;
    uint32_t size, token, id, flags;

    reference->devmem++;
    if (length != (mainline ? 40 : 28)) {
        reference->good = false;
        return;
    }
    memcpy(&offset, message + 16, mainline ? 8 : 4);
    memcpy(&size, message + (mainline ? 24 : 20), 4);
    memcpy(&token, message + (mainline ? 28 : 24), 4);
    if (device)
        reference->tokens[reference->token_count++] = token;
    if (device && mainline) {
        memcpy(&id, message + 32, 4);
        memcpy(&flags, message + 36, 4);
        if (id != call->dmabuf_id || flags != 0)
            reference->good = false;
    }
    expect_fragment(reference, call, device ? SCATTER_POOL : SCATTER_HOST, offset, size);
}

static bool is_extra(int level, int type)
{
    return (level == 6 && type == 36) || (level == 1 && (type == 29 || type == 35 || type == 37 ||
                                                         type == 63 || type == 64 || type == 65));
}

static void expect_call(struct reference *reference, const struct devmem_call *call)
{
    const unsigned char *control = call->message->msg_control;
    size_t size = call->message->msg_controllen;
    int device = call->layout == DEVMEM_LAYOUT_MAINLINE ? 79 : 99;
    uint64_t length;
    int level, type;

    *reference = (struct reference){.good = !(call->message->msg_flags & MSG_CTRUNC)};
    for (size_t at = 0; at < size; at += (length + 7) / 8 * 8) {
        if (size - at >= 16)
            memcpy(&length, control + at, 8);
        if (size - at < 16 || length < 16 || length > size - at) {
            reference->good = false;
            return;
        }
        memcpy(&level, control + at + 8, 4);
        memcpy(&type, control + at + 12, 4);
        if (level == 1 && (type == device || type == device - 1))
            expect_message(reference, call, control + at, length, type == device);
        else if (!is_extra(level, type))
            reference->good = false;
    }
    if (reference->devmem == 0)
        expect_fragment(reference, call, SCATTER_HOST, 0, (uint64_t)call->received);
    if (reference->bytes != (uint64_t)call->received)
        reference->good = false;
}

/* That the earlier token and those of the call take. */
static uint32_t count_ranges(const struct reference *reference)
{
    uint32_t previous = EARLIER_TOKEN;
    uint32_t count = 1;

    for (uint32_t i = 0; i < reference->token_count; i++) {
        count += reference->tokens[i] != (uint64_t)previous + 1;
        previous = reference->tokens[i];
    }
    return count;
}

static void check_tokens(const struct token_list *tokens, const struct reference *reference)
{
    uint32_t seen = 0;

    for (uint32_t i = 0; i < tokens->count; i++) {
        uint64_t end = (uint64_t)tokens->ranges[i].first + tokens->ranges[i].count;

        PROMISE(tokens->ranges[i].count > 0 && end <= UINT64_C(1) << 32);
        PROMISE(i + 1 == tokens->count || end != tokens->ranges[i + 1].first);
        for (uint64_t token = tokens->ranges[i].first; token < end; token++) {
            /* The first one was there before the call. */
            PROMISE(seen > 0 || token == EARLIER_TOKEN);
            PROMISE(seen == 0 ||
                    (seen <= reference->token_count && token == reference->tokens[seen - 1]));
            seen++;
        }
    }
    PROMISE(seen == reference->token_count + 1);
}

static void check_fragments(const struct scatter_list *scatter, const struct reference *reference)
{
    uint64_t device_bytes = 0;

    PROMISE(scatter->count == reference->fragment_count);
    for (uint32_t i = 0; i < scatter->count; i++) {
        const struct scatter_fragment *fragment = &scatter->fragments[i];
        const struct scatter_fragment *expected = &reference->fragments[i];

        PROMISE(fragment->source == expected->source);
        PROMISE(fragment->source_offset == expected->source_offset);
        PROMISE(fragment->destination_offset == expected->destination_offset);
        PROMISE(fragment->length == expected->length);
        if (fragment->source == SCATTER_POOL)
            device_bytes += fragment->length;
    }
    PROMISE(scatter->device_bytes == device_bytes);
    PROMISE(scatter->device_fragments == reference->token_count);
    PROMISE(scatter->linear_bytes + scatter->plain_bytes == reference->host_bytes);
    PROMISE((scatter->plain_bytes > 0) == (reference->devmem == 0 && reference->bytes > 0));
}

static void check_call(const struct settings *settings, const struct devmem_call *call)
{
    static struct reference reference;
    struct scatter_fragment fragments[MAX_FRAGMENTS];
    struct devmem_token_range ranges[MAX_RANGES];
    struct scatter_list scatter;
    struct scatter_list empty;
    struct token_list tokens;
    bool tokens_fit;
    int result;

    scatter_list_init(&scatter, fragments, settings->fragment_capacity % (MAX_FRAGMENTS + 1));
    token_list_init(&tokens, ranges, 1 + settings->token_capacity % MAX_RANGES);
    PROMISE(token_list_add(&tokens, EARLIER_TOKEN));
    empty = scatter;
    expect_call(&reference, call);
    tokens_fit = count_ranges(&reference) <= tokens.capacity;
    result = control_messages_read(call, &scatter, &tokens);

    if (result == TCPX_SUCCESS) {
        PROMISE(reference.good && tokens_fit);
        check_fragments(&scatter, &reference);
    } else {
        PROMISE(error_text()[0] != '\0');
        PROMISE(memcmp(&scatter, &empty, sizeof scatter) == 0);
        PROMISE(result != TCPX_SYSTEM_ERROR || !reference.good || !tokens_fit ||
                reference.fragment_count > scatter.capacity);
    }
    if (result != TCPX_SUCCESS && result != TCPX_SYSTEM_ERROR)
        reference.token_count = 0; /* the call makes no sense, and was not read */
    if (tokens_fit)
        check_tokens(&tokens, &reference);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {0};
    struct msghdr message = {0};
    struct devmem_call call;
    const struct settings *settings = &input.settings;
    uint8_t *control;

    if (size < sizeof input.settings)
        return 0;
    read_input(&input, data, size);
    control = exact(input.control, 1 + input.control_size, 1 + input.control_size);
    message.msg_control = control + 1;
    message.msg_controllen = input.control_size;
    message.msg_flags = settings->flags & 1 ? MSG_CTRUNC : 0;
    call = (struct devmem_call){
        .layout = (enum devmem_layout)(settings->layout % 2),
        .message = &message,
        .received = settings->raw & 2 ? (ssize_t)settings->received
                                      : (ssize_t)(input.described + settings->received_delta),
        .dmabuf_id = 1,
        .pool_size = (uint64_t)settings->pool_size << (settings->wide & 1 ? 16 : 0),
        .destination_offset = settings->wide & 1 ? UINT64_C(1) << 40 : 0,
        .host_offset = settings->host_offset,
        .host_size = settings->host_size,
    };
    check_call(settings, &call);
    free(control);
    return 0;
}
