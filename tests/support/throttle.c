/*
 * Makes a stage of each comm slow: linked to the library, this object has TCPX_TEST_THROTTLE read,
 * and holds that stage up for as long as it would take at that rate.
 */
#include "base/config.h"
#include "base/parse.h"
#include "net/comm/stages.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static const uint64_t LEAST_RATE = (uint64_t)1 << 20;
static const uint64_t MOST_RATE = (uint64_t)1 << 40;

/* --- the variable -------------------------------------------------------------------------- */

static enum config_throttle stage_of(const char *word, size_t length)
{
    static const char *const words[] = {
        [CONFIG_THROTTLE_D2H] = "d2h",         [CONFIG_THROTTLE_SEND] = "send",
        [CONFIG_THROTTLE_NETWORK] = "network", [CONFIG_THROTTLE_RECEIVE] = "recv",
        [CONFIG_THROTTLE_UNPACK] = "unpack",
    };

    for (int i = CONFIG_THROTTLE_D2H; i <= CONFIG_THROTTLE_UNPACK; i++)
        if (strlen(words[i]) == length && memcmp(words[i], word, length) == 0)
            return (enum config_throttle)i;
    return CONFIG_THROTTLE_NONE;
}

/* Whether this process is meant: with "@2" only the one whose variable RANK is 2. */
static bool is_meant(const char *rank)
{
    const char *own = getenv("RANK");

    return *rank == '\0' || (own != NULL && strcmp(rank + 1, own) == 0);
}

/* "recv:32M" or "recv:32M@2": the stage's word, a size, and a rank. */
static int throttle_read(const char *value, struct config *config)
{
    size_t length = strcspn(value, ":");
    const char *rank = value + strcspn(value, "@");
    const char *size = value + length + (value[length] == ':');
    char text[32] = "";

    if (rank > size && (size_t)(rank - size) < sizeof text)
        memcpy(text, size, (size_t)(rank - size));
    config->throttled = stage_of(value, length);
    if (config->throttled != CONFIG_THROTTLE_NONE && parse_size(text, &config->throttle_rate) &&
        config->throttle_rate >= LEAST_RATE && config->throttle_rate <= MOST_RATE) {
        if (!is_meant(rank))
            config->throttled = CONFIG_THROTTLE_NONE;
        return TCPX_SUCCESS;
    }
    return error_set(TCPX_INVALID_ARGUMENT,
                     "%s=%.200s is not valid: expected STAGE:BYTES_PER_SECOND or "
                     "STAGE:BYTES_PER_SECOND@RANK with a stage of d2h|send|network|recv|unpack and "
                     "a size from 1M to 1T, such as recv:32M",
                     CONFIG_THROTTLE, value);
}

/* --- the operations ------------------------------------------------------------------------ */

static int throttle_init(struct stage_throttle *throttle)
{
    const struct config *config;
    int result = config_get(&config);

    if (result == TCPX_SUCCESS)
        *throttle =
            (struct stage_throttle){.stage = config->throttled, .rate = config->throttle_rate};
    return result;
}

static uint64_t throttle_slow_until(struct stage_throttle *throttle, uint64_t bytes)
{
    uint64_t now = clock_now();

    throttle->free =
        (throttle->free > now ? throttle->free : now) + bytes * 1000000000 / throttle->rate;
    return throttle->free;
}

static void throttle_sleep(uint64_t until)
{
    const struct timespec moment = {.tv_sec = (time_t)(until / 1000000000),
                                    .tv_nsec = (long)(until % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL) == EINTR)
        ;
}

/* The kernel sends no faster than that, so that the one end finds full sockets and the other empty
 * ones, as with a slow network.
 */
static int throttle_slow_network(const struct stage_throttle *throttle, const int *sockets,
                                 unsigned count)
{
    const int room = 64 << 10;
    uint64_t each = throttle->rate / count;
    unsigned rate = each < UINT_MAX ? (unsigned)each : UINT_MAX - 1;

    for (unsigned i = 0; i < count; i++)
        if (setsockopt(sockets[i], SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) != 0 ||
            setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room) != 0)
            return error_system(errno, "%s: a socket of %u bytes per second", CONFIG_THROTTLE,
                                rate);
    return TCPX_SUCCESS;
}

static const struct stage_throttle_ops throttle_ops = {
    .init = throttle_init,
    .slow_until = throttle_slow_until,
    .sleep = throttle_sleep,
    .slow_network = throttle_slow_network,
};

__attribute__((constructor)) static void throttle_register(void)
{
    stages_set_throttle(&throttle_ops);
    config_set_test_reader(CONFIG_THROTTLE, throttle_read);
}
