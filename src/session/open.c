/*
 * Opens a session over a control connection (bootstrap.h): each side listens on its devices and
 * sends its agreement with its addresses; then both connect.
 */
#include "session/access.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/topology.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum message { AGREEMENT = 0, READY = 1 };

enum { PLUGIN_CHANNELS = 2, MOST_NICS = 32, OWN_CHUNK_BYTES = 4 << 20 };

/* What is known of a device, of the transport's or of a plugin's. */
struct nic {
    int number;
    char name[64];
    char pci_path[256]; /* "": unknown */
    int numa_node;      /* -1: unknown */
};

struct opening {
    struct tcpx_session *session;
    const struct tcpx_session_options *options;
    uint64_t deadline;
    struct nic nics[MOST_NICS];
    int nic_count; /* that are used */
    struct channel_devices devices;
    struct channel_listener listeners[MOST_CHANNELS];
    struct agreement mine;
    struct agreement theirs;
    bool accepted[MOST_CHANNELS];
    bool connected[MOST_CHANNELS];
    bool connecting; /* the peer's handles are there */
    bool peer_is_ready;
};

/* --- devices ------------------------------------------------------------------------------- */

static int list_plugin_nics(struct opening *opening, int *count)
{
    const struct import_plugin *plugin = opening->session->plugin;
    bool reaches = false;
    int result = TCPX_SUCCESS;

    if (opening->session->gpu != NULL)
        result = import_reaches_gpus(plugin, &reaches);
    *count = plugin->devices < MOST_NICS ? plugin->devices : MOST_NICS;
    for (int i = 0; i < *count; i++) {
        struct nic *nic = &opening->nics[i];
        struct net_properties_v12 properties;

        if (result == TCPX_SUCCESS)
            result = bounded_properties(plugin, i, &properties);
        if (result != TCPX_SUCCESS)
            return result;
        nic->number = i;
        snprintf(nic->name, sizeof nic->name, "%s", properties.name != NULL ? properties.name : "");
        snprintf(nic->pci_path, sizeof nic->pci_path, "%s",
                 properties.pci_path != NULL ? properties.pci_path : "");
        nic->numa_node = topology_numa_node("", nic->pci_path);
        if (i == 0)
            opening->session->takes_gpu_memory =
                reaches && (properties.pointer_support & NET_POINTER_CUDA) != 0;
    }
    return TCPX_SUCCESS;
}

static int list_builtin_nics(struct opening *opening, int *count)
{
    struct channel_devices *devices = &opening->devices;
    int result = net_devices_find_all_configured(devices->list, NET_DEVICES_MOST, &devices->count,
                                                 &devices->all);

    *count = devices->count;
    for (int i = 0; result == TCPX_SUCCESS && i < *count; i++) {
        const struct net_device *device = &devices->list[i];
        struct nic *nic = &opening->nics[i];

        *nic = (struct nic){.number = i, .numa_node = device->numa_node};
        snprintf(nic->name, sizeof nic->name, "%.*s", (int)sizeof nic->name - 1, device->name);
        snprintf(nic->pci_path, sizeof nic->pci_path, "%s", device->pci_path);
    }
    opening->session->takes_gpu_memory = true;
    return result;
}

/* The less, the nearer. */
static long far_away(const struct nic *nic, const char *gpu_path, int gpu_node)
{
    int steps = topology_pci_distance(nic->pci_path, gpu_path);
    bool other_node = nic->numa_node >= 0 && gpu_node >= 0 && nic->numa_node != gpu_node;

    return (steps == INT_MAX ? INT_MAX / 4 : steps) * 2L + other_node;
}

/*
 * Puts the nearest ones first and returns how many are equally near: fewest steps between the PCI
 * devices, then the same NUMA node. All of them, where nothing is known. `gpu_path` may be "".
 */
static int nics_choose(struct nic *nics, int count, const char *gpu_path, int gpu_node)
{
    int near = 1; /* there is a device */

    /* The order among equals stays. */
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && far_away(&nics[k], gpu_path, gpu_node) <
                                     far_away(&nics[k - 1], gpu_path, gpu_node);
             k--) {
            struct nic other = nics[k];

            nics[k] = nics[k - 1];
            nics[k - 1] = other;
        }
    while (near < count &&
           far_away(&nics[near], gpu_path, gpu_node) == far_away(&nics[0], gpu_path, gpu_node))
        near++;
    return near;
}

