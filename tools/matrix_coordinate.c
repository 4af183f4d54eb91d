/*
 * The coordinator of a matrix: the ranks join it, and it orders who connects to whom and who reads
 * from whom. A rank that cannot be reached, does not answer in time or ends is left out with its
 * reason, and the others go on.
 */
#include "base/clock.h"
#include "session/bootstrap.h"
#include "tools/matrix_talk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_MS = 5000,
    LOOK_MS = 100,
    STAY_MS = 1000,
    LINGER_MS = 1000,
    END_MS = 500,
    GRACE_MS = 2000
};

struct member {
    struct control *control; /* NULL: it has not joined, or takes no part any more */
    bool joined;
    unsigned left; /* messages that it owes */
    char address[MATRIX_ADDRESS_BYTES];
    struct matrix_ready ready;
};

struct coordinator {
    const struct matrix_run *run;
    struct matrix_result *result;
    struct bootstrap_listener *listener;
    uint64_t stayed_at; /* when the ranks were last told that this process is there */
    struct member members[MATRIX_MOST_RANKS];
    struct matrix_process processes[MATRIX_MOST_RANKS];
    bool connected[MATRIX_MOST_RANKS][MATRIX_MOST_RANKS];
    unsigned pass;  /* that is measured */
    unsigned shown; /* characters of the line of progress */
};

typedef int take_message(struct coordinator *all, unsigned rank, const uint8_t *bytes,
                         size_t length);

static unsigned ranks_of(const struct coordinator *all)
{
    return all->run->plan.ranks;
}

static bool is_member(const struct coordinator *all, unsigned rank)
{
    return all->members[rank].control != NULL;
}

/* --- progress ------------------------------------------------------------------------------ */

static void show_progress(struct coordinator *all, const char *what, unsigned done, unsigned total)
{
    int length;

    if (!all->run->progress)
        return;
    length = fprintf(stderr, "\r%s: %u of %u", what, done, total);
    fprintf(stderr, "%*s", length < (int)all->shown ? (int)all->shown - length : 0, "");
    all->shown = length > 0 ? (unsigned)length : 0;
}

static void clear_progress(struct coordinator *all)
{
    if (all->run->progress && all->shown > 0)
        fprintf(stderr, "\r%*s\r", (int)all->shown, "");
    all->shown = 0;
}

/* --- ranks that are lost ------------------------------------------------------------------- */

/* With what its process says about that by the deadline, if it was started here. */
static void lose_member_by(struct coordinator *all, unsigned rank, const char *reason,
                           uint64_t deadline)
{
    struct member *member = &all->members[rank];
    struct matrix_process *process = &all->processes[rank];
    char why[MATRIX_WHY_BYTES]; /* the reason may be the latest error, which changes */
    char said[MATRIX_WHY_BYTES] = "";
    char *kept = all->result->rank[rank].why;

    snprintf(why, sizeof why, "%s", reason);
    if (member->control != NULL) {
        control_refuse(member->control, why);
        control_close(member->control, 0);
        member->control = NULL;
        while (process->was_started && process->pid != 0 &&
               !matrix_launch_has_ended(process, all->run->launch->hosts[rank], said) &&
               !deadline_passed(deadline))
            (void)poll(NULL, 0, LOOK_MS / 10);
    }
    member->left = 0;
    if (strstr(why, said) != NULL)
        said[0] = '\0';
    if (kept[0] == '\0')
        snprintf(kept, MATRIX_WHY_BYTES, "%.*s%s%.*s", MATRIX_WHY_BYTES / 2 - 2, why,
                 said[0] != '\0' ? "; " : "", MATRIX_WHY_BYTES / 2 - 2, said);
}

static void lose_member(struct coordinator *all, unsigned rank, const char *why)
{
    lose_member_by(all, rank, why, deadline_after_ms(END_MS));
}

static void send_to(struct coordinator *all, unsigned rank, uint8_t type, const void *bytes,
                    size_t length)
{
    if (is_member(all, rank) &&
        control_send(all->members[rank].control, type, bytes, length) != TCPX_SUCCESS)
        lose_member(all, rank, error_text());
}

