/* tcpx perf: reads the arguments, has both ends measure, and shows the result. */
#include "tools/perf.h"

#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"
#include "tools/end.h"
#include "tools/perf_talk.h"
#include "tools/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, WARM_UP = 2, SWEEP_STEP = 4, MOST_WORDS = 4 };

enum form { TABLE, JSON, CSV };

struct arguments {
    struct perf_end end;
    struct perf_plan plan;
    enum form form;
    const char *html;
    bool loopback;
    bool in_host;
    bool quiet;
    char *words[MOST_WORDS];
    int word_count;
};

/* --- options ------------------------------------------------------------------------------- */

static bool read_size(struct arguments *arguments, const char *value)
{
    arguments->plan.size_count = 1;
    return parse_size(value, &arguments->plan.sizes[0]) && arguments->plan.sizes[0] >= 1 &&
           arguments->plan.sizes[0] <= PERF_MOST_BYTES;
}

/* FROM:TO, in steps of four; the last one is TO. */
static bool read_sweep(struct arguments *arguments, const char *value)
{
    struct perf_plan *plan = &arguments->plan;
    const char *colon = strchr(value, ':');
    char from_text[32] = "";
    uint64_t from;
    uint64_t to;

    if (colon == NULL || (size_t)(colon - value) >= sizeof from_text)
        return false;
    memcpy(from_text, value, (size_t)(colon - value));
    if (!parse_size(from_text, &from) || !parse_size(colon + 1, &to) || from < 1 || to < from ||
        to > PERF_MOST_BYTES)
        return false;
    plan->size_count = 0;
    for (uint64_t size = from; size < to; size *= SWEEP_STEP)
        plan->sizes[plan->size_count++] = size;
    plan->sizes[plan->size_count++] = to;
    return true;
}

static bool read_count(const char *value, uint64_t least, uint64_t *count)
{
    return parse_number(value, count) && *count >= least && *count <= PERF_MOST_ITERATIONS;
}

static bool read_iterations(struct arguments *arguments, const char *value)
{
    return read_count(value, 1, &arguments->plan.iterations);
}

static bool read_warm_up(struct arguments *arguments, const char *value)
{
    return read_count(value, 0, &arguments->plan.warm_up);
}

static bool read_pieces(struct arguments *arguments, const char *value)
{
    uint64_t count;

    if (!parse_number(value, &count) || count < 1 || count > PERF_MOST_PIECES)
        return false;
    arguments->plan.pieces = (uint32_t)count;
    return true;
}

static bool read_spoilt(struct arguments *arguments, const char *value)
{
    return read_count(value, 1, &arguments->plan.spoilt);
}

static bool read_html(struct arguments *arguments, const char *value)
{
    arguments->html = value;
    return *value != '\0';
}

/* Options with a value of their own. */
static const struct {
    const char *name;
    const char *problem;
    bool (*read)(struct arguments *arguments, const char *value);
} valued[] = {
    {"--size", "not a size, such as 512K or 1G:", read_size},
    {"--sweep", "not two sizes, such as 4:1G:", read_sweep},
    {"--iters", "not a number from 1 to 1000000:", read_iterations},
    {"--warm-up", "not a number from 0 to 1000000:", read_warm_up},
    {"--pieces", "not a number from 1 to 1000000:", read_pieces},
    {"--spoil", "not a number from 1 to 1000000:", read_spoilt},
    {"--html", "not a file:", read_html},
};

/* Options that are another way to say a variable of the environment, which checks them. */
static const struct {
    const char *name;
    const char *variable;
} variables[] = {
    {"--chunk-bytes", "UCCL_TCPX_CHUNK_BYTES"}, {"--channels", "UCCL_TCPX_NUM_CHANNELS"},
    {"--sockets", "UCCL_TCPX_SOCKETS"},         {"--threads", "UCCL_TCPX_THREADS"},
    {"--unpack", "UCCL_TCPX_UNPACK_IMPL"},
};

static bool read_flag(struct arguments *arguments, const char *flag)
{
    if (strcmp(flag, "--loopback") == 0)
        arguments->loopback = true;
    else if (strcmp(flag, "--host") == 0)
        arguments->in_host = true;
    else if (strcmp(flag, "--both") == 0)
        arguments->plan.way = PERF_BOTH_WAYS;
    else if (strcmp(flag, "--ping-pong") == 0)
        arguments->plan.way = PERF_PING_PONG;
    else if (strcmp(flag, "--json") == 0)
        arguments->form = JSON;
    else if (strcmp(flag, "--csv") == 0)
        arguments->form = CSV;
    else if (strcmp(flag, "--chunks") == 0)
        arguments->end.chunks = true;
    else if (strcmp(flag, "--no-progress") == 0)
        arguments->quiet = true;
    else
        return false;
    return true;
}

