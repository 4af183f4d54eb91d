/*
 * Fuzzes the codec of the wire. An input is a byte that says what follows (a hello, a record on a
 * forward or on the reverse socket) and its bytes, zeros where they run out. A second reading,
 * byte by byte and from docs/protocol.md, decides what must be accepted; accepted values written
 * again are the same bytes. Behind a byte of 255 comes the text of an ABORT that is sent. A broken
 * promise ends the program.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/shown.h"

#include "net/wire/wire.h"

static enum wire_problem judge_hello(const uint8_t *bytes)
{
    unsigned role = bytes[6];
    unsigned index = bytes[7];
    unsigned sockets = bytes[8];
    unsigned match = bytes[9];
    unsigned framing = bytes[10];

    if (memcmp(bytes, "TCPX", 4) != 0)
        return WIRE_NOT_TCPX;
    if (number(bytes, 4, 2) < 2 || number(bytes, 40, 2) > 2)
        return WIRE_OTHER_VERSION;
    if ((role != 1 && role != 2) || (match != 1 && match != 2) || (framing != 1 && framing != 2))
        return WIRE_MALFORMED;
    if (sockets < framing || sockets > 64 || index >= (role == 1 ? sockets : 1))
        return WIRE_MALFORMED;
    for (size_t i = 11; i < 64 && number(bytes, 4, 2) == 2; i++) /* a later version may use them */
        if ((i < 16 || i == 42 || i == 43 || i >= 48) && bytes[i] != 0)
            return WIRE_MALFORMED;
    return WIRE_FINE;
}

