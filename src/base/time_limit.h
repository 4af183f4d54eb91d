/* The time that a caller of tcpx.h gives a wait, as a moment. */
#ifndef TCPX_BASE_TIME_LIMIT_H
#define TCPX_BASE_TIME_LIMIT_H

#include "base/clock.h"
#include "base/config.h"

static inline int time_limit(int timeout_ms, uint64_t *deadline)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    if (timeout_ms < TCPX_DEFAULT_TIMEOUT)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "a time of %d ms: 0 and more, or TCPX_DEFAULT_TIMEOUT", timeout_ms);
    *deadline = deadline_after_ms(timeout_ms == TCPX_DEFAULT_TIMEOUT ? config->timeout_ms
                                                                     : (uint64_t)timeout_ms);
    return TCPX_SUCCESS;
}

#endif
