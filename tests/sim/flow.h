/*
 * A flow: messages that one program sends and another receives, and what must hold for them,
 * whatever carries them. A send that is done is received by the receive that it matches, with the
 * right bytes; or something outside went wrong, and then every operation ends in bounded time with
 * a text. Nobody writes beside a buffer, or into one whose operation has ended.
 */
#ifndef TCPX_TESTS_SIM_FLOW_H
#define TCPX_TESTS_SIM_FLOW_H

#include "redirected.h"
#include "sim.h"

enum { FLOW_OPERATIONS = 96, FLOW_GUARD = 64, MOST_FLOWS = 3 };

enum flow_state {
    FLOW_NOT_BEGUN,
    FLOW_ACTIVE,
    FLOW_DONE,
    FLOW_FAILED,
    FLOW_ABANDONED, /* its program closed while it was active */
};

/* One send or receive of a program. */
struct flow_operation {
    enum flow_state state;
    uint64_t tag;
    uint64_t bytes;  /* of the message, of the room */
    bool in_pieces;  /* sessions: given as a list of pieces */
    int partner;     /* index of the operation at the other end; -1: there is none */
    uint8_t *memory; /* with FLOW_GUARD bytes before and behind */
    void *device;    /* NULL, or GPU memory that is used instead; `memory` is what was seen of it */
    void *request;   /* what the transport has given for it */
    void *registered;
    uint64_t begun_at;
};

struct flow_end {
    struct flow *flow;
    int process;
    bool sends;
    void *transport; /* its end of the comm or session */
    struct flow_operation operations[FLOW_OPERATIONS];
    unsigned count;
    unsigned begun;           /* operations, in order */
    unsigned close_after;     /* it closes when so many have begun, whatever is active */
    struct flow_end *sibling; /* NULL, or the program of the same process that closes with it */
    bool hurries;             /* it closes now, because its sibling does */
    bool closed;
    uint64_t closed_at;
    bool failed;       /* an operation has reported that the transport is over */
    uint64_t awake_at; /* when its program last came back from being late */
};

/* How the operations reach the transport: results are those of the library. */
struct flow_calls {
    /* request stays NULL: busy, try again. */
    int (*begin)(struct flow_end *end, struct flow_operation *operation);
    int (*test)(struct flow_end *end, struct flow_operation *operation, bool *done,
                uint64_t *bytes);
    int (*wait)(struct flow_end *end, struct flow_operation *operation, uint64_t until, bool *done,
                uint64_t *bytes);
    /* A session lets a failed transfer's memory go with its end only. */
    bool fails_late;
};

struct flow {
    char name[96]; /* for findings */
    const struct flow_calls *calls;
    uint64_t salt; /* of the bytes */
    bool tagged;
    bool in_gpu;           /* some operations have GPU memory */
    bool exact;            /* a message has to be as long as its receive */
    bool outlives_failure; /* what is not in pieces goes on when pieces have failed */
    unsigned most_active;  /* operations of a program at once */
    struct flow_end sender;
    struct flow_end receiver;
};

/* --- what goes wrong outside, for all flows of a run ------------------------------------------ */

struct flow_faults {
    uint64_t timeout_ns; /* of the transports: "bounded time" is counted in it */
    bool may_be_late[SIM_PROCESSES];
    uint64_t begin_at; /* SIM_NEVER: nothing goes wrong */
    uint64_t end_at;
    bool cut_for_ever;
};
extern struct flow_faults flow_faults;

bool flow_went_wrong(void);

/* A world by chance; nothing goes wrong in it yet. */
void flow_plan_world(void);
/* One fault, by chance: body of a thread. */
void flow_some_fault(void *ignored);

/* Requests that a comm of this library has at once, at least. */
extern const unsigned flow_places;

/* --- plans and programs ----------------------------------------------------------------------- */

/* `some_size`: of a message. `most`: messages. */
void flow_plan(struct flow *flow, unsigned most, uint64_t (*some_size)(const void *),
               const void *of);

const struct sim_library *flow_library(const struct flow_end *end);
uint8_t *flow_data(const struct flow_operation *operation);
/* Where the transport finds all of its memory, guards included. */
void *flow_memory(const struct flow_operation *operation);

/* Begins, tests and waits for operations until the plan says that it is time to close. */
void flow_run(struct flow_end *end);
/* From now on the peer may notice that this end closes. */
void flow_closes(struct flow_end *end);
/* The transport has no operation any more: nobody may touch what they had. */
void flow_closed(struct flow_end *end);
/* A program makes no call for a while. */
void flow_be_late(struct flow_end *end);
/* The ends have not met. That must have a reason. */
void flow_never_met(struct flow_end *end, const char *what);

/* Runs all programs and the scenario's fault to their ends, and looks at the memory of each flow.
 */
void flow_run_world(const struct sim_scenario *scenario);

#endif
