/*
 * tcpx doctor: goes through what can be wrong on this machine for moving GPU memory over TCP, and
 * says for each point what was found and what to do about it. Ends with a transfer from one
 * process to another that shows which stage limits.
 */
#include "tools/doctor.h"

#include "tools/command.h"

#include <limits.h>
#include <stdlib.h>

static const struct {
    const char *group;
    void (*check)(struct doctor *doctor);
} checks[] = {
    {"configuration", doctor_check_configuration},
    {"kernel", doctor_check_kernel},
    {"network", doctor_check_network},
    {"plugin", doctor_check_plugin},
    {"GPU", doctor_check_gpus},
    {"limits", doctor_check_limits},
    {"cores", doctor_check_cores},
    {"secret", doctor_check_secret},
    {"transfer", doctor_check_transfer},
};

static void check_all(struct doctor *doctor)
{
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        unsigned first = doctor->finding_count;

        doctor->group = checks[i].group;
        checks[i].check(doctor);
        if (!doctor->json)
            doctor_print_findings(doctor, first);
    }
}

static int doctor_main(int argument_count, char **arguments)
{
    static struct doctor doctor = {.root = ""};
    uint64_t gpu = UINT64_MAX;
    const struct option options[] = {{.name = "--json", .flag = &doctor.json},
                                     {.name = "--quick", .flag = &doctor.quick},
                                     {.name = "--gpu",
                                      .number = &gpu,
                                      .most = INT_MAX,
                                      .problem = "not the number of a GPU:",
                                      .missing = "no number behind"},
                                     {.name = NULL}};
    /* For tests only: a folder in which files of /proc, /sys, /run and /boot are looked for. */
    const char *root = getenv("TCPX_TEST_ROOT");
    int status = options_read(&command_doctor, argument_count, arguments, options, NULL);

    if (status != EXIT_OK)
        return status;
    doctor.gpu = gpu <= INT_MAX ? (int)gpu : -1;
    if (root != NULL)
        doctor.root = root;
    check_all(&doctor);
    if (doctor.json)
        doctor_print_json(&doctor);
    else
        doctor_print_summary(&doctor);
    status = command_finish();
    return status == EXIT_OK && doctor.counts[DOCTOR_PROBLEM] > 0 ? EXIT_FAILED : status;
}

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "[--json] [--gpu N] [--quick]",
    .summary = "Look for what is wrong on this machine, and measure what limits its speed.",
    .help = "\n"
            "  --json   for scripts\n"
            "  --gpu N  look at this GPU only, and measure with it; otherwise look at all, and\n"
            "           measure with GPU 0\n"
            "  --quick  do not measure a transfer\n"
            "\n"
            "Each line is ok, a note or a PROBLEM, with what to do about it. The status is 0 if\n"
            "there is no problem, else 1. The transfer goes from one process to another on this\n"
            "machine; it is left out when there is a problem.\n",
    .run = doctor_main,
};
