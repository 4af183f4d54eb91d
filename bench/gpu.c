/*
 * From GPU memory to GPU memory, beside the same without a protocol and beside raw sockets
 * (transfer.h); a row has 3 rounds. The latency is that of 4 KiB, between GPUs' memory and between
 * host memory.
 */
#include "bench/transfer.h"

int main(int argument_count, char **arguments)
{
    static const struct transfer_plan plan = {
        .in_gpu = true,
        .ways = {WAY_RAW, WAY_PIPELINE, WAY_TCPX},
        .way_count = 3,
        .message_sizes = {MIB, 16 * MIB, 64 * MIB, 256 * MIB},
        .socket_counts = {1, 2, 4, 8, 16, DEFAULT_SOCKETS},
        .socket_choices = 6,
        .rounds = 3,
        .small = 4096,
        .small_name = "4 KiB",
        .block = 100,
        .talks = {TALK_GPU, TALK_HOST},
        .talk_count = 2,
    };

    return transfer_main(&plan, argument_count, arguments);
}