static int choose_nics(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    struct tcpx_gpu_properties gpu = {.numa_node = -1};
    int count = 0;
    int result = session->plugin != NULL ? list_plugin_nics(opening, &count)
                                         : list_builtin_nics(opening, &count);

    if (result == TCPX_SUCCESS && session->gpu_number >= 0)
        result = gpu_properties(session->gpu_number, &gpu);
    if (result == TCPX_SUCCESS)
        opening->nic_count = nics_choose(opening->nics, count, gpu.pci_path, gpu.numa_node);
    return result;
}

/* --- what this side wants ------------------------------------------------------------------ */

static int choose_channels(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    const struct config *config;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    if (opening->options->channels > 0)
        session->channels = (unsigned)opening->options->channels;
    else if (config->num_channels != CONFIG_AUTO)
        session->channels = (unsigned)config->num_channels;
    else
        session->channels = session->plugin != NULL && opening->nic_count < PLUGIN_CHANNELS
                                ? PLUGIN_CHANNELS
                                : (unsigned)opening->nic_count;
    session->chunk_bytes = opening->options->chunk_bytes != 0 ? opening->options->chunk_bytes
                           : config->chunk_bytes != 0         ? config->chunk_bytes
                           : session->plugin == NULL          ? OWN_CHUNK_BYTES
                                                              : config->nccl_chunk_bytes;
    for (int i = 0; i < 2 && result == TCPX_SUCCESS; i++) {
        session->directions[i].lanes = calloc(session->channels, sizeof(struct lane));
        if (session->directions[i].lanes == NULL)
            result = error_system(ENOMEM, "%u channels", session->channels);
    }
    return result;
}

static const struct nic *nic_of(const struct opening *opening, unsigned channel)
{
    return &opening->nics[channel % (unsigned)opening->nic_count];
}

static int listen_all(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    int result = TCPX_SUCCESS;

    for (unsigned i = 0; i < session->channels && result == TCPX_SUCCESS; i++)
        result =
            channel_listen(session->plugin, &opening->devices, nic_of(opening, i)->number,
                           session->gpu_number, opening->mine.handles[i], &opening->listeners[i]);
    return result;
}

/* A plugin may take less than a chunk. */
static void fit_chunks(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    const uint32_t most = UNPACK_MAX_MESSAGE;
    uint64_t longest;

    if (session->plugin == NULL)
        return;
    longest = session->plugin->longest < most ? session->plugin->longest : most;
    if (session->chunk_bytes > longest) {
        log_tcpx("chunks of %llu bytes: %s takes no more", (unsigned long long)longest,
                 session->plugin->table.name);
        session->chunk_bytes = longest;
    }
}

/* Accesses are the built-in transport's. */
static int prepare_accesses(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    int result;

    if (session->plugin != NULL)
        return TCPX_SUCCESS;
    result = accesses_create(session);
    if (result != TCPX_SUCCESS)
        return result;
    session->accesses->allowed[OURS] = opening->options->windows != 0;
    opening->mine.windows = session->accesses->allowed[OURS];
    memcpy(opening->mine.nonce, session->accesses->nonces[OURS], sizeof opening->mine.nonce);
    return TCPX_SUCCESS;
}

/* What the accesses need to know of the peer. */
static void take_peer(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    const struct agreement *theirs = &opening->theirs;

    memcpy(session->peer_name, theirs->name, sizeof session->peer_name);
    if (session->accesses == NULL)
        return;
    session->accesses->allowed[THEIRS] = theirs->windows;
    memcpy(session->accesses->nonces[THEIRS], theirs->nonce, sizeof theirs->nonce);
}

