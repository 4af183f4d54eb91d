/*
 * Fuzzes the parser of interface filters. An input is a filter and, behind a zero byte, the name of
 * an interface. What is taken must be what a second, simpler reading of the same text finds, and
 * what is refused must leave everything as it was; a broken promise ends the program.
 */
#include "tests/fuzz/fuzz.h"

#include "net/device/ifname.h"

/* Whether the text's list, read anew and without any check, has the name. */
static bool listed(const char *text, bool exact, const char *name)
{
    char *list = strdup(text);
    char *rest = list;
    char *entry;
    bool found = false;

    PROMISE(list != NULL);
    while ((entry = strsep(&rest, ",")) != NULL) {
        entry[strcspn(entry, ":")] = '\0';
        if (*entry != '\0' && (exact ? strcmp(name, entry) == 0 : strstr(name, entry) == name))
            found = true;
    }
    free(list);
    return found;
}

static void check_names(const struct ifname_filter *filter)
{
    PROMISE(filter->count >= 1 && filter->count <= IFNAME_FILTER_NAMES);
    for (int i = 0; i < filter->count; i++) {
        const char *name = filter->names[i];
        size_t length = strnlen(name, IFNAMSIZ);

        PROMISE(length >= 1 && length < IFNAMSIZ);
        PROMISE(strpbrk(name, "^=,:/ \t\n") == NULL);
        PROMISE(ifname_filter_matches(filter, name) != filter->excludes);
    }
}

/* The filter written down again is the same filter. */
static void check_round_trip(const struct ifname_filter *filter)
{
    char text[2 + IFNAME_FILTER_NAMES * (IFNAMSIZ + 1)];
    struct ifname_filter again;
    size_t used = (size_t)snprintf(text, sizeof text, "%s%s", filter->excludes ? "^" : "",
                                   filter->exact ? "=" : "");

    for (int i = 0; i < filter->count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "," : "",
                                 filter->names[i]);
    PROMISE(ifname_filter_parse(text, &again) == TCPX_SUCCESS);
    PROMISE(again.excludes == filter->excludes && again.exact == filter->exact);
    PROMISE(again.count == filter->count);
    PROMISE(memcmp(again.names, filter->names, sizeof again.names) == 0);
}

static void check_taken(const struct ifname_filter *filter, const char *text, const char *name)
{
    struct ifname_filter other = *filter;
    const char *list = text + (*text == '^');

    check_names(filter);
    check_round_trip(filter);
    PROMISE(filter->excludes == (*text == '^'));
    PROMISE(filter->exact == (*list == '='));
    list += filter->exact;
    PROMISE(ifname_filter_matches(filter, name) !=
            (listed(list, filter->exact, name) == filter->excludes));
    other.excludes = !filter->excludes;
    PROMISE(ifname_filter_matches(&other, name) != ifname_filter_matches(filter, name));
    /* a whole name that matches is also a beginning that does */
    other.excludes = false;
    other.exact = true;
    if (ifname_filter_matches(&other, name)) {
        other.exact = false;
        PROMISE(ifname_filter_matches(&other, name));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t text_size = zero != NULL ? (size_t)(zero - data) : size;
    size_t name_size = zero != NULL ? size - text_size - 1 : 0;
    char *text = (char *)exact(data, text_size, text_size + 1);
    char *name = (char *)exact(data + size - name_size, name_size, name_size + 1);
    struct ifname_filter filter;
    int result;

    memset(&filter, UNTOUCHED, sizeof filter);
    error_keep("%s", "");
    result = ifname_filter_parse(text, &filter);
    PROMISE(result == TCPX_SUCCESS || result == TCPX_INVALID_ARGUMENT);
    if (is_taken(result == TCPX_SUCCESS, &filter, sizeof filter))
        check_taken(&filter, text, name);
    free(name);
    free(text);
    return 0;
}
