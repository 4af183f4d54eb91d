/* Variables of the environment: values that are none, names that are none, contradictions. */
#include "abi/unpack_queue.h"
#include "base/config.h"
#include "tools/command.h"
#include "tools/doctor.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

#define NAME_OF_BOOL(field, name, initial, sentence)                         name,
#define NAME_OF_CHOICE(field, name, initial, words, sentence)                name,
#define NAME_OF_NUMBER(field, name, initial, least, most, sentence)          name,
#define NAME_OF_TEXT(field, name, initial, allowed, sentence)                name,
#define NAME_OF_OTHER(field, type, name, initial, allowed, parser, sentence) name,

static const char *const names[] = {CONFIG_TABLE(NAME_OF_BOOL, NAME_OF_CHOICE, NAME_OF_NUMBER,
                                                 NAME_OF_NUMBER, NAME_OF_TEXT, NAME_OF_OTHER)};

enum { NAMES = sizeof names / sizeof *names, NAME_BYTES = 64 };

static const char prefix[] = "UCCL_TCPX_";

static bool variable_is_set(const char *name)
{
    return *command_variable(name) != '\0';
}

/* --- values -------------------------------------------------------------------------------- */

/* The variable that a failure of config_read() is about: its text begins with "NAME=". */
static void variable_of_failure(char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%.*s", (int)strcspn(error_text(), "="), error_text());
}

/* Each one that is wrong is told, and then left at its default, so that the rest can be seen. */
static unsigned check_values(struct doctor *doctor, struct config *config)
{
    unsigned wrong = 0;

    while (config_read(config) != TCPX_SUCCESS) {
        char name[NAME_BYTES];

        variable_of_failure(name);
        doctor_find(doctor, DOCTOR_PROBLEM, name, "%s", error_text());
        doctor_advise(doctor, "correct it or unset it; the checks below go on with its default");
        wrong++;
        if (getenv(name) == NULL || unsetenv(name) != 0)
            break;
    }
    return wrong;
}

/* --- names --------------------------------------------------------------------------------- */

