/* tcpx perf: reads the arguments, has both ends measure, and shows the result. */
#include "tools/perf.h"

#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"
#include "tools/end.h"
#include "tools/perf_report.h"
#include "tools/perf_side.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, SWEEP_STEP = 4 };

struct arguments {
    struct perf_end end;
    struct perf_plan plan;
    struct perf_report report;
    bool json;
    bool csv;
    bool both_ways;
    bool ping_pong;
    uint64_t pieces;
    uint64_t accesses;
    bool reads;
    bool writes;
    bool loopback;
    bool in_host;
    bool quiet;
    struct words words;
};

/* --- options ------------------------------------------------------------------------------- */

static bool read_size(void *target, const char *value)
{
    struct perf_plan *plan = target;

    plan->size_count = 1;
    return parse_size(value, &plan->sizes[0]) && plan->sizes[0] >= 1 &&
           plan->sizes[0] <= PERF_MOST_BYTES;
}

static bool read_time(void *target, const char *value)
{
    struct perf_plan *plan = target;
    uint64_t seconds;

    if (!parse_number(value, &seconds) || seconds < 1 || seconds > PERF_MOST_MS / 1000)
        return false;
    plan->time_ms = seconds * 1000;
    return true;
}

static bool read_check(void *target, const char *value)
{
    struct perf_plan *plan = target;

    for (plan->check = PERF_CHECK_EVERY; plan->check <= PERF_CHECK_NONE; plan->check++)
        if (strcmp(value, perf_check_name(plan->check)) == 0)
            return true;
    return false;
}