static void give_order(struct coordinator *all, unsigned rank, const struct matrix_order *order,
                       unsigned answers)
{
    uint8_t bytes[MATRIX_ORDER_BYTES];

    matrix_order_encode(order, bytes);
    all->members[rank].left = answers;
    send_to(all, rank, MATRIX_ORDER, bytes, sizeof bytes);
}

/* So that ranks that have nothing to do know that there will be something. */
static void keep_members(struct coordinator *all)
{
    const struct matrix_order stay = {.action = MATRIX_STAY};

    if (clock_now() - all->stayed_at < STAY_MS * UINT64_C(1000000))
        return;
    all->stayed_at = clock_now();
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (is_member(all, i) && all->members[i].left == 0)
            give_order(all, i, &stay, 0);
}

/* --- messages ------------------------------------------------------------------------------ */

/* One message of a rank; false: there is none, or the rank is lost. */
static bool hear_message(struct coordinator *all, unsigned rank, uint8_t expected,
                         take_message *take)
{
    struct member *member = &all->members[rank];
    uint8_t bytes[MATRIX_LARGEST];
    uint8_t type;
    size_t length;
    bool there;
    int result = control_receive(member->control, &type, bytes, sizeof bytes, &length, &there);

    if (result == TCPX_SUCCESS && !there)
        return false;
    if (result == TCPX_SUCCESS && (type != expected || member->left == 0))
        result = error_set(TCPX_REMOTE_ERROR, "a message of type %u that was not asked for", type);
    if (result == TCPX_SUCCESS)
        result = take(all, rank, bytes, length);
    if (result == TCPX_SUCCESS)
        member->left--;
    else
        lose_member(all, rank, error_text());
    return result == TCPX_SUCCESS;
}

/* All that a rank has said. It ends, since a rank that owes nothing has nothing to say. */
static void hear_member(struct coordinator *all, unsigned rank, uint8_t expected,
                        take_message *take)
{
    if (control_flush(all->members[rank].control) != TCPX_SUCCESS) {
        lose_member(all, rank, error_text());
        return;
    }
    while (hear_message(all, rank, expected, take))
        ;
}

static bool somebody_owes(const struct coordinator *all)
{
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (all->members[i].left > 0)
            return true;
    return false;
}

/* What there is to hear within so long. */
static void hear_members(struct coordinator *all, uint8_t expected, take_message *take, int wait_ms)
{
    struct pollfd list[MATRIX_MOST_RANKS];
    unsigned of[MATRIX_MOST_RANKS];
    unsigned count = 0;

    for (unsigned i = 0; i < ranks_of(all); i++)
        if (is_member(all, i)) {
            struct control *control = all->members[i].control;
            bool unsent = control_has_unsent(control);

            list[count] = (struct pollfd){.fd = control_fd(control),
                                          .events = (short)(POLLIN | (unsent ? POLLOUT : 0))};
            of[count++] = i;
        }
    if (poll(list, count, wait_ms) <= 0)
        count = 0;
    for (unsigned i = 0; i < count; i++)
        if (list[i].revents != 0)
            hear_member(all, of[i], expected, take);
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (all->processes[i].was_started && all->processes[i].pid != 0)
            matrix_launch_hear(&all->processes[i]);
    keep_members(all);
}

/* Until nobody owes a message any more, or for so long; then those that do are lost, all by one
 * deadline. */
static void await_messages(struct coordinator *all, uint8_t expected, take_message *take,
                           uint64_t patience_ms)
{
    uint64_t deadline = deadline_after_ms(patience_ms);
    char why[MATRIX_WHY_BYTES];

    while (somebody_owes(all) && !deadline_passed(deadline))
        hear_members(all, expected, take, LOOK_MS);
    snprintf(why, sizeof why,
             "it did not answer within %llu s; --timeout S gives each step more time",
             (unsigned long long)patience_ms / 1000);
    deadline = deadline_after_ms(END_MS);
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (all->members[i].left > 0)
            lose_member_by(all, i, why, deadline);
}

