/*
 * NCCL between two ranks on one GPU, over loopback, with different networks under it: NCCL's own
 * sockets and our plugin, in the same run. Each configuration is a pair of processes, started with
 * its variables; all pairs live at the same time and take turns, so that noise meets all alike. The
 * program that gives the orders never touches the GPU, and every wait of it has an end.
 *
 * An iteration begins at a moment that both ranks agree on and ends when the GPU has finished it;
 * its time is the later rank's. Small operations go in bursts, and count one by one. A round is the
 * median of its iterations, and a row the median of its rounds. Every iteration's data is verified
 * (nccl_rank.c): a wrong byte makes the exit status 1.
 *
 * Modes that are tests, --check and those after it in the usage, print "ok" or "not ok" lines. They
 * also look into NCCL's log that the network under test was the one in use.
 */
#include "base/clock.h"
#include "base/json.h"
#include "base/parse.h"
#include "bench/nccl_rank.h"
#include "bench/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EXIT_USAGE = 2,
    EXIT_SKIP = 77,
    CONFIGURATIONS = 5,
    MOST_SIZES = 64,
    MOST_SETTINGS = 64,
    MOST_ROUNDS = 1000,
    MOST_KINDS = 64, /* of lines that are shown of a log */
    PATH_BYTES = 1024,
    LONG_BURST = 100,
    SETTLE_MS = 5000, /* threads that are ending may take so long */
    KILL_MS = 30000,
};

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

enum mode {
    MODE_CHECK,
    MODE_MANY,
    MODE_LONG,
    MODE_THREADS,
    MODE_KILL,
    MODE_GRAPH,
    MODE_SPLIT,
    MODES
};

/* A variable of the environment; `configuration` NULL is all. */
struct setting {
    const char *configuration;
    const char *name;
    const char *value;
};

struct configuration {
    const char *name;
    const char *network; /* as NCCL's log has it */
    bool is_ours;
    struct setting settings[8];
};

#define SET(name, value)                                                                           \
    {                                                                                              \
        NULL, name, value                                                                          \
    }

static const struct configuration configurations[CONFIGURATIONS] = {
    {"socket", "Socket", false, {SET("NCCL_NET_PLUGIN", "none")}},
    {"socket-tuned",
     "Socket",
     false,
     {SET("NCCL_NET_PLUGIN", "none"), SET("NCCL_MIN_NCHANNELS", "16"),
      SET("NCCL_MAX_NCHANNELS", "16"), SET("NCCL_NCHANNELS_PER_NET_PEER", "16"),
      SET("NCCL_SOCKET_NTHREADS", "2"), SET("NCCL_NSOCKS_PERTHREAD", "2"),
      SET("NCCL_P2P_NET_CHUNKSIZE", "524288")}},
    {"host", "TCPX", true, {SET("UCCL_TCPX_PLUGIN_MODE", "host")}},
    {"cuda",
     "TCPX",
     true,
     {SET("UCCL_TCPX_PLUGIN_MODE", "cuda"), SET("NCCL_NET_GDR_LEVEL", "SYS")}},
    /* NCCL 2.24 and later does not know by itself what its unpacking kernels cannot do. */
    {"unpack",
     "TCPX",
     true,
     {SET("UCCL_TCPX_PLUGIN_MODE", "unpack"), SET("NCCL_NET_GDR_LEVEL", "SYS"),
      SET("NCCL_PROTO", "Simple"), SET("NCCL_PAT_ENABLE", "0"), SET("NCCL_GRAPH_REGISTER", "0"),
      SET("NCCL_LOCAL_REGISTER", "0")}},
};

/* As nccl-tests count it, for two ranks. */
static const double bus_factors[OPERATIONS] = {
    [OP_SENDRECV] = 1,   [OP_BIDIR] = 1,        [OP_ALLTOALL] = 0.5,
    [OP_ALL_REDUCE] = 1, [OP_ALL_GATHER] = 0.5, [OP_REDUCE_SCATTER] = 0.5,
    [OP_BROADCAST] = 1,  [OP_REDUCE] = 1,
};

struct child {
    pid_t pid; /* 0 once it has been waited for */
    int orders;
    long log_seen;
};

struct pair {
    const struct configuration *configuration;
    struct child ranks[RANKS];
    bool is_alive;
    uint64_t next; /* iteration */
    struct answer answers[RANKS];
};

struct options {
    char libnccl[PATH_BYTES]; /* empty: by its usual names */
    char plugin[PATH_BYTES];
    bool chosen[CONFIGURATIONS];
    bool operations[OPERATIONS];
    uint64_t sizes[MOST_SIZES];
    int size_count;
    struct setting settings[MOST_SETTINGS];
    int setting_count;
    bool modes[MODES];
    bool is_test; /* any mode but measuring */
    uint64_t rounds;
    uint64_t iterations; /* 0: by size; burst, too */
    uint64_t warmup;
    uint64_t burst;
    uint64_t many;
    uint64_t messages;
    uint64_t kill_seconds;
    uint64_t limit_seconds;
    bool plant;
    bool register_buffers;
    bool shows_log;
    char log[PATH_BYTES]; /* a prefix */
    char folder[64];      /* of logs, unless a prefix is given */
    FILE *json;
};

static struct options options = {.rounds = 3,
                                 .warmup = 1,
                                 .many = 50,
                                 .messages = 10000,
                                 .kill_seconds = 30,
                                 .limit_seconds = 60};
static int failures;
static int tests;

/* --- options ------------------------------------------------------------------------------- */

