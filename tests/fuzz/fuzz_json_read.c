/*
 * Fuzzes the reader of JSON files. What it takes lies inside of the input, can be read again as an
 * element of a list, and its members are values; a broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "tools/json_read.c" /* NOLINT(bugprone-suspicious-include) */

/* [VALUE] is a value, too, unless it is then nested too deeply. */
static void promise_element(const char *text, size_t length)
{
    char *list = malloc(length + 2);
    const char *behind;

    PROMISE(list != NULL);
    list[0] = '[';
    memcpy(list + 1, text, length);
    list[length + 1] = ']';
    behind = json_skip(list, list + length + 2);
    PROMISE(behind == list + length + 2 ||
            (behind == NULL && memchr(list + 1, '[', length) != NULL) ||
            (behind == NULL && memchr(list + 1, '{', length) != NULL));
    free(list);
}

static void promise_member(const char *text, const char *behind, const char *name)
{
    const char *value = json_member(text, behind, name);

    PROMISE(value == NULL || (value > text && value < behind));
    PROMISE(value == NULL || json_skip(value, behind) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = (char *)exact(data, size, size);
    const char *behind = json_skip(text, text + size);

    if (behind != NULL) {
        PROMISE(behind > text && behind <= text + size);
        promise_element(text, (size_t)(behind - text));
        promise_member(text, behind, "rows");
        promise_member(text, behind, "");
    }
    free(text);
    return 0;
}
