/*
 * The functions of libc that the library's calls are redirected to: sim_NAME for each NAME of
 * libc.def, with the same type.
 */
#ifndef TCPX_TESTS_SIM_LIBC_H
#define TCPX_TESTS_SIM_LIBC_H

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SIM_LIBC(name) extern __typeof__(name) sim_##name;
#define SIM_LIBC_ADDRESS(name)
#include "libc.def"
#undef SIM_LIBC
#undef SIM_LIBC_ADDRESS

/* glibc declares these with a union of all kinds of addresses. */
int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int sim_bind(int fd, const struct sockaddr *address, socklen_t length);
int sim_connect(int fd, const struct sockaddr *address, socklen_t length);
int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length);

#endif
