/*
 * tcpx transfer: one message from the GPU of a client to that of a server, each step by the calls
 * of the original interface, and what they were given and gave, for people to look at.
 */
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/parse.h"
#include "gpu/gpu.h"
#include "tools/command.h"
#include "tools/meeting.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 42, DEVICE = 0, PAGE = 4096, SHOWN_BYTES = 64, TIMEOUT_MS = 60000 };

static const char message[] = "Hello from TCPX client!";

/* All that either side has open. */
struct transfer {
    struct meeting_options options;
    int gpu;
    uint64_t bytes;
    bool in_host; /* memory of the host, and not of the GPU */

    struct meeting meeting;
    struct gpu *current;
    struct gpu_scope scope;
    bool entered;
    void *listener;
    void *comm;
    void *memory; /* registered */
    uint8_t *data;
    uint64_t room; /* of data: whole pages */
    struct tcpx_unpack *unpack;
};

/* --- what is sent -------------------------------------------------------------------------- */

/* The message, again and again. */
static uint8_t *make_payload(uint64_t bytes)
{
    uint8_t *payload = malloc(bytes);

    for (uint64_t i = 0; payload != NULL && i < bytes; i++)
        payload[i] = (uint8_t)message[i % (sizeof message - 1)];
    return payload;
}

static int no_memory(uint64_t bytes)
{
    return error_set(TCPX_SYSTEM_ERROR, "no memory for %llu bytes", (unsigned long long)bytes);
}

static void log_bytes(const char *what, const uint8_t *bytes, uint64_t count)
{
    char hex[3 * SHOWN_BYTES + 1] = "";

    for (uint64_t i = 0; i < count && i < SHOWN_BYTES; i++)
        snprintf(hex + 3 * i, 4, " %02x", bytes[i]);
    log_debug("%s:%s%s", what, hex, count > SHOWN_BYTES ? " ..." : "");
}

/* --- steps of both sides ------------------------------------------------------------------- */

/* Plugins work with the GPU that is current. */
static int begin(struct transfer *transfer)
{
    struct tcpx_net_properties properties;
    int devices;
    int result = gpu_open(transfer->gpu, &transfer->current);

    if (result == TCPX_SUCCESS)
        result = gpu_enter(transfer->current, &transfer->scope);
    if (result != TCPX_SUCCESS)
        return result;
    transfer->entered = true;
    devices = tcpx_get_device_count();
    if (devices < 0)
        return TCPX_SYSTEM_ERROR;
    log_debug("tcpx_get_device_count: %d", devices);
    result = tcpx_get_properties(DEVICE, &properties);
    if (result != TCPX_SUCCESS)
        return result;
    if ((properties.ptr_support & NCCL_PTR_CUDA) == 0 && !transfer->in_host) {
        log_debug("The plugin takes host memory only");
        transfer->in_host = true;
    }
    return TCPX_SUCCESS;
}

static int make_buffer(struct transfer *transfer, const char *who)
{
    int type = transfer->in_host ? NCCL_PTR_HOST : NCCL_PTR_CUDA;
    void *data = NULL;
    int result = TCPX_SUCCESS;

    transfer->room = (transfer->bytes + PAGE - 1) / PAGE * PAGE;
    if (transfer->in_host)
        data = aligned_alloc(PAGE, transfer->room);
    else
        result = tcpx_gpu_alloc(transfer->gpu, transfer->room, &data);
    if (result == TCPX_SUCCESS && data == NULL)
        result = no_memory(transfer->room);
    transfer->data = data;
    if (result == TCPX_SUCCESS)
        result = tcpx_reg_mr(transfer->comm, data, transfer->room, type, &transfer->memory);
    if (result == TCPX_SUCCESS)
        log_debug("Registered %s buffer ptr=%p, bytes=%llu", who, data,
                  (unsigned long long)transfer->room);
    return result;
}

