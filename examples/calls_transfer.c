/*
 * One message from GPU to GPU with the calls of a network plugin, unpacked by the receiver:
 *
 *     cc calls_transfer.c $(pkg-config --cflags --libs tcpx) -o calls_transfer
 *     ./calls_transfer server [PORT]           on one machine
 *     ./calls_transfer client SERVER [PORT]    on the other
 *
 * The server listens, and tells the client where by its 128-byte handle, over a TCP connection of
 * their own. UCCL_TCPX_PLUGIN_PATH says which plugin works below the calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <tcpx.h>
#include <time.h>
#include <unistd.h>

#define PORT         "12345"
#define BUFFER_BYTES 4096 /* whole pages: some plugins take no less */
#define TAG          42

static const char message[] = "Hello from TCPX client!";

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "calls_transfer: %s: %s\n", what, why);
    exit(1);
}

static void must(int result, const char *call)
{
    if (result != TCPX_SUCCESS)
        fail(call, tcpx_last_error());
}

/* Between two calls that said "not yet", and not for ever. */
static void pause_1_ms(int *tries, const char *call)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    if (++*tries == 60000)
        fail(call, "nothing came of it in a minute");
    nanosleep(&pause, NULL);
}

/* --- the handle, from the server to the client ---------------------------------------------- */

/* A socket that listens (host NULL) or is connected; -1: it did not work. */
static int open_socket(const char *host, const char *port)
{
    struct addrinfo hints = {
        .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *address;
    int on = 1;
    int fd;
    int error = getaddrinfo(host, port, &hints, &address);

    if (error != 0)
        fail(host != NULL ? host : "listening", gai_strerror(error));
    fd = socket(address->ai_family, SOCK_STREAM, 0);
    if (host == NULL)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 &&
        (host == NULL ? bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1) != 0
                      : connect(fd, address->ai_addr, address->ai_addrlen) != 0)) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(address);
    return fd;
}

static void give_handle(const char *port, const char handle[TCPX_HANDLE_BYTES])
{
    int listener = open_socket(NULL, port);
    int peer = listener >= 0 ? accept(listener, NULL, NULL) : -1;

    if (peer < 0 || write(peer, handle, TCPX_HANDLE_BYTES) != TCPX_HANDLE_BYTES)
        fail("giving the client the handle", strerror(errno));
    close(peer);
    close(listener);
}

static void get_handle(const char *server, const char *port, char handle[TCPX_HANDLE_BYTES])
{
    int fd = -1;

    for (int tries = 0; fd < 0; pause_1_ms(&tries, "connecting")) /* the server may start later */
        fd = open_socket(server, port);
    if (recv(fd, handle, TCPX_HANDLE_BYTES, MSG_WAITALL) != TCPX_HANDLE_BYTES)
        fail("getting the server's handle", strerror(errno));
    close(fd);
}

/* --- the two sides -------------------------------------------------------------------------- */

static void *buffer; /* memory of GPU 0 */

