/*
 * What the NIXL backend reads of others: the endpoint of an agent, the key of a region, notes, the
 * parameters of a program, and the interface of the NIXL that loads it.
 */
#include "base/config.h"
#include "nixl_plugin/agent.h"
#include "nixl_plugin/note_head.h"
#include "tests/support/basics.h"
#include "tests/support/suite.h"

#include <endian.h>

static struct nixl_text text(const char *string)
{
    return (struct nixl_text){string, strlen(string)};
}

/* --- parameters ------------------------------------------------------------------------------ */

/* First, since they count for the process from then on when anything has read the environment. */
TEST(test_parameters)
{
    struct nixl_options *options = nixl_options_create();
    const char *name;
    const char *value;
    size_t count = 0;

    while (nixl_option_at(count, &name, &value)) { /* all defaults are allowed */
        assert_true(nixl_options_set(options, name, value));
        count++;
    }
    assert_true(count >= 7);
    assert_false(nixl_options_set(options, "ports", "1"));
    assert_false(nixl_options_set(options, "channels", "65"));
    assert_false(nixl_options_set(options, "channels", "four"));
    assert_true(nixl_options_set(options, "channels", "4"));
    assert_int_equal(options->channels, 4);
    assert_false(nixl_options_set(options, "port", "0"));
    assert_true(nixl_options_set(options, "port", "20000-20009"));
    assert_true(nixl_options_set(options, "port", "20000-20019"));
    assert_true(nixl_options_set(options, "secret_file", "/a"));
    assert_true(nixl_options_set(options, "secret_file", "/b"));
    assert_string_equal(options->secret_file, "/b");
    nixl_options_free(options);
}

/* --- places and keys ------------------------------------------------------------------------- */

static void add_addresses(char *line, size_t room)
{
    for (int i = 0; i < 20; i++) {
        size_t length = strlen(line);

        snprintf(line + length, room - length, "fd00:1111:2222:3333:4444:5555:6666:7777 ");
    }
}

TEST(test_places)
{
    static const char *const wrong[] = {
        "",
        "tcpx",
        "tcpx 2 nixl-0 5 127.0.0.1",
        "tcpx 1 nixl-0 127.0.0.1",
        "tcpx 1 nixl-0 0 127.0.0.1",
        "tcpx 1 nixl-0 65536 127.0.0.1",
        "tcpx 1 nixl-0 5",
        "tcpx 1 nixl-0 5 localhost",
        "tcpx 1 0123456789012345678901234567890123456789 5 127.0.0.1",
    };
    char many[2 * ENDPOINT_BYTES] = "tcpx 1 nixl-0 5 ";
    char written[ENDPOINT_BYTES];
    struct endpoint endpoint;

    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (endpoint_read(text(wrong[i]), &endpoint) != TCPX_INVALID_ARGUMENT)
            fail_msg("\"%s\" was understood", wrong[i]);
    assert_int_equal(
        endpoint_read(text("tcpx 1 nixl-0 65535 later 10.0.0.1 fe80::1 ::1 words"), &endpoint),
        TCPX_SUCCESS);
    assert_int_equal(endpoint.address_count, 3);
    endpoint_write(&endpoint, written);
    assert_string_equal(written, "tcpx 1 nixl-0 65535 10.0.0.1 fe80::1 ::1");
    assert_int_equal(endpoint_read((struct nixl_text){"tcpx 1 n 1 ::1\0x", 16}, &endpoint),
                     TCPX_INVALID_ARGUMENT);
    add_addresses(many, sizeof many);
    assert_int_equal(endpoint_read(text(many), &endpoint), TCPX_SUCCESS);
    assert_int_equal(endpoint.address_count, ENDPOINT_ADDRESSES);
    endpoint_write(&endpoint, written);
    add_addresses(many, sizeof many);
    assert_int_equal(endpoint_read(text(many), &endpoint), TCPX_INVALID_ARGUMENT);
}

TEST(test_what_is_said_of_this_host)
{
    struct endpoint first;
    struct endpoint second;

    assert_int_equal(endpoint_find("", &first), TCPX_SUCCESS);
    assert_int_equal(endpoint_find("203.0.113.7", &second), TCPX_SUCCESS);
    assert_string_not_equal(first.identity, second.identity);
    assert_true(first.address_count > 0);
    assert_int_equal(second.address_count, 1);
    assert_string_equal(second.addresses[0], "203.0.113.7");
}

/* The environment has been read: what another agent of the process has can only be repeated. */
TEST(test_parameters_of_the_process)
{
    struct nixl_options *options = nixl_options_create();
    const struct config *config;

    assert_true(nixl_options_set(options, "port", "20000-20019"));
    assert_int_equal(config_get(&config), TCPX_SUCCESS);
    assert_true(nixl_options_set(options, "port", "20000-20019"));
    assert_false(nixl_options_set(options, "port", "20000-20020"));
    assert_string_equal(error_text(), "this process works with UCCL_TCPX_PORT=20000-20019 already");
    assert_false(nixl_options_set(options, "advertise", "10.0.0.1"));
    assert_true(nixl_options_set(options, "channels", "3"));
    nixl_options_free(options);
}

