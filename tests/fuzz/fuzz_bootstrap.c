/*
 * Fuzzes what a session believes of its peer before anything else: the greeting, the header of a
 * message, the text of a refusal, and the agreement. An input is a byte that says what follows, and
 * its bytes; zeros where a fixed length runs out. A second reading, byte by byte, decides what must
 * be accepted; accepted values written again are the same bytes. A broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/shown.h"

#include "base/text.h"
#include "session/agreement.h"
#include "session/control.h"
#include "session/greeting.h"

/* --- the greeting --------------------------------------------------------------------------- */

static int judge_greeting(const uint8_t *bytes, enum bootstrap_role role)
{
    if (memcmp(bytes, "tcpxboot", 8) != 0)
        return TCPX_REMOTE_ERROR;
    if (number(bytes, 8, 2) < 2 || number(bytes, 12, 2) > 2)
        return TCPX_INVALID_USAGE;
    if (bytes[10] != role || bytes[11] > 1 ||
        (number(bytes, 14, 2) != 0 && number(bytes, 8, 2) == 2)) /* a later version may use them */
        return TCPX_REMOTE_ERROR;
    return TCPX_SUCCESS;
}

static void check_greeting(const uint8_t *bytes, enum bootstrap_role role)
{
    int expected = judge_greeting(bytes, role);
    uint8_t again[BOOTSTRAP_GREETING_BYTES];
    struct bootstrap_greeting greeting;

    for (size_t have = 0; have <= BOOTSTRAP_GREETING_BYTES; have++)
        PROMISE(bootstrap_greeting_begins(bytes, have) ==
                (memcmp(bytes, "tcpxboot", have < 8 ? have : 8) == 0));
    memset(&greeting, UNTOUCHED, sizeof greeting);
    PROMISE(bootstrap_greeting_read(bytes, role, &greeting) == expected);
    if (!is_taken(expected == TCPX_SUCCESS, &greeting, sizeof greeting))
        return;
    PROMISE(greeting.role == role && greeting.secret == (bytes[11] == 1));
    PROMISE(memcmp(greeting.nonce, bytes + 16, sizeof greeting.nonce) == 0);
    PROMISE(greeting.version == 2);
    bootstrap_greeting_write(&greeting, again);
    if (number(bytes, 8, 2) == 2 && number(bytes, 12, 2) == 2)
        PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

/* --- messages ------------------------------------------------------------------------------- */

static void check_header(const uint8_t *bytes)
{
    bool expected = number(bytes, 1, 3) == 0 && number(bytes, 4, 4) <= 65536;
    uint8_t again[CONTROL_HEADER_BYTES];
    uint32_t length = UNTOUCHED;
    uint8_t type = UNTOUCHED;
    int result = control_header_read(bytes, &type, &length);

    if (!expected) {
        PROMISE(result == TCPX_REMOTE_ERROR && *error_text() != '\0');
        PROMISE(type == UNTOUCHED && length == UNTOUCHED);
        return;
    }
    PROMISE(result == TCPX_SUCCESS);
    PROMISE(type == bytes[0] && length == number(bytes, 4, 4));
    control_header_write(type, length, again);
    PROMISE(memcmp(again, bytes, sizeof again) == 0);
}

static void check_printable(const uint8_t *bytes, size_t size)
{
    char shown[CONTROL_REFUSAL_TEXT + 1];
    size_t length;

    text_printable((const char *)bytes, size, shown, sizeof shown);
    length = strnlen(shown, sizeof shown);
    PROMISE(length < sizeof shown && is_shown(shown, length));
    PROMISE(length <= size && (size == 0 || length > 0));
    if (size < sizeof shown && is_shown(bytes, size))
        PROMISE(length == size && memcmp(shown, bytes, size) == 0);
}

/* --- the agreement -------------------------------------------------------------------------- */

static bool is_name(const uint8_t *name)
{
    size_t length = 0;

    while (length < 64 && name[length] >= 0x20 && name[length] <= 0x7e)
        length++;
    return length < 64 && all_are(name + length, 0, 64 - length);
}

static int judge_agreement(const uint8_t *bytes, size_t size)
{
    if (size < 4)
        return TCPX_REMOTE_ERROR;
    if (number(bytes, 0, 4) != 2)
        return TCPX_INVALID_USAGE;
    if (size < 240 || number(bytes, 4, 4) < 1 || number(bytes, 4, 4) > 64 ||
        size != 240 + 128 * number(bytes, 4, 4))
        return TCPX_REMOTE_ERROR;
    if (number(bytes, 16, 8) < 1 || number(bytes, 16, 8) > (uint64_t)1 << 40)
        return TCPX_REMOTE_ERROR;
    return is_name(bytes + 32) && bytes[32] != 0 && is_name(bytes + 96) && is_name(bytes + 160)
               ? TCPX_SUCCESS
               : TCPX_REMOTE_ERROR;
}

static void check_agreement(const uint8_t *bytes, size_t size)
{
    int expected = judge_agreement(bytes, size);
    uint8_t again[AGREEMENT_BYTES];
    struct agreement agreement;

    memset(&agreement, UNTOUCHED, sizeof agreement);
    PROMISE(agreement_decode(bytes, size, &agreement) == expected);
    if (!is_taken(expected == TCPX_SUCCESS, &agreement, sizeof agreement))
        return;
    PROMISE(agreement.channels == number(bytes, 4, 4));
    PROMISE(agreement.table_version == number(bytes, 8, 4));
    PROMISE(agreement.unpack == (number(bytes, 12, 4) & 0x3fffffff));
    PROMISE(agreement.takes_fewer == number(bytes, 12, 4) >> 31);
    PROMISE(agreement.windows == (number(bytes, 12, 4) >> 30 & 1));
    PROMISE(memcmp(agreement.nonce, bytes + 224, sizeof agreement.nonce) == 0);
    PROMISE(agreement.chunk_bytes == number(bytes, 16, 8));
    PROMISE(agreement.process == number(bytes, 24, 8));
    PROMISE(agreement_encode(&agreement, again) == size);
    PROMISE(memcmp(again, bytes, size) == 0);
    PROMISE(agreement_compare(&agreement, &agreement) == TCPX_SUCCESS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t wanted;
    uint8_t *bytes;
    unsigned kind;

    if (size == 0)
        return 0;
    kind = data[0] % 5;
    wanted = kind < 2 ? BOOTSTRAP_GREETING_BYTES : kind == 2 ? CONTROL_HEADER_BYTES : size - 1;
    bytes = exact(data + 1, size - 1, wanted);
    error_keep("%s", "");
    if (kind < 2)
        check_greeting(bytes, kind == 0 ? BOOTSTRAP_CONNECTS : BOOTSTRAP_LISTENS);
    else if (kind == 2)
        check_header(bytes);
    else if (kind == 3)
        check_printable(bytes, wanted);
    else
        check_agreement(bytes, wanted);
    free(bytes);
    return 0;
}