static const char usage_text[] =
    "usage: nccl_pair [options]\n"
    "  --config A,B       of socket, socket-tuned, host, cuda, unpack (all); ratios are to the "
    "first\n"
    "                     of them in this order\n"
    "  --op A,B           of sendrecv, bidir, alltoall, all_reduce, all_gather, reduce_scatter,\n"
    "                     broadcast, reduce (sendrecv,all_reduce)\n"
    "  --size A,B         bytes, 0 to 1G, with K, M or G (1K,64K,1M,16M,64M,256M)\n"
    "  --sizes FROM:TO    powers of two\n"
    "  --rounds N         (3)\n"
    "  --iterations N     in a round, 1 to 62 (by size)\n"
    "  --warmup N         iterations before each round, 0 to 2 (1)\n"
    "  --burst N          operations in an iteration, 1 to 256 (20 below 1M, else 1; 8 with "
    "--check)\n"
    "  --set NAME=VALUE   a variable for all configurations; CONFIG:NAME=VALUE for one\n"
    "  --proto P, --algo A  NCCL_PROTO (not of unpack) and NCCL_ALGO\n"
    "  --register         buffers are registered with each communicator\n"
    "  --plant            makes one byte wrong before it is verified: the run must fail\n"
    "  --libnccl PATH     (libnccl.so.2, libnccl.so)\n"
    "  --plugin PATH      (../libnccl-net-tcpx.so, from where this program is)\n"
    "  --limit SECONDS    of each wait (60)\n"
    "  --log PREFIX       NCCL's log to PREFIX.CONFIG.RANK; what it says of the network is "
    "printed\n"
    "  --json FILE        the table, for programs\n"
    "tests, one or more, for each configuration:\n"
    "  --check            all operations, 0 bytes to 256M (--op and --size change that)\n"
    "  --many [N]         N communicators one after the other (50): nothing may be left behind\n"
    "  --long [N]         N messages of 64K over one communicator (10000)\n"
    "  --threads          two communicators at once, from two threads\n"
    "  --kill             rank 1 is killed: rank 0 must get an error, and can abort\n"
    "  --kill-seconds N   ... in so many seconds (30)\n"
    "  --graph            all_reduce and sendrecv in a CUDA graph\n"
    "  --split            a communicator that is split from another\n"
    "exit status: 0 fine, 1 something failed, 2 usage, 77 no libnccl or no GPU here\n";

__attribute__((format(printf, 1, 2), noreturn)) static void refuse(const char *format, ...)
{
    va_list list;

    fputs("nccl_pair: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputs(" (--help says more)\n", stderr);
    exit(EXIT_USAGE);
}

static uint64_t want_number(const char *option, const char *value, uint64_t low, uint64_t high)
{
    uint64_t number;

    if (!parse_number(value, &number) || number < low || number > high)
        refuse("%s wants a number from %llu to %llu, not \"%s\"", option, (unsigned long long)low,
               (unsigned long long)high, value);
    return number;
}

static uint64_t want_size(const char *option, const char *value)
{
    uint64_t size;

    if (!parse_size(value, &size) || size > GIB)
        refuse("%s wants sizes from 0 to 1G, such as 64K, not \"%s\"", option, value);
    return size;
}

static void add_size(const char *option, uint64_t size)
{
    if (options.size_count == MOST_SIZES)
        refuse("%s: more than %d sizes", option, MOST_SIZES);
    options.sizes[options.size_count++] = size;
}

static void want_range(const char *option, char *value)
{
    char *colon = strchr(value, ':');
    uint64_t from;
    uint64_t to;

    if (colon == NULL)
        refuse("%s wants FROM:TO, such as 1K:64M, not \"%s\"", option, value);
    *colon = '\0';
    from = want_size(option, value);
    to = want_size(option, colon + 1);
    if (from == 0 || from > to)
        refuse("%s wants FROM:TO with 0 < FROM <= TO", option);
    for (uint64_t size = from; size <= to; size *= 2)
        add_size(option, size);
}

static int find_configuration(const char *name)
{
    for (int i = 0; i < CONFIGURATIONS; i++)
        if (strcmp(configurations[i].name, name) == 0)
            return i;
    return -1;
}

static int find_operation(const char *name)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (strcmp(operation_names[i], name) == 0)
            return i;
    return -1;
}

/* Each of the words between commas. */
static void want_list(const char *option, char *value)
{
    char *rest = NULL;

    if (*value == '\0')
        refuse("%s wants a list, not nothing", option);
    for (char *word = strtok_r(value, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        if (strcmp(option, "--size") == 0) {
            add_size(option, want_size(option, word));
        } else if (strcmp(option, "--op") == 0) {
            int found = find_operation(word);

            if (found < 0)
                refuse("--op wants sendrecv, bidir, alltoall, all_reduce, all_gather, "
                       "reduce_scatter, broadcast or reduce, not \"%s\"",
                       word);
            options.operations[found] = true;
        } else {
            int found = find_configuration(word);

            if (found < 0)
                refuse("--config wants socket, socket-tuned, host, cuda or unpack, not \"%s\"",
                       word);
            options.chosen[found] = true;
        }
    }
}

static void add_setting(const char *configuration, const char *name, const char *value)
{
    if (options.setting_count == MOST_SETTINGS)
        refuse("more than %d variables", MOST_SETTINGS);
    options.settings[options.setting_count++] = (struct setting){configuration, name, value};
}

static void want_setting(const char *option, char *value)
{
    char *equals = strchr(value, '=');
    char *colon = strchr(value, ':');
    const char *configuration = NULL;

    if (equals == NULL || equals == value)
        refuse("%s wants NAME=VALUE or CONFIG:NAME=VALUE, not \"%s\"", option, value);
    *equals = '\0';
    if (colon != NULL && colon < equals) {
        *colon = '\0';
        configuration = value;
        value = colon + 1;
        if (find_configuration(configuration) < 0)
            refuse("%s: no configuration \"%s\"", option, configuration);
    }
    add_setting(configuration, value, equals + 1);
}

static void want_path(const char *option, const char *value, char path[PATH_BYTES])
{
    if (*value == '\0' || snprintf(path, PATH_BYTES, "%s", value) >= PATH_BYTES)
        refuse("%s wants a path of up to %d bytes, not \"%s\"", option, PATH_BYTES - 1, value);
}

/* Unpacking kernels know no other protocol than the one they have. */
static void want_shorthand(const char *option, char *value)
{
    bool is_protocol = strcmp(option, "--proto") == 0;

    for (int i = 0; i < CONFIGURATIONS; i++)
        if (!is_protocol || strcmp(configurations[i].name, "unpack") != 0)
            add_setting(configurations[i].name, is_protocol ? "NCCL_PROTO" : "NCCL_ALGO", value);
}

static void want_file(const char *option, char *value)
{
    options.json = fopen(value, "we");
    if (options.json == NULL)
        refuse("%s: cannot write \"%s\": %s", option, value, strerror(errno));
}

/* With a flag, and a number: that need not be there. */
static const struct option {
    const char *name;
    bool *flag;
    uint64_t *number;
    uint64_t low;
    uint64_t high;
    char *path;
    void (*take)(const char *option, char *value);
} known_options[] = {
    {"--plant", .flag = &options.plant},
    {"--register", .flag = &options.register_buffers},
    {"--check", .flag = &options.modes[MODE_CHECK]},
    {"--many", .flag = &options.modes[MODE_MANY], &options.many, 3, 100000},
    {"--long", .flag = &options.modes[MODE_LONG], &options.messages, 1, 100000000},
    {"--threads", .flag = &options.modes[MODE_THREADS]},
    {"--kill", .flag = &options.modes[MODE_KILL]},
    {"--graph", .flag = &options.modes[MODE_GRAPH]},
    {"--split", .flag = &options.modes[MODE_SPLIT]},
    {"--rounds", .number = &options.rounds, 1, MOST_ROUNDS},
    {"--iterations", .number = &options.iterations, 1, MOST_RUN - 2},
    {"--warmup", .number = &options.warmup, 0, 2},
    {"--burst", .number = &options.burst, 1, MOST_BURST},
    {"--kill-seconds", .number = &options.kill_seconds, 1, 3600},
    {"--limit", .number = &options.limit_seconds, 1, 3600},
    {"--libnccl", .path = options.libnccl},
    {"--plugin", .path = options.plugin},
    {"--log", .path = options.log},
    {"--config", .take = want_list},
    {"--op", .take = want_list},
    {"--size", .take = want_list},
    {"--sizes", .take = want_range},
    {"--set", .take = want_setting},
    {"--proto", .take = want_shorthand},
    {"--algo", .take = want_shorthand},
    {"--json", .take = want_file},
};

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < sizeof known_options / sizeof *known_options; i++)
        if (strcmp(known_options[i].name, name) == 0)
            return &known_options[i];
    refuse("unknown option \"%s\"", name);
}

