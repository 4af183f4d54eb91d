/* Thread-local error texts and the public calls that read them. */
#include "base/error.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[1024];

/* The arguments may point into last_text, as when a cause is wrapped: it is written last. */
static void keep(const char *format, va_list arguments, const char *suffix)
{
    char text[sizeof last_text];
    size_t used;
    int written = vsnprintf(text, sizeof text, format, arguments);

    if (written < 0) {
        text[0] = '\0';
        written = 0;
    }
    used = (size_t)written < sizeof text ? (size_t)written : sizeof text - 1;
    if (suffix != NULL)
        snprintf(text + used, sizeof text - used, ": %s", suffix);
    /* A value or a name from outside must not break the line, or control a terminal. */
    text_printable(text, strlen(text), last_text, sizeof last_text);
}

void error_keep(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    keep(format, arguments, NULL);
    va_end(arguments);
}

const char *error_reason(int errno_value, char room[ERROR_REASON_BYTES])
{
#ifdef __GLIBC__
    return strerror_r(errno_value, room, ERROR_REASON_BYTES);
#else /* as in POSIX: a status, and the text in the room */
    return strerror_r(errno_value, room, ERROR_REASON_BYTES) == 0 ? room : "unknown error";
#endif
}

void error_keep_system(int errno_value, const char *format, ...)
{
    char reason[ERROR_REASON_BYTES];
    va_list arguments;

    va_start(arguments, format);
    keep(format, arguments, error_reason(errno_value, reason));
    va_end(arguments);
}

const char *error_text(void)
{
    return last_text;
}

const char *tcpx_last_error(void)
{
    return error_text();
}

const char *tcpx_result_name(int result)
{
    static const char *const names[] = {
        [TCPX_SUCCESS] = "TCPX_SUCCESS",
        [TCPX_CUDA_ERROR] = "TCPX_CUDA_ERROR",
        [TCPX_SYSTEM_ERROR] = "TCPX_SYSTEM_ERROR",
        [TCPX_INTERNAL_ERROR] = "TCPX_INTERNAL_ERROR",
        [TCPX_INVALID_ARGUMENT] = "TCPX_INVALID_ARGUMENT",
        [TCPX_INVALID_USAGE] = "TCPX_INVALID_USAGE",
        [TCPX_REMOTE_ERROR] = "TCPX_REMOTE_ERROR",
        [TCPX_IN_PROGRESS] = "TCPX_IN_PROGRESS",
        [TCPX_CANCELLED] = "TCPX_CANCELLED",
    };

    if ((size_t)result >= sizeof names / sizeof *names || names[result] == NULL)
        return "unknown result";
    return names[result];
}

#define TEXT_OF(number)  #number
#define TEXT(number)     TEXT_OF(number)
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)

const char *tcpx_version(void)
{
    return VERSION(TCPX_VERSION_MAJOR, TCPX_VERSION_MINOR, TCPX_VERSION_PATCH);
}
