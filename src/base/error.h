/*
 * The text behind a failed result. The function that decides that something is an error calls one
 * of these once, with the exact cause; its callers only pass the result on.
 */
#ifndef TCPX_BASE_ERROR_H
#define TCPX_BASE_ERROR_H

#include "tcpx.h"

#define MUST_CHECK __attribute__((warn_unused_result))

/*
 * Keeps the text for this thread; its value is `result`, so that a function can end with it. A
 * macro, so that compilers and analysers see which result that is.
 */
#define error_set(result, ...) (error_keep(__VA_ARGS__), (int)(result))

/* As error_set() for a failed system call: appends the meaning of `errno_value`. */
#define error_system(errno_value, ...)                                                             \
    (error_keep_system(errno_value, __VA_ARGS__), (int)TCPX_SYSTEM_ERROR)

void error_keep(const char *format, ...) __attribute__((format(printf, 1, 2)));
void error_keep_system(int errno_value, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The meaning of an errno, safe with threads; the text may or may not be in `room`. */
enum { ERROR_REASON_BYTES = 128 };
const char *error_reason(int errno_value, char room[ERROR_REASON_BYTES]);

/* The latest text of this thread; "" if there is none. */
const char *error_text(void);

#endif
