/* What the two ends of a test have in common. */
#include "tools/end.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"

#include <sched.h>
#include <string.h>
#include <time.h>

enum { TIMEOUT_MS = 60000, MOST_GPU = 1000 };

/* How long a wait for a connection takes a whole CPU, for the sake of its time; then it naps. */
enum { SPIN_NS = 20000000, NAP_NS = 200000 };

/* --- arguments ----------------------------------------------------------------------------- */

int end_read_gpu(const struct command *command, char **words, int count, int *gpu)
{
    uint64_t number;

    if (count > 1)
        return command_usage(command, "unexpected argument", words[1]);
    if (count == 0)
        return EXIT_OK;
    if (!parse_number(words[0], &number) || number > MOST_GPU)
        return command_usage(command, "not the number of a GPU:", words[0]);
    *gpu = (int)number;
    return EXIT_OK;
}

int end_read_words(const struct command *command, char **words, int count,
                   struct meeting_options *options, int *gpu)
{
    bool is_client = count > 0 && strcmp(words[0], "client") == 0;
    int used = is_client ? 2 : 1;

    if (count == 0 || (!is_client && strcmp(words[0], "server") != 0))
        return command_usage(command, "server or client HOST is expected, not",
                             count > 0 ? words[0] : "");
    if (is_client && count < 2)
        return command_usage(command, "the server's name is missing behind", "client");
    if (is_client && options->once)
        return command_usage(command, "only a server can serve once: client does not go with",
                             "--once");
    options->host = is_client ? words[1] : NULL;
    return end_read_gpu(command, words + used, count - used, gpu);
}

int end_parse(const struct command *command, int argument_count, char **arguments,
              const struct option *own, struct end *end)
{
    const struct option options[] = {
        MEETING_OPTIONS(end->options), own != NULL ? *own : (struct option){0}, {.name = NULL}};
    struct words words = {0};
    const struct config *config;
    int status;

    if (config_get(&config) != TCPX_SUCCESS)
        return command_failed();
    end->options.timeout_ms = TIMEOUT_MS;
    status = options_read(command, argument_count, arguments, options, &words);
    if (status == EXIT_OK)
        status = end_read_words(command, words.list, words.count, &end->options, &end->gpu);
    if (status == EXIT_OK)
        meeting_count_port(&end->options, config->bootstrap_port_base, end->gpu);
    end->options.announces = end->options.host == NULL;
    return status;
}

/* --- both ends ----------------------------------------------------------------------------- */

bool end_is_server(const struct end *end)
{
    return end->options.host == NULL;
}

int end_open(struct end *end)
{
    if (end_is_server(end))
        log_debug("Running in SERVER mode");
    else
        log_debug("Running in CLIENT mode, server=%s", end->options.host);
    return meeting_open(&end->options, &end->meeting);
}

int end_enter(struct end *end)
{
    int devices;
    int result = gpu_open(end->gpu, &end->current);

    if (result == TCPX_SUCCESS)
        result = gpu_enter(end->current, &end->scope);
    if (result != TCPX_SUCCESS)
        return result;
    end->entered = true;
    devices = tcpx_get_device_count();
    if (devices < 0)
        return TCPX_SYSTEM_ERROR;
    log_debug("tcpx_get_device_count: %d", devices);
    return TCPX_SUCCESS;
}

int end_meet(struct end *end)
{
    int result = meeting_begin(&end->meeting);

    end->met = result == TCPX_SUCCESS;
    if (end->met && end_is_server(end))
        log_debug("Bootstrap connection established, sending handle");
    return result;
}

/* --- a connection -------------------------------------------------------------------------- */

/* *naps: whether it has taken so long that other things are worth looking at. */
static void wait_a_little(uint64_t began, bool *naps)
{
    static const struct timespec nap = {.tv_nsec = NAP_NS};

    *naps = clock_now() - began > SPIN_NS;
    if (*naps)
        nanosleep(&nap, NULL);
    else
        sched_yield();
}

int end_listen(struct end *end, uint8_t handle[MEETING_HANDLE_BYTES])
{
    int result = tcpx_listen(END_DEVICE, handle, &end->listener);

    if (result == TCPX_SUCCESS)
        log_debug("Listening on device %d", END_DEVICE);
    return result;
}

static int connection_late(const struct end *end)
{
    if (end_is_server(end))
        return error_set(TCPX_IN_PROGRESS, "nobody connected to the handle");
    return error_set(TCPX_IN_PROGRESS, "the handle of %s leads nowhere",
                     control_peer(end->meeting.control));
}

int end_connect(struct end *end, uint8_t handle[MEETING_HANDLE_BYTES])
{
    uint64_t began = clock_now();
    bool is_server = end_is_server(end);
    int result = TCPX_SUCCESS;

    if (!is_server)
        log_debug("Connecting to device %d", END_DEVICE);
    meeting_next_step(&end->meeting);
    while (result == TCPX_SUCCESS) {
        bool naps;

        result = is_server ? tcpx_accept_v5(end->listener, &end->comm, NULL)
                           : tcpx_connect_v5(END_DEVICE, handle, &end->comm, NULL);
        if (result != TCPX_SUCCESS || end->comm != NULL)
            break;
        if (deadline_passed(end->meeting.deadline))
            return connection_late(end);
        wait_a_little(began, &naps);
        if (naps && is_server)
            result = meeting_check_client(&end->meeting);
    }
    if (result == TCPX_SUCCESS && is_server)
        log_debug("Connection accepted; recv_comm=%p", end->comm);
    else if (result == TCPX_SUCCESS)
        log_debug("Connection established; send_comm=%p", end->comm);
    return result;
}

int end_hang_up(struct end *end)
{
    int closed = end_is_server(end) ? tcpx_close_recv(end->comm) : tcpx_close_send(end->comm);
    int result = tcpx_close_listen(end->listener);

    end->comm = NULL;
    end->listener = NULL;
    return closed != TCPX_SUCCESS ? closed : result;
}

/* --- the end ------------------------------------------------------------------------------- */

void end_note(struct end *end, int result)
{
    if (result == TCPX_SUCCESS || end->result != TCPX_SUCCESS)
        return;
    end->result = result;
    snprintf(end->why, sizeof end->why, "%s", error_text());
}

int end_close(struct end *end)
{
    end_note(end, end_hang_up(end));
    if (end->entered)
        gpu_leave(end->current, &end->scope);
    gpu_close(end->current);
    meeting_close(&end->meeting, end->result != TCPX_SUCCESS ? end->why : NULL);
    if (end->result != TCPX_SUCCESS)
        error_keep("%s", end->why);
    return end->result;
}
