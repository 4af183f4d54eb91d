/*
 * One rank of a matrix: it joins the coordinator, opens its memory to the other ranks, and does
 * what it is ordered to: connects, accepts, and reads what the others have, which it verifies.
 */
#include "base/clock.h"
#include "session/bootstrap.h"
#include "tools/buffer.h"
#include "tools/matrix_talk.h"
#include "tools/spans.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP_MS = 100, LINGER_MS = 1000, SILENCE_MS = 20000 };

/* What this rank has of another one. */
struct peer {
    struct tcpx_session *session; /* NULL: none */
    struct tcpx_remote *remote;
    int event_fd;
    struct tcpx_transfer *read; /* under way */
    unsigned reads;             /* done */
    uint64_t ended;             /* when the last one was */
    char why[MATRIX_WHY_BYTES]; /* of a failure; "": none */
};

struct rank {
    const struct matrix_rank_options *options;
    struct control *control;
    struct matrix_plan plan;
    struct tcpx_session_listener *listener;
    struct buffer out; /* what the others read: the pattern of this rank */
    struct buffer in;  /* a part for each other rank */
    struct tcpx_window *out_window;
    struct tcpx_window *in_window;
    struct peer peers[MATRIX_MOST_RANKS];
    uint64_t spans[MATRIX_MOST_READS];
};

/* --- memory -------------------------------------------------------------------------------- */

static uint64_t seed_of(const struct rank *rank, unsigned number)
{
    return rank->plan.run + number;
}

static uint64_t part_offset(const struct rank *rank, unsigned peer)
{
    return (peer < rank->options->rank ? peer : peer - 1) * rank->plan.bytes;
}

static struct buffer part_of(const struct rank *rank, unsigned peer)
{
    uint64_t offset = part_offset(rank, peer);
    struct buffer part = rank->in;

    part.bytes = rank->plan.bytes;
    part.data = (uint8_t *)part.data + offset;
    part.memory.address += offset;
    return part;
}

static int make_memory(struct rank *rank)
{
    const struct matrix_plan *plan = &rank->plan;
    int gpu = rank->options->gpu;
    int result = buffer_create(gpu, plan->bytes, &rank->out);

    if (result == TCPX_SUCCESS)
        result = buffer_create(gpu, plan->bytes * (plan->ranks - 1), &rank->in);
    if (result == TCPX_SUCCESS)
        result = buffer_fill(&rank->out, seed_of(rank, rank->options->rank));
    if (result == TCPX_SUCCESS)
        result = tcpx_window_open(gpu, rank->out.data, rank->out.bytes, TCPX_WINDOW_READ,
                                  &rank->out_window);
    if (result == TCPX_SUCCESS)
        result = tcpx_window_open(gpu, rank->in.data, rank->in.bytes, 0, &rank->in_window);
    return result;
}

/* --- sessions ------------------------------------------------------------------------------ */

static void session_name(const struct rank *rank, unsigned number, char name[64])
{
    snprintf(name, 64, "matrix-%016llx-%u", (unsigned long long)rank->plan.run, number);
}

static struct tcpx_session_options session_options(const struct rank *rank, const char *name)
{
    struct tcpx_session_options options;

    tcpx_session_options_init(&options);
    options.gpu = rank->options->gpu;
    options.secret_file = rank->options->secret_file;
    options.plugin_path = "builtin"; /* only this one has windows */
    options.windows = 1;
    options.name = name;
    return options;
}

static int listen_for_peers(struct rank *rank, struct matrix_ready *ready)
{
    struct tcpx_session_options options;
    char name[64];
    int port = 0;
    int result;

    session_name(rank, rank->options->rank, name);
    options = session_options(rank, name);
    result = tcpx_session_listen(NULL, 0, &options, &rank->listener);
    if (result == TCPX_SUCCESS)
        result = tcpx_session_port(rank->listener, &port);
    if (result == TCPX_SUCCESS)
        result = tcpx_window_key(rank->out_window, ready->key);
    ready->port = (uint16_t)port;
    return result;
}

/* A peer of another run, or one that was given up, is none. */
static int accept_peer(struct rank *rank, unsigned number)
{
    uint64_t deadline = deadline_after_ms(rank->plan.timeout_ms);
    struct peer *peer = &rank->peers[number];
    char expected[64];

    session_name(rank, number, expected);
    while (!deadline_passed(deadline)) {
        int result =
            tcpx_session_accept(rank->listener, deadline_poll_ms(deadline), &peer->session);

        if (result != TCPX_SUCCESS)
            return result;
        if (strcmp(tcpx_session_peer(peer->session), expected) == 0)
            return TCPX_SUCCESS;
        tcpx_session_close(peer->session);
        peer->session = NULL;
    }
    return error_set(TCPX_IN_PROGRESS, "rank %u did not connect within %u s", number,
                     rank->plan.timeout_ms / 1000);
}

