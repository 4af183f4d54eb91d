/*
 * Reads the blocks of a request from prefill's KV cache into its own one, and checks every byte.
 * Where there is no GPU, tcpx takes an emulated one.
 *
 *     cc decode.c $(pkg-config --cflags --libs tcpx) -o decode
 *     ./decode TICKET HOST [PORT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcpx.h>

#define BLOCKS      64
#define BLOCK_BYTES ((size_t)65536)
#define BYTES       (BLOCKS * BLOCK_BYTES)
#define WANTED      24 /* blocks of the request */

/* As prefill writes it. In a server it comes with the request. */
static struct ticket {
    unsigned char key[TCPX_KEY_BYTES];
    char request[16];
    unsigned blocks[WANTED];
} ticket;

static unsigned char host[BYTES]; /* the cache, for the CPU */
static struct tcpx_part parts[WANTED];

/* Ends the program in words if a call has failed. */
static void must(int result, const char *what)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "decode: %s: %s\n", what, tcpx_last_error());
    exit(1);
}

/* Byte `i` of our cache must be byte `from` of prefill's. */
static void check(size_t i, size_t from)
{
    unsigned char expected = (unsigned char)(from / BLOCK_BYTES * 7 + from % 251);

    if (host[i] == expected)
        return;
    fprintf(stderr, "decode: byte %zu is %d, expected %d\n", i, host[i], expected);
    exit(1);
}

int main(int argc, char **argv)
{
    struct tcpx_session_options options;
    struct tcpx_session *session;
    struct tcpx_window *window;
    struct tcpx_remote *remote;
    struct tcpx_transfer *transfer;
    static struct tcpx_access access; /* 0: whatever is not set below */
    void *cache;
    FILE *file;
    int port = argc > 3 ? atoi(argv[3]) : TCPX_SESSION_PORT;

    if (argc < 3)
        return fprintf(stderr, "usage: decode TICKET HOST [PORT]\n"), 2;
    must(tcpx_gpu_alloc(0, BYTES, &cache), "GPU memory");
    must(tcpx_window_open(0, cache, BYTES, 0, &window), "opening the window"); /* for us only */
    tcpx_session_options_init(&options);
    options.name = "decode";
    must(tcpx_session_connect(argv[2], port, &options, TCPX_DEFAULT_TIMEOUT, &session), "connect");
    printf("path: %s\n", tcpx_session_path(session));
    file = fopen(argv[1], "rb"); /* prefill has written it before it listened */
    if (file == NULL || fread(&ticket, sizeof ticket, 1, file) != 1 || fclose(file) != 0)
        return fprintf(stderr, "decode: %s is no ticket of prefill\n", argv[1]), 1;
    must(tcpx_remote_open(session, ticket.key, sizeof ticket.key, &remote), "the key");

    /* All blocks in one read. Prefill gets the note when they are here. */
    for (size_t i = 0; i < WANTED; i++) {
        parts[i].window = window;
        parts[i].offset = (BLOCKS - 1 - 2 * i) * BLOCK_BYTES; /* where we have room */
        parts[i].remote = remote;
        parts[i].remote_offset = (uint64_t)ticket.blocks[i] * BLOCK_BYTES;
        parts[i].bytes = BLOCK_BYTES;
    }
    access.parts = parts;
    access.part_count = WANTED;
    access.note = ticket.request;
    access.note_bytes = strlen(ticket.request);
    must(tcpx_read(session, &access, &transfer), "reading");
    must(tcpx_transfer_wait(transfer, TCPX_DEFAULT_TIMEOUT), "reading");

    must(tcpx_gpu_read(host, cache, BYTES), "copying to the CPU");
    for (size_t i = 0; i < WANTED * BLOCK_BYTES; i++)
        check(parts[i / BLOCK_BYTES].offset + i % BLOCK_BYTES,
              parts[i / BLOCK_BYTES].remote_offset + i % BLOCK_BYTES);
    printf("%s: read %d blocks of %zu bytes, verified\n", ticket.request, WANTED, BLOCK_BYTES);
    tcpx_session_close(session);
    must(tcpx_window_close(window, TCPX_DEFAULT_TIMEOUT), "closing the window");
    must(tcpx_gpu_free(cache), "freeing");
    return 0;
}
