/*
 * The parameters of the backend, as a program or a framework gives them to NIXL. Some are variables
 * of the environment by a shorter name, which count for the whole process; the others are of one
 * agent.
 */
#include "nixl_plugin/agent.h"

#include "base/config.h"
#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool take_number(const char *value, uint64_t least, uint64_t most, int *number)
{
    uint64_t parsed;

    if (!parse_number(value, &parsed) || parsed < least || parsed > most)
        return false;
    *number = (int)parsed;
    return true;
}

static bool take_text(const char *value, char **text)
{
    free(*text);
    *text = strdup(value);
    return *text != NULL;
}

static bool take_channels(struct nixl_options *options, const char *value)
{
    return take_number(value, 1, 64, &options->channels);
}

static bool take_timeout(struct nixl_options *options, const char *value)
{
    return take_number(value, 100, 3600000, &options->timeout_ms);
}

static bool take_secret(struct nixl_options *options, const char *value)
{
    return take_text(value, &options->secret_file);
}

/* "" is the default of each: what the environment says, or the library. */
static const struct option {
    const char *name;
    const char *variable; /* NULL: the agent's own, which `take` reads */
    bool (*take)(struct nixl_options *options, const char *value);
    const char *allowed;
} all[] = {
    {"port", "UCCL_TCPX_PORT", NULL, NULL},
    {"advertise", "UCCL_TCPX_ADVERTISE", NULL, NULL},
    {"interfaces", "NCCL_SOCKET_IFNAME", NULL, NULL},
    {"sockets", "UCCL_TCPX_SOCKETS", NULL, NULL},
    {"channels", NULL, take_channels, "a number from 1 to 64"},
    {"secret_file", NULL, take_secret, "the path of a file"},
    {"timeout_ms", NULL, take_timeout, "milliseconds from 100 to 3600000"},
};

enum { OPTIONS = sizeof all / sizeof *all };

bool nixl_option_at(size_t index, const char **name, const char **value)
{
    if (index >= OPTIONS)
        return false;
    *name = all[index].name;
    *value = "";
    return true;
}

struct nixl_options *nixl_options_create(void)
{
    return calloc(1, sizeof(struct nixl_options));
}

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

static int set_option(struct nixl_options *options, const struct option *option, const char *value)
{
    if (option->variable != NULL)
        return config_preset(option->variable, value);
    if (option->take(options, value))
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT, "expected %s", option->allowed);
}

bool nixl_options_set(struct nixl_options *options, const char *name, const char *value)
{
    const struct option *option = find_option(name);
    char names[256] = "";

    if (option != NULL && (*value == '\0' || set_option(options, option, value) == TCPX_SUCCESS))
        return true;
    for (size_t i = 0; i < OPTIONS; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "",
                 all[i].name);
    if (option == NULL)
        agent_say(NULL, "the backend TCPX has no parameter \"%.100s\"; it has %s", name, names);
    else
        agent_say(NULL, "the parameter %s=%.200s: %s", name, value, error_text());
    return false;
}

void nixl_options_free(struct nixl_options *options)
{
    if (options == NULL)
        return;
    free(options->secret_file);
    free(options);
}
