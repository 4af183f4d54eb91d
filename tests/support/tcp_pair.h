/* Two ends of TCP connections over loopback. */
#ifndef TCPX_TESTS_SUPPORT_TCP_PAIR_H
#define TCPX_TESTS_SUPPORT_TCP_PAIR_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connection i is from from[i] to to[i]; false: not all of them could be made. */
static inline bool tcp_pairs(int *from, int *to, int count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool made = bind(listening, (struct sockaddr *)&address, length) == 0 &&
                listen(listening, count) == 0 &&
                getsockname(listening, (struct sockaddr *)&address, &length) == 0;

    for (int i = 0; i < count && made; i++) {
        from[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        made = connect(from[i], (struct sockaddr *)&address, length) == 0;
        to[i] = made ? accept4(listening, NULL, NULL, SOCK_CLOEXEC) : -1;
        made = to[i] >= 0;
    }
    close(listening);
    return made;
}

#endif