/* Returns whether the value was used. */
static bool take_option(const struct option *option, char *value)
{
    bool follows = value != NULL && strncmp(value, "--", 2) != 0;

    if (option->flag != NULL)
        *option->flag = true;
    if (option->flag != NULL && (option->number == NULL || !follows))
        return false;
    if (value == NULL)
        refuse("%s wants a value", option->name);
    if (option->number != NULL)
        *option->number = want_number(option->name, value, option->low, option->high);
    else if (option->path != NULL)
        want_path(option->name, value, option->path);
    else
        option->take(option->name, value);
    return true;
}

static void read_options(int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--help") == 0) {
            fputs(usage_text, stdout);
            exit(0);
        }
        i += take_option(find_option(arguments[i]), arguments[i + 1]);
    }
}

static bool any(const bool *flags, int count)
{
    for (int i = 0; i < count; i++)
        if (flags[i])
            return true;
    return false;
}

static void find_plugin(void)
{
    char program[PATH_BYTES / 2];
    char path[PATH_BYTES];
    char *real;
    ssize_t length;

    if (options.plugin[0] == '\0') {
        length = readlink("/proc/self/exe", program, sizeof program - 1);
        if (length < 0)
            refuse("/proc/self/exe: %s", strerror(errno));
        program[length] = '\0';
        *strrchr(program, '/') = '\0';
        snprintf(path, sizeof path, "%s/../libnccl-net-tcpx.so", program);
    } else {
        snprintf(path, sizeof path, "%s", options.plugin);
    }
    real = realpath(path, NULL);
    if (real != NULL)
        want_path("--plugin", real, options.plugin);
    free(real);
    for (int i = 0; i < CONFIGURATIONS && real == NULL; i++)
        if (options.chosen[i] && configurations[i].is_ours) {
            fprintf(stderr, "nccl_pair: no plugin at %s: build it, or use --plugin\n", path);
            exit(1);
        }
}

static void complete_options(void)
{
    static const uint64_t measured[] = {KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB};
    static const uint64_t checked[] = {0, 4, 1000, KIB, 64 * KIB + 4, MIB, 16 * MIB, 256 * MIB};
    bool checks = options.modes[MODE_CHECK];
    bool has_sizes = options.size_count > 0;
    const uint64_t *sizes = checks ? checked : measured;
    size_t count = checks ? sizeof checked / sizeof *checked : sizeof measured / sizeof *measured;

    options.is_test = any(options.modes, MODES);
    options.shows_log = options.log[0] != '\0';
    if (!any(options.chosen, CONFIGURATIONS))
        memset(options.chosen, true, sizeof options.chosen);
    if (!any(options.operations, OPERATIONS)) {
        memset(options.operations, checks, sizeof options.operations);
        options.operations[OP_SENDRECV] = true;
        options.operations[OP_ALL_REDUCE] = true;
    }
    for (size_t i = 0; i < count && !has_sizes; i++)
        add_size("--size", sizes[i]);
    find_plugin();
    if (options.shows_log)
        return;
    snprintf(options.folder, sizeof options.folder, "/tmp/nccl_pair.XXXXXX");
    if (mkdtemp(options.folder) == NULL)
        refuse("no folder for logs: %s", strerror(errno));
    snprintf(options.log, sizeof options.log, "%s/log", options.folder);
}

/* --- the environment of a configuration ---------------------------------------------------- */

typedef void (*setting_visitor)(const char *name, const char *value);

static void visit_all(const struct setting *settings, int count, const char *configuration,
                      setting_visitor visit)
{
    for (int i = 0; i < count && settings[i].name != NULL; i++)
        if (settings[i].configuration == NULL ||
            strcmp(settings[i].configuration, configuration) == 0)
            visit(settings[i].name, settings[i].value);
}

/* All variables of a configuration that both ranks have; the later of two wins. */
static void visit_settings(const struct configuration *configuration, setting_visitor visit)
{
    bool informs = options.shows_log || options.is_test;
    const char *subjects = options.shows_log ? "INIT,NET,ENV,TUNING,REG" : "INIT,NET";
    const struct setting common[] = {SET("NCCL_NET", configuration->network),
                                     SET("NCCL_SOCKET_IFNAME", "lo"), SET("NCCL_RAS_ENABLE", "0")};
    const struct setting ours[] = {SET("NCCL_NET_PLUGIN", options.plugin),
                                   SET("NCCL_NET_PLUGIN_REF_COUNT", "1")};
    const struct setting log[] = {SET("NCCL_DEBUG", informs ? "INFO" : "WARN"),
                                  SET("NCCL_DEBUG_SUBSYS", subjects)};

    visit_all(common, 3, configuration->name, visit);
    visit_all(ours, configuration->is_ours ? 2 : 0, configuration->name, visit);
    visit_all(configuration->settings, 8, configuration->name, visit);
    visit_all(log, informs ? 2 : 1, configuration->name, visit);
    visit_all(options.settings, options.setting_count, configuration->name, visit);
}

static void set_variable(const char *name, const char *value)
{
    setenv(name, value, 1);
}

static void print_variable(const char *name, const char *value)
{
    printf(" %s=%s", name, value);
}

static void write_variable(const char *name, const char *value)
{
    char text[2 * PATH_BYTES];

    snprintf(text, sizeof text, "%s=%s", name, value);
    fputs(", ", options.json);
    json_string(options.json, text);
}

static void log_path(const struct pair *pair, int rank, const char *suffix, char path[])
{
    snprintf(path, PATH_BYTES + 64, "%s.%s.%d%s", options.log, pair->configuration->name, rank,
             suffix);
}

