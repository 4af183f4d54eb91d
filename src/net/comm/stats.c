/* A thread that samples all comms and prints the sums of each peer. */
#include "net/comm/stats.h"

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What happened since the last line; of all comms to one host. */
struct stats_peer {
    struct stats_peer *next;
    char host[SOCKET_NAME_BYTES];
    unsigned comms;
    unsigned connections;
    unsigned unmatched;   /* sends whose receive is not posted, at the moment of the sample */
    uint64_t sides_ns[2]; /* for how long there were senders and receivers, all added up */
    uint64_t bytes[2];    /* by enum net_side */
    uint64_t retransmitted;
    struct stage_times times;
    struct unpack_counts unpack;
};

/* Held while the thread is started or awaited, and before stats_lock. */
static pthread_mutex_t life_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t thread;
static int output = -1;

/* Guards the list of comms, their samples and the peers. The locks of comms come after it. */
static pthread_mutex_t stats_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped;
static bool stop;
static struct net_comm *comms;
static struct stats_peer *peers;

/* --- samples ------------------------------------------------------------------------------- */

/* The host of "192.0.2.7:1234" or "[2001:db8::7]:1234". */
static void stats_host(const struct net_comm *comm, char host[SOCKET_NAME_BYTES])
{
    const char *colon = strrchr(comm->link.peer, ':');

    snprintf(host, SOCKET_NAME_BYTES, "%.*s",
             colon != NULL ? (int)(colon - comm->link.peer) : SOCKET_NAME_BYTES - 1,
             comm->link.peer);
}

/* NULL: there is no memory for one more. */
static struct stats_peer *stats_find_peer(const struct net_comm *comm)
{
    char host[SOCKET_NAME_BYTES];
    struct stats_peer **at = &peers;

    stats_host(comm, host);
    while (*at != NULL && strcmp((*at)->host, host) != 0)
        at = &(*at)->next;
    if (*at == NULL) {
        *at = calloc(1, sizeof **at);
        if (*at != NULL)
            memcpy((*at)->host, host, sizeof host);
    }
    return *at;
}

