/*
 * Fuzzes what agents of NIXL believe of each other: how one is reached, the key of a region, and
 * the notes of a session, of which an input is a sequence. What is accepted and written again is
 * the same; notices have the name and the bytes that were sent. A broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "nixl_plugin/endpoint.c"        /* NOLINT(bugprone-suspicious-include) */
#include "nixl_plugin/note_head.c"       /* NOLINT(bugprone-suspicious-include) */
#include "nixl_plugin/notices_receive.c" /* NOLINT(bugprone-suspicious-include) */

static void try_endpoint(const uint8_t *data, size_t size)
{
    char written[ENDPOINT_BYTES];
    struct endpoint endpoint;
    struct endpoint again;

    if (endpoint_read((struct nixl_text){(const char *)data, size}, &endpoint) != TCPX_SUCCESS)
        return;
    PROMISE(endpoint.port >= 1 && endpoint.port <= 65535);
    PROMISE(endpoint.address_count >= 1 && endpoint.address_count <= ENDPOINT_ADDRESSES);
    endpoint_write(&endpoint, written);
    PROMISE(endpoint_read((struct nixl_text){written, strlen(written)}, &again) == TCPX_SUCCESS);
    PROMISE(strcmp(endpoint.identity, again.identity) == 0 && endpoint.port == again.port);
    PROMISE(endpoint.address_count == again.address_count);
    for (unsigned i = 0; i < again.address_count; i++)
        PROMISE(strcmp(endpoint.addresses[i], again.addresses[i]) == 0);
}

static void try_key(const uint8_t *data, size_t size)
{
    uint8_t written[REGION_KEY_BYTES];
    struct region_key key;

    if (region_key_read((struct nixl_text){(const char *)data, size}, &key) != TCPX_SUCCESS)
        return;
    PROMISE(size >= REGION_KEY_BYTES && key.gpu >= HOST && key.port >= 1);
    region_key_write(&key, written);
    PROMISE(memcmp(written, data, sizeof written) == 0);
}

/* --- notes: each behind a byte that says how many bytes its body has ------------------------- */

/* Where the rest begins. */
static size_t take_note(struct incoming *incoming, const uint8_t *data, size_t size, bool *is_good)
{
    size_t length = NOTE_HEAD_BYTES + data[0];
    uint8_t *note;

    if (length > size - 1)
        length = size - 1;
    /* Of long notices only those that are refused: memory is not what is looked at here. */
    if (length >= NOTE_HEAD_BYTES && number(data + 1, 8, 8) > 1 << 20 &&
        number(data + 1, 8, 8) <= NOTICE_MOST_BYTES)
        return 1 + length;
    note = malloc(length + 1); /* of its size, so that reads beyond it are found */
    PROMISE(note != NULL);
    memcpy(note, data + 1, length);
    *is_good = notice_receive(incoming, note, length);
    free(note);
    return 1 + length;
}

static void look_at_inbox(struct nixl_agent *agent, const struct incoming *incoming)
{
    while (agent->inbox != NULL) {
        struct nixl_notice *notice = agent->inbox;

        PROMISE(incoming->name != NULL && notice->from.length == incoming->name_length);
        PROMISE(memcmp(notice->from.bytes, incoming->name, incoming->name_length) == 0);
        PROMISE(notice->text.length <= NOTICE_MOST_BYTES);
        agent->inbox = notice->next;
        free(notice);
    }
    agent->last_in_inbox = &agent->inbox;
}

static void try_notes(const uint8_t *data, size_t size)
{
    struct nixl_agent agent = {.last_in_inbox = &agent.inbox};
    struct incoming incoming = {.agent = &agent, .last_held = &incoming.held};
    bool is_good = true;

    while (size > 1 && is_good) {
        size_t used = take_note(&incoming, data, size, &is_good);

        data += used;
        size -= used;
        PROMISE(incoming.partial_count <= MOST_PARTIALS);
        PROMISE(incoming.held == NULL || incoming.name == NULL || !is_good);
        look_at_inbox(&agent, &incoming);
    }
    notices_forget(&incoming);
    PROMISE(incoming.partial_count == 0);
    free(incoming.name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 0)
        try_endpoint(data + 1, size - 1);
    else if (data[0] == 1)
        try_key(data + 1, size - 1);
    else
        try_notes(data + 1, size - 1);
    return 0;
}