static void clean_up(void)
{
    char path[PATH_BYTES + 64];

    if (options.folder[0] == '\0')
        return;
    if (failures > 0) {
        printf("# logs are in %s\n", options.folder);
        return;
    }
    for (int i = 0; i < CONFIGURATIONS; i++)
        for (int rank = 0; rank < RANKS; rank++) {
            const struct pair pair = {.configuration = &configurations[i]};

            log_path(&pair, rank, "", path);
            unlink(path);
            log_path(&pair, rank, ".out", path);
            unlink(path);
        }
    rmdir(options.folder);
}

/* --- rank processes ------------------------------------------------------------------------ */

static void become_rank(const struct pair *pair, int rank, int orders, const int peers[LANES])
{
    char output[PATH_BYTES + 64];
    char log[PATH_BYTES + 64];
    char words[4][16];
    char *arguments[] = {"nccl_pair", "rank",   words[0],        words[1],
                         words[2],    words[3], options.libnccl, NULL};
    const int numbers[] = {rank, orders, peers[0], peers[1]};
    int file;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_path(pair, rank, ".out", output);
    log_path(pair, rank, "", log);
    unlink(log); /* nothing of an earlier run is taken for this one's */
    file = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0)
        _exit(1);
    setenv("NCCL_HOSTID", rank == 0 ? "h0" : "h1", 1);
    setenv("NCCL_DEBUG_FILE", log, 1);
    visit_settings(pair->configuration, set_variable);
    for (int i = 0; i < 4; i++)
        snprintf(words[i], sizeof words[i], "%d", numbers[i]);
    for (int i = 1; i < 4; i++)
        fcntl(numbers[i], F_SETFD, 0); /* these survive */
    execv("/proc/self/exe", arguments);
    _exit(1);
}

static void show_end_of(const char *path)
{
    enum { LINES = 6, BYTES = 3000 };
    char text[BYTES + 1];
    FILE *file = fopen(path, "re");
    const char *line = text;
    size_t length;
    int lines = 0;

    if (file == NULL)
        return;
    if (fseek(file, -BYTES, SEEK_END) != 0)
        rewind(file);
    length = fread(text, 1, BYTES, file);
    fclose(file);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    text[length] = '\0';
    for (size_t i = length; i > 0 && lines < LINES; i--)
        if (text[i - 1] == '\n' && ++lines == LINES)
            line = text + i;
    for (char *rest = NULL, *next = strtok_r(text + (line - text), "\n", &rest); next != NULL;
         next = strtok_r(NULL, "\n", &rest))
        printf("#   %s: %s\n", basename(path), next);
}

/* Even a killed process may need a while: until the GPU's driver lets it go. */
static void end_child(struct child *child)
{
    uint64_t deadline = deadline_after_ms(KILL_MS);

    if (child->pid == 0)
        return;
    kill(child->pid, SIGKILL);
    while (waitpid(child->pid, NULL, WNOHANG) == 0 && !deadline_passed(deadline))
        usleep(1000);
    child->pid = 0;
    close(child->orders);
}

/* The pair is of no use any more: says why, and ends it. */
__attribute__((format(printf, 2, 3))) static void give_up(struct pair *pair, const char *format,
                                                          ...)
{
    char path[PATH_BYTES + 64];
    va_list list;

    printf("# %s: ", pair->configuration->name);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
    for (int rank = 0; rank < RANKS; rank++)
        end_child(&pair->ranks[rank]);
    for (int rank = 0; rank < RANKS; rank++) {
        log_path(pair, rank, "", path);
        show_end_of(path);
        log_path(pair, rank, ".out", path);
        show_end_of(path);
    }
    fflush(stdout);
    pair->is_alive = false;
    failures++;
}

static int milliseconds_left(uint64_t deadline)
{
    uint64_t now = clock_now();

    return now >= deadline ? 0 : (int)((deadline - now) / 1000000 + 1);
}

/* One answer of a rank. A rank that is late, gone or has failed is the end of its pair. */
static bool hear(struct pair *pair, int rank, uint64_t deadline)
{
    struct answer *answer = &pair->answers[rank];
    struct pollfd wait = {.fd = pair->ranks[rank].orders, .events = POLLIN};
    ssize_t got;

    while (poll(&wait, 1, milliseconds_left(deadline)) <= 0)
        if (deadline_passed(deadline)) {
            give_up(pair, "rank %d does not answer in time", rank);
            return false;
        }
    got = recv(wait.fd, answer, sizeof *answer, 0);
    if (got != (ssize_t)sizeof *answer) {
        give_up(pair, "rank %d ended unexpectedly", rank);
        return false;
    }
    if (answer->status == ANSWER_FAILED) {
        give_up(pair, "rank %d: %s", rank, answer->text);
        return false;
    }
    return true;
}

/* Answers of both ranks, in the order in which they come: the first failure is the cause. */
static bool hear_both(struct pair *pair, uint64_t deadline)
{
    bool heard[RANKS] = {false};

    while (!heard[0] || !heard[1]) {
        struct pollfd waits[RANKS];

        for (int rank = 0; rank < RANKS; rank++)
            waits[rank] = (struct pollfd){.fd = heard[rank] ? -1 : pair->ranks[rank].orders,
                                          .events = POLLIN};
        if (poll(waits, RANKS, milliseconds_left(deadline)) < 0 && errno != EINTR) {
            give_up(pair, "poll: %s", strerror(errno));
            return false;
        }
        for (int rank = 0; rank < RANKS; rank++) {
            if (heard[rank] || (waits[rank].revents == 0 && !deadline_passed(deadline)))
                continue;
            if (!hear(pair, rank, deadline))
                return false;
            heard[rank] = true;
        }
    }
    return true;
}

/* A rank's own waits have the limit; beyond what these may add up to, it is stuck. */
static uint64_t patience(void)
{
    return deadline_after_ms((2 * options.limit_seconds + 10) * 1000);
}

static bool tell(struct pair *pair, int rank, struct order *order)
{
    if (!pair->is_alive)
        return false;
    if (order->limit_ms == 0)
        order->limit_ms = options.limit_seconds * 1000;
    if (send(pair->ranks[rank].orders, order, sizeof *order, MSG_NOSIGNAL) ==
        (ssize_t)sizeof *order)
        return true;
    give_up(pair, "rank %d is gone", rank);
    return false;
}

/* Wrong data is a failure, but the ranks can go on. */
static bool data_is_right(const struct pair *pair)
{
    bool right = true;

    for (int rank = 0; rank < RANKS; rank++)
        if (pair->answers[rank].status == ANSWER_WRONG) {
            printf("# %s: %s\n", pair->configuration->name, pair->answers[rank].text);
            failures++;
            right = false;
        }
    return right;
}