static uint64_t stats_retransmitted(const struct net_comm *comm)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < comm->link.sockets && comm->side == NET_SENDER; i++) {
        struct tcp_info info;
        socklen_t length = sizeof info;

        if (getsockopt(comm->link.forward[i], IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
            sum += info.tcpi_total_retrans;
    }
    return sum;
}

/* All that a comm has done until now. */
static struct stats_sample stats_take_sample(struct net_comm *comm, unsigned *unmatched)
{
    struct stats_sample sample = {.at = clock_now(), .retransmitted = stats_retransmitted(comm)};

    net_get_stages(comm, &sample.times);
    net_get_unpack_counts(comm, &sample.unpack);
    comm_lock_take(&comm->lock);
    for (unsigned i = 0; i < comm->link.sockets; i++)
        sample.bytes +=
            comm->side == NET_SENDER ? comm->tx.outgoing[i].total : comm->rx.incoming[i].total;
    for (const struct net_request *send = comm->tx.first_waiting; send != NULL; send = send->later)
        ++*unmatched;
    comm_lock_release(&comm->lock);
    return sample;
}

static void stats_add_unpack(struct unpack_counts *sum, const struct unpack_counts *now,
                             const struct unpack_counts *before)
{
    sum->in_place += now->in_place - before->in_place;
    sum->in_place_bytes += now->in_place_bytes - before->in_place_bytes;
    sum->copied += now->copied - before->copied;
    sum->copied_bytes += now->copied_bytes - before->copied_bytes;
}

/* Adds what is new to the sums of its peer. */
static void stats_add(struct net_comm *comm)
{
    struct stats_peer *peer = stats_find_peer(comm);
    const struct stats_sample before = comm->sample;
    unsigned unmatched = 0;

    comm->sample = stats_take_sample(comm, &unmatched);
    if (peer == NULL)
        return;
    peer->comms++;
    peer->connections += comm->link.sockets + 1u;
    peer->unmatched += unmatched;
    peer->sides_ns[comm->side] += comm->sample.at - before.at;
    peer->bytes[comm->side] += comm->sample.bytes - before.bytes;
    peer->retransmitted += comm->sample.retransmitted - before.retransmitted;
    peer->times.copy_out_ns += comm->sample.times.copy_out_ns - before.times.copy_out_ns;
    peer->times.write_wait_ns += comm->sample.times.write_wait_ns - before.times.write_wait_ns;
    peer->times.read_wait_ns += comm->sample.times.read_wait_ns - before.times.read_wait_ns;
    peer->times.copy_in_ns += comm->sample.times.copy_in_ns - before.times.copy_in_ns;
    stats_add_unpack(&peer->unpack, &comm->sample.unpack, &before.unpack);
}

/* --- lines --------------------------------------------------------------------------------- */

static double stats_percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* Empty where nothing was received this way. */
static void stats_write_unpack(const struct unpack_counts *unpack, char *text, size_t bytes)
{
    *text = '\0';
    if (unpack->in_place + unpack->copied > 0)
        snprintf(text, bytes,
                 "; unpacked: %llu receives in place, %llu with copies, %.3f GB in place, %.3f GB "
                 "copied",
                 (unsigned long long)unpack->in_place, (unsigned long long)unpack->copied,
                 (double)unpack->in_place_bytes / 1e9, (double)unpack->copied_bytes / 1e9);
}

static void stats_print(const struct stats_peer *peer, uint64_t span_ns)
{
    const struct stage_times *times = &peer->times;
    const uint64_t *sides = peer->sides_ns;
    double seconds = (double)span_ns / 1e9;
    char unpack[200];

    stats_write_unpack(&peer->unpack, unpack, sizeof unpack);
    dprintf(output,
            "[TCPX] %ld %s: sent %.3f GB/s, received %.3f GB/s, %u comms, %u connections, "
            "%llu retransmitted; senders: sockets full %.0f %%, copies out %.0f %%, %u sends "
            "without a receive; receivers: no data %.0f %%, copies in %.0f %%%s\n",
            (long)getpid(), peer->host, (double)peer->bytes[NET_SENDER] / 1e9 / seconds,
            (double)peer->bytes[NET_RECEIVER] / 1e9 / seconds, peer->comms, peer->connections,
            (unsigned long long)peer->retransmitted,
            stats_percent(times->write_wait_ns, sides[NET_SENDER]),
            stats_percent(times->copy_out_ns, sides[NET_SENDER]), peer->unmatched,
            stats_percent(times->read_wait_ns, sides[NET_RECEIVER]),
            stats_percent(times->copy_in_ns, sides[NET_RECEIVER]), unpack);
}

/* Prints and forgets the sums. Without a lock: who reads the lines may be slow. */
static void stats_print_all(struct stats_peer *list, uint64_t span_ns)
{
    while (list != NULL) {
        struct stats_peer *peer = list;

        list = peer->next;
        stats_print(peer, span_ns);
        free(peer);
    }
}

static void *stats_run(void *argument)
{
    const uint64_t period_ms = *(const unsigned *)argument * (uint64_t)1000;
    uint64_t before = clock_now();
    uint64_t next = deadline_after_ms(period_ms);

    pthread_setname_np(pthread_self(), "tcpx-stats");
    pthread_mutex_lock(&stats_lock);
    for (bool last = false; !last;) {
        struct stats_peer *list;
        uint64_t now;

        while (!stop && !deadline_passed(next))
            condition_wait(&stopped, &stats_lock, next);
        last = stop;
        now = clock_now();
        for (struct net_comm *comm = comms; comm != NULL; comm = comm->next_sampled)
            stats_add(comm);
        list = peers;
        peers = NULL;
        pthread_mutex_unlock(&stats_lock);
        stats_print_all(list, now - before > 0 ? now - before : 1);
        pthread_mutex_lock(&stats_lock);
        before = now;
        next += period_ms * 1000000;
    }
    pthread_mutex_unlock(&stats_lock);
    return NULL;
}

/* --- beginning and end --------------------------------------------------------------------- */

static int stats_open(const struct config_stats *stats)
{
    if (*stats->file == '\0') {
        output = STDERR_FILENO;
        return TCPX_SUCCESS;
    }
    fork_hold();
    /* O_NONBLOCK: a pipe that has no reader is an error, and one that is full loses lines. */
    output = open(stats->file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fork_release(output) && output >= 0)
        return TCPX_SUCCESS;
    output = -1;
    return error_system(errno, "UCCL_TCPX_STATS=%u:%s", stats->seconds, stats->file);
}

static void stats_close(void)
{
    if (output != STDERR_FILENO)
        fork_close(output);
    output = -1;
}

static int stats_start(const struct config_stats *stats)
{
    int result = stats_open(stats);
    int error;

    if (result != TCPX_SUCCESS)
        return result;
    condition_init(&stopped);
    stop = false;
    error = thread_start(&thread, stats_run, (void *)(uintptr_t)&stats->seconds);
    if (error == 0)
        return TCPX_SUCCESS;
    stats_close();
    return error_system(error, "cannot start the thread of UCCL_TCPX_STATS");
}

int stats_join(struct net_comm *comm)
{
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS || config->stats.seconds == 0)
        return result;
    pthread_mutex_lock(&life_lock);
    if (output < 0)
        result = stats_start(&config->stats);
    if (result == TCPX_SUCCESS) {
        pthread_mutex_lock(&stats_lock);
        comm->sample = (struct stats_sample){.at = clock_now()};
        comm->is_sampled = true;
        comm->next_sampled = comms;
        comms = comm;
        pthread_mutex_unlock(&stats_lock);
    }
    pthread_mutex_unlock(&life_lock);
    return result;
}

void stats_leave(struct net_comm *comm)
{
    struct net_comm **at = &comms;
    bool is_last;

    if (!comm->is_sampled)
        return;
    pthread_mutex_lock(&life_lock);
    pthread_mutex_lock(&stats_lock);
    stats_add(comm);
    while (*at != comm)
        at = &(*at)->next_sampled;
    *at = comm->next_sampled;
    is_last = comms == NULL;
    stop = is_last;
    if (is_last)
        pthread_cond_signal(&stopped);
    pthread_mutex_unlock(&stats_lock);
    if (is_last) {
        pthread_join(thread, NULL);
        pthread_cond_destroy(&stopped);
        stats_close();
    }
    pthread_mutex_unlock(&life_lock);
}
