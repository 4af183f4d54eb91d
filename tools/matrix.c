/* tcpx matrix: reads the arguments, finds out which of its forms this is, and shows the result. */
#include "tools/matrix.h"

#include "base/config.h"
#include "base/parse.h"
#include "tools/command.h"
#include "tools/meeting.h"
#include "tools/page.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000, MOST_ARGUMENTS = 12 };

struct matrix_arguments {
    uint64_t local;
    const char *hosts;
    const char *hostfile;
    const char *meet;
    const char *join; /* of a rank that was started by a coordinator */
    const char *ssh;
    const char *program;
    const char *secret_file;
    uint64_t port;
    uint64_t bytes;
    uint64_t reads;
    uint32_t span_ms; /* in which all pairs read at once */
    uint64_t gpu;     /* UINT64_MAX: by the number of the rank on its host */
    bool in_host;
    bool quiet;
    int timeout_ms;
    struct page_file json;
    struct page_file html;

    struct matrix_launch launch;
    const char *passed_on[MOST_ARGUMENTS];
    char numbers[2][24];
};

/* --- options ------------------------------------------------------------------------------- */

static bool read_bytes(void *target, const char *value)
{
    uint64_t *bytes = target;

    return parse_size(value, bytes) && *bytes >= 1 && *bytes <= MATRIX_MOST_BYTES;
}

/* Seconds, with a decimal point or without. */
static bool read_span(void *target, const char *value)
{
    uint32_t *span_ms = target;
    char *end;
    double seconds;

    if (value[strspn(value, "0123456789.")] != '\0' || value[0] == '\0')
        return false;
    seconds = strtod(value, &end);
    if (*end != '\0' || !(seconds >= 0.1 && seconds <= 3600))
        return false;
    *span_ms = (uint32_t)(seconds * 1000);
    return true;
}

static int read_options(struct matrix_arguments *arguments, int argument_count, char **list)
{
    const struct option options[] = {
        {.name = "--local",
         .number = &arguments->local,
         .least = 2,
         .most = MATRIX_MOST_RANKS,
         .problem = "not a number of processes from 2 to 128:"},
        {.name = "--hosts", .text = &arguments->hosts, .problem = "not a list of hosts:"},
        {.name = "--hostfile", .text = &arguments->hostfile, .problem = "not a file:"},
        {.name = "--meet", .text = &arguments->meet, .problem = "not a host:"},
        {.name = "--join", .text = &arguments->join, .problem = "not a host and port:"},
        {.name = "--ssh", .text = &arguments->ssh, .problem = "not a command:"},
        {.name = "--program", .text = &arguments->program, .problem = "not a file:"},
        {.name = "--secret", .text = &arguments->secret_file, .problem = "not a file:"},
        {.name = "--port",
         .number = &arguments->port,
         .least = 1,
         .most = 65535,
         .problem = "not a port from 1 to 65535:"},
        {.name = "--size",
         .read = read_bytes,
         .target = &arguments->bytes,
         .problem = "not a size from 1 to 4G, such as 512K or 16M:"},
        {.name = "--iters",
         .number = &arguments->reads,
         .least = 1,
         .most = MATRIX_MOST_READS,
         .problem = "not a number from 1 to 10000:"},
        {.name = "--seconds",
         .read = read_span,
         .target = &arguments->span_ms,
         .problem = "not a number of seconds from 0.1 to 3600:"},
        {.name = "--gpu",
         .number = &arguments->gpu,
         .most = INT_MAX,
         .problem = "not the number of a GPU:"},
        {.name = "--host", .flag = &arguments->in_host},
        {.name = "--timeout",
         .read = meeting_read_timeout,
         .target = &arguments->timeout_ms,
         .problem = "not a number of seconds from 1 to 3600:"},
        {.name = "--json", .text = &arguments->json.path, .problem = "not a file:"},
        {.name = "--html", .text = &arguments->html.path, .problem = "not a file:"},
        {.name = "--no-progress", .flag = &arguments->quiet},
        {.name = NULL}};

    return options_read(&command_matrix, argument_count, list, options, NULL);
}

/* --- which rank this is ---------------------------------------------------------------------- */

/* What torchrun, Open MPI, MPICH, Slurm and PMI tell a process of itself. */
static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "SLURM_PROCID"};
static const char *const size_names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_NTASKS"};
static const char *const local_names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                          "MPI_LOCALRANKID", "SLURM_LOCALID"};

enum { LAUNCHERS = sizeof rank_names / sizeof *rank_names };

/* False: none of them is set, or the first one that is is no number up to `most`. */
static bool read_variable(const char *const names[LAUNCHERS], uint64_t most, uint64_t *number)
{
    for (unsigned i = 0; i < LAUNCHERS; i++)
        if (*command_variable(names[i]) != '\0')
            return parse_number(command_variable(names[i]), number) && *number <= most;
    return false;
}