static int write_buffer(const struct transfer *transfer, const uint8_t *from, uint64_t bytes)
{
    if (!transfer->in_host)
        return tcpx_gpu_write(transfer->data, from, bytes);
    memcpy(transfer->data, from, bytes);
    return TCPX_SUCCESS;
}

static int read_buffer(const struct transfer *transfer, uint8_t *to, uint64_t bytes)
{
    if (!transfer->in_host)
        return tcpx_gpu_read(to, transfer->data, bytes);
    memcpy(to, transfer->data, bytes);
    return TCPX_SUCCESS;
}

static void keep_first(int *first, int result)
{
    if (*first == TCPX_SUCCESS)
        *first = result;
}

/* Everything, in the order that it was opened in, backwards; the peer is told why, if it failed. */
static int end(struct transfer *transfer, bool is_server, int result)
{
    char why[400] = "";

    if (result != TCPX_SUCCESS)
        snprintf(why, sizeof why, "%s", error_text());
    tcpx_unpack_destroy(transfer->unpack);
    if (transfer->memory != NULL)
        keep_first(&result, tcpx_dereg_mr(transfer->comm, transfer->memory));
    keep_first(&result,
               is_server ? tcpx_close_recv(transfer->comm) : tcpx_close_send(transfer->comm));
    keep_first(&result, tcpx_close_listen(transfer->listener));
    if (transfer->in_host)
        free(transfer->data);
    else
        keep_first(&result, tcpx_gpu_free(transfer->data));
    if (transfer->entered)
        gpu_leave(transfer->current, &transfer->scope);
    gpu_close(transfer->current);
    meeting_close(&transfer->meeting, *why != '\0' ? why : NULL);
    if (*why != '\0')
        error_keep("%s", why);
    return result;
}

/* --- the server ---------------------------------------------------------------------------- */

static int accept_peer(struct transfer *transfer)
{
    uint8_t handle[MEETING_HANDLE_BYTES];
    int result = tcpx_listen(DEVICE, handle, &transfer->listener);

    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Listening on device %d", DEVICE);
    result = meeting_begin(&transfer->meeting);
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Bootstrap connection established, sending handle");
    result = meeting_give_handle(&transfer->meeting, transfer->bytes, handle);
    meeting_next_step(&transfer->meeting);
    while (result == TCPX_SUCCESS && transfer->comm == NULL) {
        result = tcpx_accept_v5(transfer->listener, &transfer->comm, NULL);
        if (result == TCPX_SUCCESS && transfer->comm == NULL) {
            if (deadline_passed(transfer->meeting.deadline))
                return error_set(TCPX_IN_PROGRESS, "nobody connected to the handle");
            sched_yield();
        }
    }
    if (result == TCPX_SUCCESS)
        log_debug("Connection accepted; recv_comm=%p", transfer->comm);
    return result;
}

static void show_fragments(const struct tcpx_fragments *fragments)
{
    enum { SHOWN_FRAGMENTS = 4 };
    uint8_t probe[SHOWN_BYTES];

    log_debug("Request metadata: frag_count=%u", fragments->count);
    for (uint32_t i = 0; i < fragments->count && i < SHOWN_FRAGMENTS; i++)
        log_debug("descriptor[%u] src_off=%u len=%u dst_off=%llu", i,
                  fragments->list[i].source_offset, fragments->list[i].length,
                  (unsigned long long)fragments->list[i].destination_offset);
    if (fragments->count > 0 && log_enabled(LOG_DEBUG)) {
        uint32_t from = fragments->list[0].source_offset;
        uint32_t length = fragments->list[0].length;
        char what[64];

        length = length < SHOWN_BYTES ? length : SHOWN_BYTES;
        snprintf(what, sizeof what, "Bounce probe (%uB) from src_off=%u", length, from);
        if (tcpx_gpu_read(probe, (const uint8_t *)fragments->bounce + from, length) == TCPX_SUCCESS)
            log_bytes(what, probe, length);
    }
}