static bool ask(struct pair *pair, struct order *order)
{
    return tell(pair, 0, order) && tell(pair, 1, order) && hear_both(pair, patience()) &&
           data_is_right(pair);
}

static void check_for_skip(struct pair *pair)
{
    for (int rank = 0; rank < RANKS; rank++)
        if (pair->answers[rank].status == ANSWER_SKIP) {
            fprintf(stderr, "nccl_pair: skipped: %s\n", pair->answers[rank].text);
            for (int i = 0; i < RANKS; i++)
                end_child(&pair->ranks[i]);
            clean_up();
            exit(EXIT_SKIP);
        }
}

static bool start_pair(struct pair *pair, const struct configuration *configuration)
{
    int orders[RANKS][2];
    int peers[LANES][2];
    bool fine = true;

    *pair = (struct pair){.configuration = configuration};
    for (int i = 0; i < 2; i++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, orders[i]) != 0 ||
            socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, peers[i]) != 0)
            refuse("no sockets: %s", strerror(errno));
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        const int mine[LANES] = {peers[0][rank], peers[1][rank]};
        pid_t pid = fork();

        if (pid == 0)
            become_rank(pair, rank, orders[rank][1], mine);
        fine = fine && pid > 0;
        pair->ranks[rank] = (struct child){.pid = pid > 0 ? pid : 0, .orders = orders[rank][0]};
    }
    for (int i = 0; i < 2; i++) {
        close(orders[i][1]);
        close(peers[i][0]);
        close(peers[i][1]);
    }
    pair->is_alive = true;
    if (!fine) {
        give_up(pair, "fork: %s", strerror(errno));
        return false;
    }
    fine = hear_both(pair, patience());
    if (fine)
        check_for_skip(pair);
    return fine;
}

static bool ended_well(struct pair *pair, int rank)
{
    struct child *child = &pair->ranks[rank];
    uint64_t deadline = deadline_after_ms(options.limit_seconds * 1000);
    int status = 0;
    pid_t ended;

    while ((ended = waitpid(child->pid, &status, WNOHANG)) == 0 && !deadline_passed(deadline))
        usleep(1000);
    if (ended == 0) {
        give_up(pair, "rank %d does not end", rank);
        return false;
    }
    child->pid = 0;
    close(child->orders);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    give_up(pair, "rank %d ended with wait status 0x%x", rank, status);
    return false;
}

/* Destroys what is left; a rank that cannot end well is a failure, too. */
static bool stop_pair(struct pair *pair)
{
    struct order order = {.kind = ORDER_QUIT};

    if (!ask(pair, &order))
        return false;
    for (int rank = 0; rank < RANKS; rank++)
        if (!ended_well(pair, rank))
            return false;
    pair->is_alive = false;
    return true;
}

/* --- communicators and runs ---------------------------------------------------------------- */

static bool open_buffers(struct pair *pair, int lane, uint64_t bytes, bool reduces)
{
    struct order order = {.kind = ORDER_BUFFERS, .lane = lane, .bytes = bytes};

    order.table_bytes = reduces ? bytes : 0;
    return ask(pair, &order);
}

static bool open_comm(struct pair *pair, int lane)
{
    struct order order = {.kind = ORDER_ID};

    if (!tell(pair, 0, &order) || !hear(pair, 0, patience()))
        return false;
    order.kind = ORDER_INIT;
    order.lane = lane;
    order.register_buffers = options.register_buffers;
    order.id = pair->answers[0].id;
    return ask(pair, &order);
}

static bool close_comm(struct pair *pair, int lane)
{
    struct order order = {.kind = ORDER_CLOSE, .lane = lane};

    return ask(pair, &order);
}

static bool open_pair(struct pair *pair, const struct configuration *configuration, uint64_t bytes)
{
    /* Whole elements: the largest unit is 8 bytes. */
    return start_pair(pair, configuration) && open_buffers(pair, 0, bytes + 8, true) &&
           open_comm(pair, 0);
}

static bool run(struct pair *pair, struct order *order)
{
    order->kind = order->kind == ORDER_RUN_BOTH ? ORDER_RUN_BOTH : ORDER_RUN;
    order->plant = options.plant;
    order->first = pair->next;
    if (order->burst == 0)
        order->burst = 1;
    pair->next += (uint64_t)(order->warmup + order->iterations);
    return ask(pair, order);
}

static uint64_t largest_size(void)
{
    uint64_t largest = 0;

    for (int i = 0; i < options.size_count; i++)
        if (options.sizes[i] > largest)
            largest = options.sizes[i];
    return largest;
}

/* --- logs ---------------------------------------------------------------------------------- */

/* Lines that NCCL wrote since the last look about connections over this network, and another. */
static void count_connections(struct pair *pair, int rank, int *right, int *others)
{
    char path[PATH_BYTES + 64];
    char expected[64];
    char *line = NULL;
    size_t room = 0;
    FILE *file;

    log_path(pair, rank, "", path);
    file = fopen(path, "re");
    if (file == NULL)
        return;
    snprintf(expected, sizeof expected, "via NET/%s/", pair->configuration->network);
    fseek(file, pair->ranks[rank].log_seen, SEEK_SET);
    while (getline(&line, &room, file) > 0)
        if (strstr(line, expected) != NULL)
            ++*right;
        else if (strstr(line, "Channel ") != NULL && strstr(line, " via ") != NULL)
            ++*others;
    pair->ranks[rank].log_seen = ftell(file);
    free(line);
    fclose(file);
}

static bool network_is_right(struct pair *pair)
{
    for (int rank = 0; rank < RANKS; rank++) {
        int right = 0;
        int others = 0;

        count_connections(pair, rank, &right, &others);
        if (right > 0 && others == 0)
            continue;
        printf("# %s: rank %d's log has %d connections via NET/%s and %d via others\n",
               pair->configuration->name, rank, right, pair->configuration->network, others);
        return false;
    }
    return true;
}

static bool is_telling(const char *line)
{
    static const char *const keys[] = {"via NET/", "Using network", "UNPACK net plugin version"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strstr(line, keys[i]) != NULL)
            return true;
    return false;
}