static int connect_peer(struct rank *rank, const struct matrix_order *order)
{
    struct tcpx_session_options options;
    char name[64];

    session_name(rank, rank->options->rank, name);
    options = session_options(rank, name);
    return tcpx_session_connect(order->address, order->port, &options, (int)rank->plan.timeout_ms,
                                &rank->peers[order->peer].session);
}

static int meet_peer(struct rank *rank, const struct matrix_order *order)
{
    struct peer *peer = &rank->peers[order->peer];
    int result;

    if (peer->session != NULL || order->peer == rank->options->rank)
        return error_set(TCPX_REMOTE_ERROR, "an order to meet rank %u again", order->peer);
    result = order->action == MATRIX_CONNECT ? connect_peer(rank, order)
                                             : accept_peer(rank, order->peer);
    if (result == TCPX_SUCCESS)
        result = tcpx_remote_open(peer->session, order->key, sizeof order->key, &peer->remote);
    if (result == TCPX_SUCCESS)
        result = tcpx_session_event_fd(peer->session, &peer->event_fd);
    if (result != TCPX_SUCCESS) {
        tcpx_session_close(peer->session);
        *peer = (struct peer){.session = NULL};
    }
    return result;
}

/* --- reads --------------------------------------------------------------------------------- */

static int begin_read(struct rank *rank, unsigned number)
{
    struct peer *peer = &rank->peers[number];
    const struct tcpx_part part = {.window = rank->in_window,
                                   .offset = part_offset(rank, number),
                                   .remote = peer->remote,
                                   .bytes = rank->plan.bytes};
    const struct tcpx_access access = {
        .parts = &part, .part_count = 1, .timeout_ms = (int)rank->plan.timeout_ms};

    return tcpx_read(peer->session, &access, &peer->read);
}

/* Until the read has ended: a read has a time of its own, so that this ends. */
static int finish_read(struct rank *rank, unsigned number)
{
    struct peer *peer = &rank->peers[number];
    int result = tcpx_transfer_wait(peer->read, 2 * (int)rank->plan.timeout_ms);

    peer->read = NULL;
    peer->reads++;
    peer->ended = clock_now();
    return result;
}

static int poison_part(struct rank *rank, unsigned number)
{
    struct buffer part = part_of(rank, number);

    return buffer_poison(&part);
}

static int verify_part(struct rank *rank, unsigned number)
{
    struct buffer part = part_of(rank, number);
    uint64_t wrong = 0;
    int result = buffer_count_wrong(&part, seed_of(rank, number), &wrong);

    if (result == TCPX_SUCCESS && wrong != 0)
        result = error_set(TCPX_REMOTE_ERROR, "%llu of %llu bytes arrived wrong",
                           (unsigned long long)wrong, (unsigned long long)rank->plan.bytes);
    return result;
}

static double rate_of(const struct rank *rank, const struct peer *peer, uint64_t began)
{
    uint64_t ns = peer->ended > began ? peer->ended - began : 1;

    return (double)rank->plan.bytes * peer->reads / (double)ns;
}

/* The rate of the median read. The first one is not counted. No further ones begin when the time of
 * the step is over. */
static int measure_peer(struct rank *rank, unsigned number, double *rate)
{
    uint64_t deadline = deadline_after_ms(rank->plan.timeout_ms);
    struct peer *peer = &rank->peers[number];
    unsigned count = 0;
    int result;

    if (peer->session == NULL)
        return error_set(TCPX_REMOTE_ERROR, "an order to read from rank %u without a session",
                         number);
    result = poison_part(rank, number);
    for (unsigned i = 0; result == TCPX_SUCCESS && i <= rank->plan.reads; i++) {
        uint64_t began = clock_now();

        if (i > 1 && deadline_passed(deadline))
            break;
        result = begin_read(rank, number);
        if (result == TCPX_SUCCESS)
            result = finish_read(rank, number);
        if (i > 0)
            rank->spans[count++] = peer->ended - began;
    }
    if (count > 0) {
        spans_sort(rank->spans, count);
        *rate = (double)rank->plan.bytes / spans_percentile_us(rank->spans, count, 500) * 1e-3;
    }
    return result == TCPX_SUCCESS ? verify_part(rank, number) : result;
}