static int read_variable(const char *name, const char *variable, const char *value)
{
    struct config config;

    if (setenv(variable, value, 1) != 0) {
        error_keep_system(errno, "%s", name);
        return command_failed();
    }
    return config_read(&config) == TCPX_SUCCESS ? EXIT_OK
                                                : command_usage(&command_perf, error_text(), name);
}

/* One argument, or two. *used: how many. */
static int read_argument(struct arguments *arguments, int count, char **list, int *used)
{
    const char *value = count > 1 ? list[1] : "";
    const char *problem;

    *used = 2;
    for (size_t i = 0; i < sizeof valued / sizeof *valued; i++)
        if (strcmp(list[0], valued[i].name) == 0)
            return valued[i].read(arguments, value)
                       ? EXIT_OK
                       : command_usage(&command_perf, valued[i].problem, value);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (strcmp(list[0], variables[i].name) == 0)
            return read_variable(list[0], variables[i].variable, value);
    if (!meeting_option(&arguments->end.meeting, count, list, used, &problem))
        return command_usage(&command_perf, problem, value);
    if (*used > 0)
        return EXIT_OK;
    *used = 1;
    if (read_flag(arguments, list[0]))
        return EXIT_OK;
    if (list[0][0] == '-' || arguments->word_count == MOST_WORDS)
        return command_usage(&command_perf, "unknown argument", list[0]);
    arguments->words[arguments->word_count++] = list[0];
    return EXIT_OK;
}

/* --- the rest ------------------------------------------------------------------------------ */

/* server [GPU], client HOST [GPU]; with --loopback [GPU]. */
static int read_words(struct arguments *arguments)
{
    struct perf_end *end = &arguments->end;

    if (arguments->loopback)
        return end_read_gpu(&command_perf, arguments->words, arguments->word_count, &end->gpu);
    if (arguments->word_count == 0)
        return command_usage(&command_perf, "server, client HOST or --loopback is expected, not",
                             "");
    return end_read_words(&command_perf, arguments->words, arguments->word_count, &end->meeting,
                          &end->gpu);
}

static bool is_server(const struct arguments *arguments)
{
    return !arguments->loopback && arguments->end.meeting.host == NULL;
}

/* What is set to nothing counts as not set. */
static bool variable_is_set(const char *variable)
{
    const char *value = getenv(variable);

    return value != NULL && *value != '\0';
}

/* What was not said is as the environment says. */
static int complete_arguments(struct arguments *arguments)
{
    struct perf_plan *plan = &arguments->plan;
    const struct config *config;

    /* Whoever wants another interface has said so. */
    if (arguments->loopback && setenv("NCCL_SOCKET_IFNAME", "lo", 0) != 0) {
        error_keep_system(errno, "setenv");
        return command_failed();
    }
    if (config_get(&config) != TCPX_SUCCESS)
        return command_failed();
    if (plan->iterations == 0 && (plan->size_count < 2 || variable_is_set("UCCL_TCPX_PERF_ITERS")))
        plan->iterations = config->perf_iters;
    if (plan->size_count == 0) {
        plan->size_count = 1;
        plan->sizes[0] = config->perf_size;
    }
    plan->chunk_bytes = config->chunk_bytes;
    if (plan->chunk_bytes == 0 && variable_is_set("NCCL_P2P_NET_CHUNKSIZE"))
        plan->chunk_bytes = config->nccl_chunk_bytes;
    plan->channels = config->num_channels != CONFIG_AUTO ? (uint32_t)config->num_channels : 0;
    if (arguments->end.meeting.port == 0)
        arguments->end.meeting.port = (int)config->bootstrap_port_base + arguments->end.gpu;
    if (arguments->in_host)
        arguments->end.gpu = -1;
    arguments->end.chunks |= config->debug;
    arguments->end.progress = !arguments->quiet && !arguments->end.chunks && progress_possible();
    return EXIT_OK;
}

/* --- the result ---------------------------------------------------------------------------- */

/* Half a page is none; but what is no file of ours, as a device, stays. */
static void remove_file(const char *path)
{
    struct stat found;

    if (lstat(path, &found) == 0 && S_ISREG(found.st_mode))
        (void)unlink(path);
}