static int choose_gpu(const struct matrix_arguments *arguments, int *gpu)
{
    uint64_t local = 0;
    int count;
    int result;

    *gpu = -1;
    if (arguments->in_host)
        return TCPX_SUCCESS;
    result = tcpx_gpu_count(&count);
    if (result != TCPX_SUCCESS)
        return result;
    (void)read_variable(local_names, INT_MAX, &local);
    *gpu = arguments->gpu <= INT_MAX ? (int)arguments->gpu : (int)(local % (unsigned)count);
    return TCPX_SUCCESS;
}

static int run_rank(const struct matrix_arguments *arguments, const char *meet, uint16_t port,
                    uint64_t rank)
{
    struct matrix_rank_options options = {.rank = (unsigned)rank,
                                          .meet = meet,
                                          .port = port,
                                          .secret_file = arguments->secret_file,
                                          .timeout_ms = arguments->timeout_ms};
    int result = choose_gpu(arguments, &options.gpu);

    if (result == TCPX_SUCCESS)
        result = matrix_rank_run(&options);
    return result == TCPX_SUCCESS ? EXIT_OK : command_failed();
}

/* HOST:PORT, or PORT alone: then the host is where ssh came from. */
static int join(const struct matrix_arguments *arguments)
{
    const char *colon = strrchr(arguments->join, ':');
    char host[MATRIX_ADDRESS_BYTES];
    uint64_t port;
    uint64_t rank;

    if (colon != NULL) {
        snprintf(host, sizeof host, "%.*s", (int)(colon - arguments->join), arguments->join);
    } else {
        const char *from = command_variable("SSH_CONNECTION");

        snprintf(host, sizeof host, "%.*s", (int)strcspn(from, " "), from);
    }
    if (!parse_number(colon != NULL ? colon + 1 : arguments->join, &port) || port < 1 ||
        port > UINT16_MAX)
        return command_usage(&command_matrix, "not a host and port:", arguments->join);
    if (host[0] == '\0') {
        error_keep("SSH_CONNECTION does not say where the coordinator is: give it --meet HOST, its "
                   "own address");
        return command_failed();
    }
    if (!read_variable(rank_names, MATRIX_MOST_RANKS - 1, &rank))
        return command_usage(&command_matrix,
                             "RANK is no number of a rank:", command_variable("RANK"));
    return run_rank(arguments, host, (uint16_t)port, rank);
}

/* --- hosts --------------------------------------------------------------------------------- */

static int add_host(struct matrix_launch *launch, const char *name, size_t length)
{
    if (length == 0)
        return TCPX_SUCCESS;
    if (name[0] == '-')
        return error_set(TCPX_INVALID_ARGUMENT, "'%.*s' is no name of a host", (int)length, name);
    if (length >= MATRIX_NAME_BYTES)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the name of a host has at most %d characters: %.*s",
                         MATRIX_NAME_BYTES - 1, (int)length, name);
    if (launch->ranks == MATRIX_MOST_RANKS)
        return error_set(TCPX_INVALID_ARGUMENT, "more than %d hosts", MATRIX_MOST_RANKS);
    launch->hosts[launch->ranks] = strndup(name, length);
    if (launch->hosts[launch->ranks] == NULL)
        return error_system(ENOMEM, "the name of a host");
    launch->ranks++;
    return TCPX_SUCCESS;
}

static int add_hosts(struct matrix_launch *launch, const char *list)
{
    static const char between[] = ", \t\r\n";
    int result = TCPX_SUCCESS;

    while (*list != '\0' && *list != '#' && result == TCPX_SUCCESS) {
        size_t length = strcspn(list, between);

        result = add_host(launch, list, length);
        list += length;
        list += strspn(list, between);
    }
    return result;
}

/* The first word of each line; what begins with # is a comment. */
static int read_hostfile(struct matrix_launch *launch, const char *path)
{
    FILE *file = fopen(path, "re");
    char line[4096];
    int result = TCPX_SUCCESS;

    if (file == NULL)
        return error_system(errno, "cannot read %s", path);
    while (result == TCPX_SUCCESS && fgets(line, sizeof line, file) != NULL) {
        char *word = line + strspn(line, " \t");

        word[strcspn(word, " \t\r\n#")] = '\0';
        result = add_hosts(launch, word);
    }
    fclose(file);
    return result;
}

/* --- the coordinator ------------------------------------------------------------------------- */