static const char *unpack_words(void)
{
    static const char *const words[] = {[CONFIG_UNPACK_AUTO] = "the best way",
                                        [CONFIG_UNPACK_D2D] = "D2D copies",
                                        [CONFIG_UNPACK_HOST] = "host gather",
                                        [CONFIG_UNPACK_KERNEL] = "kernel"};
    const struct config *config;

    return config_get(&config) == TCPX_SUCCESS ? words[config->unpack_impl] : "";
}

static int unpack(struct transfer *transfer, void *request, int size)
{
    uint64_t ticket;
    int result = tcpx_unpack_create(transfer->gpu, &transfer->unpack);

    log_debug("Launching device unpack (%s), total_bytes=%d", unpack_words(), size);
    if (result == TCPX_SUCCESS)
        result = tcpx_unpack_submit(transfer->unpack, &request, 1, &ticket);
    if (result == TCPX_SUCCESS)
        result = tcpx_unpack_wait(transfer->unpack, ticket, transfer->options.timeout_ms);
    if (result == TCPX_SUCCESS)
        log_debug("Device unpack completed successfully");
    return result;
}

static int receive(struct transfer *transfer)
{
    struct tcpx_fragments fragments;
    void *data = transfer->data;
    void *request = NULL;
    int size = (int)transfer->bytes;
    int tag = TAG;
    int result = tcpx_irecv(transfer->comm, 1, &data, &size, &tag, &transfer->memory, &request);

    if (result == TCPX_SUCCESS && request == NULL)
        result = error_set(TCPX_INTERNAL_ERROR, "the first receive finds the comm busy");
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Waiting for client data, expected bytes=%llu", (unsigned long long)transfer->bytes);
    result = tcpx_wait_request(request, transfer->options.timeout_ms, &size, &fragments);
    if (result != TCPX_SUCCESS || transfer->in_host)
        return result;
    show_fragments(&fragments);
    if (fragments.count > 0)
        result = unpack(transfer, request, size);
    if (result == TCPX_SUCCESS)
        result = tcpx_irecv_consumed(transfer->comm, 1, request);
    return result;
}

static int compare(const uint8_t *got, const uint8_t *expected, uint64_t bytes)
{
    uint64_t first = 0;

    while (first < bytes && got[first] == expected[first])
        first++;
    log_debug("Received data (%llu bytes): %.*s", (unsigned long long)bytes,
              (int)(first < SHOWN_BYTES ? first : SHOWN_BYTES), (const char *)got);
    if (first == bytes) {
        log_debug("Received data matches expected payload");
        return TCPX_SUCCESS;
    }
    log_bytes("expected", expected + first, bytes - first);
    log_bytes("received", got + first, bytes - first);
    return error_set(TCPX_REMOTE_ERROR, "byte %llu of %llu arrived as 0x%02x, expected 0x%02x",
                     (unsigned long long)first, (unsigned long long)bytes, got[first],
                     expected[first]);
}

static int validate(struct transfer *transfer)
{
    uint8_t *expected = make_payload(transfer->bytes);
    uint8_t *got = malloc(transfer->bytes);
    int result = TCPX_SUCCESS;

    if (expected == NULL || got == NULL)
        result = no_memory(transfer->bytes);
    if (result == TCPX_SUCCESS)
        result = read_buffer(transfer, got, transfer->bytes);
    if (result == TCPX_SUCCESS)
        result = compare(got, expected, transfer->bytes);
    free(expected);
    free(got);
    return result;
}

/* So that nothing that was there before is taken for what was received. */
static int poison(struct transfer *transfer)
{
    uint8_t *bytes = malloc(transfer->room);
    int result = no_memory(transfer->room);

    if (bytes != NULL) {
        memset(bytes, 0xee, transfer->room);
        result = write_buffer(transfer, bytes, transfer->room);
    }
    free(bytes);
    return result;
}