static int fill_agreement(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    struct agreement *mine = &opening->mine;
    const struct import_plugin *plugin = session->plugin;
    const struct config *config;
    int result = net_handle_process(&mine->process);

    if (result == TCPX_SUCCESS)
        result = config_get(&config);
    if (result != TCPX_SUCCESS)
        return result;
    mine->unpack = (uint32_t)config->unpack_impl;
    if (opening->options->name != NULL)
        snprintf(mine->name, sizeof mine->name, "%s", opening->options->name);

    mine->version = control_version(session->control);
    snprintf(mine->transport, sizeof mine->transport, "%s",
             plugin != NULL ? plugin->table.name : "builtin");
    mine->table_version = plugin != NULL ? (uint32_t)plugin->table.version : 0;
    mine->channels = session->channels;
    mine->takes_fewer = opening->options->channels == 0 && config->num_channels == CONFIG_AUTO;
    mine->chunk_bytes = session->chunk_bytes;
    if (gethostname(mine->host, sizeof mine->host - 1) != 0)
        mine->host[0] = '\0';
    return result;
}

/* --- agreeing ------------------------------------------------------------------------------ */

static int opening_expect(struct opening *opening, uint8_t expected, const char *awaited,
                          void *payload, size_t room, size_t *bytes)
{
    struct control *control = opening->session->control;
    uint8_t type;
    int result = control_await(control, awaited, &type, payload, room, bytes, opening->deadline);

    if (result == TCPX_SUCCESS && type != expected)
        return error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u instead of %s",
                         control_peer(control), type, awaited);
    return result;
}

static int opening_agree(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    struct control *control = session->control;
    uint8_t bytes[AGREEMENT_BYTES];
    size_t length = agreement_encode(&opening->mine, bytes);
    int result = control_send(control, AGREEMENT, bytes, length);

    if (result == TCPX_SUCCESS)
        result = opening_expect(opening, AGREEMENT, "what the peer works with", bytes, sizeof bytes,
                                &length);
    if (result == TCPX_SUCCESS)
        result = agreement_decode(bytes, length, &opening->theirs);
    if (result == TCPX_SUCCESS)
        result = agreement_compare(&opening->mine, &opening->theirs);
    if (result == TCPX_SUCCESS && opening->theirs.channels < session->channels)
        session->channels = opening->theirs.channels;
    if (result == TCPX_SUCCESS)
        take_peer(opening);
    return result;
}

/* --- connecting ---------------------------------------------------------------------------- */

static int opening_connect_step(struct opening *opening, unsigned channel, bool *all)
{
    struct tcpx_session *session = opening->session;
    int result = TCPX_SUCCESS;

    if (!opening->connected[channel])
        result =
            channel_connect(session->plugin, &opening->devices, nic_of(opening, channel)->number,
                            opening->deadline, opening->theirs.handles[channel],
                            session_channel(session, true, channel), &opening->connected[channel]);
    if (result == TCPX_SUCCESS && !opening->accepted[channel])
        result =
            channel_accept(&opening->listeners[channel], session_channel(session, false, channel),
                           &opening->accepted[channel]);
    *all = *all && opening->connected[channel] && opening->accepted[channel];
    return result;
}

/*
 * The peer may have given up in the meantime, and has sent the reason. Also sends what the socket
 * did not take of the agreement: the peer cannot connect without it.
 */
static int opening_poll_peer(struct opening *opening)
{
    struct control *control = opening->session->control;
    uint8_t type;
    size_t bytes;
    bool there;
    int result;

    result = control_flush(control);
    if (result != TCPX_SUCCESS || opening->peer_is_ready)
        return result;
    result = control_receive(control, &type, NULL, 0, &bytes, &there);
    if (result == TCPX_SUCCESS && there && type != READY)
        return error_set(TCPX_REMOTE_ERROR, "%s: a message of type %u while connecting",
                         control_peer(control), type);
    opening->peer_is_ready = result == TCPX_SUCCESS && there;
    return result;
}

/* A channel has failed; the peer's refusal, if any, is the better reason. */
static int opening_explain(struct opening *opening, int result)
{
    char why[900];

    snprintf(why, sizeof why, "%s", error_text());
    if (opening_poll_peer(opening) != TCPX_SUCCESS)
        return error_set(TCPX_REMOTE_ERROR, "%s", error_text());
    /* An argument that is wrong was the peer's handle. */
    return error_set(result == TCPX_INVALID_ARGUMENT ? TCPX_REMOTE_ERROR : result, "%s: %s",
                     control_peer(opening->session->control), why);
}

