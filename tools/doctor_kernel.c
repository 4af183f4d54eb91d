/*
 * What this kernel can do: device memory over TCP is asked for by netlink, since distributions
 * bring new things to old numbers; where the kernel cannot be asked, its version tells.
 */
#include "net/nic/nic.h"
#include "tools/doctor.h"

#include <stdlib.h>
#include <string.h>

struct version {
    char text[128];
    int major; /* 0: not known */
    int minor;
};

static void read_version(const struct doctor *doctor, struct version *version)
{
    char *rest;
    long major;
    long minor;

    *version = (struct version){0};
    if (!doctor_read_line(doctor, "/proc/sys/kernel/osrelease", version->text,
                          sizeof version->text))
        return;
    major = strtol(version->text, &rest, 10);
    if (*rest != '.' || major < 1 || major > 1000)
        return;
    minor = strtol(rest + 1, NULL, 10);
    if (minor < 0 || minor > 10000)
        return;
    version->major = (int)major;
    version->minor = (int)minor;
}

static bool at_least(const struct version *version, int major, int minor)
{
    return version->major > major || (version->major == major && version->minor >= minor);
}

static void check_version(struct doctor *doctor, const struct version *version)
{
    if (version->major == 0) {
        doctor_find(doctor, DOCTOR_NOTE, "version", "unknown: /proc/sys/kernel/osrelease says '%s'",
                    version->text);
        doctor_advise(doctor, "mount /proc");
    } else if (!at_least(version, 4, 14)) {
        doctor_find(doctor, DOCTOR_NOTE, "version", "%s is older than what tcpx is tested with",
                    version->text);
        doctor_advise(doctor, "use Linux 5.10 or later");
    } else {
        doctor_find(doctor, DOCTOR_OK, "version", "%s", version->text);
    }
}

/* --- device memory over TCP ---------------------------------------------------------------- */

/* The configuration the kernel was built with, where it lies open. */
static enum doctor_option built_with(const struct doctor *doctor, const struct version *version,
                                     const char *name)
{
    enum doctor_option option = doctor_read_option(doctor, "/proc/config.gz", name);
    char path[160];

    if (option != DOCTOR_OPTION_UNKNOWN)
        return option;
    snprintf(path, sizeof path, "/boot/config-%s", version->text);
    return doctor_read_option(doctor, path, name);
}

static const char *option_text(enum doctor_option option)
{
    switch (option) {
    case DOCTOR_OPTION_SET:
        return "CONFIG_NET_DEVMEM is set";
    case DOCTOR_OPTION_NOT_SET:
        return "CONFIG_NET_DEVMEM is not set";
    default:
        return "whether CONFIG_NET_DEVMEM is set is unknown: neither /proc/config.gz nor "
               "/boot/config-* can be read";
    }
}

struct direction {
    const char *name;
    const char *what;
    int major; /* since when */
    int minor;
};

static const struct direction receiving = {"devmem receive", "receive into", 6, 12};
static const struct direction sending = {"devmem send", "send from", 6, 16};

/* `silence`: why the kernel has not said whether it can, so that its version tells; or NULL. */
static bool check_direction(struct doctor *doctor, const struct version *version,
                            const char *silence, bool offered, const struct direction *direction,
                            enum doctor_option option)
{
    bool asked = silence == NULL;
    bool by_version = at_least(version, direction->major, direction->minor);

    if (!asked && version->major == 0) {
        doctor_find(doctor, DOCTOR_NOTE, direction->name,
                    "unknown: the kernel cannot be asked (%s)", silence);
        doctor_advise(doctor, "see that it is Linux %d.%d or later", direction->major,
                      direction->minor);
        return false;
    }
    if ((asked ? offered : by_version) && option != DOCTOR_OPTION_NOT_SET) {
        doctor_find(doctor, DOCTOR_OK, direction->name, "the kernel can %s device memory%s; %s",
                    direction->what, asked ? "" : ", by its version", option_text(option));
        return true;
    }
    doctor_find(doctor, DOCTOR_NOTE, direction->name,
                "the kernel cannot %s device memory%s%s; data goes through pinned host memory",
                direction->what, option == DOCTOR_OPTION_NOT_SET ? ": " : "",
                option == DOCTOR_OPTION_NOT_SET ? option_text(option) : "");
    doctor_advise(doctor,
                  "for NICs that can do it, use Linux %d.%d or later with "
                  "CONFIG_NET_DEVMEM",
                  direction->major, direction->minor);
    return false;
}

static void check_devmem(struct doctor *doctor, const struct version *version)
{
    enum doctor_option option = built_with(doctor, version, "CONFIG_NET_DEVMEM");
    const char *silence = NULL;
    bool receives = false;
    bool sends = false;

    if (*doctor->root != '\0')
        silence = "these are files of another machine";
    else if (nic_kernel_binds(&receives, &sends) != TCPX_SUCCESS)
        silence = error_text();
    check_direction(doctor, version, silence, receives, &receiving, option);
    doctor->kernel_sends_devmem =
        check_direction(doctor, version, silence, sends, &sending, option);
}

/* Notices of what the NIC is done with are kept in this memory until they are read. */
static void check_zero_copy(struct doctor *doctor)
{
    enum { ENOUGH = 131072 };
    uint64_t bytes;

    if (!doctor_read_number(doctor, "/proc/sys/net/core/optmem_max", &bytes)) {
        doctor_find(doctor, DOCTOR_OK, "zero copy", "net.core.optmem_max cannot be read here");
    } else if (bytes < ENOUGH && doctor->kernel_sends_devmem) {
        doctor_find(doctor, DOCTOR_NOTE, "zero copy",
                    "net.core.optmem_max=%llu is little for the notices of sends by reference",
                    (unsigned long long)bytes);
        doctor_advise(doctor, "'sysctl -w net.core.optmem_max=%d'", ENOUGH);
    } else {
        doctor_find(doctor, DOCTOR_OK, "zero copy", "net.core.optmem_max=%llu",
                    (unsigned long long)bytes);
    }
}

void doctor_check_kernel(struct doctor *doctor)
{
    struct version version;

    read_version(doctor, &version);
    check_version(doctor, &version);
    check_devmem(doctor, &version);
    check_zero_copy(doctor);
}