/* Lines that differ in numbers alone are of one kind; the first of each is shown. */
static void show_log(const struct configuration *configuration)
{
    const struct pair pair = {.configuration = configuration};
    char kinds[MOST_KINDS][160];
    char path[PATH_BYTES + 64];
    char *line = NULL;
    size_t room = 0;
    int count = 0;

    for (int rank = 0; rank < RANKS; rank++) {
        FILE *file;

        log_path(&pair, rank, "", path);
        file = fopen(path, "re");
        while (file != NULL && count < MOST_KINDS && getline(&line, &room, file) > 0) {
            const char *text = strstr(line, "NCCL INFO ");
            int i = 0;

            if (!is_telling(line))
                continue;
            text = text != NULL ? text + strlen("NCCL INFO ") : line;
            snprintf(kinds[count], sizeof kinds[count], "%s", text);
            for (char *at = kinds[count]; *at != '\0'; at++)
                if (*at >= '0' && *at <= '9')
                    *at = '#';
            while (strcmp(kinds[i], kinds[count]) != 0)
                i++;
            if (i < count)
                continue;
            count++;
            printf("# %s rank %d: %.*s\n", configuration->name, rank, (int)strcspn(text, "\n"),
                   text);
        }
        if (file != NULL)
            fclose(file);
    }
    free(line);
}

/* --- measuring ----------------------------------------------------------------------------- */

static struct pair pairs[CONFIGURATIONS];

struct samples {
    double seconds[MOST_ROUNDS];
    int count;
};

static int default_iterations(uint64_t bytes)
{
    if (bytes <= MIB)
        return 10;
    return bytes <= 16 * MIB ? 5 : 3;
}

/* One turn of a pair: its median, or nothing if it failed. */
static void measure_once(struct pair *pair, enum operation operation, uint64_t bytes, int round,
                         struct samples *samples)
{
    struct order order = {.operation = operation, .bytes = bytes};
    double later[MOST_RUN];

    order.iterations = options.iterations > 0 ? (int)options.iterations : default_iterations(bytes);
    order.warmup = (int)options.warmup + (round == 0);
    order.burst = bytes < MIB ? 20 : 1;
    if (options.burst > 0)
        order.burst = (int)options.burst;
    if (!run(pair, &order))
        return;
    for (int i = 0; i < order.iterations; i++) {
        double a = pair->answers[0].seconds[i];
        double b = pair->answers[1].seconds[i];

        later[i] = a > b ? a : b;
    }
    samples->seconds[samples->count++] = sorted_at(later, order.iterations, 0.5);
}

static void write_row(enum operation operation, uint64_t bytes, const char *configuration,
                      const struct samples *samples, double middle, double ratio)
{
    static bool follows;

    if (options.json == NULL)
        return;
    fprintf(options.json,
            "%s\n    {\"op\": \"%s\", \"bytes\": %llu, \"config\": \"%s\", \"rounds\": %d",
            follows ? "," : "", operation_names[operation], (unsigned long long)bytes,
            configuration, samples->count);
    follows = true;
    if (samples->count > 0)
        fprintf(
            options.json,
            ", \"seconds\": %.9f, \"seconds_min\": %.9f, \"seconds_max\": %.9f, \"GBps\": %.6f, "
            "\"bus_GBps\": %.6f",
            middle, samples->seconds[0], samples->seconds[samples->count - 1],
            (double)bytes / middle * 1e-9, (double)bytes / middle * 1e-9 * bus_factors[operation]);
    if (ratio > 0)
        fprintf(options.json, ", \"ratio\": %.4f", ratio);
    fputs("}", options.json);
}

static void size_text(uint64_t bytes, char text[32])
{
    static const char units[] = "KMG";
    int unit = -1;

    for (; bytes > 0 && bytes % 1024 == 0 && unit < 2; unit++)
        bytes /= 1024;
    snprintf(text, 32, unit < 0 ? "%llu" : "%llu%c", (unsigned long long)bytes,
             unit < 0 ? ' ' : units[unit]);
}

static void print_row(enum operation operation, uint64_t bytes, const char *configuration,
                      struct samples *samples, double *reference)
{
    double middle = samples->count > 0 ? sorted_at(samples->seconds, samples->count, 0.5) : 0;
    double rate = middle > 0 ? (double)bytes / middle * 1e-9 : 0;
    double ratio = middle > 0 && *reference > 0 ? *reference / middle : 0;
    char size[32];

    size_text(bytes, size);
    if (samples->count == 0) {
        printf("%-14s %8s  %-12s  failed\n", operation_names[operation], size, configuration);
    } else {
        if (*reference == 0) {
            *reference = middle;
            ratio = 1;
        }
        printf("%-14s %8s  %-12s %12.1f %9.4g %9.4g %9.4g..%-8.4g", operation_names[operation],
               size, configuration, middle * 1e6, rate, rate * bus_factors[operation],
               (double)bytes / samples->seconds[samples->count - 1] * 1e-9,
               (double)bytes / samples->seconds[0] * 1e-9);
        if (*reference > 0)
            printf(" %6.2f", ratio);
        if (samples->count < (int)options.rounds)
            printf("  %d rounds failed", (int)options.rounds - samples->count);
        printf("\n");
    }
    write_row(operation, bytes, configuration, samples, middle, ratio);
    fflush(stdout);
}

static void measure_row(enum operation operation, uint64_t asked)
{
    static struct samples samples[CONFIGURATIONS];
    uint64_t bytes = operation_bytes(operation, asked);
    double reference = 0;
    bool is_first = true;

    memset(samples, 0, sizeof samples);
    for (int round = 0; round < (int)options.rounds; round++)
        for (int turn = 0; turn < CONFIGURATIONS; turn++) {
            int i = (turn + round) % CONFIGURATIONS;

            if (pairs[i].is_alive)
                measure_once(&pairs[i], operation, bytes, round, &samples[i]);
        }
    for (int i = 0; i < CONFIGURATIONS; i++) {
        if (!options.chosen[i])
            continue;
        if (is_first && samples[i].count == 0)
            reference = -1; /* no ratios rather than those to another configuration */
        is_first = false;
        print_row(operation, bytes, configurations[i].name, &samples[i], &reference);
    }
}

static void print_found(const struct answer *answer)
{
    int version = answer->version;

    printf("# NCCL %d.%d.%d; GPU: %s\n", version / 10000, version / 100 % 100, version % 100,
           answer->text);
}

