/* The replacements that tests/faults.syms names. */
#ifndef TESTS_FAULTS_CALLS_H
#define TESTS_FAULTS_CALLS_H

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

ssize_t faulty_send(int fd, const void *bytes, size_t count, int flags);
ssize_t faulty_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t faulty_recv(int fd, void *bytes, size_t count, int flags);
ssize_t faulty_recvfrom(int fd, void *bytes, size_t count, int flags, struct sockaddr *from,
                        socklen_t *length);
ssize_t faulty_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t faulty_read(int fd, void *bytes, size_t count);
int faulty_connect(int fd, const struct sockaddr *address, socklen_t length);
int faulty_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int faulty_poll(struct pollfd *all, nfds_t count, int timeout_ms);
int faulty_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms);
int faulty_nanosleep(const struct timespec *pause, struct timespec *left);
int faulty_socket(int family, int type, int protocol);
int faulty_eventfd(unsigned count, int flags);
int faulty_epoll_create1(int flags);
int faulty_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int faulty_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
void *faulty_malloc(size_t bytes);
void *faulty_calloc(size_t count, size_t bytes);
void *faulty_realloc(void *old, size_t bytes);
void *faulty_aligned_alloc(size_t alignment, size_t bytes);
int faulty_posix_memalign(void **memory, size_t alignment, size_t bytes);
char *faulty_strdup(const char *text);

#endif
