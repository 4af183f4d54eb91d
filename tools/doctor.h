/*
 * What the checks of `tcpx doctor` share. A check looks at one thing and says what it found; what
 * is not in order comes with one sentence about what to do. tools/doctor_*.c are one group each.
 */
#ifndef TCPX_TOOLS_DOCTOR_H
#define TCPX_TOOLS_DOCTOR_H

#include "net/comm/stages.h"
#include "net/device/device.h"
#include "tools/nic_devmem.h"
#include "tools/perf.h"
#include "tools/plugin_probe.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_NOTE,    /* works, but could be better, or is worth knowing */
    DOCTOR_PROBLEM, /* does not work, or not as it was asked for */
    DOCTOR_LEVELS
};

struct doctor_finding {
    const char *group;
    enum doctor_level level;
    char name[48];
    char text[640];
    char advice[320]; /* "": there is nothing to do */
};

/* 64 GPUs and 32 interfaces, a handful each, and the machine itself stay well below that. */
enum { DOCTOR_MOST_FINDINGS = 1024 };

struct doctor_transfer {
    bool measured;
    struct perf_row row;
    bool stages_known; /* what follows */
    uint64_t held_ns[LIMIT_STAGES];
    enum limiting_stage limit;
};

struct doctor {
    bool json;
    bool quick;
    int gpu;          /* -1: all of them */
    const char *root; /* before the paths of files in /proc, /sys, /run and /boot: "" */
    const char *group;

    /* Found by one group, of use to later ones. */
    struct net_device nics[NET_DEVICES_MOST];
    int nic_count;
    bool kernel_sends_devmem;
    bool has_asked_memory; /* what follows */
    struct nic_devmem_answer memory;
    bool through_plugin;

    struct doctor_transfer transfer;
    unsigned counts[DOCTOR_LEVELS];
    unsigned finding_count;
    struct doctor_finding findings[DOCTOR_MOST_FINDINGS];
};

/* --- saying what was found (doctor_report.c) ----------------------------------------------- */

/* In the group at hand. */
void doctor_find(struct doctor *doctor, enum doctor_level level, const char *name,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* What to do about the latest finding. */
void doctor_advise(struct doctor *doctor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Findings from `first` on, as lines for people. */
void doctor_print_findings(const struct doctor *doctor, unsigned first);
void doctor_print_summary(const struct doctor *doctor);
void doctor_print_json(const struct doctor *doctor);

/* --- files of the system (doctor_files.c) -------------------------------------------------- */

/* The first line without its newline. False: it cannot be read. */
bool doctor_read_line(const struct doctor *doctor, const char *path, char *line, size_t room);
bool doctor_read_number(const struct doctor *doctor, const char *path, uint64_t *number);

/* The value of a line "NAME=value" in a file; a file that ends in .gz is unpacked. */
enum doctor_option { DOCTOR_OPTION_UNKNOWN, DOCTOR_OPTION_SET, DOCTOR_OPTION_NOT_SET };
enum doctor_option doctor_read_option(const struct doctor *doctor, const char *path,
                                      const char *name);

/* --- the groups, in their order ------------------------------------------------------------ */

/* Corrects what it finds for this process, so that one wrong variable does not hide the rest. */
void doctor_check_configuration(struct doctor *doctor);
void doctor_check_kernel(struct doctor *doctor);
void doctor_check_network(struct doctor *doctor);
void doctor_check_plugin(struct doctor *doctor);
void doctor_check_gpus(struct doctor *doctor); /* in a process of its own */
void doctor_check_limits(struct doctor *doctor);
void doctor_check_cores(struct doctor *doctor);
void doctor_check_secret(struct doctor *doctor);
void doctor_check_transfer(struct doctor *doctor);

/* A part of the network's: device-memory TCP on one interface (doctor_devmem.c). */
void doctor_check_devmem(struct doctor *doctor, const struct net_device *nic, const char *driver);

/* A part of the GPU's: each way of unpacking is right, and how fast (doctor_unpack.c). */
void doctor_check_unpack(struct doctor *doctor, int gpu);

/* The stages of the transfer. */
#define DOCTOR_FIRST_STAGE LIMIT_COPY_OUT
#define DOCTOR_LAST_STAGE  LIMIT_COPY_IN

/* How long it held up one of the transfers: stages_hold_up(). */
double doctor_stage_us(const struct doctor_transfer *transfer, enum limiting_stage stage);
/* 10^9 bytes a second in that time; 0: it hardly did, and a rate would say nothing. */
double doctor_stage_rate(const struct doctor_transfer *transfer, enum limiting_stage stage);

#endif
