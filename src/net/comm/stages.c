/* Which stage limits, from the times of both ends; and stages that are made slow. */
#include "net/comm/stages.h"

#include <errno.h>
#include <limits.h>
#include <sys/socket.h>

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* How long the sockets of a side were neither at work nor waiting for the other one. */
static uint64_t idle(uint64_t work_ns, uint64_t wait_ns, uint64_t span_ns)
{
    return work_ns + wait_ns < span_ns ? span_ns - work_ns - wait_ns : 0;
}

enum limiting_stage stages_limit(const struct stage_times *sender,
                                 const struct stage_times *receiver, uint64_t span_ns)
{
    enum { LEAST_PART = 10 };
    const uint64_t busy_ns[] = {
        [LIMIT_NONE] = 0,
        [LIMIT_COPY_OUT] =
            smaller(sender->copy_out_ns, idle(sender->write_ns, sender->write_wait_ns, span_ns)),
        [LIMIT_SEND] = sender->write_ns,
        [LIMIT_NETWORK] = smaller(sender->write_wait_ns, receiver->read_wait_ns),
        [LIMIT_RECEIVE] = receiver->read_ns,
        [LIMIT_COPY_IN] =
            smaller(receiver->copy_in_ns, idle(receiver->read_ns, receiver->read_wait_ns, span_ns)),
    };
    unsigned busiest = LIMIT_NONE;

    for (unsigned i = 0; i < sizeof busy_ns / sizeof *busy_ns; i++)
        if (busy_ns[i] > busy_ns[busiest])
            busiest = i;
    return busy_ns[busiest] >= span_ns / LEAST_PART ? (enum limiting_stage)busiest : LIMIT_NONE;
}

const char *limiting_stage_name(enum limiting_stage stage)
{
    static const char *const names[] = {
        [LIMIT_NONE] = "none",       [LIMIT_COPY_OUT] = "D2H copy",
        [LIMIT_SEND] = "send",       [LIMIT_NETWORK] = "network",
        [LIMIT_RECEIVE] = "receive", [LIMIT_COPY_IN] = "unpack (H2D)",
    };

    return names[stage];
}

uint64_t stages_copies_until(const struct stage_copies *copies, uint64_t now)
{
    return copies->work_ns + (copies->under_way > 0 ? now - copies->since : 0);
}

/* --- slow stages --------------------------------------------------------------------------- */

int stages_throttle_init(struct stage_throttle *throttle)
{
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        *throttle =
            (struct stage_throttle){.stage = config->throttled, .rate = config->throttle_rate};
    return result;
}

void stages_sleep(uint64_t until)
{
    const struct timespec moment = {.tv_sec = (time_t)(until / 1000000000),
                                    .tv_nsec = (long)(until % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR)
        ;
}

/* The kernel sends no faster than that, so that the one end finds full sockets and the other empty
 * ones, as with a slow network.
 */
int stages_slow_network(const struct stage_throttle *throttle, const int *sockets, unsigned count)
{
    const int room = 64 << 10;
    uint64_t each = throttle->rate / count;
    unsigned rate = each < UINT_MAX ? (unsigned)each : UINT_MAX - 1;

    if (throttle->stage != CONFIG_THROTTLE_NETWORK)
        return TCPX_SUCCESS;
    for (unsigned i = 0; i < count; i++)
        if (setsockopt(sockets[i], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) != 0 ||
            setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) != 0)
            return error_system(errno, "TCPX_TEST_THROTTLE: a socket of %u bytes per second", rate);
    return TCPX_SUCCESS;
}