/* Of the first channel that is not connected: the others wait for the same, as a rule. */
static int opening_report_late(struct opening *opening)
{
    const struct tcpx_session *session = opening->session;
    char why[600] = "";

    for (unsigned i = 0; i < session->channels && *why == '\0'; i++)
        if (!opening->connected[i])
            channel_connect_describe(session->plugin, opening->theirs.handles[i], why, sizeof why);
    return error_set(TCPX_IN_PROGRESS, "the channels to %s were not connected in time%s%s",
                     control_peer(session->control), *why != '\0' ? ": " : "", why);
}

static int connect_all(struct opening *opening)
{
    enum { PAUSE_NS = 20000 };
    bool all = false;
    int result = TCPX_SUCCESS;

    opening->connecting = true;
    while (!all && result == TCPX_SUCCESS) {
        all = true;
        for (unsigned i = 0; i < opening->session->channels && result == TCPX_SUCCESS; i++)
            result = opening_connect_step(opening, i, &all);
        result =
            result == TCPX_SUCCESS ? opening_poll_peer(opening) : opening_explain(opening, result);
        if (result == TCPX_SUCCESS && !all && deadline_passed(opening->deadline))
            return opening_report_late(opening);
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return result;
}

static int opening_be_ready(struct opening *opening)
{
    size_t bytes;
    int result = control_send(opening->session->control, READY, NULL, 0);

    if (result == TCPX_SUCCESS && !opening->peer_is_ready)
        result = opening_expect(opening, READY, "that the peer's channels are connected", NULL, 0,
                                &bytes);
    /* No later call need send anything over this connection. */
    if (result == TCPX_SUCCESS)
        result = control_send_all(opening->session->control, opening->deadline);
    return result;
}

static int check_chunks(struct tcpx_session *session)
{
    for (unsigned i = 0; i < 2 * session->channels && session->plugin != NULL; i++) {
        uint64_t longest =
            import_comm_facts(session_channel(session, i % 2, i / 2)->plugin).longest;

        if (session->chunk_bytes > longest)
            return error_set(TCPX_INVALID_USAGE,
                             "chunks of %llu bytes, but a request takes %llu at most "
                             "(UCCL_TCPX_CHUNK_BYTES)",
                             (unsigned long long)session->chunk_bytes, (unsigned long long)longest);
    }
    return TCPX_SUCCESS;
}

/* By what was started, not by the configuration: threads cannot always be started. */
static void look_for_threads(struct tcpx_session *session)
{
    session->has_io_threads = session->plugin == NULL &&
                              net_has_threads(session_channel(session, true, 0)->builtin) &&
                              net_has_threads(session_channel(session, false, 0)->builtin);
}

/*
 * Starts the worker before the peer takes the session for open, so that the peer gets a failure.
 * The worker does not read the control connection before worker_listen(), or the end of the lock.
 * Whole messages do not need it; windows do, since nobody else serves them.
 */
static int opening_start_worker(struct tcpx_session *session)
{
    int result = worker_start(session);
    bool serves = session->accesses != NULL && session->accesses->allowed[OURS];

    if (result == TCPX_SUCCESS || session->plugin != NULL || session->channels > 1 || serves)
        return result;
    log_warn("%s: messages of the peer are read only while the program makes calls", error_text());
    return TCPX_SUCCESS;
}

static int opening_finish(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    int result = TCPX_SUCCESS;

    /* I/O threads, which serve windows, must not wait for the driver; nor calls, with no_kernels.
     */
    if (session->accesses != NULL && (session->accesses->allowed[OURS] || session->no_kernels))
        result = accesses_take_gpu_memory(session);
    if (result != TCPX_SUCCESS)
        return result;
    session_lock(session);
    result = opening_start_worker(session);
    if (result == TCPX_SUCCESS)
        result = opening_be_ready(opening);
    if (result == TCPX_SUCCESS)
        worker_listen(session);
    session_unlock(session);
    return result;
}

/* --- the whole ----------------------------------------------------------------------------- */

static const char *gpu_memory_way(struct tcpx_session *session)
{
    const struct channel *channel = session_channel(session, false, 0);
    const struct import_comm *comm = channel->plugin;

    if (session->gpu_number >= 0 && session->plugin == NULL)
        return net_receives_by_devmem(channel->builtin)
                   ? "GPU memory by the transport, received by devmem TCP"
                   : "GPU memory by the transport";
    return session->gpu_number < 0           ? "host memory only"
           : !session->takes_gpu_memory      ? "GPU memory staged in host memory here"
           : import_comm_facts(comm).unpacks ? "GPU memory unpacked here"
                                             : "GPU memory directly";
}

/* What a channel sends through. */
static const char *opening_nic_name(const struct opening *opening, unsigned channel)
{
    const struct channel *made = session_channel(opening->session, true, channel);

    return made->builtin != NULL ? made->nic : nic_of(opening, channel)->name;
}

/* "eth0,eth1": each NIC once. */
static void opening_list_nics(const struct opening *opening, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < opening->session->channels && used < size; i++) {
        const char *name = opening_nic_name(opening, i);
        bool is_new = true;

        for (unsigned k = 0; k < i; k++)
            is_new = is_new && strcmp(name, opening_nic_name(opening, k)) != 0;
        if (is_new)
            used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? "," : "", name);
    }
}