/* What ranks that are started here get as arguments. */
static void pass_on(struct matrix_arguments *arguments)
{
    const char **next = arguments->passed_on;

    *next++ = "--timeout";
    snprintf(arguments->numbers[0], sizeof arguments->numbers[0], "%d",
             arguments->timeout_ms / 1000);
    *next++ = arguments->numbers[0];
    if (arguments->in_host)
        *next++ = "--host";
    if (arguments->gpu <= INT_MAX) {
        snprintf(arguments->numbers[1], sizeof arguments->numbers[1], "%d", (int)arguments->gpu);
        *next++ = "--gpu";
        *next++ = arguments->numbers[1];
    }
    if (arguments->secret_file != NULL) {
        *next++ = "--secret";
        *next++ = arguments->secret_file;
    }
    *next = NULL;
    arguments->launch.arguments = arguments->passed_on;
}

static bool all_went_well(const struct matrix_result *result)
{
    for (unsigned i = 0; i < result->ranks; i++)
        if (result->rank[i].why[0] != '\0')
            return false;
    return result->failure_count == 0;
}

static int show_result(struct matrix_arguments *arguments, const struct matrix_result *result)
{
    int status;

    matrix_print_table(stdout, result);
    status = command_finish();
    if (arguments->json.out != NULL)
        matrix_print_json(arguments->json.out, result);
    if (page_close(&arguments->json) != TCPX_SUCCESS)
        status = command_failed();
    if (arguments->html.out != NULL && !matrix_print_html(arguments->html.out, result)) {
        page_discard(&arguments->html);
        error_keep_system(ENOMEM, "cannot write %s", arguments->html.path);
        status = command_failed();
    }
    if (page_close(&arguments->html) != TCPX_SUCCESS)
        status = command_failed();
    return status == EXIT_OK && !all_went_well(result) ? EXIT_FAILED : status;
}

static int coordinate(struct matrix_arguments *arguments, const char *address, uint16_t port)
{
    static struct matrix_result result;
    struct matrix_run run = {.plan = {.bytes = arguments->bytes,
                                      .ranks = arguments->launch.ranks,
                                      .reads = (uint32_t)arguments->reads,
                                      .span_ms = arguments->span_ms,
                                      .timeout_ms = (uint32_t)arguments->timeout_ms},
                             .address = address,
                             .port = port,
                             .secret_file = arguments->secret_file,
                             .launch = &arguments->launch,
                             .progress = !arguments->quiet && isatty(STDERR_FILENO) == 1};

    arguments->launch.program = arguments->program;
    arguments->launch.ssh = arguments->ssh;
    pass_on(arguments);
    if (page_open(&arguments->json) != TCPX_SUCCESS ||
        page_open(&arguments->html) != TCPX_SUCCESS) {
        page_discard(&arguments->json);
        return command_failed();
    }
    if (matrix_coordinate(&run, &result) == TCPX_SUCCESS)
        return show_result(arguments, &result);
    page_discard(&arguments->json);
    page_discard(&arguments->html);
    return command_failed();
}

static int run_local(struct matrix_arguments *arguments)
{
    /* Whoever wants another interface has said so. */
    if (setenv("NCCL_SOCKET_IFNAME", "lo", 0) != 0) {
        error_keep_system(errno, "setenv");
        return command_failed();
    }
    arguments->launch.ranks = (unsigned)arguments->local;
    arguments->launch.meet = "127.0.0.1";
    return coordinate(arguments, "127.0.0.1", (uint16_t)arguments->port);
}

static int run_hosts(struct matrix_arguments *arguments, uint16_t port)
{
    struct matrix_launch *launch = &arguments->launch;
    int result = TCPX_SUCCESS;
    int status;

    if (arguments->hosts != NULL)
        result = add_hosts(launch, arguments->hosts);
    if (result == TCPX_SUCCESS && arguments->hostfile != NULL)
        result = read_hostfile(launch, arguments->hostfile);
    if (result == TCPX_SUCCESS && launch->ranks < 2)
        result = error_set(TCPX_INVALID_ARGUMENT, "a matrix needs 2 hosts or more, and %u %s given",
                           launch->ranks, launch->ranks == 1 ? "was" : "were");
    launch->meet = arguments->meet;
    status = result == TCPX_SUCCESS ? coordinate(arguments, NULL, port) : command_failed();
    for (unsigned i = 0; i < launch->ranks; i++)
        free(launch->hosts[i]);
    return status;
}

