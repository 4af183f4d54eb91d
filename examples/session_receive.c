/*
 * Waits for session_send, receives into GPU memory what it sends, and checks every byte. Where
 * there is no GPU, tcpx takes an emulated one.
 *
 *     cc session_receive.c $(pkg-config --cflags --libs tcpx) -o session_receive
 *     ./session_receive [PORT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <tcpx.h>
#include <time.h>

#define BYTES       (64 << 20)
#define PIECES      1000
#define PIECE_BYTES 4096
#define PIECE_STEP  16384

static unsigned char host[BYTES]; /* what has come, for the CPU */

/* Ends the program in words if a call has failed. */
static void must(int result, const char *what)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "session_receive: %s: %s\n", what, tcpx_last_error());
    exit(1);
}

static double seconds(void)
{
    struct timespec now;

    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Byte i of what has come must be byte `from` of what the sender has. */
static void check(size_t i, size_t from)
{
    unsigned char expected = (unsigned char)(from * 31 + from / 4096);

    if (host[i] == expected)
        return;
    fprintf(stderr, "session_receive: byte %zu is %d, expected %d\n", i, host[i], expected);
    exit(1);
}

int main(int argc, char **argv)
{
    struct tcpx_session_options options;
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    struct tcpx_transfer *transfer;
    struct tcpx_piece one = {0, (uint64_t)PIECES * PIECE_BYTES};
    static struct tcpx_move move; /* 0: whatever is not set below */
    void *gpu_memory;
    double start, took;
    int port = argc > 1 ? atoi(argv[1]) : TCPX_SESSION_PORT;

    must(tcpx_gpu_alloc(0, BYTES, &gpu_memory), "GPU memory");
    tcpx_session_options_init(&options);
    must(tcpx_session_listen(NULL, port, &options, &listener), "listening");
    must(tcpx_session_port(listener, &port), "listening"); /* port 0 became another one */
    printf("listening on port %d\n", port);
    fflush(stdout);
    must(tcpx_session_accept(listener, TCPX_DEFAULT_TIMEOUT, &session), "waiting for the sender");
    tcpx_session_stop_listening(listener);
    printf("path: %s\n", tcpx_session_path(session));
    must(tcpx_session_register(session, gpu_memory, BYTES, &memory), "registering");

    /* All of it in one transfer; the sender uses the same tag. */
    move.memory = memory;
    move.bytes = BYTES;
    move.tag = 1;
    start = seconds();
    must(tcpx_receive(session, &move, &transfer), "receiving");
    must(tcpx_transfer_wait(transfer, TCPX_DEFAULT_TIMEOUT), "receiving");
    took = seconds() - start;
    must(tcpx_gpu_read(host, gpu_memory, BYTES), "reading");
    for (size_t i = 0; i < BYTES; i++)
        check(i, i);
    printf("received %d bytes in %.3f s, %.2f GB/s, verified\n", BYTES, took, BYTES / took / 1e9);

    /* What the sender has as a list is one here, too, but cut in another way: side by side. */
    move.pieces = &one;
    move.piece_count = 1;
    move.tag = 2;
    must(tcpx_receive(session, &move, &transfer), "receiving pieces");
    must(tcpx_transfer_wait(transfer, TCPX_DEFAULT_TIMEOUT), "receiving pieces");
    must(tcpx_gpu_read(host, gpu_memory, one.bytes), "reading");
    for (size_t i = 0; i < one.bytes; i++)
        check(i, i / PIECE_BYTES * PIECE_STEP + i % PIECE_BYTES);
    printf("received %d pieces of %d bytes, verified\n", PIECES, PIECE_BYTES);

    tcpx_session_close(session);
    must(tcpx_gpu_free(gpu_memory), "freeing");
    return 0;
}
