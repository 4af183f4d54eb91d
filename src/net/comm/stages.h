/*
 * How long the stages of a transfer were at work: copies out of GPU memory, writes to sockets,
 * reads from sockets, copies into GPU memory. They overlap, so each is accounted by itself: the
 * time in which at least one socket or copy was busy with it. The times of both ends show which
 * stage limits a transfer. The lock of a comm guards its account.
 */
#ifndef TCPX_NET_COMM_STAGES_H
#define TCPX_NET_COMM_STAGES_H

#include "base/clock.h"
#include "base/config.h"

/* A sender has the first three, a receiver the others. */
struct stage_times {
    uint64_t copy_out_ns;
    uint64_t write_ns;      /* in system calls that moved something */
    uint64_t write_wait_ns; /* sockets were full, and none took anything */
    uint64_t read_ns;
    uint64_t read_wait_ns; /* receives were posted, and all sockets were empty */
    uint64_t copy_in_ns;   /* unpacking, too */
};

/* --- which one limits ---------------------------------------------------------------------- */

enum limiting_stage {
    LIMIT_NONE, /* no stage was busy for long: the callers are the limit */
    LIMIT_COPY_OUT,
    LIMIT_SEND,
    LIMIT_NETWORK,
    LIMIT_RECEIVE,
    LIMIT_COPY_IN,
    LIMIT_BALANCED, /* several were about as busy */
};

enum { LIMIT_STAGES = LIMIT_COPY_IN + 1 };

/*
 * For how long each stage held up a transfer, between two accounts of both ends that are `span_ns`
 * apart; of LIMIT_NONE 0. The network does when both ends wait for it: a slow receiver makes only
 * the sender wait, and a slow sender only the receiver. A copy counts only as far as the sockets of
 * its side neither worked nor waited: while they work, no thread polls the copy, and a copy that
 * overlaps with them limits nothing.
 */
void stages_hold_up(const struct stage_times *sender, const struct stage_times *receiver,
                    uint64_t span_ns, uint64_t held_ns[LIMIT_STAGES]);

/*
 * The stage that held it up for longest. BALANCED: another one did for at least 4/5 as long, which
 * is less than two runs of one transfer differ by. NONE: all of them for less than a tenth.
 */
enum limiting_stage stages_limit(const uint64_t held_ns[LIMIT_STAGES], uint64_t span_ns);

/* Whether this stage is the longest one or within that margin of it. */
bool stages_is_close(const uint64_t held_ns[LIMIT_STAGES], enum limiting_stage stage);

/* "D2H copy", "send", "network", "receive", "unpack (H2D)"; "none", "balanced". */
const char *limiting_stage_name(enum limiting_stage stage);

/* --- copies -------------------------------------------------------------------------------- */

struct stage_copies {
    unsigned under_way;
    uint64_t since;
    uint64_t work_ns;
};

static inline void stages_copy_began(struct stage_copies *copies)
{
    if (copies->under_way++ == 0)
        copies->since = clock_now();
}

/* It is known to have ended. */
static inline void stages_copy_ended(struct stage_copies *copies)
{
    if (--copies->under_way == 0)
        copies->work_ns += clock_now() - copies->since;
}

uint64_t stages_copies_until(const struct stage_copies *copies, uint64_t now);

/* --- sockets ------------------------------------------------------------------------------- */

/*
 * The calls on all sockets of one direction. The owner sets `waits` whenever that changes. Waiting
 * counts while no call is in flight, or only one that moves nothing: polling makes many such calls,
 * and they are part of the wait.
 */
struct stage_calls {
    unsigned under_way;
    bool waits;
    uint64_t since; /* up to when all is accounted */
    uint64_t work_ns;
    uint64_t wait_ns;
};

/* `moved`: whether the time belongs to a call that moved something. */
static inline void stages_account(struct stage_calls *calls, uint64_t now, bool moved)
{
    if (moved)
        calls->work_ns += now - calls->since;
    else if (calls->waits)
        calls->wait_ns += now - calls->since;
    calls->since = now;
}

static inline void stages_call_begins(struct stage_calls *calls)
{
    stages_account(calls, clock_now(), calls->under_way > 0);
    calls->under_way++;
}

static inline void stages_call_ended(struct stage_calls *calls, bool moved)
{
    stages_account(calls, clock_now(), moved || calls->under_way > 1);
    calls->under_way--;
}

static inline void stages_wait(struct stage_calls *calls, bool waits, uint64_t now)
{
    if (calls->waits != waits && calls->under_way == 0)
        stages_account(calls, now, false);
    calls->waits = waits;
}

/* --- a stage that is held up, for tests ---------------------------------------------------- */

/* Of one comm. */
struct stage_throttle {
    enum config_throttle stage; /* NONE in a library that is shipped */
    uint64_t rate;              /* bytes per second */
    uint64_t free;              /* when it will have dealt with what it was given */
};

/* How a stage is held up. Tests register theirs: tests/support/throttle.c. */
struct stage_throttle_ops {
    int (*init)(struct stage_throttle *throttle);
    uint64_t (*slow_until)(struct stage_throttle *throttle, uint64_t bytes);
    void (*sleep)(uint64_t until);
    int (*slow_network)(const struct stage_throttle *throttle, const int *sockets, unsigned count);
};

/* Called before anything else is, by tests only. */
void stages_set_throttle(const struct stage_throttle_ops *ops);

MUST_CHECK int stages_throttle_init(struct stage_throttle *throttle);

/* When it will have dealt with these bytes, too; 0: it is another stage that is slow, or none. */
uint64_t stages_slow_until(struct stage_throttle *throttle, enum config_throttle stage,
                           uint64_t bytes);

void stages_sleep(uint64_t until);

/* For a sender's sockets: they are paced, and hold little. */
MUST_CHECK int stages_slow_network(const struct stage_throttle *throttle, const int *sockets,
                                   unsigned count);

#endif
