/*
 * Moves GPU memory from one process to another on this machine, and tells how fast each stage that
 * the bytes go through is, which one limits, and what to do about that.
 */
#include "tools/doctor.h"

#include <string.h>

enum { WARM_UPS = 1, ITERATIONS = 4, PATIENCE_MS = 30000 };

static const uint64_t bytes_each = (uint64_t)64 << 20;
static const char name_of_transfer[] = "4 x 64 MiB";

/* --- the stages ---------------------------------------------------------------------------- */

double doctor_stage_us(const struct doctor_transfer *transfer, enum limiting_stage stage)
{
    return (double)transfer->held_ns[stage] / 1e3;
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

static void find_limit(struct doctor_transfer *transfer)
{
    const double *stages = transfer->row.stages;
    const struct stage_times sender = {.copy_out_ns = nanoseconds(stages[PERF_COPY_OUT]),
                                       .write_ns = nanoseconds(stages[PERF_SEND]),
                                       .write_wait_ns = nanoseconds(stages[PERF_SEND_WAIT])};
    const struct stage_times receiver = {.read_ns = nanoseconds(stages[PERF_RECEIVE]),
                                         .read_wait_ns = nanoseconds(stages[PERF_RECEIVE_WAIT]),
                                         .copy_in_ns = nanoseconds(stages[PERF_COPY_IN])};
    uint64_t span_ns = nanoseconds(transfer->row.mean_us);

    stages_hold_up(&sender, &receiver, span_ns, transfer->held_ns);
    transfer->limit = stages_limit(transfer->held_ns, span_ns);
}

/* "send, network and receive", where the transfer is balanced; else the one that limits. */
static const char *limit_name(const struct doctor_transfer *transfer, char text[96])
{
    unsigned left = 0;

    if (transfer->limit != LIMIT_BALANCED)
        return limiting_stage_name(transfer->limit);
    for (enum limiting_stage i = DOCTOR_FIRST_STAGE; i <= DOCTOR_LAST_STAGE; i++)
        left += stages_is_close(transfer->held_ns, i);
    text[0] = '\0';
    for (enum limiting_stage i = DOCTOR_FIRST_STAGE; i <= DOCTOR_LAST_STAGE; i++)
        if (stages_is_close(transfer->held_ns, i)) {
            size_t length = strlen(text);

            left--;
            snprintf(text + length, 96 - length, "%s%s", limiting_stage_name(i),
                     left == 0   ? ""
                     : left == 1 ? " and "
                                 : ", ");
        }
    return text;
}

/* The transfer stays on this machine, so nothing here is about NICs. */
static const char *stage_advice(enum limiting_stage stage, bool emulated)
{
    static const char sockets[] =
        "for more, give it more CPUs, or other values of UCCL_TCPX_THREADS and UCCL_TCPX_SOCKETS";
    static const char memory[] =
        "the GPU is emulated: its copies go as fast as this machine's memory and CPUs";
    static const char *const advice[] = {
        [LIMIT_NONE] = "no stage was busy for long: the calls themselves take the time",
        [LIMIT_COPY_OUT] =
            "for more, see that a real GPU has all lanes of its bus ('nvidia-smi -q') and that "
            "this process runs on its NUMA node",
        [LIMIT_SEND] = sockets,
        [LIMIT_NETWORK] =
            "both ends waited for the kernel, which hands bytes from one socket to the other: for "
            "more, use more connections (UCCL_TCPX_SOCKETS)",
        [LIMIT_RECEIVE] = sockets,
        [LIMIT_COPY_IN] =
            "for more, try the other words of UCCL_TCPX_UNPACK_IMPL, and run on the GPU's NUMA "
            "node",
        [LIMIT_BALANCED] = "no stage is far slower than the others: for more, give it more CPUs"};

    return emulated && (stage == LIMIT_COPY_OUT || stage == LIMIT_COPY_IN) ? memory : advice[stage];
}

static bool gpu_is_emulated(int gpu)
{
    struct tcpx_gpu_properties properties;

    return tcpx_gpu_get_properties(gpu, &properties) == TCPX_SUCCESS &&
           strcmp(properties.backend, "host") == 0;
}

/* --- the transfer -------------------------------------------------------------------------- */

static void find_transfer_result(struct doctor *doctor, int gpu)
{
    struct doctor_transfer *transfer = &doctor->transfer;
    char name[96];

    /* A plugin does not say what it does inside. */
    transfer->stages_known = !doctor->through_plugin;
    if (!transfer->stages_known) {
        doctor_find(doctor, DOCTOR_OK, name_of_transfer,
                    "%.2f GB/s from one process to another, on this machine; the plugin does not "
                    "tell what limits it",
                    transfer->row.gigabytes_per_second);
        return;
    }
    find_limit(transfer);
    doctor_find(doctor, DOCTOR_OK, name_of_transfer,
                "%.2f GB/s from one process to another, on this machine; %s: %s",
                transfer->row.gigabytes_per_second,
                transfer->limit == LIMIT_BALANCED ? "balanced" : "limited by",
                limit_name(transfer, name));
    doctor_advise(doctor, "%s", stage_advice(transfer->limit, gpu_is_emulated(gpu)));
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
        doctor_find(doctor, DOCTOR_NOTE, name_of_transfer, "not measured");
        doctor_advise(doctor, "correct what is wrong above first");
        return;
    }
    if (perf_loopback(&end, &plan, &result) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, name_of_transfer, "%s", error_text());
        doctor_advise(doctor, "see each step with 'UCCL_TCPX_DEBUG=1 tcpx perf --loopback'");
        return;
    }
    doctor->transfer = (struct doctor_transfer){.measured = true, .row = result.rows[0]};
    find_transfer_result(doctor, end.gpu);
}
