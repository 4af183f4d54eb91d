/*
 * One end of a session for tests over networks that are cut: it moves verified messages in both
 * directions, from memory of an emulated GPU into that of the host, until something fails, and says
 * what. No time of its own ends a wait, but a signal ends all of it, if a call does not return.
 */
#include "tcpx.h"
#include "tests/limit.h"
#include "tests/support/basics.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_OK, STATUS_FAILED, STATUS_USAGE, STATUS_WRONG };

enum { BYTES = (2 << 20) + 4096, LIMIT_S = 90 };

#define WAIT_MS limit_ms(60000)
#define OPEN_MS limit_ms(20000)

/* Tags: of what whoever connects sends, of what it receives, and one that nobody sends. */
enum { THERE = 1, BACK = 2, NEVER = 3 };

static const char usage[] = "usage: session_end listen|connect ADDRESS PORT PLUGIN HOW COUNT\n"
                            "  PLUGIN  builtin, or a file\n"
                            "  HOW     whole, pieces, or idle: a receive that nobody sends for\n"
                            "  COUNT   of messages each way; 0: until something fails\n";

struct end {
    bool connects;
    const char *address;
    int port;
    const char *how;
    long count;
    struct tcpx_session_options options;
    struct tcpx_session *session;
    uint8_t *host;
    uint8_t *scratch;
    void *gpu;
    struct tcpx_memory *from;
    struct tcpx_memory *to;
};

static _Noreturn void fail(struct end *end, int result)
{
    uint64_t before;

    printf("session_end: %s: %s\n", tcpx_result_name(result), tcpx_last_error());
    before = now_ms();
    tcpx_session_close(end->session);
    printf("closed after %" PRIu64 " ms\n", now_ms() - before);
    fflush(stdout);
    _exit(STATUS_FAILED);
}

static void need(struct end *end, int result)
{
    if (result != TCPX_SUCCESS)
        fail(end, result);
}

/* --- messages ------------------------------------------------------------------------------ */

static uint8_t byte_at(bool of_connecting, long message, size_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) * 7 + (size_t)message * 101 + of_connecting);
}

static void fill(struct end *end, long message)
{
    for (size_t i = 0; i < BYTES; i++)
        end->scratch[i] = byte_at(end->connects, message, i);
    need(end, tcpx_gpu_write(end->gpu, end->scratch, BYTES));
}

static void verify(struct end *end, long message)
{
    for (size_t i = 0; i < BYTES; i++)
        if (end->host[i] != byte_at(!end->connects, message, i)) {
            printf("message %ld: byte %zu is wrong\n", message, i);
            fflush(stdout);
            _exit(STATUS_WRONG);
        }
}

static struct tcpx_move move_of(const struct end *end, struct tcpx_memory *memory, uint64_t tag,
                                struct tcpx_piece list[2])
{
    struct tcpx_move move = {.memory = memory, .bytes = BYTES, .tag = tag};

    if (strcmp(end->how, "pieces") != 0)
        return move;
    list[0] = (struct tcpx_piece){.offset = 0, .bytes = BYTES / 3};
    list[1] = (struct tcpx_piece){.offset = BYTES / 3, .bytes = BYTES - BYTES / 3};
    move.pieces = list;
    move.piece_count = 2;
    return move;
}

static void exchange(struct end *end, long message)
{
    struct tcpx_piece list[2];
    struct tcpx_transfer *receive;
    struct tcpx_transfer *send;
    struct tcpx_move move = move_of(end, end->to, end->connects ? BACK : THERE, list);

    need(end, tcpx_receive(end->session, &move, &receive));
    fill(end, message);
    move = move_of(end, end->from, end->connects ? THERE : BACK, list);
    need(end, tcpx_send(end->session, &move, &send));
    need(end, tcpx_transfer_wait(receive, WAIT_MS));
    verify(end, message);
    need(end, tcpx_transfer_wait(send, WAIT_MS));
}

static void idle(struct end *end)
{
    struct tcpx_move move = {.memory = end->to, .bytes = BYTES, .tag = NEVER};
    struct tcpx_transfer *receive;

    need(end, tcpx_receive(end->session, &move, &receive));
    printf("moving\n");
    fflush(stdout);
    need(end, tcpx_transfer_wait(receive, WAIT_MS));
}

/* --- the session --------------------------------------------------------------------------- */

static void open_session(struct end *end)
{
    struct tcpx_session_listener *listener;

    if (end->connects) {
        need(end,
             tcpx_session_connect(end->address, end->port, &end->options, OPEN_MS, &end->session));
    } else {
        need(end, tcpx_session_listen(end->address, end->port, &end->options, &listener));
        need(end, tcpx_session_accept(listener, OPEN_MS, &end->session));
        tcpx_session_stop_listening(listener);
    }
    printf("path: %s\n", tcpx_session_path(end->session));
    end->host = malloc(BYTES);
    end->scratch = malloc(BYTES);
    if (end->host == NULL || end->scratch == NULL)
        _exit(STATUS_WRONG);
    need(end, tcpx_gpu_alloc(0, BYTES, &end->gpu));
    need(end, tcpx_session_register(end->session, end->gpu, BYTES, &end->from));
    need(end, tcpx_session_register(end->session, end->host, BYTES, &end->to));
}

int main(int argc, char **argv)
{
    struct end end = {0};

    if (argc != 7) {
        fputs(usage, stderr);
        return STATUS_USAGE;
    }
    limit_process(LIMIT_S);
    tcpx_session_options_init(&end.options);
    end.connects = strcmp(argv[1], "connect") == 0;
    end.address = argv[2];
    end.port = (int)strtol(argv[3], NULL, 10);
    end.options.plugin_path = argv[4];
    end.how = argv[5];
    end.count = strtol(argv[6], NULL, 10);
    open_session(&end);
    if (strcmp(end.how, "idle") == 0)
        idle(&end);
    for (long message = 0; end.count == 0 || message < end.count; message++) {
        exchange(&end, message);
        if (message == 3)
            printf("moving\n");
        fflush(stdout);
    }
    printf("%ld messages verified\n", end.count);
    tcpx_session_close(end.session);
    (void)!tcpx_gpu_free(end.gpu);
    free(end.host);
    free(end.scratch);
    return STATUS_OK;
}