/* --- joining ------------------------------------------------------------------------------- */

static void note_process_ends(struct coordinator *all)
{
    for (unsigned i = 0; i < ranks_of(all); i++) {
        char why[MATRIX_WHY_BYTES];

        if (all->processes[i].was_started && !all->members[i].joined &&
            matrix_launch_has_ended(&all->processes[i], all->run->launch->hosts[i], why))
            lose_member(all, i, why);
    }
}

/* As the coordinator sees it, without the port. */
static void keep_address(struct member *member)
{
    char *colon;

    snprintf(member->address, sizeof member->address, "%s", control_peer(member->control));
    colon = strrchr(member->address, ':');
    if (colon != NULL)
        *colon = '\0';
}

static int check_hello(const struct coordinator *all, const struct matrix_hello *hello)
{
    if (all->members[hello->rank].joined)
        return error_set(TCPX_INVALID_USAGE, "there is a rank %u already", hello->rank);
    if (strcmp(hello->version, tcpx_version()) != 0)
        return error_set(TCPX_INVALID_USAGE,
                         "tcpx %s runs there, and %s here: install the same on all hosts",
                         hello->version, tcpx_version());
    return TCPX_SUCCESS;
}

static void admit(struct coordinator *all, const struct matrix_hello *hello,
                  struct control *control)
{
    struct member *member = &all->members[hello->rank];
    struct matrix_rank *rank = &all->result->rank[hello->rank];
    uint8_t bytes[MATRIX_PLAN_BYTES];
    const char *given = all->run->launch->hosts[hello->rank];

    *member = (struct member){.control = control, .joined = true, .left = 1};
    keep_address(member);
    rank->why[0] = '\0';
    if (given == NULL)
        snprintf(rank->host, sizeof rank->host, "%s", hello->host);
    snprintf(rank->memory, sizeof rank->memory, "%s", hello->memory);
    matrix_plan_encode(&all->run->plan, bytes);
    send_to(all, hello->rank, MATRIX_PLAN, bytes, sizeof bytes);
}

/* Takes the control over. */
static void greet(struct coordinator *all, struct control *control)
{
    uint8_t bytes[MATRIX_LARGEST];
    struct matrix_hello hello;
    uint8_t type;
    size_t length;
    int result = control_await(control, "a rank's greeting", &type, bytes, sizeof bytes, &length,
                               deadline_after_ms(HELLO_MS));
    bool known;

    if (result == TCPX_SUCCESS && type != MATRIX_HELLO)
        result = error_set(TCPX_INVALID_USAGE, "this is tcpx matrix, and %s runs something else",
                           control_peer(control));
    if (result == TCPX_SUCCESS)
        result = matrix_hello_decode(bytes, length, ranks_of(all), &hello);
    known = result == TCPX_SUCCESS;
    if (known)
        result = check_hello(all, &hello);
    if (result == TCPX_SUCCESS) {
        admit(all, &hello, control);
        return;
    }
    if (known && !all->members[hello.rank].joined)
        lose_member(all, hello.rank, error_text());
    control_refuse(control, error_text());
    control_close(control, LINGER_MS);
}

static bool somebody_is_expected(const struct coordinator *all)
{
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (!all->members[i].joined && all->result->rank[i].why[0] == '\0')
            return true;
    return false;
}

static void give_up_missing(struct coordinator *all)
{
    char why[MATRIX_WHY_BYTES];

    snprintf(why, sizeof why, "it did not join within %u s: is port %u of this host open to it?",
             all->run->plan.timeout_ms / 1000, bootstrap_port(all->listener));
    for (unsigned i = 0; i < ranks_of(all); i++)
        if (!all->members[i].joined && all->result->rank[i].why[0] == '\0')
            lose_member(all, i, why);
}

