/* The list is parsed once; matching is then a walk over names of fixed size. */
#include "net/device/ifname.h"

#include <string.h>

enum { HIGHEST_PORT = 65535 };

/* The texts suggest what was meant: these characters are never part of a name. */
static int ifname_check_name(const char *name, size_t length)
{
    if (length >= IFNAMSIZ)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "'%.*s' is longer than an interface name can be (%d characters)",
                         length < 64 ? (int)length : 64, name, IFNAMSIZ - 1);
    for (size_t i = 0; i < length; i++) {
        if (name[i] == '^' || name[i] == '=')
            return error_set(TCPX_INVALID_ARGUMENT,
                             "'%c' in '%.*s': it belongs before the whole list, once, as in "
                             "'^docker,lo', '=eth0,eth1' or '^=eth0'",
                             name[i], (int)length, name);
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f)
            return error_set(TCPX_INVALID_ARGUMENT, "a blank or control character in '%.*s'",
                             (int)length, name);
        if (name[i] == '/')
            return error_set(TCPX_INVALID_ARGUMENT, "'%.*s' is not an interface name", (int)length,
                             name);
    }
    return TCPX_SUCCESS;
}

static int ifname_check_port(const char *port, size_t length)
{
    unsigned number = 0;
    size_t i = 0;

    for (; i < length && port[i] >= '0' && port[i] <= '9' && number <= HIGHEST_PORT; i++)
        number = number * 10 + (unsigned)(port[i] - '0');
    if (length == 0 || i < length || number > HIGHEST_PORT)
        return error_set(TCPX_INVALID_ARGUMENT, "':%.*s' is not a port (0 to %d)",
                         length < 64 ? (int)length : 64, port, HIGHEST_PORT);
    return TCPX_SUCCESS;
}

/* Adds one place of the list: nothing, "name" or "name:port". */
static int ifname_add_entry(struct ifname_filter *filter, const char *entry, size_t length)
{
    const char *colon = memchr(entry, ':', length);
    size_t name_length = colon != NULL ? (size_t)(colon - entry) : length;
    int result;

    if (length == 0)
        return TCPX_SUCCESS;
    if (name_length == 0)
        return error_set(TCPX_INVALID_ARGUMENT, "a ':' without a name before it");
    result = ifname_check_name(entry, name_length);
    if (result == TCPX_SUCCESS && colon != NULL)
        result = ifname_check_port(colon + 1, length - name_length - 1);
    if (result != TCPX_SUCCESS)
        return result;
    if (filter->count == IFNAME_FILTER_NAMES)
        return error_set(TCPX_INVALID_ARGUMENT, "more than %d names", IFNAME_FILTER_NAMES);
    memcpy(filter->names[filter->count], entry, name_length);
    filter->count++;
    return TCPX_SUCCESS;
}

int ifname_filter_parse(const char *text, struct ifname_filter *filter)
{
    struct ifname_filter fresh = {0};

    if (*text == '^') {
        fresh.excludes = true;
        text++;
    }
    if (*text == '=') {
        fresh.exact = true;
        text++;
    }
    for (;;) {
        size_t span = strcspn(text, ",");
        int result = ifname_add_entry(&fresh, text, span);

        if (result != TCPX_SUCCESS)
            return result;
        if (text[span] == '\0')
            break;
        text += span + 1;
    }
    if (fresh.count == 0)
        return error_set(TCPX_INVALID_ARGUMENT, "no interface is named");
    *filter = fresh;
    return TCPX_SUCCESS;
}

bool ifname_filter_matches(const struct ifname_filter *filter, const char *name)
{
    bool is_listed = false;

    for (int i = 0; i < filter->count && !is_listed; i++) {
        const char *listed = filter->names[i];

        is_listed = strncmp(name, listed, filter->exact ? IFNAMSIZ : strlen(listed)) == 0;
    }
    return is_listed != filter->excludes;
}
