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

void stages_hold_up(const struct stage_times *sender, const struct stage_times *receiver,
                    uint64_t span_ns, uint64_t held_ns[LIMIT_STAGES])
{
    held_ns[LIMIT_NONE] = 0;
    held_ns[LIMIT_COPY_OUT] = stage_min(
        sender->copy_out_ns, stage_idle(sender->write_ns, sender->write_wait_ns, span_ns));
    held_ns[LIMIT_SEND] = sender->write_ns;
    held_ns[LIMIT_NETWORK] = stage_min(sender->write_wait_ns, receiver->read_wait_ns);
    held_ns[LIMIT_RECEIVE] = receiver->read_ns;
    held_ns[LIMIT_COPY_IN] = stage_min(
        receiver->copy_in_ns, stage_idle(receiver->read_ns, receiver->read_wait_ns, span_ns));
}

static enum limiting_stage stage_longest(const uint64_t held_ns[LIMIT_STAGES])
{
    unsigned longest = LIMIT_NONE;

    for (unsigned i = 0; i < LIMIT_STAGES; i++)
        if (held_ns[i] > held_ns[longest])
            longest = i;
    return (enum limiting_stage)longest;
}

bool stages_is_close(const uint64_t held_ns[LIMIT_STAGES], enum limiting_stage stage)
{
    return held_ns[stage] > 0 && held_ns[stage] >= held_ns[stage_longest(held_ns)] / 5 * 4;
}

enum limiting_stage stages_limit(const uint64_t held_ns[LIMIT_STAGES], uint64_t span_ns)
{
    enum { LEAST_PART = 10 };
    enum limiting_stage longest = stage_longest(held_ns);

    if (held_ns[longest] < span_ns / LEAST_PART)
        return LIMIT_NONE;
    for (unsigned i = 0; i < LIMIT_STAGES; i++)
        if (i != (unsigned)longest && stages_is_close(held_ns, (enum limiting_stage)i))
            return LIMIT_BALANCED;
    return longest;
}

const char *limiting_stage_name(enum limiting_stage stage)
{
    static const char *const names[] = {
        [LIMIT_NONE] = "none",         [LIMIT_COPY_OUT] = "D2H copy",
        [LIMIT_SEND] = "send",         [LIMIT_NETWORK] = "network",
        [LIMIT_RECEIVE] = "receive",   [LIMIT_COPY_IN] = "unpack (H2D)",
        [LIMIT_BALANCED] = "balanced",
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