static int take_ready(struct coordinator *all, unsigned rank, const uint8_t *bytes, size_t length)
{
    return matrix_ready_decode(bytes, length, &all->members[rank].ready);
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "[::1]") == 0;
}

/* What only one host can reach is replaced by the name that the user has for it. */
static void correct_addresses(struct coordinator *all)
{
    const struct matrix_launch *launch = all->run->launch;
    bool elsewhere = false;

    for (unsigned i = 0; i < ranks_of(all); i++)
        elsewhere |= is_member(all, i) && !is_loopback(all->members[i].address);
    for (unsigned i = 0; elsewhere && i < ranks_of(all); i++) {
        const char *name = launch->hosts[i] != NULL ? launch->hosts[i] : launch->meet;
        const char *at = name != NULL ? strchr(name, '@') : NULL;

        if (is_member(all, i) && is_loopback(all->members[i].address) && name != NULL)
            snprintf(all->members[i].address, sizeof all->members[i].address, "%s",
                     at != NULL ? at + 1 : name);
    }
}

static int start_members(struct coordinator *all)
{
    struct matrix_launch *launch = all->run->launch;

    launch->port = bootstrap_port(all->listener);
    for (unsigned i = 0; i < (launch->own_only ? 1 : ranks_of(all)); i++) {
        int result = matrix_launch_start(launch, i, &all->processes[i]);

        if (result != TCPX_SUCCESS)
            return result;
    }
    return TCPX_SUCCESS;
}

/* A rank that gives up first says why, so it has a little less time than this. */
static int gather_members(struct coordinator *all)
{
    uint64_t deadline = deadline_after_ms((uint64_t)all->run->plan.timeout_ms + GRACE_MS);

    while (somebody_is_expected(all) && !deadline_passed(deadline)) {
        struct control *control;
        int result = bootstrap_accept(all->listener, deadline_after_ms(LOOK_MS), &control);

        if (result == TCPX_SUCCESS)
            greet(all, control);
        else if (result != TCPX_IN_PROGRESS)
            return result;
        note_process_ends(all);
        hear_members(all, MATRIX_READY, take_ready, 0);
    }
    give_up_missing(all);
    await_messages(all, MATRIX_READY, take_ready, all->run->plan.timeout_ms);
    correct_addresses(all);
    return TCPX_SUCCESS;
}

/* --- failures of pairs --------------------------------------------------------------------- */

/* Of a pair that has failed before, the first text stays. */
static void note_pair(struct coordinator *all, unsigned reader, unsigned source, const char *why)
{
    struct matrix_result *result = all->result;

    for (unsigned i = 0; i < result->failure_count; i++)
        if (result->failures[i].reader == reader && result->failures[i].source == source)
            return;
    if (result->failure_count == MATRIX_MOST_FAILURES)
        return;
    result->failures[result->failure_count] =
        (struct matrix_failure){.reader = reader, .source = source};
    snprintf(result->failures[result->failure_count++].why, MATRIX_WHY_BYTES, "%s", why);
}

/* That a rank was lost explains its pairs. */
static void drop_explained(struct matrix_result *result)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < result->failure_count; i++)
        if (result->rank[result->failures[i].reader].why[0] == '\0' &&
            result->rank[result->failures[i].source].why[0] == '\0')
            result->failures[kept++] = result->failures[i];
    result->failure_count = kept;
}

/* --- sessions ------------------------------------------------------------------------------ */

static int take_meeting(struct coordinator *all, unsigned rank, const uint8_t *bytes, size_t length)
{
    struct matrix_answer answer;
    int result = matrix_answer_decode(bytes, length, ranks_of(all), &answer);

    if (result != TCPX_SUCCESS)
        return result;
    all->connected[rank][answer.peer] = answer.why[0] == '\0';
    if (answer.why[0] != '\0')
        note_pair(all, rank, answer.peer, answer.why);
    return TCPX_SUCCESS;
}

