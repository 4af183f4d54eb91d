/*
 * One end of a test that two people run: server [GPU] or client HOST [GPU]. What they have in
 * common, by the calls of the original interface: the arguments, the GPU, the meeting, and a
 * connection. Each step says what it did in the lines that users of the original tests know.
 */
#ifndef TCPX_TOOLS_END_H
#define TCPX_TOOLS_END_H

#include "gpu/gpu.h"
#include "tools/command.h"
#include "tools/meeting.h"

enum { END_DEVICE = 0, END_WHY_BYTES = 400 };

struct end {
    struct meeting_options options;
    int gpu;

    struct meeting meeting;
    struct gpu *current;
    struct gpu_scope scope;
    bool entered;
    void *listener; /* the server's */
    void *comm;

    bool met;   /* the two have */
    int result; /* the first failure, and its text */
    char why[END_WHY_BYTES];
};

/* The words above, and the last of them. EXIT_OK, or the status of a problem that was printed. */
MUST_CHECK int end_read_words(const struct command *command, char **words, int count,
                              struct meeting_options *options, int *gpu);
MUST_CHECK int end_read_gpu(const struct command *command, char **words, int count, int *gpu);

/* The words above and MEETING_OPTIONS; `own`: NULL, or one more. EXIT_OK, or the status, as above.
 */
MUST_CHECK int end_parse(const struct command *command, int argument_count, char **arguments,
                         const struct option *own, struct end *end);

bool end_is_server(const struct end *end);

/* The server's port is there; both have said which one they are. */
MUST_CHECK int end_open(struct end *end);

/* Makes the GPU the current one, which plugins work with, and loads the plugin. */
MUST_CHECK int end_enter(struct end *end);

/* Both have met. */
MUST_CHECK int end_meet(struct end *end);

/* One connection: the server listens first; then, with the handle passed, it accepts. */
MUST_CHECK int end_listen(struct end *end, uint8_t handle[MEETING_HANDLE_BYTES]);
MUST_CHECK int end_connect(struct end *end, uint8_t handle[MEETING_HANDLE_BYTES]);

/* Of comm and listener, if they are there. */
MUST_CHECK int end_hang_up(struct end *end);

/* Keeps a failure and its text, if it is the first. */
void end_note(struct end *end, int result);

/* The rest; the peer is told why, if anything was noted. Returns that, and its text is the latest.
 */
MUST_CHECK int end_close(struct end *end);

#endif
