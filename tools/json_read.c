/* A reader of JSON that keeps nothing: each function returns the place behind what it has read. */
#include "tools/json_read.h"

#include <ctype.h>
#include <string.h>

enum { DEEPEST = 32 };

static const char *skip_value(const char *at, const char *end, int depth);

static const char *skip_blanks(const char *at, const char *end)
{
    while (at != NULL && at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    return at;
}

static bool stands_at(const char *at, const char *end, char wanted)
{
    return at != NULL && at < end && *at == wanted;
}

static const char *skip_digits(const char *at, const char *end)
{
    const char *begin = at;

    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at > begin ? at : NULL;
}

static const char *skip_number(const char *at, const char *end)
{
    at += stands_at(at, end, '-');
    at = stands_at(at, end, '0') ? at + 1 : skip_digits(at, end);
    if (stands_at(at, end, '.'))
        at = skip_digits(at + 1, end);
    if (stands_at(at, end, 'e') || stands_at(at, end, 'E')) {
        at++;
        at += stands_at(at, end, '+') || stands_at(at, end, '-');
        at = skip_digits(at, end);
    }
    return at;
}

/* Behind the four digits of \u. */
static const char *skip_code(const char *at, const char *end)
{
    for (int i = 0; i < 4; i++, at++)
        if (at == end || !isxdigit((unsigned char)*at))
            return NULL;
    return at;
}

static const char *skip_string(const char *at, const char *end)
{
    for (at++; at != NULL && at < end; at++) {
        if (*at == '"')
            return at + 1;
        if ((unsigned char)*at < 0x20)
            return NULL;
        if (*at != '\\')
            continue;
        if (++at == end || strchr("\"\\/bfnrtu", *at) == NULL || *at == '\0')
            return NULL;
        if (*at == 'u') {
            at = skip_code(at + 1, end);
            if (at == NULL)
                return NULL;
            at--;
        }
    }
    return NULL;
}

static const char *skip_word(const char *at, const char *end)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);

        if ((size_t)(end - at) >= length && memcmp(at, words[i], length) == 0)
            return at + length;
    }
    return NULL;
}

/* A name and its colon. */
static const char *skip_name(const char *at, const char *end)
{
    if (!stands_at(at, end, '"'))
        return NULL;
    at = skip_blanks(skip_string(at, end), end);
    return stands_at(at, end, ':') ? skip_blanks(at + 1, end) : NULL;
}

/* Members of an object, or elements of a list. */
static const char *skip_list(const char *at, const char *end, int depth)
{
    char closing = *at == '{' ? '}' : ']';

    at = skip_blanks(at + 1, end);
    if (stands_at(at, end, closing))
        return at + 1;
    for (;;) {
        if (closing == '}')
            at = skip_name(at, end);
        at = at != NULL ? skip_value(at, end, depth + 1) : NULL;
        if (stands_at(at, end, closing))
            return at + 1;
        if (!stands_at(at, end, ','))
            return NULL;
        at = skip_blanks(at + 1, end);
    }
}

static const char *skip_value(const char *at, const char *end, int depth)
{
    at = skip_blanks(at, end);
    if (at == end || depth > DEEPEST)
        return NULL;
    if (*at == '{' || *at == '[')
        at = skip_list(at, end, depth);
    else if (*at == '"')
        at = skip_string(at, end);
    else if (*at == '-' || isdigit((unsigned char)*at))
        at = skip_number(at, end);
    else
        at = skip_word(at, end);
    return skip_blanks(at, end);
}

const char *json_skip(const char *at, const char *end)
{
    return skip_value(at, end, 0);
}

const char *json_member(const char *at, const char *end, const char *name)
{
    size_t length = strlen(name);

    at = skip_blanks(at, end);
    if (!stands_at(at, end, '{'))
        return NULL;
    at = skip_blanks(at + 1, end);
    while (stands_at(at, end, '"')) {
        const char *value = skip_name(at, end);

        if (value != NULL && (size_t)(value - at) > length + 2 &&
            memcmp(at + 1, name, length) == 0 && at[length + 1] == '"')
            return value;
        at = value != NULL ? skip_value(value, end, 1) : NULL;
        at = stands_at(at, end, ',') ? skip_blanks(at + 1, end) : NULL;
    }
    return NULL;
}