/* --- all at once --------------------------------------------------------------------------- */

static void note_failure(struct peer *peer, int result)
{
    if (result != TCPX_SUCCESS)
        snprintf(peer->why, sizeof peer->why, "%s", error_text());
}

/* Begins the next one, unless the time is over. */
static void follow_read(struct rank *rank, unsigned number, uint64_t until)
{
    struct peer *peer = &rank->peers[number];
    int done = 0;
    int result = tcpx_transfer_test(peer->read, &done);

    if (result == TCPX_SUCCESS && !done)
        return;
    peer->read = NULL;
    peer->reads++;
    peer->ended = clock_now();
    if (result == TCPX_SUCCESS && peer->ended < until)
        result = begin_read(rank, number);
    note_failure(peer, result);
}

static void await_events(const struct rank *rank)
{
    struct pollfd events[MATRIX_MOST_RANKS];
    unsigned count = 0;

    for (unsigned i = 0; i < rank->plan.ranks; i++)
        if (rank->peers[i].read != NULL)
            events[count++] = (struct pollfd){.fd = rank->peers[i].event_fd, .events = POLLIN};
    if (poll(events, count, STEP_MS) <= 0)
        return;
    for (unsigned i = 0; i < count; i++) {
        uint64_t number;

        if (events[i].revents != 0)
            (void)!read(events[i].fd, &number, sizeof number);
    }
}

static bool reads_are_under_way(const struct rank *rank)
{
    for (unsigned i = 0; i < rank->plan.ranks; i++)
        if (rank->peers[i].read != NULL)
            return true;
    return false;
}

static void read_all(struct rank *rank)
{
    uint64_t until = clock_now() + rank->plan.span_ms * UINT64_C(1000000);

    for (unsigned i = 0; i < rank->plan.ranks; i++) {
        struct peer *peer = &rank->peers[i];

        peer->reads = 0;
        peer->why[0] = '\0';
        if (peer->session != NULL)
            note_failure(peer, poison_part(rank, i));
    }
    for (unsigned i = 0; i < rank->plan.ranks; i++)
        if (rank->peers[i].session != NULL && rank->peers[i].why[0] == '\0')
            note_failure(&rank->peers[i], begin_read(rank, i));
    while (reads_are_under_way(rank)) {
        await_events(rank);
        for (unsigned i = 0; i < rank->plan.ranks; i++)
            if (rank->peers[i].read != NULL)
                follow_read(rank, i, until);
    }
}

/* --- orders -------------------------------------------------------------------------------- */

static int answer(struct rank *rank, unsigned peer, double rate, const char *why)
{
    struct matrix_answer answer = {.peer = peer, .rate = rate};
    uint8_t bytes[MATRIX_ANSWER_BYTES];

    snprintf(answer.why, sizeof answer.why, "%s", why);
    matrix_answer_encode(&answer, bytes);
    return control_send(rank->control, MATRIX_ANSWER, bytes, sizeof bytes);
}

static int measure_all(struct rank *rank)
{
    uint64_t began = clock_now();
    int result = TCPX_SUCCESS;

    read_all(rank);
    for (unsigned i = 0; i < rank->plan.ranks && result == TCPX_SUCCESS; i++) {
        struct peer *peer = &rank->peers[i];

        if (peer->session == NULL)
            continue;
        if (peer->why[0] == '\0')
            note_failure(peer, verify_part(rank, i));
        result = answer(rank, i, peer->why[0] == '\0' ? rate_of(rank, peer, began) : 0, peer->why);
    }
    return result;
}

static int obey(struct rank *rank, const struct matrix_order *order)
{
    double rate = 0;
    int result;

    if (order->action == MATRIX_MEASURE_ALL)
        return measure_all(rank);
    result = order->action == MATRIX_MEASURE ? measure_peer(rank, order->peer, &rate)
                                             : meet_peer(rank, order);
    return answer(rank, order->peer, result == TCPX_SUCCESS ? rate : 0,
                  result == TCPX_SUCCESS ? "" : error_text());
}

static int await_message(struct rank *rank, uint8_t expected, const char *awaited,
                         uint8_t bytes[MATRIX_LARGEST], size_t *length)
{
    uint8_t type;
    int result = control_await(rank->control, awaited, &type, bytes, MATRIX_LARGEST, length,
                               deadline_after_ms(SILENCE_MS));

    if (result == TCPX_SUCCESS && type != expected)
        result = error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u instead of %s",
                           control_peer(rank->control), type, awaited);
    return result;
}