/* Rank 0 coordinates, and starts a process that is rank 0. */
static int run_launched(struct matrix_arguments *arguments, uint16_t port)
{
    const char *meet = arguments->meet != NULL ? arguments->meet : command_variable("MASTER_ADDR");
    uint64_t rank;
    uint64_t size;

    if (!read_variable(rank_names, MATRIX_MOST_RANKS - 1, &rank) ||
        !read_variable(size_names, MATRIX_MOST_RANKS, &size))
        return command_usage(
            &command_matrix,
            "--local N, --hosts LIST, --hostfile FILE or a launcher that sets RANK "
            "and WORLD_SIZE is expected, not",
            "");
    if (size < 2 || rank >= size) {
        error_keep("rank %llu of %llu: a matrix needs 2 ranks or more, counted from 0",
                   (unsigned long long)rank, (unsigned long long)size);
        return command_failed();
    }
    if (*meet == '\0') {
        error_keep("where is rank 0? --meet HOST or MASTER_ADDR says the host that it runs on");
        return command_failed();
    }
    if (rank != 0)
        return run_rank(arguments, meet, port, rank);
    arguments->launch.ranks = (unsigned)size;
    arguments->launch.own_only = true;
    arguments->launch.meet = meet;
    return coordinate(arguments, NULL, port);
}

static int matrix_main(int argument_count, char **list)
{
    static struct matrix_arguments arguments;
    const struct config *config;
    uint16_t port;
    int status;

    arguments = (struct matrix_arguments){.ssh = "ssh -o BatchMode=yes -o ConnectTimeout=10",
                                          .bytes = (uint64_t)16 << 20,
                                          .reads = 4,
                                          .span_ms = 1000,
                                          .gpu = UINT64_MAX,
                                          .timeout_ms = TIMEOUT_MS};
    status = read_options(&arguments, argument_count, list);
    if (status != EXIT_OK)
        return status;
    if (config_get(&config) != TCPX_SUCCESS)
        return command_failed();
    port = (uint16_t)(arguments.port != 0 ? arguments.port : config->bootstrap_port_base);
    if (arguments.local != 0 && (arguments.hosts != NULL || arguments.hostfile != NULL))
        return command_usage(&command_matrix, "--local N does not go with",
                             arguments.hosts != NULL ? "--hosts" : "--hostfile");
    if (arguments.join != NULL)
        return join(&arguments);
    if (arguments.local != 0)
        return run_local(&arguments);
    if (arguments.hosts != NULL || arguments.hostfile != NULL)
        return run_hosts(&arguments, port);
    return run_launched(&arguments, port);
}

const struct command command_matrix = {
    .name = "matrix",
    .arguments = "--local N | --hosts A,B,... | --hostfile FILE [OPTION...]",
    .summary = "Measure every pair of hosts or processes, and name what is slow.",
    .help =
        "\n"
        "Each rank reads memory of each other one, first one pair at a time, then all at once;\n"
        "every byte is verified. The ranks are\n"
        "  --local N        N processes on this machine\n"
        "  --hosts A,B,...  one on each of these, started by ssh, which must not ask for a\n"
        "                   password; a host that is named twice has two ranks\n"
        "  --hostfile FILE  the same; a host is the first word of a line\n"
        "  neither          started by torchrun, mpirun or srun: each runs 'tcpx matrix', knows "
        "its\n"
        "                   rank from the environment, and rank 0 prints the result\n"
        "\n"
        "What is measured:\n"
        "  --size BYTES     of a read, with K, M or G; 16M\n"
        "  --iters N        reads of each pair alone, after one that does not count; 4\n"
        "  --seconds S      how long all pairs read at once; 1\n"
        "  --gpu N          which GPU's memory; default: the number of the rank on its host\n"
        "  --host           host memory instead of a GPU's\n"
        "\n"
        "How the ranks are started and meet:\n"
        "  --meet HOST      the host of the coordinator, as ranks reach it. With --hosts it is "
        "where\n"
        "                   ssh came from; else rank 0's host, MASTER_ADDR\n"
        "  --port N         where the coordinator listens; UCCL_TCPX_BOOTSTRAP_PORT_BASE, and any\n"
        "                   free one with --local\n"
        "  --ssh COMMAND    instead of 'ssh -o BatchMode=yes -o ConnectTimeout=10'\n"
        "  --program PATH   tcpx on the hosts; the path that it has here\n"
        "  --secret FILE    all ranks must have the same; needs libsodium\n"
        "  --timeout S      seconds for each step; 20\n"
        "\n"
        "What is shown, besides the table:\n"
        "  --json FILE      the result as JSON\n"
        "  --html FILE      a page with heat maps\n"
        "  --no-progress    no line that counts pairs on a terminal\n"
        "\n"
        "Each phase is measured twice, and the better rate of a pair counts. A rank is slow if\n"
        "the median rate at which it reads, or at which it is read from, is below 67 % of the\n"
        "median between the others. A link is slow if it is below 50 % of the median of the\n"
        "other links of each of its ends. If the two measurements of a pair differ by n %, in\n"
        "the median, neither limit is more than 100 - 3n %. A host that fails is named, and the\n"
        "rest is measured; the status is then 1.\n",
    .run = matrix_main,
};
