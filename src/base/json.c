/* JSON strings from any bytes. */
#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

/* The length of the UTF-8 character at `text`, 0 if there is none. */
static size_t utf8_length(const unsigned char *text)
{
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;
    uint32_t character = length > 1 ? text[0] & (0x7f >> length) : text[0];

    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        character = character << 6 | (text[i] & 0x3f);
    }
    /* longer than needed, half of a UTF-16 pair, or beyond Unicode */
    if ((length == 3 && character < 0x800) || (character >= 0xd800 && character < 0xe000) ||
        (length == 4 && (character < 0x10000 || character > 0x10ffff)))
        return 0;
    return length;
}

void json_string(FILE *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    fputc('"', out);
    while (*at != '\0') {
        size_t length = utf8_length(at);

        if (length == 0)
            fputc('?', out);
        else if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fwrite(at, 1, length, out);
        at += length != 0 ? length : 1;
    }
    fputc('"', out);
}
