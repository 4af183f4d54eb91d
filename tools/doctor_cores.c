/* CPUs: how many this process has, and what moves data on them. */
#include "tools/doctor.h"
#include "tools/io_threads.h"

static void describe_cpus(const struct topology *topology, char *text, size_t room)
{
    if (topology->quota_cpus != 0 && topology->quota_cpus < topology->mask_cpus)
        snprintf(text, room, "%d CPU%s of %d, by the quota of its cgroup", topology->quota_cpus,
                 topology->quota_cpus == 1 ? "" : "s", topology->mask_cpus);
    else
        snprintf(text, room, "%d CPU%s", topology->mask_cpus, topology->mask_cpus == 1 ? "" : "s");
}

static void check_cpus(struct doctor *doctor, const struct io_plan *plan)
{
    char cpus[96];
    char processes[32] = "";

    describe_cpus(&plan->topology, cpus, sizeof cpus);
    if (plan->processes > 1)
        snprintf(processes, sizeof processes, " for %u processes", plan->processes);
    if (plan->cpus_are_plenty) {
        doctor_find(doctor, DOCTOR_OK, "CPUs", "%s%s", cpus, processes);
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, "CPUs", "%s%s: sending, receiving and copying share them",
                cpus, processes);
    doctor_advise(doctor,
                  plan->processes > 1
                      ? "for full speed, give them 4 or more, and at least 2 for each process"
                      : "for full speed, give this process 4 or more");
}

static void check_threads(struct doctor *doctor, const struct io_plan *plan)
{
    int usable_cpus = plan->topology.usable_cpus;
    char text[IO_THREADS_TEXT_BYTES];

    if (plan->threads == 0) {
        doctor_find(doctor, DOCTOR_NOTE, "I/O threads",
                    "UCCL_TCPX_THREADS=0: data moves only while a call is made");
        doctor_advise(doctor, "unset UCCL_TCPX_THREADS, unless that is meant");
    } else if (!plan->is_automatic && plan->threads > (unsigned)usable_cpus) {
        doctor_find(doctor, DOCTOR_NOTE, "I/O threads",
                    "UCCL_TCPX_THREADS=%u are more than the %d CPUs that they run on",
                    plan->threads, usable_cpus);
        doctor_advise(doctor, "unset UCCL_TCPX_THREADS, or set it to %d at most", usable_cpus);
    } else {
        io_threads_describe(plan, text);
        doctor_find(doctor, DOCTOR_OK, "I/O threads", "%s", text);
    }
}

void doctor_check_cores(struct doctor *doctor)
{
    struct io_plan plan;

    if (io_plan_below(doctor->root, &plan) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "CPUs", "%s", error_text());
        doctor_advise(doctor, "see the affinity mask with 'taskset -p $$'");
        return;
    }
    check_cpus(doctor, &plan);
    check_threads(doctor, &plan);
    doctor_find(doctor, DOCTOR_OK, "NUMA", "%d node%s", plan.topology.numa_nodes,
                plan.topology.numa_nodes == 1 ? "" : "s");
}