static void measure(void)
{
    bool reduces = false;
    bool says_gpu = true;
    const char *first = NULL;

    for (enum operation operation = 0; operation < OPERATIONS; operation++)
        reduces = reduces || (options.operations[operation] && operation_reduces(operation));
    for (int i = 0; i < CONFIGURATIONS; i++) {
        if (!options.chosen[i])
            continue;
        first = first == NULL ? configurations[i].name : first;
        if (!start_pair(&pairs[i], &configurations[i]))
            continue;
        if (says_gpu)
            print_found(&pairs[i].answers[0]);
        says_gpu = false;
        if (open_buffers(&pairs[i], 0, largest_size() + 8, reduces))
            open_comm(&pairs[i], 0);
    }
    printf("%-14s %8s  %-12s %12s %9s %9s %19s / %s\n", "operation", "bytes", "config", "us",
           "GB/s", "bus GB/s", "GB/s, all rounds", first);
    for (enum operation operation = 0; operation < OPERATIONS; operation++)
        for (int i = 0; i < options.size_count && options.operations[operation]; i++)
            measure_row(operation, options.sizes[i]);
    for (int i = 0; i < CONFIGURATIONS; i++)
        if (pairs[i].is_alive)
            stop_pair(&pairs[i]);
}

/* --- tests --------------------------------------------------------------------------------- */

static bool check_operation(struct pair *pair, enum operation operation)
{
    char row[1024] = "";
    size_t length = 0;
    bool fine = true;

    for (int i = 0; i < options.size_count && fine; i++) {
        bool is_small = options.sizes[i] <= MIB;
        struct order order = {.operation = operation,
                              .bytes = options.sizes[i],
                              .iterations = is_small || options.burst == 0 ? 2 : 1,
                              .burst = options.burst != 0 ? (int)options.burst
                                       : is_small         ? 8
                                                          : 1};
        char size[32];

        fine = run(pair, &order);
        size_text(operation_bytes(operation, options.sizes[i]), size);
        length += (size_t)snprintf(row + length, sizeof row - length, " %s%s", size,
                                   fine ? "" : "(failed)");
        if (length >= sizeof row)
            break;
    }
    printf("# %s: %-14s %s:%s\n", pair->configuration->name, operation_names[operation],
           fine ? "PASS" : "FAIL", row);
    fflush(stdout);
    return fine;
}

static bool test_check(struct pair *pair)
{
    bool fine = true;

    if (!open_pair(pair, pair->configuration, largest_size()))
        return false;
    for (enum operation operation = 0; operation < OPERATIONS && pair->is_alive; operation++)
        if (options.operations[operation])
            fine = check_operation(pair, operation) && fine;
    return network_is_right(pair) && fine && stop_pair(pair);
}

/* A communicator's life: made, used, destroyed, over the right network. */
static bool live_once(struct pair *pair)
{
    struct order reduce = {.operation = OP_ALL_REDUCE, .bytes = MIB, .iterations = 1};
    struct order send = {.operation = OP_SENDRECV, .bytes = MIB, .iterations = 1};

    return open_comm(pair, 0) && run(pair, &reduce) && run(pair, &send) && close_comm(pair, 0) &&
           network_is_right(pair);
}

static bool count_belongings(struct pair *pair, int files[RANKS], int threads[RANKS])
{
    struct order order = {.kind = ORDER_COUNT};

    if (!ask(pair, &order))
        return false;
    for (int rank = 0; rank < RANKS; rank++) {
        files[rank] = pair->answers[rank].files;
        threads[rank] = pair->answers[rank].threads;
    }
    return true;
}

/* Until nothing is more than before, or the time is over. */
static bool has_grown(struct pair *pair, const int files[RANKS], const int threads[RANKS],
                      int new_files[RANKS], int new_threads[RANKS])
{
    uint64_t deadline = deadline_after_ms(SETTLE_MS);
    bool grown = true;

    while (grown && count_belongings(pair, new_files, new_threads)) {
        grown = false;
        for (int rank = 0; rank < RANKS; rank++)
            grown = grown || new_files[rank] > files[rank] || new_threads[rank] > threads[rank];
        if (!grown || deadline_passed(deadline))
            break;
        usleep(100000);
    }
    return grown;
}

static bool test_many(struct pair *pair)
{
    int files[2][RANKS] = {{0}};
    int threads[2][RANKS] = {{0}};
    bool fine;

    if (!start_pair(pair, pair->configuration) || !open_buffers(pair, 0, MIB, true))
        return false;
    for (uint64_t i = 0; i < options.many; i++) {
        if (!live_once(pair)) {
            printf("# %s: communicator %llu\n", pair->configuration->name, (unsigned long long)i);
            return false;
        }
        if (i == 1) {
            usleep(200000); /* what is ending ends */
            if (!count_belongings(pair, files[0], threads[0]))
                return false;
        }
    }
    fine = !has_grown(pair, files[0], threads[0], files[1], threads[1]);
    for (int rank = 0; rank < RANKS; rank++)
        printf("# %s: rank %d: %d files and %d threads after 2 communicators, %d and %d after "
               "%llu\n",
               pair->configuration->name, rank, files[0][rank], threads[0][rank], files[1][rank],
               threads[1][rank], (unsigned long long)options.many);
    return stop_pair(pair) && fine;
}

static bool test_long(struct pair *pair)
{
    uint64_t left = options.messages;

    if (!open_pair(pair, pair->configuration, 64 * KIB))
        return false;
    while (left > 0) {
        struct order order = {.operation = OP_SENDRECV, .bytes = 64 * KIB, .burst = LONG_BURST};

        if (left < LONG_BURST)
            order.burst = (int)left;
        order.iterations = (int)(left / (uint64_t)order.burst);
        if (order.iterations > MOST_RUN)
            order.iterations = MOST_RUN;
        if (!run(pair, &order))
            return false;
        left -= (uint64_t)order.iterations * (uint64_t)order.burst;
    }
    return network_is_right(pair) && stop_pair(pair);
}

static bool test_threads(struct pair *pair)
{
    static const uint64_t sizes[] = {KIB, 64 * KIB, MIB, 16 * MIB};

    if (!open_pair(pair, pair->configuration, 16 * MIB) ||
        !open_buffers(pair, 1, 16 * MIB, false) || !open_comm(pair, 1))
        return false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct order order = {.kind = ORDER_RUN_BOTH,
                              .operation = OP_ALL_REDUCE,
                              .other_operation = OP_BIDIR,
                              .bytes = sizes[i],
                              .iterations = 10,
                              .burst = 4};

        if (!run(pair, &order))
            return false;
        order.operation = OP_SENDRECV;
        order.other_operation = OP_ALL_REDUCE;
        if (!run(pair, &order))
            return false;
    }
    return network_is_right(pair) && close_comm(pair, 1) && stop_pair(pair);
}

