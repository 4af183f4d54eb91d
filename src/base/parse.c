/* Numbers, sizes and words, as they stand in variables and on command lines. */
#include "base/parse.h"

#include "base/checked.h"

#include <string.h>
#include <strings.h>

/* Reads digits, moves *text behind them. */
static bool read_digits(const char **text, uint64_t *number)
{
    const char *at = *text;
    uint64_t value = 0;

    if (*at < '0' || *at > '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (!checked_multiply(value, 10, &value) ||
            !checked_add(value, (uint64_t)(*at - '0'), &value))
            return false;
    *text = at;
    *number = value;
    return true;
}

bool parse_number(const char *text, uint64_t *number)
{
    uint64_t value;

    if (!read_digits(&text, &value) || *text != '\0')
        return false;
    *number = value;
    return true;
}

bool parse_size(const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    uint64_t value;
    uint64_t unit = 1;

    if (!read_digits(&text, &value))
        return false;
    if (*text != '\0') {
        const char *suffix = memchr(suffixes, *text & ~0x20, sizeof suffixes - 1);

        if (suffix == NULL)
            return false;
        unit = (uint64_t)1 << (10 * (suffix - suffixes + 1));
        text++;
        if (*text != '\0' && strcasecmp(text, "B") != 0 && strcasecmp(text, "iB") != 0)
            return false;
    }
    return checked_multiply(value, unit, bytes);
}

bool parse_word(const char *text, const char *words, char separator, int *place)
{
    size_t length = strlen(text);

    for (int i = 0;; i++) {
        const char *end = strchrnul(words, separator);

        if ((size_t)(end - words) == length && memcmp(words, text, length) == 0) {
            *place = i;
            return true;
        }
        if (*end == '\0')
            return false;
        words = end + 1;
    }
}
