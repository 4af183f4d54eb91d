/*
 * Pushes a known stream of bytes through one TCP connection and verifies every one of them at the
 * other end, with plain blocking sockets and nothing of the library: it shows what a network does,
 * not what we do with it. The sender succeeds only when the receiver said that all was right.
 */
#include "tests/limit.h"
#include "tests/net/program.h"
#include "tests/support/basics.h"

#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    CHUNK = 64 << 10,    /* bytes, a multiple of a pattern word */
    CONNECT_TRIES = 250, /* until the receiver listens, */
    CONNECT_MILLIS = 20, /* so far apart */
    DATAGRAM_BYTES = 100,
    LIMIT_SECONDS = 30, /* the longest that this runs; then the status is LIMIT_STATUS */
};

static const char usage[] =
    "usage: pump [options] recv ADDRESS PORT BYTES    accepts one connection and verifies\n"
    "       pump [options] send ADDRESS PORT BYTES    connects, also to one who listens late\n"
    "       pump [options] datagrams ADDRESS PORT COUNT    sends UDP and waits for nothing\n"
    "  --seed N            of the bytes, the same at both ends (default 1)\n"
    "  --user-timeout MS   an error when the peer acknowledges nothing for so long\n";

/* Each word depends on its place in the stream, so that nothing can be moved unseen. */
static void pattern(uint64_t words[CHUNK / 8], uint64_t seed, uint64_t offset)
{
    for (size_t i = 0; i < CHUNK / 8; i++)
        words[i] = mix((seed << 48) + offset / 8 + i + 1);
}

static void report(const char *verb, uint64_t bytes, double seconds)
{
    printf("%s %ju bytes in %.3f s: %.2f Mbit/s\n", verb, (uintmax_t)bytes, seconds,
           (double)bytes * 8 / 1e6 / (seconds > 1e-6 ? seconds : 1e-6));
}

static size_t chunk_size(uint64_t done, uint64_t bytes)
{
    return bytes - done < CHUNK ? (size_t)(bytes - done) : CHUNK;
}

/* --- both ends --------------------------------------------------------------------------------*/

struct work {
    struct addrinfo *address;
    uint64_t amount;
    uint64_t seed;
    unsigned user_timeout; /* milliseconds; 0: the system's */
};

static int new_socket(const struct work *work, int type)
{
    int fd = socket(work->address->ai_family, type | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die(1, "socket: %m");
    return fd;
}

static int accept_one(const struct work *work)
{
    int listener = new_socket(work, SOCK_STREAM);
    int one = 1;
    int fd;

    if (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(listener, work->address->ai_addr, work->address->ai_addrlen) < 0 ||
        listen(listener, 1) < 0)
        die(1, "listen: %m");
    fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die(1, "accept: %m");
    close(listener);
    return fd;
}

static void receive(const struct work *work)
{
    static uint64_t got[CHUNK / 8];
    static uint64_t expected[CHUNK / 8];
    int fd = accept_one(work);
    double start = seconds_now();
    uint64_t done = 0;

    while (done < work->amount) {
        size_t size = chunk_size(done, work->amount);
        ssize_t count = recv(fd, got, size, MSG_WAITALL);

        if (count < 0)
            die(1, "recv after %ju bytes: %m", (uintmax_t)done);
        if ((size_t)count < size)
            die(1, "the stream ends after %ju bytes", (uintmax_t)done + (uintmax_t)count);
        pattern(expected, work->seed, done);
        if (memcmp(got, expected, size) != 0)
            die(1, "wrong bytes between %ju and %ju", (uintmax_t)done, (uintmax_t)(done + size));
        done += size;
    }
    if (recv(fd, got, 1, 0) != 0)
        die(1, "more than %ju bytes", (uintmax_t)done);
    report("received", done, seconds_now() - start);
    if (send(fd, "", 1, MSG_NOSIGNAL) != 1)
        die(1, "the answer: %m");
    close(fd);
}

static int connect_patiently(const struct work *work, double *seconds)
{
    const struct timespec pause = {.tv_nsec = CONNECT_MILLIS * 1000000L};

    for (int i = 0; i < CONNECT_TRIES; i++) {
        int fd = new_socket(work, SOCK_STREAM);
        double start = seconds_now();

        if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &work->user_timeout,
                       sizeof work->user_timeout) < 0)
            die(1, "TCP_USER_TIMEOUT: %m");
        if (connect(fd, work->address->ai_addr, work->address->ai_addrlen) == 0) {
            *seconds = seconds_now() - start;
            return fd;
        }
        if (errno != ECONNREFUSED)
            die(1, "connect: %m");
        close(fd);
        nanosleep(&pause, NULL);
    }
    die(1, "connect: nobody listens");
}

