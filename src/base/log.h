/*
 * Lines for people. Nothing is printed unless UCCL_TCPX_DEBUG=1 asks for it or a network plugin's
 * caller gave its logger; then a call that prints nothing costs one load.
 */
#ifndef TCPX_BASE_LOG_H
#define TCPX_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

enum log_kind {
    LOG_DEBUG, /* "[DEBUG] ...": each step */
    LOG_TCPX,  /* "[TCPX] ...": which plugin, device and path were chosen */
    LOG_WARN,  /* "[TCPX] warning: ...": it works, but not as it was meant to */
    LOG_KINDS
};

/* NCCL's ncclDebugLogger_t: level, subsystem mask, file, line, format. */
typedef void (*log_nccl_logger)(int level, unsigned long flags, const char *file, int line,
                                const char *format, ...);

/* Prints all kinds to standard error, or none. */
void log_set_stderr(bool on);

/* LOG_TCPX and LOG_WARN go to `logger` from now on, LOG_DEBUG too where it is on; NULL ends that.
 */
void log_set_nccl_logger(log_nccl_logger logger);

void log_write(enum log_kind kind, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

extern atomic_bool log_enabled_kinds[LOG_KINDS];

static inline bool log_enabled(enum log_kind kind)
{
    /* relaxed: a line more or less at the time of the switch is harmless */
    return atomic_load_explicit(&log_enabled_kinds[kind], memory_order_relaxed);
}

#define LOG_AT(kind, ...)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(log_enabled(kind), false))                                            \
            log_write(kind, __FILE__, __LINE__, __VA_ARGS__);                                      \
    } while (0)
#define log_debug(...) LOG_AT(LOG_DEBUG, __VA_ARGS__)
#define log_tcpx(...)  LOG_AT(LOG_TCPX, __VA_ARGS__)
#define log_warn(...)  LOG_AT(LOG_WARN, __VA_ARGS__)

#endif