static int serve(struct transfer *transfer)
{
    int result = begin(transfer);

    if (result == TCPX_SUCCESS)
        result = accept_peer(transfer);
    if (result == TCPX_SUCCESS)
        result = make_buffer(transfer, "server receive");
    if (result == TCPX_SUCCESS)
        result = poison(transfer);
    if (result == TCPX_SUCCESS)
        result = receive(transfer);
    if (result == TCPX_SUCCESS)
        result = validate(transfer);
    if (result == TCPX_SUCCESS)
        result = meeting_give_verdict(&transfer->meeting, "");
    return result;
}

/* --- the client ---------------------------------------------------------------------------- */

static int connect_to_peer(struct transfer *transfer)
{
    uint8_t handle[MEETING_HANDLE_BYTES];
    int result = meeting_begin(&transfer->meeting);

    if (result == TCPX_SUCCESS)
        result = meeting_take_handle(&transfer->meeting, transfer->bytes, handle);
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Connecting to device %d", DEVICE);
    meeting_next_step(&transfer->meeting);
    while (result == TCPX_SUCCESS && transfer->comm == NULL) {
        result = tcpx_connect_v5(DEVICE, handle, &transfer->comm, NULL);
        if (result == TCPX_SUCCESS && transfer->comm == NULL) {
            if (deadline_passed(transfer->meeting.deadline))
                return error_set(TCPX_IN_PROGRESS, "the handle of %s leads nowhere",
                                 control_peer(transfer->meeting.control));
            sched_yield();
        }
    }
    if (result == TCPX_SUCCESS)
        log_debug("Connection established; send_comm=%p", transfer->comm);
    return result;
}

static int send_payload(struct transfer *transfer)
{
    uint8_t *payload = make_payload(transfer->bytes);
    void *request = NULL;
    int result = payload != NULL ? write_buffer(transfer, payload, transfer->bytes)
                                 : no_memory(transfer->bytes);

    if (result == TCPX_SUCCESS)
        log_debug("Wrote test message to %s buffer: %.*s", transfer->in_host ? "host" : "GPU",
                  (int)(transfer->bytes < SHOWN_BYTES ? transfer->bytes : SHOWN_BYTES),
                  (const char *)payload);
    free(payload);
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Sending %llu bytes with tag %d", (unsigned long long)transfer->bytes, TAG);
    result = tcpx_isend(transfer->comm, transfer->data, (int)transfer->bytes, TAG, transfer->memory,
                        &request);
    if (result == TCPX_SUCCESS && request == NULL)
        result = error_set(TCPX_INTERNAL_ERROR, "the first send finds the comm busy");
    if (result == TCPX_SUCCESS)
        result = tcpx_wait_request(request, transfer->options.timeout_ms, NULL, NULL);
    if (result == TCPX_SUCCESS)
        log_debug("Send completed successfully");
    return result;
}

static int visit(struct transfer *transfer)
{
    int result = begin(transfer);

    if (result == TCPX_SUCCESS)
        result = connect_to_peer(transfer);
    if (result == TCPX_SUCCESS)
        result = make_buffer(transfer, "client send");
    if (result == TCPX_SUCCESS)
        result = send_payload(transfer);
    if (result == TCPX_SUCCESS)
        result = meeting_take_verdict(&transfer->meeting);
    return result;
}

/* --- the command --------------------------------------------------------------------------- */

