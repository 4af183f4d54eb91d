/* CPUs: how many this process has, and what moves data on them. */
#include "base/config.h"
#include "base/topology.h"
#include "net/io/io.h"
#include "tools/doctor.h"

static void describe_cpus(const struct topology *topology, char *text, size_t room)
{
    if (topology->quota_cpus != 0 && topology->quota_cpus < topology->mask_cpus)
        snprintf(text, room, "%d CPU%s of %d, by the quota of its cgroup", topology->quota_cpus,
                 topology->quota_cpus == 1 ? "" : "s", topology->mask_cpus);
    else
        snprintf(text, room, "%d CPU%s", topology->mask_cpus, topology->mask_cpus == 1 ? "" : "s");
}

static void check_cpus(struct doctor *doctor, const struct topology *topology)
{
    enum { FEW = 4 };
    char cpus[96];

    describe_cpus(topology, cpus, sizeof cpus);
    if (topology->usable_cpus >= FEW) {
        doctor_find(doctor, DOCTOR_OK, "CPUs", "%s", cpus);
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, "CPUs", "%s: sending, receiving and copying share them", cpus);
    doctor_advise(doctor, "for full speed, give this process %d or more", FEW);
}

static void check_threads(struct doctor *doctor, const struct topology *topology)
{
    const struct config *config;
    struct io_plan plan;

    if (config_get(&config) != TCPX_SUCCESS || io_plan(&plan) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "I/O threads", "%s", error_text());
        doctor_advise(doctor, "correct UCCL_TCPX_THREADS");
        return;
    }
    if (config->threads == 0) {
        doctor_find(doctor, DOCTOR_NOTE, "I/O threads",
                    "UCCL_TCPX_THREADS=0: data moves only while a call is made");
        doctor_advise(doctor, "unset UCCL_TCPX_THREADS, unless that is meant");
    } else if (config->threads != CONFIG_AUTO && plan.threads > (unsigned)topology->usable_cpus) {
        doctor_find(doctor, DOCTOR_NOTE, "I/O threads",
                    "UCCL_TCPX_THREADS=%u are more than the %d CPUs that they run on", plan.threads,
                    topology->usable_cpus);
        doctor_advise(doctor, "unset UCCL_TCPX_THREADS, or set it to %d at most",
                      topology->usable_cpus);
    } else {
        doctor_find(doctor, DOCTOR_OK, "I/O threads", "up to %u, on demand", plan.threads);
    }
}

void doctor_check_cores(struct doctor *doctor)
{
    struct topology topology;

    if (topology_read(doctor->root, &topology) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "CPUs", "%s", error_text());
        doctor_advise(doctor, "see the affinity mask with 'taskset -p $$'");
        return;
    }
    check_cpus(doctor, &topology);
    check_threads(doctor, &topology);
    doctor_find(doctor, DOCTOR_OK, "NUMA", "%d node%s", topology.numa_nodes,
                topology.numa_nodes == 1 ? "" : "s");
}