/* One line about the path that carries the bytes. */
static void describe_path(struct opening *opening)
{
    struct tcpx_session *session = opening->session;
    char nics[160];

    opening_list_nics(opening, nics, sizeof nics);
    if (session->plugin != NULL)
        snprintf(session->path, sizeof session->path,
                 "%s: plugin %s, table version %d, over %s, %u channel%s, chunks of %llu bytes, %s",
                 control_peer(session->control), session->plugin->table.name,
                 session->plugin->table.version, nics, session->channels,
                 session->channels == 1 ? "" : "s", (unsigned long long)session->chunk_bytes,
                 gpu_memory_way(session));
    else
        snprintf(session->path, sizeof session->path,
                 "%s: built-in transport over %s, %u channel%s, %s", control_peer(session->control),
                 nics, session->channels, session->channels == 1 ? "" : "s",
                 gpu_memory_way(session));
    log_tcpx("path: %s", session->path);
}

static int opening_steps(struct opening *opening)
{
    int result = choose_nics(opening);

    if (result == TCPX_SUCCESS)
        result = choose_channels(opening);
    if (result == TCPX_SUCCESS)
        result = listen_all(opening);
    if (result == TCPX_SUCCESS)
        fit_chunks(opening);
    if (result == TCPX_SUCCESS)
        result = prepare_accesses(opening);
    if (result == TCPX_SUCCESS)
        result = fill_agreement(opening);
    if (result == TCPX_SUCCESS)
        result = opening_agree(opening);
    if (result == TCPX_SUCCESS)
        result = connect_all(opening);
    if (result == TCPX_SUCCESS)
        result = check_chunks(opening->session);
    if (result == TCPX_SUCCESS) {
        look_for_threads(opening->session);
        result = opening_finish(opening);
    }
    if (result == TCPX_SUCCESS)
        describe_path(opening);
    return result;
}

/* Closes the listeners, and cancels attempts to connect that were not finished. */
static void opening_clean_up(struct opening *opening)
{
    const struct tcpx_session *session = opening->session;

    for (unsigned i = 0; i < MOST_CHANNELS; i++)
        channel_listener_close(&opening->listeners[i]);
    for (unsigned i = 0; i < session->channels; i++)
        if (opening->connecting && !opening->connected[i])
            channel_connect_cancel(session->plugin, opening->theirs.handles[i]);
}

int session_connect_channels(struct tcpx_session *session,
                             const struct tcpx_session_options *options, uint64_t deadline)
{
    struct opening *opening = calloc(1, sizeof *opening);
    struct gpu_scope scope;
    char why[900];
    int result = TCPX_SUCCESS;

    if (opening == NULL)
        return error_system(ENOMEM, "a session");
    opening->session = session;
    opening->options = options;
    opening->deadline = deadline;
    opening->devices.no_kernels = session->no_kernels;
    if (session->gpu != NULL)
        result = gpu_enter(session->gpu, &scope);
    if (result == TCPX_SUCCESS) {
        result = opening_steps(opening);
        if (result != TCPX_SUCCESS) {
            snprintf(why, sizeof why, "%s", error_text());
            session_lock(session); /* its thread may have begun */
            control_refuse(session->control, why);
            session_unlock(session);
        }
        opening_clean_up(opening); /* which may fail, too */
        if (result != TCPX_SUCCESS)
            error_keep("%s", why);
        if (session->gpu != NULL)
            gpu_leave(session->gpu, &scope);
    }
    free(opening);
    return result;
}
