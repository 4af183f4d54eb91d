/*
 * Has a KV cache in GPU memory and lets decode read blocks of it. The note of the request says when
 * they are free again. Where there is no GPU, tcpx takes an emulated one.
 *
 *     cc prefill.c $(pkg-config --cflags --libs tcpx) -o prefill
 *     ./prefill TICKET [PORT]
 */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tcpx.h>
#include <unistd.h>

#define BLOCKS      64
#define BLOCK_BYTES ((size_t)65536)
#define BYTES       (BLOCKS * BLOCK_BYTES)
#define WANTED      24 /* blocks of the request */

/* What decode has to know. In a server it goes with the request; here it is a file. */
static struct ticket {
    unsigned char key[TCPX_KEY_BYTES];
    char request[16];
    unsigned blocks[WANTED];
} ticket = {{0}, "request 42", {0}};

static unsigned char host[BYTES]; /* the cache, for the CPU */
static char is_used[BLOCKS];

/* Ends the program in words if a call has failed. */
static void must(int result, const char *what)
{
    if (result == TCPX_SUCCESS)
        return;
    fprintf(stderr, "prefill: %s: %s\n", what, tcpx_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    struct tcpx_session_options options;
    struct tcpx_session_listener *listener;
    struct tcpx_session *session;
    struct tcpx_window *window;
    static struct pollfd event;
    static char note[TCPX_NOTE_BYTES];
    unsigned long long ends;
    size_t bytes;
    void *cache;
    FILE *file;
    int port = argc > 2 ? atoi(argv[2]) : TCPX_SESSION_PORT, there;

    if (argc < 2)
        return fprintf(stderr, "usage: prefill TICKET [PORT]\n"), 2;
    umask(077);      /* the key is a secret: nobody else may read the file, */
    remove(argv[1]); /* also if there is one already */
    file = fopen(argv[1], "wb");
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)(i / BLOCK_BYTES * 7 + i % 251);
    must(tcpx_gpu_alloc(0, BYTES, &cache), "GPU memory");
    must(tcpx_gpu_write(cache, host, BYTES), "filling it");

    /* One window for the whole cache, for all requests and peers. */
    must(tcpx_window_open(0, cache, BYTES, TCPX_WINDOW_READ, &window), "opening the window");
    must(tcpx_window_key(window, ticket.key), "its key");
    for (unsigned i = 0; i < WANTED; i++)
        is_used[ticket.blocks[i] = (i * 23 + 5) % BLOCKS] = 1; /* here and there in the cache */
    if (file == NULL || fwrite(&ticket, sizeof ticket, 1, file) != 1 || fclose(file) != 0)
        return perror(argv[1]), 1;

    tcpx_session_options_init(&options);
    options.windows = 1; /* the peer may use windows of ours whose keys it has */
    options.name = "prefill";
    must(tcpx_session_listen(NULL, port, &options, &listener), "listening");
    must(tcpx_session_port(listener, &port), "listening"); /* port 0 became another one */
    printf("listening on port %d\n", port);
    fflush(stdout);
    must(tcpx_session_accept(listener, TCPX_DEFAULT_TIMEOUT, &session), "waiting for decode");

    /* Reads need no call of ours: this program could compute meanwhile. */
    must(tcpx_session_event_fd(session, &event.fd), "the event descriptor");
    event.events = POLLIN;
    do {
        must(tcpx_note_take(session, note, sizeof note, &bytes, &there), "waiting for the note");
    } while (!there && poll(&event, 1, -1) > 0 && read(event.fd, &ends, sizeof ends) > 0);
    if (!there || bytes != strlen(ticket.request) || memcmp(note, ticket.request, bytes) != 0)
        return fprintf(stderr, "prefill: no note of %s\n", ticket.request), 1;
    for (unsigned i = 0; i < WANTED; i++)
        is_used[ticket.blocks[i]] = 0; /* free for the next request */
    printf("%s: %s has its %d blocks\n", ticket.request, tcpx_session_peer(session), WANTED);
    tcpx_session_close(session);
    tcpx_session_stop_listening(listener);
    must(tcpx_window_close(window, TCPX_DEFAULT_TIMEOUT), "closing the window");
    must(tcpx_gpu_free(cache), "freeing");
    return 0;
}
