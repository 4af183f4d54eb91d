/*
 * From host memory to host memory, beside raw sockets (transfer.h); a row has 7 rounds. The latency
 * is that of 8 bytes, over a raw socket, over two for the two directions, and over comms.
 */
#include "bench/transfer.h"

int main(int argument_count, char **arguments)
{
    static const struct transfer_plan plan = {
        .ways = {WAY_RAW, WAY_TCPX},
        .way_count = 2,
        .message_sizes = {64 << 10, MIB, 16 * MIB, 256 * MIB},
        .socket_counts = {1, 2, 4, 8},
        .socket_choices = 4,
        .rounds = 7,
        .small = 8,
        .small_name = "8 bytes",
        .block = 500,
        .talks = {TALK_RAW, TALK_RAW_APART, TALK_HOST},
        .talk_count = 3,
    };

    return transfer_main(&plan, argument_count, arguments);
}
