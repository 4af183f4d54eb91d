/*
 * Moves GPU memory from one process to another on this machine, and tells how fast each stage that
 * the bytes go through is, which one limits, and what to do about that.
 */
#include "tools/doctor.h"

enum { WARM_UPS = 1, ITERATIONS = 4, PATIENCE_MS = 30000 };

static const uint64_t bytes_each = (uint64_t)64 << 20; /* 256 MiB in all, besides the first */

/* --- the stages ---------------------------------------------------------------------------- */

double doctor_stage_us(const struct doctor_transfer *transfer, enum limiting_stage stage)
{
    static const unsigned stages_of[] = {[LIMIT_COPY_OUT] = PERF_COPY_OUT,
                                         [LIMIT_SEND] = PERF_SEND,
                                         [LIMIT_NETWORK] = PERF_SEND_WAIT,
                                         [LIMIT_RECEIVE] = PERF_RECEIVE,
                                         [LIMIT_COPY_IN] = PERF_COPY_IN};
    const double *stages = transfer->row.stages;

    if (stage == LIMIT_NETWORK && stages[PERF_RECEIVE_WAIT] < stages[PERF_SEND_WAIT])
        return stages[PERF_RECEIVE_WAIT];
    return stages[stages_of[stage]];
}

double doctor_stage_rate(const struct doctor_transfer *transfer, enum limiting_stage stage)
{
    enum { LEAST_PART = 100 };
    double us = doctor_stage_us(transfer, stage);

    if (us <= 0 || us < transfer->row.mean_us / LEAST_PART)
        return 0;
    return (double)transfer->row.bytes / us * 1e-3;
}

static uint64_t nanoseconds(double us)
{
    return us > 0 ? (uint64_t)(us * 1e3) : 0;
}

static enum limiting_stage stage_limit(const struct doctor_transfer *transfer)
{
    const double *stages = transfer->row.stages;
    const struct stage_times sender = {.copy_out_ns = nanoseconds(stages[PERF_COPY_OUT]),
                                       .write_ns = nanoseconds(stages[PERF_SEND]),
                                       .write_wait_ns = nanoseconds(stages[PERF_SEND_WAIT])};
    const struct stage_times receiver = {.read_ns = nanoseconds(stages[PERF_RECEIVE]),
                                         .read_wait_ns = nanoseconds(stages[PERF_RECEIVE_WAIT]),
                                         .copy_in_ns = nanoseconds(stages[PERF_COPY_IN])};

    return stages_limit(&sender, &receiver, nanoseconds(transfer->row.mean_us));
}

static const char *stage_advice(enum limiting_stage stage)
{
    static const char sockets[] =
        "for more, give it more CPUs, UCCL_TCPX_THREADS and UCCL_TCPX_SOCKETS";
    static const char *const advice[] = {
        [LIMIT_NONE] = "no stage was busy for long: the calls themselves take the time",
        [LIMIT_COPY_OUT] =
            "for more, see that a real GPU has all lanes of its bus ('nvidia-smi -q') and that "
            "this process runs on its NUMA node",
        [LIMIT_SEND] = sockets,
        [LIMIT_NETWORK] =
            "for more, use more connections (UCCL_TCPX_SOCKETS), larger packets or more "
            "interfaces",
        [LIMIT_RECEIVE] = sockets,
        [LIMIT_COPY_IN] =
            "for more, try the other words of UCCL_TCPX_UNPACK_IMPL, and run on the GPU's NUMA "
            "node"};

    return advice[stage];
}

/* --- the transfer -------------------------------------------------------------------------- */

static void find_transfer_result(struct doctor *doctor)
{
    struct doctor_transfer *transfer = &doctor->transfer;

    /* A plugin does not say what it does inside. */
    transfer->stages_known = !doctor->through_plugin;
    if (!transfer->stages_known) {
        doctor_find(doctor, DOCTOR_OK, "256 MiB",
                    "%.2f GB/s from one process to another, on this machine; the plugin does not "
                    "tell what limits it",
                    transfer->row.gigabytes_per_second);
        return;
    }
    transfer->limit = stage_limit(transfer);
    doctor_find(doctor, DOCTOR_OK, "256 MiB",
                "%.2f GB/s from one process to another, on this machine; limited by: %s",
                transfer->row.gigabytes_per_second, limiting_stage_name(transfer->limit));
    doctor_advise(doctor, "%s", stage_advice(transfer->limit));
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
    doctor->transfer = (struct doctor_transfer){.measured = true, .row = result.rows[0]};
    find_transfer_result(doctor);
}
