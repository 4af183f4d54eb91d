/*
 * What the library asks its system for besides threads and sockets: variables of the environment,
 * random numbers, CPUs, interfaces, addresses. Files of the real machine are not there, so that a
 * run depends on its seed only.
 */
#include "libc.h"
#include "redirected.h"
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

const struct sim_library sim_libraries[2] = {
    {
#define SIM_CALL(name) .name = a_##name,
#include "api.def"
#undef SIM_CALL
    },
    {
#define SIM_CALL(name) .name = b_##name,
#include "api.def"
#undef SIM_CALL
    },
};

/* --- the environment -------------------------------------------------------------------------- */

enum { MOST_VARIABLES = 32 };
static char variables[SIM_PROCESSES][MOST_VARIABLES][128]; /* NAME=VALUE */
static unsigned variable_counts[SIM_PROCESSES];

void sim_setenv(int process, const char *name, const char *value)
{
    if (variable_counts[process] == MOST_VARIABLES)
        sim_found("the simulation has more than %d variables", MOST_VARIABLES);
    snprintf(variables[process][variable_counts[process]++], sizeof variables[0][0], "%s=%s", name,
             value);
}

char *sim_getenv(const char *name)
{
    int process = sim_process();
    size_t length = strlen(name);

    for (unsigned i = 0; i < variable_counts[process]; i++)
        if (strncmp(variables[process][i], name, length) == 0 &&
            variables[process][i][length] == '=')
            return variables[process][i] + length + 1;
    return NULL;
}

/* No variable is there that the library could complain about. */
char *sim_no_environment[1];
char **sim_environ = sim_no_environment;

/* --- the machine ------------------------------------------------------------------------------ */

ssize_t sim_getrandom(void *bytes, size_t count, unsigned flags)
{
    uint8_t *to = bytes;

    for (size_t i = 0; i < count; i++)
        to[i] = (uint8_t)sim_random();
    return (ssize_t)count;
}

pid_t sim_getpid(void)
{
    return 1000 + sim_process();
}

int sim_gethostname(char *name, size_t size)
{
    snprintf(name, size, "host-%d", sim_process());
    return 0;
}

int sim_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    CPU_ZERO_S(size, set);
    for (unsigned i = 0; i < sim_world.cpus; i++)
        CPU_SET_S(i, size, set);
    return 0;
}

FILE *sim_fopen(const char *path, const char *mode)
{
    errno = ENOENT;
    return NULL;
}

int sim_open(const char *path, int flags, ...)
{
    errno = ENOENT;
    return -1;
}

int sim_access(const char *path, int mode)
{
    errno = ENOENT;
    return -1;
}

char *sim_realpath(const char *path, char *resolved)
{
    errno = ENOENT;
    return NULL;
}

/* --- interfaces and addresses ----------------------------------------------------------------- */

static struct sockaddr_in own_address = {.sin_family = AF_INET};
static char own_name[] = "sim0";
static struct ifaddrs own_interface = {.ifa_name = own_name,
                                       .ifa_flags = IFF_UP | IFF_RUNNING,
                                       .ifa_addr = (struct sockaddr *)&own_address};

int sim_getifaddrs(struct ifaddrs **list)
{
    own_address.sin_addr.s_addr = htonl(0x0a000001);
    *list = &own_interface;
    return 0;
}

void sim_freeifaddrs(struct ifaddrs *list)
{
}

unsigned sim_if_nametoindex(const char *name)
{
    return 2;
}

/* Only numbers, as a program of a simulation has no others. */
int sim_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                    struct addrinfo **list)
{
    struct sockaddr_in *address = calloc(1, sizeof *address);
    struct addrinfo *found = calloc(1, sizeof *found);

    if (address == NULL || found == NULL)
        abort();
    address->sin_family = AF_INET;
    if (host != NULL && inet_pton(AF_INET, host, &address->sin_addr) != 1) {
        free(address);
        free(found);
        return EAI_NONAME;
    }
    if (service != NULL)
        address->sin_port = htons((uint16_t)atoi(service));
    *found = (struct addrinfo){.ai_family = AF_INET,
                               .ai_socktype = SOCK_STREAM,
                               .ai_protocol = hints != NULL ? hints->ai_protocol : 0,
                               .ai_addrlen = sizeof *address,
                               .ai_addr = (struct sockaddr *)address};
    *list = found;
    return 0;
}

void sim_freeaddrinfo(struct addrinfo *list)
{
    free(list->ai_addr);
    free(list);
}
