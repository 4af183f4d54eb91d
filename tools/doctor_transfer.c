/* Moves GPU memory from one process to another on this machine, and tells what limits it. */
#include "tools/doctor.h"

enum { WARM_UPS = 1, ITERATIONS = 4, PATIENCE_MS = 30000 };

static const uint64_t bytes_each = (uint64_t)64 << 20; /* 256 MiB in all, besides the first */

static void take_row(struct doctor *doctor, const struct perf_row *row)
{
    struct doctor_transfer *transfer = &doctor->transfer;

    *transfer = (struct doctor_transfer){.measured = true,
                                         .gigabytes_per_second = row->gigabytes_per_second,
                                         .span_us = row->mean_us,
                                         .bytes = row->bytes,
                                         .stages = row->stages};
    transfer->limit = doctor_stage_limit(transfer);
}

static void find_transfer_result(struct doctor *doctor)
{
    struct doctor_transfer *transfer = &doctor->transfer;

    /* A plugin does not say what it does inside. */
    transfer->stages_known = !doctor->through_plugin;
    if (!transfer->stages_known) {
        doctor_find(doctor, DOCTOR_OK, "256 MiB",
                    "%.2f GB/s from one process to another, on this machine; the plugin does not "
                    "tell what limits it",
                    transfer->gigabytes_per_second);
        return;
    }
    doctor_find(doctor, DOCTOR_OK, "256 MiB",
                "%.2f GB/s from one process to another, on this machine; limited by: %s",
                transfer->gigabytes_per_second, limiting_stage_name(transfer->limit));
    doctor_advise(doctor, "%s", doctor_stage_advice(transfer->limit));
}

void doctor_check_transfer(struct doctor *doctor)
{
    static struct perf_result result;
    const struct perf_end end = {.meeting = {.timeout_ms = PATIENCE_MS},
                                 .gpu = doctor->gpu >= 0 ? doctor->gpu : 0};
    const struct perf_plan plan = {.way = PERF_ONE_WAY,
                                   .size_count = 1,
                                   .sizes = {bytes_each},
                                   .iterations = ITERATIONS,
                                   .warm_up = WARM_UPS};

    if (doctor->quick)
        return;
    if (doctor->counts[DOCTOR_PROBLEM] > 0) {
        doctor_find(doctor, DOCTOR_NOTE, "256 MiB", "not measured");
        doctor_advise(doctor, "correct what is wrong above first");
        return;
    }
    if (perf_loopback(&end, &plan, &result) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "256 MiB", "%s", error_text());
        doctor_advise(doctor, "see each step with 'UCCL_TCPX_DEBUG=1 tcpx perf --loopback'");
        return;
    }
    take_row(doctor, &result.rows[0]);
    find_transfer_result(doctor);
}