/* Rank 0, whose peer is gone, says when it saw that, and when it had aborted. */
static bool watch_survivor(struct pair *pair, uint64_t killed)
{
    uint64_t seen;
    uint64_t deadline = deadline_after_ms((options.kill_seconds + 10) * 1000);

    if (!hear(pair, 0, deadline))
        return false;
    seen = pair->answers[0].moment;
    printf("# %s: error after %.3f s: %s\n", pair->configuration->name,
           (double)(seen - killed) * 1e-9, pair->answers[0].text);
    if (!hear(pair, 0, patience()))
        return false;
    printf("# %s: aborted in %.3f s\n", pair->configuration->name,
           (double)(pair->answers[0].moment - seen) * 1e-9);
    if (seen - killed <= options.kill_seconds * 1000000000)
        return true;
    printf("# %s: that is later than %llu s\n", pair->configuration->name,
           (unsigned long long)options.kill_seconds);
    return false;
}

static bool test_kill(struct pair *pair)
{
    uint64_t bytes = 256 * MIB;
    struct order order = {.kind = ORDER_LOOP, .operation = OP_ALL_REDUCE, .burst = 1};
    struct order quit = {.kind = ORDER_QUIT};
    uint64_t killed;

    order.bytes = bytes;
    order.limit_ms = options.kill_seconds * 1000;
    if (!open_pair(pair, pair->configuration, bytes) || !tell(pair, 0, &order) ||
        !tell(pair, 1, &order) || !hear_both(pair, patience()))
        return false;
    usleep(20000);
    killed = clock_now();
    end_child(&pair->ranks[1]);
    return watch_survivor(pair, killed) && network_is_right(pair) && tell(pair, 0, &quit) &&
           hear(pair, 0, patience()) && ended_well(pair, 0);
}

static bool test_graph(struct pair *pair)
{
    static const enum operation operations[] = {OP_ALL_REDUCE, OP_SENDRECV};
    static const uint64_t sizes[] = {KIB, MIB, 16 * MIB};

    if (!open_pair(pair, pair->configuration, 16 * MIB))
        return false;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            struct order order = {.operation = operations[i],
                                  .bytes = sizes[k],
                                  .warmup = 1,
                                  .iterations = 20,
                                  .graph = true};

            if (!run(pair, &order))
                return false;
        }
    return network_is_right(pair) && stop_pair(pair);
}

static bool test_split(struct pair *pair)
{
    struct order split = {.kind = ORDER_SPLIT, .lane = 1};
    struct order rest = {.operation = OP_ALL_REDUCE, .bytes = MIB, .iterations = 2};

    if (!open_pair(pair, pair->configuration, MIB) || !open_buffers(pair, 1, MIB, false) ||
        !ask(pair, &split))
        return false;
    for (int i = 0; i < 2 * LANES; i++) { /* both twice, by turns */
        struct order order = {.operation = i < LANES ? OP_ALL_REDUCE : OP_BIDIR,
                              .lane = i % LANES,
                              .bytes = MIB,
                              .iterations = 2};

        if (!run(pair, &order))
            return false;
    }
    return network_is_right(pair) && close_comm(pair, 1) && run(pair, &rest) && stop_pair(pair);
}

static const struct {
    const char *name;
    bool (*run)(struct pair *pair);
} modes[MODES] = {
    [MODE_CHECK] = {"every operation and size", test_check},
    [MODE_MANY] = {"many communicators, one after the other", test_many},
    [MODE_LONG] = {"many messages over one communicator", test_long},
    [MODE_THREADS] = {"two communicators from two threads", test_threads},
    [MODE_KILL] = {"the peer is killed", test_kill},
    [MODE_GRAPH] = {"CUDA graphs", test_graph},
    [MODE_SPLIT] = {"a communicator split from another", test_split},
};

static void test(enum mode mode, const struct configuration *configuration)
{
    static struct pair pair;
    int before = failures;
    bool fine;

    pair.configuration = configuration;
    fine = modes[mode].run(&pair) && failures == before;
    if (!fine && failures == before)
        failures++;
    for (int rank = 0; rank < RANKS; rank++) /* after a failure that did not end them */
        end_child(&pair.ranks[rank]);
    printf("%sok %d - %s: %s\n", fine ? "" : "not ", ++tests, configuration->name,
           modes[mode].name);
    fflush(stdout);
}

/* --- all of it ----------------------------------------------------------------------------- */

static void print_inherited(void)
{
    for (char **variable = environ; *variable != NULL; variable++)
        if (strncmp(*variable, "NCCL_", 5) == 0 || strncmp(*variable, "UCCL_", 5) == 0)
            printf("# from the environment: %s\n", *variable);
}

static void print_header(void)
{
    printf("# %ld cores; NCCL_HOSTID=h0 and h1; GB are 10^9 bytes; every iteration verified\n",
           sysconf(_SC_NPROCESSORS_ONLN));
    print_inherited();
    if (options.json != NULL)
        fputs("{\n  \"configurations\": {", options.json);
    for (int i = 0, count = 0; i < CONFIGURATIONS; i++) {
        if (!options.chosen[i])
            continue;
        printf("# %s:", configurations[i].name);
        visit_settings(&configurations[i], print_variable);
        printf("\n");
        if (options.json == NULL)
            continue;
        fprintf(options.json, "%s\n    \"%s\": [\"NCCL_HOSTID=h0|h1\"", count++ > 0 ? "," : "",
                configurations[i].name);
        visit_settings(&configurations[i], write_variable);
        fputs("]", options.json);
    }
    if (options.json != NULL)
        fputs("\n  },\n  \"rows\": [", options.json);
}

/* A rank is this program with the word "rank" and its sockets: nccl_pair starts it so. */
static int start_as_rank(int count, char **arguments)
{
    uint64_t numbers[4];
    int peers[LANES];

    for (int i = 0; i < 4; i++)
        if (count != 7 || !parse_number(arguments[2 + i], &numbers[i]))
            refuse("\"rank\" is not for people");
    for (int i = 0; i < LANES; i++)
        peers[i] = (int)numbers[2 + i];
    return rank_main((int)numbers[0], (int)numbers[1], peers, arguments[6]);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "rank") == 0)
        return start_as_rank(count, arguments);
    read_options(count, arguments);
    complete_options();
    print_header();
    if (!options.is_test)
        measure();
    for (enum mode mode = 0; mode < MODES; mode++)
        for (int i = 0; i < CONFIGURATIONS; i++)
            if (options.modes[mode] && options.chosen[i])
                test(mode, &configurations[i]);
    for (int i = 0; i < CONFIGURATIONS && options.shows_log; i++)
        if (options.chosen[i])
            show_log(&configurations[i]);
    if (tests > 0)
        printf("1..%d\n", tests);
    clean_up();
    if (options.json != NULL)
        fprintf(options.json, "\n  ],\n  \"failures\": %d\n}\n", failures);
    if (options.json != NULL && fclose(options.json) != 0)
        refuse("--json: %s", strerror(errno));
    return failures > 0;
}
