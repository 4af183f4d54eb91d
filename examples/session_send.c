/*
 * Sends 64 MiB of GPU memory to session_receive in one transfer, and pieces of it in another. Where
 * there is no GPU, tcpx takes an emulated one.
 *
 *     cc session_send.c $(pkg-config --cflags --libs tcpx) -o session_send
 *     ./session_send HOST [PORT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <tcpx.h>
#include <time.h>

#define BYTES       (64 << 20)
#define PIECES      1000
#define PIECE_BYTES 4096  /* one piece */
#define PIECE_STEP  16384 /* from one to the next */

static unsigned char host[BYTES]; /* the same content for the CPU */
static struct tcpx_piece pieces[PIECES];

/* Ends the program in words if a call has failed. */
static void must(int result, const char *what)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "session_send: %s: %s\n", what, tcpx_last_error());
    exit(1);
}

static double seconds(void)
{
    struct timespec now;

    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    struct tcpx_session_options options;
    struct tcpx_session *session;
    struct tcpx_memory *memory;
    struct tcpx_transfer *transfer;
    static struct tcpx_move move; /* 0: whatever is not set below */
    void *gpu_memory;
    double start, took;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: session_send HOST [PORT]\n");
        return 2;
    }

    /* Memory of GPU 0; with CUDA, memory of cudaMalloc is as good. */
    must(tcpx_gpu_alloc(0, BYTES, &gpu_memory), "GPU memory");
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i * 31 + i / 4096);
    must(tcpx_gpu_write(gpu_memory, host, BYTES), "filling it");

    /* The receiver may start later: this waits for it, up to a minute. */
    tcpx_session_options_init(&options);
    must(tcpx_session_connect(argv[1], argc > 2 ? atoi(argv[2]) : TCPX_SESSION_PORT, &options,
                              TCPX_DEFAULT_TIMEOUT, &session),
         "connecting");
    printf("path: %s\n", tcpx_session_path(session));
    must(tcpx_session_register(session, gpu_memory, BYTES, &memory), "registering");

    /* All of it in one transfer. */
    move.memory = memory;
    move.bytes = BYTES;
    move.tag = 1;
    start = seconds();
    must(tcpx_send(session, &move, &transfer), "sending");
    must(tcpx_transfer_wait(transfer, TCPX_DEFAULT_TIMEOUT), "sending");
    took = seconds() - start;
    printf("sent %d bytes in %.3f s, %.2f GB/s\n", BYTES, took, BYTES / took / 1e9);

    /* Pieces from all over the memory, also in one transfer. */
    for (size_t i = 0; i < PIECES; i++) {
        pieces[i].offset = i * PIECE_STEP;
        pieces[i].bytes = PIECE_BYTES;
    }
    move.pieces = pieces;
    move.piece_count = PIECES;
    move.tag = 2;
    must(tcpx_send(session, &move, &transfer), "sending pieces");
    must(tcpx_transfer_wait(transfer, TCPX_DEFAULT_TIMEOUT), "sending pieces");
    printf("sent %d pieces of %d bytes\n", PIECES, PIECE_BYTES);

    /* What is done arrives, also if this side closes at once. */
    tcpx_session_close(session);
    must(tcpx_gpu_free(gpu_memory), "freeing");
    return 0;
}