static void check_hello(const uint8_t *bytes)
{
    enum wire_problem expected = judge_hello(bytes);
    uint8_t again[WIRE_HELLO_BYTES];
    struct wire_hello hello;
    struct versions versions;

    memset(&hello, UNTOUCHED, sizeof hello);
    memset(&versions, UNTOUCHED, sizeof versions);
    PROMISE(wire_hello_read(bytes, &hello, &versions) == expected);
    if (expected == WIRE_FINE || expected == WIRE_OTHER_VERSION)
        PROMISE(versions.greatest == number(bytes, 4, 2) &&
                versions.least == (versions.greatest == 1 ? 1 : number(bytes, 40, 2)));
    else
        PROMISE(all_are(&versions, UNTOUCHED, sizeof versions));
    if (!is_taken(expected == WIRE_FINE, &hello, sizeof hello))
        return;
    PROMISE(hello.role == bytes[6] && hello.index == bytes[7] && hello.sockets == bytes[8]);
    PROMISE(hello.match == bytes[9] && hello.framing == bytes[10]);
    PROMISE(hello.comm == number(bytes, 16, 8));
    PROMISE(memcmp(hello.token, bytes + 24, sizeof hello.token) == 0);
    PROMISE(hello.version == 2 && hello.capabilities == number(bytes, 44, 4));
    wire_hello_write(&hello, again);
    if (versions.greatest == 2 && versions.least == 2)
        PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

/* 1: on credit, 2: to a place. */
static bool judge_flags(unsigned type, unsigned flags)
{
    return flags == 0 || (flags <= 2 && (type == 17 || type == 18)) || (flags == 2 && type == 21);
}

static bool judge_record(const uint8_t *bytes, bool forward)
{
    uint64_t socket = number(bytes, 2, 2);
    uint64_t sequence = number(bytes, 4, 4);
    uint64_t offset = number(bytes, 8, 8);
    uint64_t length = number(bytes, 16, 8);
    uint64_t tag = number(bytes, 24, 8);

    if (!judge_flags(bytes[0], bytes[1]))
        return false;
    switch (bytes[0]) {
    case 1: /* READY */
        return !forward && socket == 2 && sequence == 0 && length <= offset && tag >= 64;
    case 2: /* POST */
        return !forward && socket == 0;
    case 3: /* CREDIT */
        return !forward && socket == 0 && sequence == 0 && length == 0 && tag == 0;
    case 4: /* CANCEL */
        return !forward && socket == 0 && offset == 0 && length == 0 && tag == 0;
    case 17: /* EAGER */
        return forward && socket == 0 && (bytes[1] == 1 || (offset == 0 && tag == 0));
    case 18: /* SLICE */
        return forward && socket < 64 && length >= 1 && offset + length > offset &&
               offset + length <= tag;
    case 19: /* TOOLONG */
        return forward && socket == 0 && offset == 0 && length >= 1 && tag == 0;
    case 21: /* CANCELLED */
        return forward && socket == 0 && offset == 0 && tag == 0;
    case 20: /* FIN */
        return forward && socket == 0 && sequence == 0 && offset == 0 && tag == 0;
    case 32: /* ABORT */
        return socket == 0 && sequence >= 1 && sequence <= 7 && offset == 0 && length <= 200 &&
               tag == 0;
    default:
        return false;
    }
}

static void check_record(const uint8_t *bytes, bool forward)
{
    enum wire_problem expected = judge_record(bytes, forward) ? WIRE_FINE : WIRE_MALFORMED;
    uint8_t again[WIRE_RECORD_BYTES];
    struct wire_record record;

    memset(&record, UNTOUCHED, sizeof record);
    PROMISE(wire_record_read(bytes, forward ? WIRE_FORWARD : WIRE_REVERSE, &record) == expected);
    PROMISE(*wire_type_name(bytes[0]) != '\0');
    if (!is_taken(expected == WIRE_FINE, &record, sizeof record))
        return;
    PROMISE(strcmp(wire_type_name(record.type), "unknown") != 0);
    PROMISE(record.type == bytes[0] && record.flags == bytes[1]);
    PROMISE(record.socket == number(bytes, 2, 2));
    PROMISE(record.sequence == number(bytes, 4, 4) && record.offset == number(bytes, 8, 8));
    PROMISE(record.length == number(bytes, 16, 8) && record.tag == number(bytes, 24, 8));
    wire_record_write(&record, again);
    PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

static bool has_address(const char *text)
{
    for (; *text != '\0'; text++)
        if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X') &&
            strspn(text + 2, "0123456789abcdefABCDEF") > 4)
            return true;
    return false;
}

/* Whatever a text is, its ABORT is one that a receiver accepts and may show. */
static void check_abort(const uint8_t *data, size_t size)
{
    uint8_t bytes[WIRE_ABORT_BYTES + 1];
    char *text = (char *)exact(data, size, size + 1);
    struct wire_record record;
    const char *sent = (const char *)bytes + WIRE_RECORD_BYTES;
    size_t length;

    memset(bytes, UNTOUCHED, sizeof bytes);
    length = wire_abort_write(TCPX_CUDA_ERROR, text, bytes) - WIRE_RECORD_BYTES;
    PROMISE(length <= WIRE_ABORT_TEXT && bytes[WIRE_RECORD_BYTES + length] == UNTOUCHED);
    PROMISE(wire_record_read(bytes, WIRE_FORWARD, &record) == WIRE_FINE);
    PROMISE(record.type == WIRE_ABORT && record.sequence == TCPX_CUDA_ERROR);
    PROMISE(record.length == length && is_shown(sent, length));
    bytes[WIRE_RECORD_BYTES + length] = '\0';
    PROMISE(!has_address(sent));
    if (strlen(text) <= WIRE_ABORT_TEXT && is_shown(text, strlen(text)) && !has_address(text))
        PROMISE(strcmp(sent, text) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t wanted;
    uint8_t *bytes;

    if (size == 0)
        return 0;
    if (data[0] == 255) {
        check_abort(data + 1, size - 1);
        return 0;
    }
    wanted = data[0] % 3 == 0 ? WIRE_HELLO_BYTES : WIRE_RECORD_BYTES;
    bytes = exact(data + 1, size - 1, wanted);
    error_keep("%s", "");
    if (wanted == WIRE_HELLO_BYTES)
        check_hello(bytes);
    else
        check_record(bytes, data[0] % 3 == 1);
    free(bytes);
    return 0;
}
