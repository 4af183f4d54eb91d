/* Which stage limits, from the times of both ends; and stages that tests hold up. */
#include "net/comm/stages.h"

static uint64_t stage_min(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* How long the sockets of a side were neither at work nor waiting for the other one. */
static uint64_t stage_idle(uint64_t work_ns, uint64_t wait_ns, uint64_t span_ns)
{
    return work_ns + wait_ns < span_ns ? span_ns - work_ns - wait_ns : 0;
}

enum limiting_stage stages_limit(const struct stage_times *sender,
                                 const struct stage_times *receiver, uint64_t span_ns)
{
    enum { LEAST_PART = 10 };
    const uint64_t busy_ns[] = {
        [LIMIT_NONE] = 0,
        [LIMIT_COPY_OUT] = stage_min(sender->copy_out_ns,
                                     stage_idle(sender->write_ns, sender->write_wait_ns, span_ns)),
        [LIMIT_SEND] = sender->write_ns,
        [LIMIT_NETWORK] = stage_min(sender->write_wait_ns, receiver->read_wait_ns),
        [LIMIT_RECEIVE] = receiver->read_ns,
        [LIMIT_COPY_IN] = stage_min(receiver->copy_in_ns,
                                    stage_idle(receiver->read_ns, receiver->read_wait_ns, span_ns)),
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

/* Written before there is a second thread. NULL in a library that is shipped. */
static const struct stage_throttle_ops *throttle_ops;

void stages_set_throttle(const struct stage_throttle_ops *ops)
{
    throttle_ops = ops;
}

int stages_throttle_init(struct stage_throttle *throttle)
{
    *throttle = (struct stage_throttle){.stage = CONFIG_THROTTLE_NONE};
    return throttle_ops != NULL ? throttle_ops->init(throttle) : TCPX_SUCCESS;
}

uint64_t stages_slow_until(struct stage_throttle *throttle, enum config_throttle stage,
                           uint64_t bytes)
{
    return throttle->stage == stage ? throttle_ops->slow_until(throttle, bytes) : 0;
}

void stages_sleep(uint64_t until)
{
    throttle_ops->sleep(until);
}

int stages_slow_network(const struct stage_throttle *throttle, const int *sockets, unsigned count)
{
    return throttle->stage == CONFIG_THROTTLE_NETWORK
               ? throttle_ops->slow_network(throttle, sockets, count)
               : TCPX_SUCCESS;
}