static int write_html(const char *path, const struct perf_result *result)
{
    FILE *out = fopen(path, "w");
    int problem = out != NULL ? 0 : errno;

    if (out != NULL) {
        errno = 0;
        if (!perf_print_html(out, result))
            problem = ENOMEM;
        else if (ferror(out)) /* of an earlier write, whose errno may be gone */
            problem = errno != 0 ? errno : EIO;
        if (fflush(out) != 0)
            problem = errno;
        if (fclose(out) != 0 && problem == 0)
            problem = errno;
        if (problem != 0)
            remove_file(path);
    }
    if (problem == 0)
        return EXIT_OK;
    error_keep_system(problem, "cannot write %s", path);
    return command_failed();
}

static int show_result(const struct arguments *arguments, const struct perf_result *result)
{
    static void (*const print[])(FILE *, const struct perf_result *) = {
        [TABLE] = perf_print_table, [JSON] = perf_print_json, [CSV] = perf_print_csv};
    int status;

    print[arguments->form](stdout, result);
    status = command_finish();
    if (arguments->html != NULL && write_html(arguments->html, result) != EXIT_OK)
        status = EXIT_FAILED;
    return status;
}

static int perf_main(int argument_count, char **list)
{
    static struct perf_result result;
    struct arguments arguments = {.end.meeting = {.test = MEETING_PERF, .timeout_ms = TIMEOUT_MS},
                                  .plan.warm_up = WARM_UP};
    int status = EXIT_OK;
    int outcome;
    int used;

    for (int i = 0; i < argument_count && status == EXIT_OK; i += used)
        status = read_argument(&arguments, argument_count - i, list + i, &used);
    if (status == EXIT_OK)
        status = read_words(&arguments);
    if (status == EXIT_OK)
        status = complete_arguments(&arguments);
    if (status != EXIT_OK)
        return status;
    if (arguments.loopback)
        outcome = perf_loopback(&arguments.end, &arguments.plan, &result);
    else if (is_server(&arguments))
        outcome = perf_serve(&arguments.end, -1, &result);
    else
        outcome = perf_visit(&arguments.end, &arguments.plan, &result);
    return outcome == TCPX_SUCCESS ? show_result(&arguments, &result) : command_failed();
}

const struct command command_perf = {
    .name = "perf",
    .arguments = "server [GPU] | client HOST [GPU] | --loopback [GPU] [OPTION...]",
    .summary = "Measure bandwidth and latency from GPU to GPU, every byte verified.",
    .help =
        "\n"
        "  server        waits for a client; what is measured, the client says\n"
        "  client HOST   sends to that server, in iterations\n"
        "  --loopback    both on this machine\n"
        "  GPU           whose memory; 0. It is emulated where there is none\n"
        "\n"
        "What is measured:\n"
        "  --size BYTES  of an iteration, with K, M, G or T; UCCL_TCPX_PERF_SIZE, 4M\n"
        "  --sweep A:B   all sizes from A to B in steps of four, as 4:1G\n"
        "  --iters N     iterations; UCCL_TCPX_PERF_ITERS, 10. A sweep has 10 of large sizes and\n"
        "                up to 1000 of small ones\n"
        "  --warm-up N   iterations before those, for each size; 2\n"
        "  --both        both directions at the same time\n"
        "  --ping-pong   there and back; half of that is the time of one way\n"
        "  --pieces N    an iteration is one transfer of a list of N pieces, not in their order\n"
        "  --host        host memory instead of the GPU's\n"
        "  --spoil N     the server spoils a byte of iteration N: the run must fail\n"
        "\n"
        "How it is moved:\n"
        "  --chunk-bytes B  each chunk a transfer of its own; UCCL_TCPX_CHUNK_BYTES\n"
        "  --channels N     UCCL_TCPX_NUM_CHANNELS\n"
        "  --sockets N      UCCL_TCPX_SOCKETS\n"
        "  --threads N      UCCL_TCPX_THREADS\n"
        "  --unpack HOW     auto, d2d, host or kernel; UCCL_TCPX_UNPACK_IMPL\n"
        "\n"
        "What is shown:\n"
        "  --json        the result as JSON\n"
        "  --csv         as a table for other programs\n"
        "  --html FILE   also as a page with plots\n"
        "  --chunks      a [PERF] line on standard error for each chunk\n"
        "  --no-progress no bar, also on a terminal\n"
        "\n"
        "Where they meet:\n"
        "  --port N      UCCL_TCPX_BOOTSTRAP_PORT_BASE plus the GPU\n"
        "  --secret FILE both must have the same; needs libsodium\n"
        "  --timeout S   seconds for each step; 60\n"
        "\n"
        "GB/s are 10^9 bytes per second, of the median iteration. Times are from the server's\n"
        "start signal to its last byte; the signal's own way is shown as the barrier.\n",
    .run = perf_main,
};