/* How many letters must be added, left out or changed to get from one to the other. */
static unsigned letters_apart(const char *a, const char *b)
{
    unsigned row[NAME_BYTES + 1];
    size_t a_length = strlen(a);
    size_t b_length = strlen(b);

    if (a_length > NAME_BYTES || b_length > NAME_BYTES)
        return NAME_BYTES;
    for (unsigned j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_length; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            unsigned other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[b_length];
}

static const char *nearest_name(const char *name, unsigned *distance)
{
    const char *nearest = names[0];

    *distance = letters_apart(name, nearest);
    for (size_t i = 1; i < NAMES; i++) {
        unsigned apart = letters_apart(name, names[i]);

        if (apart < *distance) {
            *distance = apart;
            nearest = names[i];
        }
    }
    return nearest;
}

/* A name that is nearly one of ours was meant to be it, and what it asks for does not happen. */
static unsigned check_name(struct doctor *doctor, const char *name)
{
    enum { A_SLIP = 3 };
    unsigned distance;
    const char *nearest = nearest_name(name, &distance);

    if (distance == 0 || strcmp(name, CONFIG_SOFT_DEVMEM) == 0)
        return 0;
    if (distance <= A_SLIP) {
        doctor_find(doctor, DOCTOR_PROBLEM, name, "%s is set, but tcpx does not read it", name);
        doctor_advise(doctor, "probably %s is meant", nearest);
        return 1;
    }
    doctor_find(doctor, DOCTOR_NOTE, name, "%s is set, but tcpx does not read it", name);
    doctor_advise(doctor, "unset it; 'tcpx env' lists the names there are");
    return 1;
}

static unsigned check_names(struct doctor *doctor)
{
    unsigned unknown = 0;

    for (char **entry = environ; *entry != NULL; entry++) {
        char name[NAME_BYTES];
        size_t length = strcspn(*entry, "=");

        if (strncmp(*entry, prefix, sizeof prefix - 1) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, *entry);
        unknown += check_name(doctor, name);
    }
    return unknown;
}

/* --- contradictions ------------------------------------------------------------------------ */

static bool both_differ(const char *a, const char *b)
{
    return variable_is_set(a) && variable_is_set(b) &&
           strcmp(command_variable(a), command_variable(b)) != 0;
}

static unsigned note_setting(struct doctor *doctor, const char *name, const char *text,
                             const char *advice)
{
    doctor_find(doctor, DOCTOR_NOTE, name, "%s", text);
    doctor_advise(doctor, "%s", advice);
    return 1;
}

static unsigned check_pairs(struct doctor *doctor, const struct config *config)
{
    unsigned found = 0;

    /* That is how machines with NICs for data are set up. */
    if (both_differ("NCCL_SOCKET_IFNAME", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"))
        doctor_find(doctor, DOCTOR_OK, "interfaces",
                    "data goes over NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=%s; "
                    "NCCL_SOCKET_IFNAME=%s is for NCCL's own connections",
                    command_variable("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"),
                    command_variable("NCCL_SOCKET_IFNAME"));
    if (both_differ("UCCL_TCPX_CHUNK_BYTES", "NCCL_P2P_NET_CHUNKSIZE") && config->chunk_bytes != 0)
        found +=
            note_setting(doctor, "chunks",
                         "UCCL_TCPX_CHUNK_BYTES and NCCL_P2P_NET_CHUNKSIZE differ; tcpx takes the "
                         "first, NCCL the second",
                         "unset one of them, unless that is meant");
    if (config->gpu == CONFIG_GPU_CUDA &&
        (variable_is_set("UCCL_TCPX_HOST_GPUS") || variable_is_set("UCCL_TCPX_HOST_GPU_MEMORY")))
        found += note_setting(
            doctor, "emulated GPUs",
            "UCCL_TCPX_HOST_GPU... describes emulated GPUs, and UCCL_TCPX_GPU=cuda asks "
            "for real ones",
            "unset UCCL_TCPX_HOST_GPUS and UCCL_TCPX_HOST_GPU_MEMORY");
    return found;
}

/* Settings that are for tests, and slow. */
static unsigned check_test_settings(struct doctor *doctor, const struct config *config)
{
    unsigned found = 0;

    if (config->host_gpu_delay_us != 0)
        found += note_setting(doctor, "UCCL_TCPX_HOST_GPU_DELAY_US",
                              "emulated GPUs are made to wait before each operation",
                              "unset UCCL_TCPX_HOST_GPU_DELAY_US: it is for tests");
    if (config->soft_devmem != 0)
        found += note_setting(doctor, "UCCL_TCPX_SOFT_DEVMEM",
                              "receives go through a made-up device-memory NIC, which is slow",
                              "unset UCCL_TCPX_SOFT_DEVMEM: it is for tests");
    return found;
}

/* A comm that publishes to the GPU takes its room and its queue from the bounce memory. */
static unsigned check_bounce(struct doctor *doctor, const struct config *config)
{
    const uint64_t page = 4096;
    const uint64_t queue_bytes =
        sizeof(struct unpack_queue) + sizeof(struct unpack_device_handle) + page;

    if (config->unpack_bytes + queue_bytes <= config->bounce_bytes)
        return 0;
    doctor_find(doctor, DOCTOR_PROBLEM, "UCCL_TCPX_BOUNCE_BYTES",
                "%llu MiB of bounce memory have no room for one comm, whose UCCL_TCPX_UNPACK_BYTES "
                "are %llu MiB besides its queue",
                (unsigned long long)config->bounce_bytes >> 20,
                (unsigned long long)config->unpack_bytes >> 20);
    doctor_advise(doctor, "set UCCL_TCPX_BOUNCE_BYTES to several times UCCL_TCPX_UNPACK_BYTES");
    return 1;
}

void doctor_check_configuration(struct doctor *doctor)
{
    struct config config = {0};
    unsigned found = check_names(doctor);
    unsigned set = 0;

    found += check_values(doctor, &config);
    if (config_read(&config) != TCPX_SUCCESS)
        return;
    found += check_pairs(doctor, &config);
    found += check_test_settings(doctor, &config);
    found += check_bounce(doctor, &config);
    for (size_t i = 0; i < NAMES; i++)
        set += variable_is_set(names[i]);
    if (found == 0)
        doctor_find(doctor, DOCTOR_OK, "variables", "%u of %d set, all of them understood", set,
                    NAMES);
}
