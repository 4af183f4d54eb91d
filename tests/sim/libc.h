/*
 * The functions of libc that the library's calls are redirected to: sim_NAME for each NAME of
 * libc.def, with the same type.
 */
#ifndef TCPX_TESTS_SIM_LIBC_H
#define TCPX_TESTS_SIM_LIBC_H

#include <fcntl.h>
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

/* Parameters are as in libc, and the simulation ignores many of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define LIBC(name) extern __typeof__(name) sim_##name;
/* glibc declares these with a union of all kinds of addresses. */
#define LIBC_ADDRESS(name, type, parameters) type sim_##name parameters;
#include "libc.def"
#undef LIBC
#undef LIBC_ADDRESS

#endif