static void order_meeting(struct coordinator *all, unsigned one, unsigned other)
{
    unsigned low = one < other ? one : other;
    unsigned high = one < other ? other : one;
    struct matrix_order connect = {
        .action = MATRIX_CONNECT, .peer = high, .port = all->members[high].ready.port};
    struct matrix_order accept = {.action = MATRIX_ACCEPT, .peer = low};

    if (!is_member(all, low) || !is_member(all, high))
        return;
    snprintf(connect.address, sizeof connect.address, "%s", all->members[high].address);
    memcpy(connect.key, all->members[high].ready.key, sizeof connect.key);
    memcpy(accept.key, all->members[low].ready.key, sizeof accept.key);
    give_order(all, high, &accept, 1);
    give_order(all, low, &connect, 1);
}

/* Each rank meets each other one once, and in every round only one, as in a tournament. */
static void connect_all(struct coordinator *all)
{
    unsigned even = ranks_of(all) + ranks_of(all) % 2;
    unsigned ring = even - 1; /* the last one stays where it is, and the others go round */

    for (unsigned round = 0; round < ring; round++) {
        show_progress(all, "connecting", round + 1, ring);
        if (ring < ranks_of(all))
            order_meeting(all, ring, round);
        for (unsigned k = 1; k < even / 2; k++)
            order_meeting(all, (round + k) % ring, (round + ring - k) % ring);
        await_messages(all, MATRIX_ANSWER, take_meeting, UINT64_C(2) * all->run->plan.timeout_ms);
    }
}

static bool are_connected(const struct coordinator *all, unsigned one, unsigned other)
{
    return all->connected[one][other] && all->connected[other][one];
}

/* --- measuring ----------------------------------------------------------------------------- */

static int take_rate(struct coordinator *all, unsigned rank, const uint8_t *bytes, size_t length,
                     enum matrix_phase phase)
{
    struct matrix_answer answer;
    int result = matrix_answer_decode(bytes, length, ranks_of(all), &answer);

    if (result != TCPX_SUCCESS)
        return result;
    if (answer.why[0] != '\0')
        note_pair(all, rank, answer.peer, answer.why);
    else if (answer.rate > 0)
        all->result->passes[phase][all->pass].list[rank][answer.peer] = answer.rate;
    return TCPX_SUCCESS;
}

static int take_rate_alone(struct coordinator *all, unsigned rank, const uint8_t *bytes,
                           size_t length)
{
    return take_rate(all, rank, bytes, length, MATRIX_ALONE);
}

static int take_rate_of_all(struct coordinator *all, unsigned rank, const uint8_t *bytes,
                            size_t length)
{
    return take_rate(all, rank, bytes, length, MATRIX_ALL_AT_ONCE);
}

static void measure_alone(struct coordinator *all)
{
    unsigned ranks = ranks_of(all);
    unsigned total = ranks * (ranks - 1);
    unsigned done = all->pass * total;

    for (unsigned i = 0; i < ranks; i++)
        for (unsigned k = 0; k < ranks; k++) {
            const struct matrix_order order = {.action = MATRIX_MEASURE, .peer = k};

            if (i == k)
                continue;
            show_progress(all, "pairs, one at a time", ++done, MATRIX_PASSES * total);
            if (!is_member(all, i) || !is_member(all, k) || !are_connected(all, i, k))
                continue;
            give_order(all, i, &order, 1);
            await_messages(all, MATRIX_ANSWER, take_rate_alone,
                           UINT64_C(4) * all->run->plan.timeout_ms);
        }
}

static void measure_all(struct coordinator *all)
{
    const struct matrix_plan *plan = &all->run->plan;
    const struct matrix_order order = {.action = MATRIX_MEASURE_ALL};

    show_progress(all, "all pairs at once", all->pass + 1, MATRIX_PASSES);
    for (unsigned i = 0; i < ranks_of(all); i++) {
        unsigned answers = 0;

        for (unsigned k = 0; k < ranks_of(all); k++)
            answers += all->connected[i][k];
        if (is_member(all, i) && answers > 0)
            give_order(all, i, &order, answers);
    }
    await_messages(all, MATRIX_ANSWER, take_rate_of_all,
                   plan->span_ms + UINT64_C(4) * plan->timeout_ms);
}