TEST(test_keys)
{
    struct region_key key = {.gpu = HOST, .port = 65535, .address = UINT64_MAX, .bytes = 7};
    uint8_t bytes[REGION_KEY_BYTES + 1];
    const struct nixl_text written = {(const char *)bytes, sizeof bytes};
    struct region_key other;

    memset(key.key, 9, sizeof key.key);
    region_key_write(&key, bytes);
    assert_int_equal(region_key_read(written, &other), TCPX_SUCCESS);
    assert_int_equal(other.gpu, HOST);
    assert_int_equal(other.port, 65535);
    assert_true(other.address == UINT64_MAX && other.bytes == 7);
    assert_memory_equal(other.key, key.key, sizeof key.key);
    assert_int_equal(
        region_key_read((struct nixl_text){written.bytes, REGION_KEY_BYTES - 1}, &other),
        TCPX_INVALID_ARGUMENT);
    bytes[0] = 2;
    assert_int_equal(region_key_read(written, &other), TCPX_INVALID_ARGUMENT);
    bytes[0] = 1;
    bytes[2] = bytes[3] = 0;
    assert_int_equal(region_key_read(written, &other), TCPX_INVALID_ARGUMENT);
}

/* --- notes ----------------------------------------------------------------------------------- */

struct note {
    uint32_t kind;
    uint32_t number;
    uint64_t bytes;
    uint64_t offset;
    char body[8];
};

static bool receive(struct incoming *incoming, uint32_t kind, uint32_t number, uint64_t bytes,
                    uint64_t offset, const char *body)
{
    struct note note = {htole32(kind), htole32(number), htole64(bytes), htole64(offset), ""};
    size_t length = strlen(body);

    memcpy(note.body, body, length);
    return notice_receive(incoming, (const uint8_t *)&note, NOTE_HEAD_BYTES + length);
}

TEST(test_notes)
{
    struct nixl_agent agent = {.inbox = NULL, .last_in_inbox = &agent.inbox};
    struct incoming incoming = {.agent = &agent, .last_held = &incoming.held};
    struct nixl_notice *notice;

    assert_false(notice_receive(&incoming, (const uint8_t *)"", 1));
    assert_true(receive(&incoming, NOTE_NOTICE, 0, 5, 0, "early"));
    assert_null(agent.inbox);
    assert_true(receive(&incoming, NOTE_NAME, 0, 1, 0, "b"));
    assert_non_null(agent.inbox);
    assert_false(receive(&incoming, NOTE_NAME, 0, 1, 0, "c"));
    assert_true(receive(&incoming, NOTE_PIECE, 1, 4, 2, "cd"));
    assert_true(receive(&incoming, NOTE_PIECE, 2, 4, 0, "ab"));
    assert_true(receive(&incoming, NOTE_WITHDRAWN, 2, 0, 0, ""));
    assert_true(receive(&incoming, NOTE_WITHDRAWN, 3, 0, 0, ""));
    assert_true(receive(&incoming, NOTE_PIECE, 1, 4, 0, "ab"));
    notice = agent.inbox != NULL ? agent.inbox->next : NULL;
    if (notice == NULL) {
        fail_msg("a notice is missing");
        return;
    }
    assert_int_equal(notice->text.length, 4);
    assert_memory_equal(notice->text.bytes, "abcd", 4);
    assert_null(notice->next);
    assert_memory_equal(agent.inbox->text.bytes, "early", 5);
    free(notice);
    free(agent.inbox);
    /* What cannot be. */
    assert_false(receive(&incoming, 5, 0, 0, 0, ""));
    assert_false(receive(&incoming, NOTE_PIECE, 4, 4, 3, "ab"));
    assert_false(receive(&incoming, NOTE_PIECE, 4, 4, UINT64_MAX, "ab"));
    assert_false(receive(&incoming, NOTE_PIECE, 4, UINT64_MAX, 0, "ab"));
    assert_false(receive(&incoming, NOTE_PIECE, 4, 4, 0, ""));
    assert_true(receive(&incoming, NOTE_PIECE, 4, 4, 0, "abc"));
    assert_false(receive(&incoming, NOTE_PIECE, 4, 4, 0, "ab"));
    assert_false(receive(&incoming, NOTE_PIECE, 4, 5, 0, "a"));
    notices_forget(&incoming);
    free(incoming.name);
}

/* A peer cannot make this side keep more and more. */
TEST(test_notes_without_end)
{
    struct nixl_agent agent = {.inbox = NULL, .last_in_inbox = &agent.inbox};
    struct incoming incoming = {.agent = &agent, .last_held = &incoming.held};
    static uint8_t note[TCPX_NOTE_BYTES];
    uint32_t number = 0;
    unsigned held = 0;

    note_head_write(note, NOTE_NOTICE, 0, sizeof note - NOTE_HEAD_BYTES, 0);
    while (held < 100000 && notice_receive(&incoming, note, sizeof note))
        held++;
    assert_in_range(held, 32, 1024);
    notices_forget(&incoming);
    incoming = (struct incoming){.agent = &agent, .last_held = &incoming.held};
    assert_true(receive(&incoming, NOTE_NAME, 0, 1, 0, "b"));
    while (number < 100000 && receive(&incoming, NOTE_PIECE, number + 1, 3, 0, "ab"))
        number++;
    assert_in_range(number, 1024, 10000);
    assert_true(receive(&incoming, NOTE_WITHDRAWN, 1, 0, 0, ""));
    assert_true(receive(&incoming, NOTE_PIECE, number + 1, 3, 0, "ab"));
    notices_forget(&incoming);
    free(incoming.name);
}

/* --- the interface --------------------------------------------------------------------------- */

/* No file of this process has NIXL's table; whatever lies there instead does no harm. */
TEST(test_an_interface_that_is_not_known)
{
    assert_false(nixl_interface_is_known(NULL));
    assert_false(nixl_interface_is_known((const void *)nixl_interface_is_known));
    assert_false(nixl_interface_is_known((const void *)strlen));
}

SUITE(.name = "texts of NIXL's agents");