static int run_transfer(struct transfer *transfer)
{
    bool is_server = transfer->options.host == NULL;
    int result;

    log_debug("=== TCPX GPU-to-GPU transfer test ===");
    log_debug("Using payload_bytes=%llu", (unsigned long long)transfer->bytes);
    if (is_server)
        log_debug("Running in SERVER mode");
    else
        log_debug("Running in CLIENT mode, server=%s", transfer->options.host);
    result = meeting_open(&transfer->options, &transfer->meeting);
    if (result == TCPX_SUCCESS)
        result = is_server ? serve(transfer) : visit(transfer);
    result = end(transfer, is_server, result);
    if (result != TCPX_SUCCESS) {
        log_debug("✗ Test FAILED");
        return command_failed();
    }
    if (is_server)
        log_debug("✓ Data validation PASSED");
    log_debug("✓ Test PASSED");
    log_debug("%s test completed successfully", is_server ? "Server" : "Client");
    printf("%s %llu bytes of %s memory: PASSED\n", is_server ? "received" : "sent",
           (unsigned long long)transfer->bytes, transfer->in_host ? "host" : "GPU");
    return command_finish();
}

static int parse_gpu(const char *text, struct transfer *transfer)
{
    uint64_t number;

    if (!parse_number(text, &number) || number > 1000)
        return command_usage(&command_transfer, "not the number of a GPU:", text);
    transfer->gpu = (int)number;
    return EXIT_OK;
}

/* The words that are not options: server [GPU], client HOST [GPU]. */
static int parse_words(char **words, int count, struct transfer *transfer)
{
    bool is_client = count > 0 && strcmp(words[0], "client") == 0;
    int used = is_client ? 2 : 1;

    if (count == 0 || (!is_client && strcmp(words[0], "server") != 0))
        return command_usage(&command_transfer, "server or client HOST is expected, not",
                             count > 0 ? words[0] : "");
    if (is_client && count < 2)
        return command_usage(&command_transfer, "the server's name is missing behind", "client");
    if (count > used + 1)
        return command_usage(&command_transfer, "unexpected argument", words[used + 1]);
    transfer->options.host = is_client ? words[1] : NULL;
    return count > used ? parse_gpu(words[used], transfer) : EXIT_OK;
}

static int run(int argument_count, char **arguments)
{
    enum { MOST_WORDS = 4 };
    struct transfer transfer = {.options = {.timeout_ms = TIMEOUT_MS}};
    const struct config *config;
    char *words[MOST_WORDS];
    int count = 0;
    int status;

    if (config_get(&config) != TCPX_SUCCESS)
        return command_failed();
    transfer.bytes = config->payload_bytes;
    transfer.in_host = config->host_recv_debug;
    for (int i = 0; i < argument_count; i++) {
        const char *problem;
        int used;

        if (!meeting_option(&transfer.options, argument_count - i, arguments + i, &used, &problem))
            return command_usage(&command_transfer, problem,
                                 i + 1 < argument_count ? arguments[i + 1] : "");
        if (used > 0)
            i += used - 1;
        else if (arguments[i][0] == '-' || count == MOST_WORDS)
            return command_usage(&command_transfer, "unknown argument", arguments[i]);
        else
            words[count++] = arguments[i];
    }
    status = parse_words(words, count, &transfer);
    if (status != EXIT_OK)
        return status;
    if (transfer.options.port == 0)
        transfer.options.port = (int)config->bootstrap_port_base + transfer.gpu;
    return run_transfer(&transfer);
}

const struct command command_transfer = {
    .name = "transfer",
    .arguments = "server [GPU] | client HOST [GPU] [--port N] [--secret FILE] [--timeout S]",
    .summary = "Send one message from GPU to GPU, step by step, and check it.",
    .help = "\n"
            "  server        waits for a client, receives, unpacks and checks\n"
            "  client HOST   sends \"Hello from TCPX client!\", or as many bytes of it as\n"
            "                UCCL_TCPX_PAYLOAD_BYTES says\n"
            "  GPU           which one; 0\n"
            "  --port N      where the two meet; UCCL_TCPX_BOOTSTRAP_PORT_BASE plus the GPU\n"
            "  --secret FILE both must have the same; needs libsodium\n"
            "  --timeout S   seconds for each step; 60\n"
            "\n"
            "UCCL_TCPX_DEBUG=1 shows each step. UCCL_TCPX_UNPACK_IMPL chooses how to unpack.\n",
    .run = run,
};
