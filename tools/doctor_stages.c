/* The stages that bytes go through, how fast each is, and what to do about the slowest. */
#include "tools/doctor.h"

static double smaller(double one, double other)
{
    return one < other ? one : other;
}

double doctor_stage_us(const struct doctor_transfer *transfer, enum limiting_stage stage)
{
    const struct perf_stages *stages = &transfer->stages;

    switch (stage) {
    case LIMIT_COPY_OUT:
        return stages->copy_out;
    case LIMIT_SEND:
        return stages->send;
    case LIMIT_NETWORK:
        return smaller(stages->send_wait, stages->receive_wait);
    case LIMIT_RECEIVE:
        return stages->receive;
    case LIMIT_COPY_IN:
        return stages->copy_in;
    default:
        return 0;
    }
}

double doctor_stage_rate(const struct doctor_transfer *transfer, enum limiting_stage stage)
{
    enum { LEAST_PART = 100 };
    double us = doctor_stage_us(transfer, stage);

    if (us <= 0 || us < transfer->span_us / LEAST_PART)
        return 0;
    return (double)transfer->bytes / us * 1e-3;
}

static uint64_t nanoseconds(double us)
{
    return us > 0 ? (uint64_t)(us * 1e3) : 0;
}

enum limiting_stage doctor_stage_limit(const struct doctor_transfer *transfer)
{
    const struct perf_stages *stages = &transfer->stages;
    const struct stage_times sender = {.copy_out_ns = nanoseconds(stages->copy_out),
                                       .write_ns = nanoseconds(stages->send),
                                       .write_wait_ns = nanoseconds(stages->send_wait)};
    const struct stage_times receiver = {.read_ns = nanoseconds(stages->receive),
                                         .read_wait_ns = nanoseconds(stages->receive_wait),
                                         .copy_in_ns = nanoseconds(stages->copy_in)};

    return stages_limit(&sender, &receiver, nanoseconds(transfer->span_us));
}

const char *doctor_stage_advice(enum limiting_stage stage)
{
    switch (stage) {
    case LIMIT_COPY_OUT:
        return "for more, see that a real GPU has all lanes of its bus ('nvidia-smi -q') and that "
               "this process runs on its NUMA node";
    case LIMIT_SEND:
    case LIMIT_RECEIVE:
        return "for more, give it more CPUs, UCCL_TCPX_THREADS and UCCL_TCPX_SOCKETS";
    case LIMIT_NETWORK:
        return "for more, use more connections (UCCL_TCPX_SOCKETS), larger packets or more "
               "interfaces";
    case LIMIT_COPY_IN:
        return "for more, try the other words of UCCL_TCPX_UNPACK_IMPL, and run on the GPU's NUMA "
               "node";
    default:
        return "no stage was busy for long: the calls themselves take the time";
    }
}
