/* UTF-8, and what of it may be shown or sent. */
#include "base/text.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

size_t text_decode(const char *text, size_t left, uint32_t *character)
{
    const unsigned char *at = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = *at < 0x80 ? 1 : *at < 0xc0 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
    uint32_t value;

    if (bytes == 0 || bytes > left || *at > 0xf7)
        return 0;
    value = bytes == 1 ? *at : *at & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    if (value < least[bytes] || (value >= 0xd800 && value < 0xe000) || value > 0x10ffff)
        return 0;
    *character = value;
    return bytes;
}

static bool is_printable(uint32_t character)
{
    bool is_control = character < 0x20 || (character >= 0x7f && character < 0xa0);
    /* Separators of lines and paragraphs, and the controls of writing directions. */
    bool moves = (character >= 0x2028 && character <= 0x202e) ||
                 (character >= 0x2066 && character <= 0x2069);

    return !is_control && !moves;
}

size_t text_printable(const char *text, size_t length, char *out, size_t room)
{
    size_t used = 0;
    size_t at = 0;

    while (at < length) {
        uint32_t character;
        size_t bytes = text_decode(text + at, length - at, &character);
        bool shown = bytes > 0 && is_printable(character);
        size_t needed = shown ? bytes : 1;

        if (needed >= room - used)
            break;
        if (shown)
            memmove(out + used, text + at, bytes);
        else
            out[used] = '?';
        used += needed;
        at += bytes > 0 ? bytes : 1;
    }
    out[used] = '\0';
    return used;
}

/* How many bytes of an address are at the beginning of the text; 0: there is none. */
static size_t address_length(const char *text)
{
    enum { MOST_DIGITS_OF_OTHERS = 4 };
    size_t digits = 0;

    if (text[0] != '0' || (text[1] != 'x' && text[1] != 'X'))
        return 0;
    while (isxdigit((unsigned char)text[2 + digits]))
        digits++;
    return digits > MOST_DIGITS_OF_OTHERS ? 2 + digits : 0;
}

size_t text_for_peer(const char *text, char *out, size_t room)
{
    static const char instead[] = "0x..."; /* shorter than any address */
    char sent[1024];
    size_t used = 0;

    while (*text != '\0' && used + sizeof instead < sizeof sent) {
        size_t address = address_length(text);

        if (address > 0) {
            memcpy(sent + used, instead, sizeof instead - 1);
            used += sizeof instead - 1;
            text += address;
        } else {
            sent[used++] = *text++;
        }
    }
    return text_printable(sent, used, out, room);
}
