/* How the two ends of a measurement talk, on top of their control connection. */
#include "tools/perf_side.h"

int perf_say_number(struct perf_side *side, enum perf_message type, uint64_t number)
{
    uint8_t bytes[8];

    perf_number_encode(number, bytes);
    return meeting_say(&side->meeting, (uint8_t)type, bytes, sizeof bytes);
}

int perf_hear(struct perf_side *side, enum perf_message type, const char *awaited, uint8_t *payload,
              size_t *length)
{
    uint8_t got;
    int result;

    meeting_next_step(&side->meeting);
    result = control_await(side->meeting.control, awaited, &got, payload, *length, length,
                           side->meeting.deadline);
    if (result == TCPX_SUCCESS && got != type)
        result =
            error_set(TCPX_REMOTE_ERROR,
                      "%s: a message of type %u instead of %s; the other end must be tcpx perf",
                      control_peer(side->meeting.control), got, awaited);
    return result;
}

int perf_hear_number(struct perf_side *side, enum perf_message type, const char *awaited,
                     uint64_t *number)
{
    uint8_t bytes[8];
    size_t length = sizeof bytes;
    int result = perf_hear(side, type, awaited, bytes, &length);

    if (result == TCPX_SUCCESS && length != sizeof bytes)
        result = error_set(TCPX_REMOTE_ERROR, "%s: %s of %zu bytes, expected 8",
                           control_peer(side->meeting.control), awaited, length);
    if (result == TCPX_SUCCESS)
        *number = perf_number_decode(bytes);
    return result;
}