/* --- the whole ----------------------------------------------------------------------------- */

/* As it is known before the rank says so itself. */
static void name_host(const struct matrix_launch *launch, unsigned rank,
                      char host[MATRIX_NAME_BYTES])
{
    snprintf(host, MATRIX_NAME_BYTES, "%s",
             launch->hosts[rank] != NULL ? launch->hosts[rank] : "unknown host");
    if (launch->hosts[rank] == NULL && (rank == 0 || !launch->own_only) &&
        gethostname(host, MATRIX_NAME_BYTES - 1) != 0)
        snprintf(host, MATRIX_NAME_BYTES, "this host");
}

static void begin_result(const struct matrix_run *run, struct matrix_result *result)
{
    time_t now = time(NULL);
    struct tm date;

    *result = (struct matrix_result){.plan = run->plan, .ranks = run->plan.ranks};
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        for (unsigned pass = 0; pass < MATRIX_PASSES; pass++)
            for (unsigned i = 0; i < run->plan.ranks; i++)
                for (unsigned k = 0; k < run->plan.ranks; k++)
                    result->passes[phase][pass].list[i][k] = -1;
    for (unsigned i = 0; i < run->plan.ranks; i++)
        name_host(run->launch, i, result->rank[i].host);
    if (gmtime_r(&now, &date) != NULL)
        (void)strftime(result->date, sizeof result->date, "%Y-%m-%dT%H:%M:%SZ", &date);
    snprintf(result->version, sizeof result->version, "%s", tcpx_version());
}

static void end_members(struct coordinator *all)
{
    const struct matrix_order end = {.action = MATRIX_END};

    for (unsigned i = 0; i < ranks_of(all); i++)
        give_order(all, i, &end, 0);
    for (unsigned i = 0; i < ranks_of(all); i++)
        control_close(all->members[i].control, LINGER_MS);
    matrix_launch_finish(all->processes, ranks_of(all));
}

static int measure(struct coordinator *all)
{
    unsigned there = 0;
    int result = start_members(all);

    if (result == TCPX_SUCCESS)
        result = gather_members(all);
    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < ranks_of(all); i++)
        there += is_member(all, i);
    for (unsigned i = 0; there < 2 && i < ranks_of(all); i++)
        if (all->result->rank[i].why[0] != '\0') {
            char name[96];

            return error_set(
                TCPX_REMOTE_ERROR, "%u of %u ranks took part, and 2 are needed; %s: %s", there,
                ranks_of(all), matrix_rank_name(all->result, i, name), all->result->rank[i].why);
        }
    connect_all(all);
    for (all->pass = 0; all->pass < MATRIX_PASSES; all->pass++)
        measure_alone(all);
    for (all->pass = 0; all->pass < MATRIX_PASSES; all->pass++)
        measure_all(all);
    return TCPX_SUCCESS;
}

int matrix_coordinate(const struct matrix_run *run, struct matrix_result *result)
{
    static struct coordinator all;
    struct matrix_run own = *run;
    char why[MATRIX_WHY_BYTES + 64] = "";
    int outcome = TCPX_SUCCESS;

    if (getrandom(&own.plan.run, sizeof own.plan.run, 0) != (ssize_t)sizeof own.plan.run)
        return error_system(errno, "getrandom");
    begin_result(&own, result);
    all = (struct coordinator){.run = &own, .result = result, .stayed_at = clock_now()};
    outcome = bootstrap_listen(run->address, run->port, run->secret_file, &all.listener);
    if (outcome == TCPX_SUCCESS)
        outcome = measure(&all);
    if (outcome != TCPX_SUCCESS)
        snprintf(why, sizeof why, "%s", error_text());
    clear_progress(&all);
    end_members(&all);
    bootstrap_listener_close(all.listener);
    drop_explained(result);
    matrix_find_slow(result);
    if (outcome != TCPX_SUCCESS)
        error_keep("%s", why);
    return outcome;
}
