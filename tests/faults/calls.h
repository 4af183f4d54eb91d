/* The replacements: faulty_NAME for each NAME of calls.def, with the same type. */
#ifndef TESTS_FAULTS_CALLS_H
#define TESTS_FAULTS_CALLS_H

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIBC(name) extern __typeof__(name) faulty_##name;
/* glibc declares these with a union of all kinds of addresses. */
#define LIBC_ADDRESS(name, type, parameters) type faulty_##name parameters;
#include "calls.def"
#undef LIBC
#undef LIBC_ADDRESS

#endif
