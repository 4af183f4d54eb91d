/*
 * tcpx transfer: one message from the GPU of a client to that of a server, each step by the calls
 * of the original interface, and what they were given and gave, for people to look at.
 */
#include "base/config.h"
#include "base/log.h"
#include "tools/end.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 42, PAGE = 4096, SHOWN_BYTES = 64 };

static const char message[] = "Hello from TCPX client!";

/* All that either side has open. */
struct transfer {
    struct end end;
    uint64_t bytes;
    bool in_host; /* memory of the host, and not of the GPU */

    void *memory; /* registered */
    uint8_t *data;
    uint8_t *here; /* what is written there, or was read from there */
    uint64_t room; /* of both: whole pages */
    struct tcpx_unpack *unpack;
};

/* --- what is sent -------------------------------------------------------------------------- */

/* The message, again and again. */
static uint8_t payload_byte(uint64_t number)
{
    return (uint8_t)message[number % (sizeof message - 1)];
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

static int transfer_begin(struct transfer *transfer)
{
    struct tcpx_net_properties properties;
    int result = end_enter(&transfer->end);

    if (result == TCPX_SUCCESS)
        result = tcpx_get_properties(END_DEVICE, &properties);
    if (result != TCPX_SUCCESS)
        return result;
    if ((properties.ptr_support & NCCL_PTR_CUDA) == 0 && !transfer->in_host) {
        log_debug("The plugin takes host memory only");
        transfer->in_host = true;
    }
    return TCPX_SUCCESS;
}

static int transfer_make_buffer(struct transfer *transfer, const char *who)
{
    int type = transfer->in_host ? NCCL_PTR_HOST : NCCL_PTR_CUDA;
    void *data = NULL;
    int result = TCPX_SUCCESS;

    transfer->room = (transfer->bytes + PAGE - 1) / PAGE * PAGE;
    if (transfer->in_host)
        data = aligned_alloc(PAGE, transfer->room);
    else
        result = tcpx_gpu_alloc(transfer->end.gpu, transfer->room, &data);
    transfer->here = malloc(transfer->room);
    if (result == TCPX_SUCCESS && (data == NULL || transfer->here == NULL))
        result = no_memory(transfer->room);
    transfer->data = data;
    if (result == TCPX_SUCCESS)
        result = tcpx_reg_mr(transfer->end.comm, data, transfer->room, type, &transfer->memory);
    if (result == TCPX_SUCCESS)
        log_debug("Registered %s buffer ptr=%p, bytes=%llu", who, data,
                  (unsigned long long)transfer->room);
    return result;
}

static int write_buffer(const struct transfer *transfer, uint64_t bytes)
{
    if (!transfer->in_host)
        return tcpx_gpu_write(transfer->data, transfer->here, bytes);
    memcpy(transfer->data, transfer->here, bytes);
    return TCPX_SUCCESS;
}

static int read_buffer(const struct transfer *transfer, uint64_t bytes)
{
    if (!transfer->in_host)
        return tcpx_gpu_read(transfer->here, transfer->data, bytes);
    memcpy(transfer->here, transfer->data, bytes);
    return TCPX_SUCCESS;
}

/* Everything, in the order that it was opened in, backwards. */
static int transfer_finish(struct transfer *transfer, int result)
{
    struct end *end = &transfer->end;

    end_note(end, result);
    tcpx_unpack_destroy(transfer->unpack);
    if (transfer->memory != NULL)
        end_note(end, tcpx_dereg_mr(end->comm, transfer->memory));
    end_note(end, end_hang_up(end));
    free(transfer->here);
    if (transfer->in_host)
        free(transfer->data);
    else
        end_note(end, tcpx_gpu_free(transfer->data));
    return end_close(end);
}

/* The server's listener is there before the two meet. */
static int transfer_connect(struct transfer *transfer)
{
    struct end *end = &transfer->end;
    uint8_t handle[MEETING_HANDLE_BYTES];
    int result = end_is_server(end) ? end_listen(end, handle) : TCPX_SUCCESS;

    if (result == TCPX_SUCCESS)
        result = end_meet(end);
    if (result == TCPX_SUCCESS)
        result = meeting_pass_handle(&end->meeting, transfer->bytes, handle);
    return result == TCPX_SUCCESS ? end_connect(end, handle) : result;
}

/* --- the server ---------------------------------------------------------------------------- */

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

static int transfer_unpack(struct transfer *transfer, void *request, int size)
{
    uint64_t ticket;
    int result = tcpx_unpack_create(transfer->end.gpu, &transfer->unpack);

    log_debug("Launching device unpack (%s), total_bytes=%d", unpack_words(), size);
    if (result == TCPX_SUCCESS)
        result = tcpx_unpack_submit(transfer->unpack, &request, 1, &ticket);
    if (result == TCPX_SUCCESS)
        result = tcpx_unpack_wait(transfer->unpack, ticket, transfer->end.options.timeout_ms);
    if (result == TCPX_SUCCESS)
        log_debug("Device unpack completed successfully");
    return result;
}

static int transfer_receive(struct transfer *transfer)
{
    struct tcpx_fragments fragments;
    void *data = transfer->data;
    void *request = NULL;
    int size = (int)transfer->bytes;
    int tag = TAG;
    int result = tcpx_irecv(transfer->end.comm, 1, &data, &size, &tag, &transfer->memory, &request);

    if (result == TCPX_SUCCESS && request == NULL)
        result = error_set(TCPX_INTERNAL_ERROR, "the first receive finds the comm busy");
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Waiting for client data, expected bytes=%llu", (unsigned long long)transfer->bytes);
    result = tcpx_wait_request(request, transfer->end.options.timeout_ms, &size, &fragments);
    if (result != TCPX_SUCCESS || transfer->in_host)
        return result;
    show_fragments(&fragments);
    if (fragments.count > 0)
        result = transfer_unpack(transfer, request, size);
    if (result == TCPX_SUCCESS)
        result = tcpx_irecv_consumed(transfer->end.comm, 1, request);
    return result;
}

static int validate(struct transfer *transfer)
{
    const uint8_t *got = transfer->here;
    uint8_t expected[SHOWN_BYTES];
    uint64_t bytes = transfer->bytes;
    uint64_t first = 0;
    int result = read_buffer(transfer, bytes);

    if (result != TCPX_SUCCESS)
        return result;
    while (first < bytes && got[first] == payload_byte(first))
        first++;
    log_debug("Received data (%llu bytes): %.*s", (unsigned long long)bytes,
              (int)(first < SHOWN_BYTES ? first : SHOWN_BYTES), (const char *)got);
    log_bytes("Hex dump", got, bytes);
    if (first == bytes) {
        log_debug("Received data matches expected payload");
        return TCPX_SUCCESS;
    }
    for (uint64_t i = 0; i < SHOWN_BYTES; i++)
        expected[i] = payload_byte(first + i);
    log_bytes("expected", expected, bytes - first);
    log_bytes("received", got + first, bytes - first);
    return error_set(TCPX_REMOTE_ERROR, "byte %llu of %llu arrived as 0x%02x, expected 0x%02x",
                     (unsigned long long)first, (unsigned long long)bytes, got[first], expected[0]);
}

/* So that nothing that was there before is taken for what was received. */
static int poison(struct transfer *transfer)
{
    memset(transfer->here, 0xee, transfer->room);
    return write_buffer(transfer, transfer->room);
}

static int transfer_serve(struct transfer *transfer)
{
    int result = transfer_make_buffer(transfer, "server receive");

    if (result == TCPX_SUCCESS)
        result = poison(transfer);
    if (result == TCPX_SUCCESS)
        result = transfer_receive(transfer);
    return result == TCPX_SUCCESS ? validate(transfer) : result;
}

/* --- the client ---------------------------------------------------------------------------- */

static int send_payload(struct transfer *transfer)
{
    void *request = NULL;
    int result;

    for (uint64_t i = 0; i < transfer->bytes; i++)
        transfer->here[i] = payload_byte(i);
    result = write_buffer(transfer, transfer->bytes);
    if (result != TCPX_SUCCESS)
        return result;
    log_debug("Wrote test message to %s buffer: %.*s", transfer->in_host ? "host" : "GPU",
              (int)(transfer->bytes < SHOWN_BYTES ? transfer->bytes : SHOWN_BYTES),
              (const char *)transfer->here);
    log_debug("Sending %llu bytes with tag %d", (unsigned long long)transfer->bytes, TAG);
    result = tcpx_isend(transfer->end.comm, transfer->data, (int)transfer->bytes, TAG,
                        transfer->memory, &request);
    if (result == TCPX_SUCCESS && request == NULL)
        result = error_set(TCPX_INTERNAL_ERROR, "the first send finds the comm busy");
    if (result == TCPX_SUCCESS)
        result = tcpx_wait_request(request, transfer->end.options.timeout_ms, NULL, NULL);
    if (result == TCPX_SUCCESS)
        log_debug("Send completed successfully");
    return result;
}

static int transfer_visit(struct transfer *transfer)
{
    int result = transfer_make_buffer(transfer, "client send");

    return result == TCPX_SUCCESS ? send_payload(transfer) : result;
}

/* --- the command --------------------------------------------------------------------------- */

static int run_transfer(struct transfer *transfer)
{
    struct end *end = &transfer->end;
    bool is_server = end_is_server(end);
    int result;

    log_debug("=== TCPX GPU-to-GPU transfer test ===");
    log_debug("Using payload_bytes=%llu", (unsigned long long)transfer->bytes);
    result = end_open(end);
    if (result == TCPX_SUCCESS)
        result = transfer_begin(transfer);
    if (result == TCPX_SUCCESS)
        result = transfer_connect(transfer);
    if (result == TCPX_SUCCESS)
        result = is_server ? transfer_serve(transfer) : transfer_visit(transfer);
    if (result == TCPX_SUCCESS)
        result = meeting_pass_verdict(&end->meeting);
    result = transfer_finish(transfer, result);
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

/* One client, from the beginning. */
static int transfer_serve_client(void *argument, bool *met)
{
    struct transfer transfer = *(const struct transfer *)argument;
    int status = run_transfer(&transfer);

    *met = transfer.end.met;
    return status;
}

static int transfer_main(int argument_count, char **arguments)
{
    struct transfer transfer = {.end = {.options = {.test = MEETING_TRANSFER}}};
    const struct config *config;
    int status;

    if (config_get(&config) != TCPX_SUCCESS)
        return command_failed();
    transfer.bytes = config->payload_bytes;
    transfer.in_host = config->host_recv_debug;
    status = end_parse(&command_transfer, argument_count, arguments, NULL, &transfer.end);
    if (status != EXIT_OK)
        return status;
    return end_is_server(&transfer.end)
               ? meeting_serve(&transfer.end.options, transfer_serve_client, &transfer)
               : run_transfer(&transfer);
}

const struct command command_transfer = {
    .name = "transfer",
    .arguments = "server [GPU] | client HOST [GPU] [--port N] [--secret FILE] [--timeout S]\n"
                 "                     [--once]",
    .summary = "Send one message from GPU to GPU, step by step, and check it.",
    .help =
        "\n"
        "  server        receives from one client after the other until Ctrl-C, unpacks and\n"
        "                checks\n"
        "  client HOST   sends \"Hello from TCPX client!\", or as many bytes of it as\n"
        "                UCCL_TCPX_PAYLOAD_BYTES says\n"
        "  GPU           which one; 0\n"
        "  --port N      where the two meet; UCCL_TCPX_BOOTSTRAP_PORT_BASE plus the GPU, so\n"
        "                that a server and a client with different GPUs need it\n"
        "  --secret FILE both must have the same; needs libsodium\n"
        "  --timeout S   seconds for each step; 60\n"
        "  --once        the server ends after one client, or when none comes within --timeout\n"
        "\n"
        "UCCL_TCPX_DEBUG=1 shows each step. UCCL_TCPX_UNPACK_IMPL chooses how to unpack.\n",
    .run = transfer_main,
};