static void server(const char *port)
{
    char handle[TCPX_HANDLE_BYTES];
    char text[sizeof message] = "";
    struct tcpx_fragments fragments;
    struct tcpx_unpack *unpack;
    void *listen_comm, *recv_comm = NULL, *mhandle, *request = NULL;
    int size = BUFFER_BYTES, tag = TAG;
    uint64_t ticket;

    must(tcpx_listen(0, handle, &listen_comm), "tcpx_listen");
    give_handle(port, handle);
    for (int tries = 0; recv_comm == NULL; pause_1_ms(&tries, "tcpx_accept_v5"))
        must(tcpx_accept_v5(listen_comm, &recv_comm, NULL), "tcpx_accept_v5");
    must(tcpx_close_listen(listen_comm), "tcpx_close_listen");

    must(tcpx_reg_mr(recv_comm, buffer, BUFFER_BYTES, NCCL_PTR_CUDA, &mhandle), "tcpx_reg_mr");
    for (int tries = 0; request == NULL; pause_1_ms(&tries, "tcpx_irecv"))
        must(tcpx_irecv(recv_comm, 1, &buffer, &size, &tag, &mhandle, &request), "tcpx_irecv");
    must(tcpx_wait_request(request, TCPX_DEFAULT_TIMEOUT, &size, &fragments), "tcpx_wait_request");
    printf("%u fragment(s) to unpack\n", fragments.count);

    /* From the bounce buffer to where they belong; then the place there is given back. */
    must(tcpx_unpack_create(0, &unpack), "tcpx_unpack_create");
    must(tcpx_unpack_submit(unpack, &request, 1, &ticket), "tcpx_unpack_submit");
    must(tcpx_unpack_wait(unpack, ticket, TCPX_DEFAULT_TIMEOUT), "tcpx_unpack_wait");
    must(tcpx_irecv_consumed(recv_comm, 1, request), "tcpx_irecv_consumed");
    tcpx_unpack_destroy(unpack);

    if (size != (int)strlen(message))
        fail("receiving", "the size is not that of the client's message");
    must(tcpx_gpu_read(text, buffer, (uint64_t)size), "tcpx_gpu_read");
    if (strcmp(text, message) != 0)
        fail("receiving", "this is not what the client sends");
    printf("Received data (%d bytes): %s\n", size, text);
    must(tcpx_dereg_mr(recv_comm, mhandle), "tcpx_dereg_mr");
    must(tcpx_close_recv(recv_comm), "tcpx_close_recv");
}

static void client(const char *host, const char *port)
{
    char handle[TCPX_HANDLE_BYTES];
    void *send_comm = NULL, *mhandle, *request = NULL;
    int size = (int)strlen(message);

    get_handle(host, port, handle);
    for (int tries = 0; send_comm == NULL; pause_1_ms(&tries, "tcpx_connect_v5"))
        must(tcpx_connect_v5(0, handle, &send_comm, NULL), "tcpx_connect_v5");
    must(tcpx_reg_mr(send_comm, buffer, BUFFER_BYTES, NCCL_PTR_CUDA, &mhandle), "tcpx_reg_mr");
    must(tcpx_gpu_write(buffer, message, (uint64_t)size), "tcpx_gpu_write");
    for (int tries = 0; request == NULL; pause_1_ms(&tries, "tcpx_isend"))
        must(tcpx_isend(send_comm, buffer, size, TAG, mhandle, &request), "tcpx_isend");
    must(tcpx_wait_request(request, TCPX_DEFAULT_TIMEOUT, NULL, NULL), "tcpx_wait_request");
    printf("Sent %d bytes with tag %d\n", size, TAG);
    must(tcpx_dereg_mr(send_comm, mhandle), "tcpx_dereg_mr");
    must(tcpx_close_send(send_comm), "tcpx_close_send"); /* at once: what is done arrives */
}

int main(int argc, char **argv)
{
    struct tcpx_net_properties nic;

    if (argc < 2 ||
        (strcmp(argv[1], "server") != 0 && (strcmp(argv[1], "client") != 0 || argc < 3)))
        return fprintf(stderr, "usage: calls_transfer server [PORT] | client SERVER [PORT]\n"), 2;
    if (tcpx_get_device_count() < 1)
        fail("tcpx_get_device_count", tcpx_last_error());
    must(tcpx_get_properties(0, &nic), "tcpx_get_properties");
    printf("device 0: %s, %d Mbit/s\n", nic.name, nic.speed);
    must(tcpx_gpu_alloc(0, BUFFER_BYTES, &buffer), "tcpx_gpu_alloc");
    if (strcmp(argv[1], "server") == 0)
        server(argc > 2 ? argv[2] : PORT);
    else
        client(argv[2], argc > 3 ? argv[3] : PORT);
    must(tcpx_gpu_free(buffer), "tcpx_gpu_free");
    return 0;
}