/* FROM:TO, in steps of four; the last one is TO. */
static bool read_sweep(void *target, const char *value)
{
    struct perf_plan *plan = target;
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

/* A row for a number of iterations, pieces or accesses, of which as many are possible. */
#define COUNT_OPTION(option, target, smallest)                                                     \
    {                                                                                              \
        .name = "--" option, .number = &(target), .least = smallest, .most = PERF_MOST_ITERATIONS, \
        .problem = "not a number from " #smallest " to 1000000:"                                   \
    }

static bool perf_is_given(int argument_count, char **list, const char *name)
{
    for (int i = 0; i < argument_count; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

/* Options that say different things about one thing. */
static int check_conflicts(int argument_count, char **list)
{
    static const char *const pairs[][2] = {
        {"--json", "--csv"},      {"--both", "--ping-pong"}, {"--read", "--write"},
        {"--size", "--sweep"},    {"--iters", "--time"},     {"--pieces", "--chunk-bytes"},
        {"--loopback", "--once"}, {"--loopback", "--port"},  {"--chunks", "--no-progress"},
    };

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char problem[64];

        if (!perf_is_given(argument_count, list, pairs[i][0]) ||
            !perf_is_given(argument_count, list, pairs[i][1]))
            continue;
        snprintf(problem, sizeof problem, "%s does not go with", pairs[i][0]);
        return command_usage(&command_perf, problem, pairs[i][1]);
    }
    return EXIT_OK;
}

/* What the client says, and a server is told by it. */
static int check_server(int argument_count, char **list)
{
    static const char *const names[] = {"--size",  "--sweep",       "--iters",    "--time",
                                        "--check", "--warm-up",     "--both",     "--ping-pong",
                                        "--read",  "--write",       "--accesses", "--pieces",
                                        "--spoil", "--chunk-bytes", "--channels"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (perf_is_given(argument_count, list, names[i]))
            return command_usage(&command_perf,
                                 "the client says what is measured: server does "
                                 "not go with",
                                 names[i]);
    return EXIT_OK;
}

/* Reads and writes, and what does not go together with them. */
static int check_accesses(struct arguments *arguments, int argument_count, char **list)
{
    struct perf_plan *plan = &arguments->plan;
    uint64_t accesses = arguments->accesses > 0 ? arguments->accesses : 1;

    if (!arguments->reads && !arguments->writes)
        return arguments->accesses == 0
                   ? EXIT_OK
                   : command_usage(&command_perf, "without --read or --write there is no",
                                   "--accesses");
    if (arguments->reads && plan->way == PERF_PING_PONG)
        return command_usage(&command_perf,
                             "a read goes there and back by itself: --read does not go "
                             "with",
                             "--ping-pong");
    if (perf_is_given(argument_count, list, "--chunk-bytes"))
        return command_usage(&command_perf,
                             "--accesses N and --pieces N divide reads and writes, not",
                             "--chunk-bytes");
    if (arguments->pieces * accesses > PERF_MOST_PIECES)
        return command_usage(&command_perf, "at most 1000000 pieces of all accesses together, not",
                             "--pieces");
    plan->operation = arguments->reads ? PERF_READS : PERF_WRITES;
    plan->accesses = (uint32_t)accesses;
    return EXIT_OK;
}

static int read_options(struct arguments *arguments, int argument_count, char **list)
{
    struct perf_plan *plan = &arguments->plan;
    const struct option options[] = {
        {.name = "--size",
         .read = read_size,
         .target = plan,
         .problem = "not a size, such as 512K or 1G:"},
        {.name = "--sweep",
         .read = read_sweep,
         .target = plan,
         .problem = "not two sizes, such as 4:1G:"},
        COUNT_OPTION("iters", plan->iterations, 1),
        {.name = "--time",
         .read = read_time,
         .target = plan,
         .problem = "not a number of seconds from 1 to 3600:"},
        {.name = "--check",
         .read = read_check,
         .target = plan,
         .problem = "not every, first or none:"},
        COUNT_OPTION("warm-up", plan->warm_up, 0),
        COUNT_OPTION("pieces", arguments->pieces, 1),
        COUNT_OPTION("accesses", arguments->accesses, 1),
        COUNT_OPTION("spoil", plan->spoilt, 1),
        {.name = "--html", .text = &arguments->report.html, .problem = "not a file:"},
        {.name = "--chunk-bytes", .variable = "UCCL_TCPX_CHUNK_BYTES"},
        {.name = "--channels", .variable = "UCCL_TCPX_NUM_CHANNELS"},
        {.name = "--sockets", .variable = "UCCL_TCPX_SOCKETS"},
        {.name = "--threads", .variable = "UCCL_TCPX_THREADS"},
        {.name = "--unpack", .variable = "UCCL_TCPX_UNPACK_IMPL"},
        {.name = "--loopback", .flag = &arguments->loopback},
        {.name = "--host", .flag = &arguments->in_host},
        {.name = "--read", .flag = &arguments->reads},
        {.name = "--write", .flag = &arguments->writes},
        {.name = "--both", .flag = &arguments->both_ways},
        {.name = "--ping-pong", .flag = &arguments->ping_pong},
        {.name = "--json", .flag = &arguments->json},
        {.name = "--csv", .flag = &arguments->csv},
        {.name = "--chunks", .flag = &arguments->end.chunks},
        {.name = "--no-progress", .flag = &arguments->quiet},
        MEETING_OPTIONS(arguments->end.meeting),
        {.name = NULL}};
    int status = options_read(&command_perf, argument_count, list, options, &arguments->words);

    plan->way = arguments->both_ways   ? PERF_BOTH_WAYS
                : arguments->ping_pong ? PERF_PING_PONG
                                       : PERF_ONE_WAY;
    plan->pieces = (uint32_t)arguments->pieces;
    arguments->report.form = arguments->json ? PERF_JSON : arguments->csv ? PERF_CSV : PERF_TABLE;
    if (status == EXIT_OK)
        status = check_conflicts(argument_count, list);
    if (status == EXIT_OK && plan->spoilt != 0 && plan->check != PERF_CHECK_EVERY)
        status = command_usage(&command_perf,
                               "only --check every sees it: --spoil does not go with "
                               "--check",
                               perf_check_name(plan->check));
    return status == EXIT_OK ? check_accesses(arguments, argument_count, list) : status;
}

/* --- the rest ------------------------------------------------------------------------------ */

/* server [GPU], client HOST [GPU]; with --loopback [GPU]. */
static int read_words(struct arguments *arguments)
{
    struct perf_end *end = &arguments->end;
    struct words *words = &arguments->words;

    if (arguments->loopback && words->count > 0 &&
        (strcmp(words->list[0], "server") == 0 || strcmp(words->list[0], "client") == 0))
        return command_usage(&command_perf, "--loopback has both ends: it does not go with",
                             words->list[0]);
    if (arguments->loopback)
        return end_read_gpu(&command_perf, words->list, words->count, &end->gpu);
    if (words->count == 0)
        return command_usage(&command_perf, "server, client HOST or --loopback is expected, not",
                             "");
    return end_read_words(&command_perf, words->list, words->count, &end->meeting, &end->gpu);
}

static bool is_server(const struct arguments *arguments)
{
    return !arguments->loopback && arguments->end.meeting.host == NULL;
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
    if (plan->iterations == 0 &&
        (plan->size_count < 2 || *command_variable("UCCL_TCPX_PERF_ITERS") != '\0'))
        plan->iterations = config->perf_iters;
    if (plan->size_count == 0) {
        plan->size_count = 1;
        plan->sizes[0] = config->perf_size;
    }
    plan->chunk_bytes = config->chunk_bytes;
    if (plan->chunk_bytes == 0 && *command_variable("NCCL_P2P_NET_CHUNKSIZE") != '\0')
        plan->chunk_bytes = config->nccl_chunk_bytes;
    plan->channels = config->num_channels != CONFIG_AUTO ? (uint32_t)config->num_channels : 0;
    meeting_count_port(&arguments->end.meeting, config->bootstrap_port_base, arguments->end.gpu);
    if (arguments->in_host)
        arguments->end.gpu = -1;
    arguments->end.chunks |= config->debug;
    arguments->end.is_alone = !arguments->loopback;
    arguments->end.report = &arguments->report;
    arguments->end.progress =
        !arguments->quiet && !arguments->end.chunks && isatty(STDERR_FILENO) == 1;
    return EXIT_OK;
}

/* --- the run ------------------------------------------------------------------------------- */

static int finish(int outcome)
{
    return outcome == TCPX_SUCCESS ? command_finish() : command_failed();
}

static int serve_client(void *argument, bool *met)
{
    static struct perf_result result;
    const struct arguments *arguments = argument;

    return finish(perf_serve(&arguments->end, -1, &result, met));
}

static int visit(const struct arguments *arguments)
{
    static struct perf_result result;

    return finish((arguments->loopback ? perf_loopback : perf_visit)(&arguments->end,
                                                                     &arguments->plan, &result));
}

static int run(struct arguments *arguments)
{
    int status;

    if (perf_report_open(&arguments->report) != TCPX_SUCCESS)
        return command_failed();
    if (is_server(arguments)) {
        arguments->end.meeting.announces = true;
        status = meeting_serve(&arguments->end.meeting, serve_client, arguments);
    } else {
        status = visit(arguments);
    }
    perf_report_close(&arguments->report);
    return status;
}

static int perf_main(int argument_count, char **list)
{
    struct arguments arguments = {.end.meeting = {.test = MEETING_PERF, .timeout_ms = TIMEOUT_MS},
                                  .plan.warm_up = PERF_AUTO};
    int status = read_options(&arguments, argument_count, list);

    if (status == EXIT_OK)
        status = read_words(&arguments);
    if (status == EXIT_OK && is_server(&arguments))
        status = check_server(argument_count, list);
    if (status == EXIT_OK)
        status = complete_arguments(&arguments);
    return status == EXIT_OK ? run(&arguments) : status;
}

const struct command command_perf = {
    .name = "perf",
    .arguments = "server [GPU] | client HOST [GPU] | --loopback [GPU] [OPTION...]",
    .summary = "Measure bandwidth and latency from GPU to GPU, every byte verified.",
    .help =
        "\n"
        "  server        serves one client after the other until Ctrl-C; what is measured, the\n"
        "                client says\n"
        "  client HOST   sends to that server, in iterations\n"
        "  --loopback    both on this machine\n"
        "  GPU           whose memory; 0. It is emulated where there is none\n"
        "\n"
        "What is measured:\n"
        "  --size BYTES  of an iteration, with K, M, G or T; UCCL_TCPX_PERF_SIZE, 4M\n"
        "  --sweep A:B   all sizes from A to B, each four times the one before, as 4:1G\n"
        "  --iters N     iterations; UCCL_TCPX_PERF_ITERS, 10. A sweep has up to 1000 for small\n"
        "                sizes and 10 for large ones; a size ends after 2 s, but has at least 3\n"
        "  --time S      seconds for each size, instead of a number of iterations\n"
        "  --warm-up N   iterations before those, for each size; 2, and 1 from 16 MiB on\n"
        "  --check WHICH every: each byte of each iteration is verified (the default). first: "
        "only\n"
        "                of the first iteration of each size. none: NOTHING IS VERIFIED. All\n"
        "                reports say which\n"
        "  --both        both directions at the same time\n"
        "  --ping-pong   there and back; half of that is the time of one way\n"
        "  --pieces N    an iteration is one transfer of N pieces, in reverse order\n"
        "  --read        the client reads the server's memory; with --both each the other's\n"
        "  --write       the client writes the server's memory; with --ping-pong each write has a\n"
        "                note, and the server answers it with a write and a note\n"
        "  --accesses N  N reads or writes at once: --size is the sum of their bytes, --pieces\n"
        "                counts for each of them\n"
        "  --host        host memory instead of the GPU's, at this end\n"
        "  --spoil N     the server spoils a byte of iteration N: the run must fail\n"
        "\n"
        "How it is moved; the client says --chunk-bytes and --channels for both ends:\n"
        "  --chunk-bytes B  each chunk a transfer of its own; UCCL_TCPX_CHUNK_BYTES\n"
        "  --channels N     UCCL_TCPX_NUM_CHANNELS\n"
        "  --sockets N      UCCL_TCPX_SOCKETS\n"
        "  --threads N      UCCL_TCPX_THREADS\n"
        "  --unpack HOW     auto, d2d, host or kernel; UCCL_TCPX_UNPACK_IMPL. It counts only\n"
        "                   where received fragments are unpacked: with device-memory TCP, and\n"
        "                   over a plugin that leaves this to its caller. auto takes the fastest:\n"
        "                   d2d for a single fragment, kernel for many. Where nothing is\n"
        "                   unpacked, the report says none\n"
        "\n"
        "What is shown:\n"
        "  --json        the result as JSON; 'tcpx report' shows several of them in one page\n"
        "  --csv         the result as a table for other programs\n"
        "  --html FILE   also a page with plots\n"
        "  --chunks      lines with [PERF] on standard error, for each chunk and iteration\n"
        "  --no-progress no progress bar on a terminal\n"
        "\n"
        "Where they meet:\n"
        "  --port N      UCCL_TCPX_BOOTSTRAP_PORT_BASE plus the GPU\n"
        "  --secret FILE both must have the same; needs libsodium\n"
        "  --timeout S   seconds for each step; 60\n"
        "  --once        the server ends after one client, or when none comes within --timeout\n"
        "\n"
        "Rows appear as they are measured. Ctrl-C shows and writes what there is, marked as\n"
        "incomplete.\n"
        "\n"
        "GB/s are 10^9 bytes per second, of the median iteration. Times are from the server's\n"
        "start signal to its last byte; how long the signal travels is shown as the barrier.\n"
        "Reads and writes are timed at the side that begins them, until the last one is done;\n"
        "the program of the other side does nothing meanwhile.\n",
    .run = perf_main,
};
