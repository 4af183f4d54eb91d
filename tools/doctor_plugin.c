/* The network plugin, and the daemon that Google's needs beside it. */
#include "plugin_host/quirks.h"
#include "tools/command.h"
#include "tools/doctor.h"

#include <glob.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

/* Where the daemon puts its sockets unless told otherwise, and where the plugin looks. */
#define DAEMON_FOLDER   "/run/tcpx"
#define PLUGIN_FOLDER   "/tmp"
#define PREFIX_VARIABLE "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX"

/* Sockets that hand out GPU memory: one for each GPU. */
static unsigned count_sockets(const struct doctor *doctor, const char *folder)
{
    char pattern[PATH_MAX];
    unsigned count = 0;
    glob_t found;

    if ((size_t)snprintf(pattern, sizeof pattern, "%s%s/get_gpu_fd_*", doctor->root, folder) >=
            sizeof pattern ||
        glob(pattern, GLOB_NOSORT, NULL, &found) != 0)
        return 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct stat file;

        count += stat(found.gl_pathv[i], &file) == 0 && S_ISSOCK(file.st_mode);
    }
    globfree(&found);
    return count;
}

static void check_daemon(struct doctor *doctor)
{
    const char *set = command_variable(PREFIX_VARIABLE);
    const char *folder = *set != '\0' ? set : PLUGIN_FOLDER;
    unsigned count = count_sockets(doctor, folder);

    if (count > 0) {
        doctor_find(doctor, DOCTOR_OK, "receive daemon", "%u socket%s %s/get_gpu_fd_*", count,
                    count == 1 ? "" : "s", folder);
        return;
    }
    doctor_find(doctor, DOCTOR_PROBLEM, "receive daemon",
                "this plugin gets its memory from a daemon, and there is no socket "
                "%s/get_gpu_fd_*",
                folder);
    if (count_sockets(doctor, DAEMON_FOLDER) > 0)
        doctor_advise(doctor, "'export " PREFIX_VARIABLE "=" DAEMON_FOLDER "', where they are");
    else
        doctor_advise(doctor, "start the receive daemon (tcpgpudmarxd) and set " PREFIX_VARIABLE
                              " to its folder, as a rule " DAEMON_FOLDER);
}

void doctor_check_plugin(struct doctor *doctor)
{
    struct plugin_probe probe;

    if (plugin_probe(&probe) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "plugin", "%s", error_text());
        doctor_advise(doctor, "correct UCCL_TCPX_PLUGIN_PATH, or set it to builtin");
        return;
    }
    if (probe.builtin) {
        doctor_find(doctor, DOCTOR_OK, "plugin", "none: the built-in transport");
        return;
    }
    doctor->through_plugin = true;
    if (!probe.works) {
        doctor_find(doctor, DOCTOR_PROBLEM, "plugin", "%s does not work: %.380s", probe.path,
                    probe.text);
        doctor_advise(doctor, "name another in UCCL_TCPX_PLUGIN_PATH, or set it to builtin");
        return;
    }
    doctor_find(doctor, DOCTOR_OK, "plugin", "%s: %.380s", probe.path, probe.text);
    if (import_quirks_of(probe.text)->plugin != NULL)
        check_daemon(doctor);
}