static void send_all(int fd, const char *data, size_t size, uint64_t before)
{
    while (size > 0) {
        ssize_t count = send(fd, data, size, MSG_NOSIGNAL);

        if (count < 0)
            die(1, "send after %ju bytes: %m", (uintmax_t)before);
        data += count;
        size -= (size_t)count;
        before += (uint64_t)count;
    }
}

static void transmit(const struct work *work)
{
    static uint64_t data[CHUNK / 8];
    double connect_seconds;
    int fd = connect_patiently(work, &connect_seconds);
    double start = seconds_now();
    ssize_t count;
    char answer;

    for (uint64_t done = 0; done < work->amount; done += chunk_size(done, work->amount)) {
        pattern(data, work->seed, done);
        send_all(fd, (const char *)data, chunk_size(done, work->amount), done);
    }
    if (shutdown(fd, SHUT_WR) < 0)
        die(1, "shutdown: %m");
    count = recv(fd, &answer, 1, 0);
    if (count < 0)
        die(1, "waiting for the answer: %m");
    if (count == 0)
        die(1, "the receiver did not say that all was right");
    printf("connected in %.1f ms\n", connect_seconds * 1e3);
    report("sent", work->amount, seconds_now() - start);
    close(fd);
}

static void datagrams(const struct work *work)
{
    static const char data[DATAGRAM_BYTES];
    int fd = new_socket(work, SOCK_DGRAM);

    for (uint64_t i = 0; i < work->amount; i++) {
        if (sendto(fd, data, sizeof data, 0, work->address->ai_addr, work->address->ai_addrlen) < 0)
            die(1, "datagram %ju: %m", (uintmax_t)i);
    }
    close(fd);
}

/* --- options ----------------------------------------------------------------------------------*/

static struct addrinfo *parse_address(const char *address, const char *port)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    int status = getaddrinfo(address, port, &hints, &found);

    if (status != 0)
        die(2, "%s port %s: %s", address, port, gai_strerror(status));
    return found;
}

static void options_parse(struct work *work, int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},
        {"user-timeout", required_argument, NULL, 'u'},
        {0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            work->seed = parse_number("--seed", optarg, 0, UINT16_MAX);
        else if (option == 'u')
            work->user_timeout = (unsigned)parse_number("--user-timeout", optarg, 0, 3600000);
        else
            die(2, "wrong arguments\n%s", usage);
    }
}

int main(int argc, char **argv)
{
    struct work work = {.seed = 1};
    const char *verb;

    limit_process(LIMIT_SECONDS);
    options_parse(&work, argc, argv);
    if (argc - optind != 4)
        die(2, "wrong arguments\n%s", usage);
    verb = argv[optind];
    work.address = parse_address(argv[optind + 1], argv[optind + 2]);
    work.amount = parse_number("amount", argv[optind + 3], 0, (uint64_t)1 << 50);
    if (strcmp(verb, "recv") == 0)
        receive(&work);
    else if (strcmp(verb, "send") == 0)
        transmit(&work);
    else if (strcmp(verb, "datagrams") == 0)
        datagrams(&work);
    else
        die(2, "no such thing as '%s'\n%s", verb, usage);
    freeaddrinfo(work.address);
    return fflush(stdout) == 0 ? 0 : 1;
}
