/* JSON strings from any bytes. */
#include "base/json.h"

#include "base/text.h"

#include <string.h>

void json_string(FILE *out, const char *text)
{
    const char *end = text + strlen(text);

    fputc('"', out);
    while (text < end) {
        unsigned char first = (unsigned char)*text;
        uint32_t character;
        size_t length = text_decode(text, (size_t)(end - text), &character);

        if (length == 0)
            fputc('?', out);
        else if (first == '"' || first == '\\')
            fprintf(out, "\\%c", first);
        else if (first < 0x20 || first == 0x7f)
            fprintf(out, "\\u%04x", first);
        else
            fwrite(text, 1, length, out);
        text += length != 0 ? length : 1;
    }
    fputc('"', out);
}
