/* What this backend says on standard error, in lines of its own beside those of NIXL. */
#include "nixl_plugin/agent.h"

#include "base/log.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static void print_line(const struct nixl_agent *agent, const char *format, va_list arguments)
{
    char line[1024];
    char shown[128];

    vsnprintf(line, sizeof line, format, arguments);
    if (agent == NULL)
        fprintf(stderr, "[TCPX] NIXL: %s\n", line);
    else
        fprintf(stderr, "[TCPX] NIXL agent %s: %s\n",
                agent_shown((struct nixl_text){agent->name, agent->name_length}, shown), line);
}

void agent_say(const struct nixl_agent *agent, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    print_line(agent, format, arguments);
    va_end(arguments);
}

/* NIXL's variable asks for such lines of NIXL. */
static bool is_talkative(void)
{
    const char *level = getenv("NIXL_LOG_LEVEL");

    return log_enabled(LOG_TCPX) ||
           (level != NULL && (strcasecmp(level, "info") == 0 || strcasecmp(level, "debug") == 0 ||
                              strcasecmp(level, "trace") == 0));
}

void agent_tell(const struct nixl_agent *agent, const char *format, ...)
{
    va_list arguments;

    if (!is_talkative())
        return;
    va_start(arguments, format);
    print_line(agent, format, arguments);
    va_end(arguments);
}

const char *agent_shown(struct nixl_text name, char shown[128])
{
    text_printable(name.bytes, name.length, shown, 128);
    return shown;
}
