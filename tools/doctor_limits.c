/* What the system allows this process: descriptors, memory, and the windows of its connections. */
#include "base/config.h"
#include "base/topology.h"
#include "tools/doctor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const uint64_t mebibyte = (uint64_t)1 << 20;

/* --- descriptors --------------------------------------------------------------------------- */

/* Both directions of each channel have a socket there and one back, and a part of the budget. */
static uint64_t descriptors_for_one_peer(const struct doctor *doctor, const struct config *config)
{
    uint64_t channels = config->num_channels;

    if (channels == CONFIG_AUTO)
        channels = doctor->nic_count > 2 ? (uint64_t)doctor->nic_count : 2;
    return 2 * (2 * channels + config->socket_budget);
}

static void check_files(struct doctor *doctor, const struct config *config)
{
    enum { THE_PROGRAM_ITSELF = 64, MANY_PEERS = 8 };
    uint64_t each = descriptors_for_one_peer(doctor, config);
    struct rlimit limit;
    uint64_t peers;
    uint64_t enough;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        doctor_find(doctor, DOCTOR_OK, "open files", "no limit is known");
        return;
    }
    peers = limit.rlim_cur > THE_PROGRAM_ITSELF ? (limit.rlim_cur - THE_PROGRAM_ITSELF) / each : 0;
    if (peers >= MANY_PEERS) {
        doctor_find(doctor, DOCTOR_OK, "open files", "%llu, enough for %llu peers at full width",
                    (unsigned long long)limit.rlim_cur, (unsigned long long)peers);
        return;
    }
    doctor_find(doctor, peers == 0 ? DOCTOR_PROBLEM : DOCTOR_NOTE, "open files",
                "%llu are enough for %llu peers: one takes up to %llu",
                (unsigned long long)limit.rlim_cur, (unsigned long long)peers,
                (unsigned long long)each);
    enough = THE_PROGRAM_ITSELF + MANY_PEERS * each;
    doctor_advise(doctor, "'ulimit -n %llu'", (unsigned long long)enough);
}

/* --- memory -------------------------------------------------------------------------------- */

/* What one GPU pins at most; the driver's own pinning does not count against the limit on locks. */
static void check_memory(struct doctor *doctor, const struct config *config)
{
    uint64_t wanted = config->staging_bytes + config->bounce_bytes;
    uint64_t available = topology_available_memory(doctor->root);

    if (available == 0) {
        doctor_find(doctor, DOCTOR_OK, "pinned memory",
                    "up to %llu MiB for each GPU; how much is "
                    "free is unknown",
                    (unsigned long long)(wanted / mebibyte));
        return;
    }
    if (wanted <= available) {
        doctor_find(doctor, DOCTOR_OK, "pinned memory",
                    "up to %llu MiB for each GPU, of %llu MiB that are available",
                    (unsigned long long)(wanted / mebibyte),
                    (unsigned long long)(available / mebibyte));
        return;
    }
    doctor_find(doctor, DOCTOR_PROBLEM, "pinned memory",
                "up to %llu MiB for each GPU, and only %llu MiB are available",
                (unsigned long long)(wanted / mebibyte),
                (unsigned long long)(available / mebibyte));
    doctor_advise(doctor, "lower UCCL_TCPX_STAGING_BYTES and UCCL_TCPX_BOUNCE_BYTES");
}

/*
 * Pinning by the CUDA driver needs no right to lock memory; sends by reference do, page by page,
 * and those of device memory do not.
 */
static void check_locked(struct doctor *doctor)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        doctor_find(doctor, DOCTOR_OK, "locked memory", "no limit");
    else
        doctor_find(doctor, DOCTOR_OK, "locked memory",
                    "%llu KiB; pinned memory does not count against it",
                    (unsigned long long)limit.rlim_cur / 1024);
}

/* --- windows ------------------------------------------------------------------------------- */

/* The third number of three. */
static bool read_most(const struct doctor *doctor, const char *path, uint64_t *most)
{
    unsigned long long numbers[3];
    char line[128];
    char *at = line;

    if (!doctor_read_line(doctor, path, line, sizeof line))
        return false;
    for (int i = 0; i < 3; i++) {
        char *end;

        numbers[i] = strtoull(at, &end, 10);
        if (end == at)
            return false;
        at = end;
    }
    *most = numbers[2];
    return true;
}

