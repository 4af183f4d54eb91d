/* tcpx perf: reads the arguments, has both ends measure, and shows the result. */
#include "tools/perf.h"

#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"
#include "tools/end.h"
#include "tools/perf_talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, WARM_UP = 2, SWEEP_STEP = 4 };

enum form { TABLE, JSON, CSV };

struct arguments {
    struct perf_end end;
    struct perf_plan plan;
    int way; /* enum perf_way */
    int form;
    uint64_t pieces;
    uint64_t accesses;
    bool reads;
    bool writes;
    const char *html;
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

/* Reads and writes, and what does not go together with them. */
static int check_accesses(struct arguments *arguments, int argument_count, char **list)
{
    struct perf_plan *plan = &arguments->plan;
    uint64_t accesses = arguments->accesses > 0 ? arguments->accesses : 1;

    if (arguments->reads && arguments->writes)
        return command_usage(&command_perf, "either read or write: --read does not go with",
                             "--write");
    if (!arguments->reads && !arguments->writes)
        return arguments->accesses == 0
                   ? EXIT_OK
                   : command_usage(&command_perf, "without --read or --write there is no",
                                   "--accesses");
    if (arguments->reads && plan->way == PERF_PING_PONG)
        return command_usage(&command_perf, "a read is there and back by itself, without",
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
        COUNT_OPTION("warm-up", plan->warm_up, 0),
        COUNT_OPTION("pieces", arguments->pieces, 1),
        COUNT_OPTION("accesses", arguments->accesses, 1),
        COUNT_OPTION("spoil", plan->spoilt, 1),
        {.name = "--html", .text = &arguments->html, .problem = "not a file:"},
        {.name = "--chunk-bytes", .variable = "UCCL_TCPX_CHUNK_BYTES"},
        {.name = "--channels", .variable = "UCCL_TCPX_NUM_CHANNELS"},
        {.name = "--sockets", .variable = "UCCL_TCPX_SOCKETS"},
        {.name = "--threads", .variable = "UCCL_TCPX_THREADS"},
        {.name = "--unpack", .variable = "UCCL_TCPX_UNPACK_IMPL"},
        {.name = "--loopback", .flag = &arguments->loopback},
        {.name = "--host", .flag = &arguments->in_host},
        {.name = "--read", .flag = &arguments->reads},
        {.name = "--write", .flag = &arguments->writes},
        {.name = "--both", .choice = &arguments->way, .chosen = PERF_BOTH_WAYS},
        {.name = "--ping-pong", .choice = &arguments->way, .chosen = PERF_PING_PONG},
        {.name = "--json", .choice = &arguments->form, .chosen = JSON},
        {.name = "--csv", .choice = &arguments->form, .chosen = CSV},
        {.name = "--chunks", .flag = &arguments->end.chunks},
        {.name = "--no-progress", .flag = &arguments->quiet},
        MEETING_OPTIONS(arguments->end.meeting),
        {.name = NULL}};
    int status = options_read(&command_perf, argument_count, list, options, &arguments->words);

    plan->way = (enum perf_way)arguments->way;
    plan->pieces = (uint32_t)arguments->pieces;
    return status == EXIT_OK ? check_accesses(arguments, argument_count, list) : status;
}

/* --- the rest ------------------------------------------------------------------------------ */

/* server [GPU], client HOST [GPU]; with --loopback [GPU]. */
static int read_words(struct arguments *arguments)
{
    struct perf_end *end = &arguments->end;
    struct words *words = &arguments->words;

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
    arguments->end.progress =
        !arguments->quiet && !arguments->end.chunks && isatty(STDERR_FILENO) == 1;
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

/* One client, with what came out on standard output. */
static int serve_client(void *argument, bool *met)
{
    static struct perf_result result;
    const struct arguments *arguments = argument;
    int outcome = perf_serve(&arguments->end, -1, &result, met);

    return outcome == TCPX_SUCCESS ? show_result(arguments, &result) : command_failed();
}

static int perf_main(int argument_count, char **list)
{
    static struct perf_result result;
    struct arguments arguments = {.end.meeting = {.test = MEETING_PERF, .timeout_ms = TIMEOUT_MS},
                                  .plan.warm_up = WARM_UP};
    int status = read_options(&arguments, argument_count, list);
    int outcome;

    if (status == EXIT_OK)
        status = read_words(&arguments);
    if (status == EXIT_OK)
        status = complete_arguments(&arguments);
    if (status != EXIT_OK)
        return status;
    if (is_server(&arguments)) {
        arguments.end.meeting.announces = true;
        return meeting_serve(&arguments.end.meeting, serve_client, &arguments);
    }
    if (arguments.loopback)
        outcome = perf_loopback(&arguments.end, &arguments.plan, &result);
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
        "  server        serves one client after the other until Ctrl-C; what is measured, the\n"
        "                client says\n"
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
        "  --read        the client reads the server's memory; with --both each the other's\n"
        "  --write       the client writes the server's memory; with --ping-pong a write with a\n"
        "                note is answered by one\n"
        "  --accesses N  so many reads or writes at once, each with its share of the bytes of an\n"
        "                iteration: --size is their sum. --pieces is of each of them\n"
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
        "  --once        the server ends after one client, or when none comes within --timeout\n"
        "\n"
        "GB/s are 10^9 bytes per second, of the median iteration. Times are from the server's\n"
        "start signal to its last byte; the signal's own way is shown as the barrier. Those of\n"
        "reads and writes are their own, at the side that begins them, until the last is done:\n"
        "the program of the other side does nothing meanwhile.\n",
    .run = perf_main,
};