/* The coordinator says every second that it is there. */
static int obey_orders(struct rank *rank)
{
    for (;;) {
        uint8_t bytes[MATRIX_LARGEST];
        struct matrix_order order;
        size_t length;
        int result = await_message(rank, MATRIX_ORDER, "the coordinator's order", bytes, &length);

        if (result == TCPX_SUCCESS)
            result = matrix_order_decode(bytes, length, rank->plan.ranks, &order);
        if (result != TCPX_SUCCESS || order.action == MATRIX_END)
            return result;
        if (order.action != MATRIX_STAY)
            result = obey(rank, &order);
        if (result != TCPX_SUCCESS)
            return result;
    }
}

/* --- joining ------------------------------------------------------------------------------- */

static int describe_self(const struct rank *rank, struct matrix_hello *hello)
{
    struct tcpx_gpu_properties properties;
    int gpu = rank->options->gpu;
    int result;

    *hello = (struct matrix_hello){.rank = rank->options->rank, .memory = "host memory"};
    snprintf(hello->version, sizeof hello->version, "%s", tcpx_version());
    if (gethostname(hello->host, sizeof hello->host - 1) != 0)
        hello->host[0] = '\0';
    if (gpu < 0)
        return TCPX_SUCCESS;
    result = tcpx_gpu_get_properties(gpu, &properties);
    if (result == TCPX_SUCCESS)
        snprintf(hello->memory, sizeof hello->memory, "GPU %d, %.40s", gpu, properties.name);
    return result;
}

static int join(struct rank *rank)
{
    const struct matrix_rank_options *options = rank->options;
    uint64_t deadline = deadline_after_ms((uint64_t)options->timeout_ms);
    uint8_t bytes[MATRIX_LARGEST];
    struct matrix_hello hello;
    size_t length;
    int result = bootstrap_connect(options->meet, options->port, options->secret_file, deadline,
                                   &rank->control);

    if (result == TCPX_SUCCESS)
        result = describe_self(rank, &hello);
    if (result != TCPX_SUCCESS)
        return result;
    matrix_hello_encode(&hello, bytes);
    result = control_send(rank->control, MATRIX_HELLO, bytes, MATRIX_HELLO_BYTES);
    if (result == TCPX_SUCCESS)
        result = await_message(rank, MATRIX_PLAN, "the coordinator's plan", bytes, &length);
    if (result == TCPX_SUCCESS)
        result = matrix_plan_decode(bytes, length, &rank->plan);
    if (result == TCPX_SUCCESS && options->rank >= rank->plan.ranks)
        result = error_set(TCPX_REMOTE_ERROR, "this is rank %u, but the coordinator has %u ranks",
                           options->rank, rank->plan.ranks);
    return result;
}

static int get_ready(struct rank *rank)
{
    struct matrix_ready ready;
    uint8_t bytes[MATRIX_READY_BYTES];
    int result = make_memory(rank);

    if (result == TCPX_SUCCESS)
        result = listen_for_peers(rank, &ready);
    if (result != TCPX_SUCCESS)
        return result;
    matrix_ready_encode(&ready, bytes);
    return control_send(rank->control, MATRIX_READY, bytes, sizeof bytes);
}

/* The coordinator is told why, if it failed. */
static void leave(struct rank *rank, const char *why)
{
    for (unsigned i = 0; i < MATRIX_MOST_RANKS; i++)
        tcpx_session_close(rank->peers[i].session);
    tcpx_session_stop_listening(rank->listener);
    /* Nobody uses them without a session. */
    (void)!tcpx_window_close(rank->out_window, 0);
    (void)!tcpx_window_close(rank->in_window, 0);
    buffer_destroy(&rank->out);
    buffer_destroy(&rank->in);
    if (rank->control != NULL && why != NULL)
        control_refuse(rank->control, why);
    control_close(rank->control, LINGER_MS);
}

int matrix_rank_run(const struct matrix_rank_options *options)
{
    static struct rank rank;
    char why[MATRIX_WHY_BYTES] = "";
    int result;

    rank = (struct rank){.options = options};
    result = join(&rank);
    if (result == TCPX_SUCCESS)
        result = get_ready(&rank);
    if (result == TCPX_SUCCESS)
        result = obey_orders(&rank);
    if (result != TCPX_SUCCESS)
        snprintf(why, sizeof why, "%s", error_text());
    leave(&rank, result != TCPX_SUCCESS ? why : NULL);
    if (result != TCPX_SUCCESS)
        error_keep("%s", why);
    return result;
}