/* What the fastest interface moves within a round trip of 1 ms. */
static uint64_t bytes_under_way(const struct doctor *doctor)
{
    int mbps = NET_DEVICE_DEFAULT_MBPS;

    for (int i = 0; i < doctor->nic_count; i++)
        if (doctor->nics[i].speed_mbps > mbps)
            mbps = doctor->nics[i].speed_mbps;
    return (uint64_t)mbps * 1000 / 8;
}

/* One connection moves at most its window in each round trip. */
static void check_window(struct doctor *doctor, const char *name, const char *path,
                         const char *first_numbers)
{
    const uint64_t hopeless = mebibyte / 4;
    uint64_t wanted = bytes_under_way(doctor);
    uint64_t most;

    if (!read_most(doctor, path, &most)) {
        doctor_find(doctor, DOCTOR_OK, name, "%s cannot be read here", path);
        return;
    }
    if (most >= wanted) {
        doctor_find(doctor, DOCTOR_OK, name,
                    "up to %.1f MiB a connection: %.1f Gbit/s each at a round trip of 1 ms, %.2f "
                    "at 10 ms; where that is less than the network has, use more connections "
                    "(UCCL_TCPX_SOCKETS)",
                    (double)most / (double)mebibyte, (double)most * 8e-6, (double)most * 8e-7);
        return;
    }
    doctor_find(doctor, most < hopeless ? DOCTOR_PROBLEM : DOCTOR_NOTE, name,
                "up to %.2f MiB a connection, which at a round trip of 1 ms, as in a data centre, "
                "is %.1f of %.0f Gbit/s, and less at a longer one",
                (double)most / (double)mebibyte, (double)most * 8e-6, (double)wanted * 8e-6);
    doctor_advise(doctor, "'sysctl -w net.ipv4.%s=\"%s 67108864\"', enough for 100 Gbit/s", name,
                  first_numbers);
}

static void check_scaling(struct doctor *doctor)
{
    uint64_t on;

    if (!doctor_read_number(doctor, "/proc/sys/net/ipv4/tcp_window_scaling", &on) || on != 0)
        return;
    doctor_find(doctor, DOCTOR_PROBLEM, "tcp_window_scaling",
                "off: no connection has more than 64 KiB under way");
    doctor_advise(doctor, "'sysctl -w net.ipv4.tcp_window_scaling=1'");
}

/* Only programs that set their buffers themselves are bound by these, and tcpx is none. */
static void check_socket_memory(struct doctor *doctor)
{
    uint64_t receive;
    uint64_t send;

    if (doctor_read_number(doctor, "/proc/sys/net/core/rmem_max", &receive) &&
        doctor_read_number(doctor, "/proc/sys/net/core/wmem_max", &send))
        doctor_find(doctor, DOCTOR_OK, "rmem_max, wmem_max",
                    "%llu and %llu; tcpx leaves the sizes to the kernel, and these do not bind it",
                    (unsigned long long)receive, (unsigned long long)send);
}

static void check_congestion(struct doctor *doctor)
{
    char name[64];

    if (!doctor_read_line(doctor, "/proc/sys/net/ipv4/tcp_congestion_control", name, sizeof name))
        return;
    if (strcmp(name, "reno") != 0) {
        doctor_find(doctor, DOCTOR_OK, "congestion control", "%s", name);
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, "congestion control",
                "reno takes long to fill a fast network again after a loss");
    doctor_advise(doctor, "'sysctl -w net.ipv4.tcp_congestion_control=cubic'");
}

static void check_backlog(struct doctor *doctor)
{
    enum { ENOUGH = 1024 };
    uint64_t most;

    if (!doctor_read_number(doctor, "/proc/sys/net/core/somaxconn", &most))
        return;
    if (most >= ENOUGH) {
        doctor_find(doctor, DOCTOR_OK, "somaxconn", "%llu", (unsigned long long)most);
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, "somaxconn",
                "%llu: when many peers connect at once, some wait a second or more",
                (unsigned long long)most);
    doctor_advise(doctor, "'sysctl -w net.core.somaxconn=4096'");
}

void doctor_check_limits(struct doctor *doctor)
{
    const struct config *config;

    if (config_get(&config) == TCPX_SUCCESS) {
        check_files(doctor, config);
        check_memory(doctor, config);
    }
    check_locked(doctor);
    check_window(doctor, "tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem", "4096 131072");
    check_window(doctor, "tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem", "4096 65536");
    check_scaling(doctor);
    check_socket_memory(doctor);
    check_congestion(doctor);
    check_backlog(doctor);
}
