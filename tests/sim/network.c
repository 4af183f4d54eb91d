/*
 * The network between the two processes, and what the kernel's TCP does by itself: segments that
 * arrive late and in parts, windows that close, acknowledgements that free the sender's buffer,
 * the end of a stream, resets, TCP_USER_TIMEOUT and keepalive. Links may be cut. Nothing is lost
 * or reordered within a connection: TCP repairs that, and here it shows as latency.
 */
#include "kernel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_cut;
/* No connection has anything to do before; it may be too early, never too late. */
static uint64_t next = SIM_NEVER;

uint64_t network_next(void)
{
    return next;
}

static void at(uint64_t when)
{
    if (when < next)
        next = when;
}

void network_look(void)
{
    at(sim_now());
}

static uint64_t latency(void)
{
    return 100 + sim_below(sim_world.latency_ns);
}

void network_kick(struct stream *stream)
{
    bool has_more = stream->written > stream->arrived || (stream->shut && !stream->ended);

    if (!has_more) {
        stream->moves_at = SIM_NEVER;
        stream->silent_since = SIM_NEVER;
        return;
    }
    if (stream->silent_since == SIM_NEVER)
        stream->silent_since = sim_now();
    if (stream->moves_at == SIM_NEVER)
        stream->moves_at = sim_now() + latency();
    at(stream->moves_at);
}

/* This end knows nothing of the connection any more; why is for the process. */
static void end_here(struct file *file, int error)
{
    if (file->over)
        return;
    sim_trace("connection %d of process %d ends: %s", (int)(file - files), file->process,
              strerror(error));
    file->over = true;
    file->error = error;
    if (file->out != NULL) {
        file->out->moves_at = SIM_NEVER;
        file->out->silent_since = SIM_NEVER;
    }
    network_look();
    file_changed(file);
    if (file->closed)
        file_release(file);
}

/* A reset arrives there. Linux keeps what was received before it; other systems do not. */
static void reset_arrives(struct file *file)
{
    if (file->over)
        return;
    if (sim_one_in(2))
        file->in->read = file->in->arrived;
    end_here(file, file->connecting ? ECONNREFUSED : ECONNRESET);
}

/* Both ends go: this one has sent a reset, and what it had not delivered is gone. */
static void reset(struct file *file, int error)
{
    struct file *peer = file->peer;

    end_here(file, error);
    if (peer != NULL && !is_cut)
        reset_arrives(peer);
}

void network_close(struct file *file)
{
    if (file->connecting || file->in == NULL || file->over) {
        file->over = true;
        file_release(file);
        return;
    }
    if (file->in->arrived > file->in->read) {
        sim_trace("connection %d closed with unread input", (int)(file - files));
        reset(file, ECONNRESET);
        return;
    }
    file->out->shut = true;
    network_kick(file->out);
    network_look();
}

/* --- one direction ---------------------------------------------------------------------------- */

static uint64_t move_bytes(struct stream *stream)
{
    uint64_t window = stream->receive_buffer - (stream->arrived - stream->read);
    uint64_t bytes = stream->written - stream->arrived;

    if (bytes > window)
        bytes = window;
    if (bytes > sim_world.segment_bytes)
        bytes = sim_world.segment_bytes;
    if (bytes > 1 && sim_one_in(4))
        bytes = sim_between(1, bytes);
    stream->arrived += bytes;
    return bytes;
}

/* A segment of the file's output arrives at its peer. */
static void segment_arrives(struct file *file)
{
    struct stream *stream = file->out;
    struct file *peer = file->peer;
    uint64_t moved;

    stream->moves_at = SIM_NEVER;
    if (is_cut)
        return; /* sim_mend() goes on */
    if (peer == NULL || peer->over) {
        /* Nobody there knows the connection. */
        reset_arrives(file);
        return;
    }
    if ((peer->closed || peer->read_shut) && stream->written > stream->arrived) {
        reset(peer, peer->closed ? ECONNRESET : EPIPE);
        return;
    }
    moved = move_bytes(stream);
    if (stream->arrived == stream->written && stream->shut && !stream->ended) {
        stream->ended = true;
        moved++;
    }
    if (moved > 0) {
        stream->silent_since = SIM_NEVER;
        peer->heard_at = sim_now();
        file->heard_at = sim_now();
        file_changed(peer);
        file_changed(file);
    }
    /* With a closed window the next read kicks it again. */
    if (moved > 0 || stream->receive_buffer > stream->arrived - stream->read) {
        network_kick(stream);
    } else if (stream->silent_since == SIM_NEVER) {
        stream->silent_since = sim_now();
    }
}

/* --- a connection ----------------------------------------------------------------------------- */

static uint64_t dies_at(const struct file *file)
{
    uint64_t timeout = (uint64_t)file->user_timeout_ms * SIM_MS;

    if (file->out == NULL || file->out->silent_since == SIM_NEVER)
        return SIM_NEVER;
    /* Without the option Linux gives up after about 15 minutes. */
    return file->out->silent_since + (timeout != 0 ? timeout : 900 * SIM_S);
}

/* When keepalive finds out that the peer's kernel does not answer, or does not know us. */
static uint64_t probe_fails_at(const struct file *file)
{
    enum { PROBES = 3 };
    uint64_t idle = (uint64_t)file->keep_idle_s * SIM_S;

    if (!file->keep_alive || file->connecting || (file->in->ended && file->out->ended))
        return SIM_NEVER;
    if (is_cut)
        return file->heard_at + idle + PROBES * (uint64_t)file->keep_interval_s * SIM_S;
    return file->peer == NULL || file->peer->over ? file->heard_at + idle : SIM_NEVER;
}

static struct file *find_listener(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *wanted = (const struct sockaddr_in *)address;

    for (unsigned i = 0; i < file_count; i++) {
        const struct sockaddr_in *local = (const struct sockaddr_in *)&files[i].local;

        if (files[i].kind == FILE_LISTENER && !files[i].closed &&
            local->sin_port == wanted->sin_port)
            return &files[i];
    }
    return NULL;
}

static struct stream *make_stream(void)
{
    struct stream *stream = calloc(1, sizeof *stream);

    if (stream == NULL)
        abort();
    stream->send_buffer = sim_between(sim_world.send_buffer / 2, sim_world.send_buffer);
    stream->receive_buffer = sim_between(sim_world.receive_buffer / 2, sim_world.receive_buffer);
    stream->capacity = stream->send_buffer + stream->receive_buffer;
    stream->bytes = malloc(stream->capacity);
    if (stream->bytes == NULL)
        abort();
    stream->moves_at = SIM_NEVER;
    stream->silent_since = SIM_NEVER;
    return stream;
}

void network_connect(struct file *file)
{
    file->connecting = true;
    file->connects_at = sim_now() + latency();
    at(file->connects_at);
}

/* The connecting side's handshake: it is established, refused, or has no answer. */
static void establish(struct file *file)
{
    struct file *listener = find_listener(&file->remote);
    struct file *other;

    if (is_cut) {
        file->connects_at = sim_now() + SIM_S;
        return;
    }
    if (listener == NULL || listener->backlog_count == MOST_BACKLOG) {
        end_here(file, ECONNREFUSED);
        return;
    }
    other = file_open(FILE_CONNECTION, listener->process);
    other->local = file->remote;
    other->remote = file->local;
    other->in = file->out = make_stream();
    other->out = file->in = make_stream();
    other->peer = file;
    file->peer = other;
    file->connecting = false;
    file->connects_at = SIM_NEVER;
    file->heard_at = other->heard_at = other->accepted_at = sim_now();
    other->listener = listener;
    listener->backlog[listener->backlog_count++] = other;
    file_changed(file);
    file_changed(listener);
}

static void run_connection(struct file *file, uint64_t now)
{
    uint64_t dies;

    if (file->over)
        return;
    if (file->connecting) {
        if (file->connects_at <= now)
            establish(file);
        if (!file->over && file->connecting)
            at(file->connects_at);
        return;
    }
    if (file->in == NULL)
        return;
    if (file->out->moves_at <= now)
        segment_arrives(file);
    if (file->over)
        return;
    at(file->out->moves_at);
    dies = dies_at(file);
    if (dies > probe_fails_at(file))
        dies = probe_fails_at(file);
    if (dies <= now)
        end_here(file, is_cut || file->out->silent_since != SIM_NEVER ? ETIMEDOUT : ECONNRESET);
    else
        at(dies);
    /* Both directions have ended, and both processes are done with it. */
    if (!file->over && file->closed && file->out->ended && file->in->ended) {
        file->over = true;
        file_release(file);
    }
}

void network_run(uint64_t now)
{
    next = SIM_NEVER;
    for (unsigned i = 0; i < file_count; i++)
        if (files[i].kind == FILE_CONNECTION)
            run_connection(&files[i], now);
}

/* --- faults ----------------------------------------------------------------------------------- */

void sim_cut(void)
{
    sim_trace("the network is cut");
    is_cut = true;
    network_look();
}

void sim_mend(void)
{
    sim_trace("the network is mended");
    is_cut = false;
    for (unsigned i = 0; i < file_count; i++)
        if (files[i].kind == FILE_CONNECTION && files[i].out != NULL && !files[i].over)
            network_kick(files[i].out);
    network_look();
}

bool sim_reset_one(void)
{
    unsigned start = (unsigned)sim_below(file_count);

    for (unsigned i = 0; i < file_count; i++) {
        struct file *file = &files[(start + i) % file_count];

        if (file->kind == FILE_CONNECTION && file->peer != NULL && !file->over && !file->closed &&
            !file->peer->over && !file->peer->closed) {
            sim_trace("a reset of connection %d", (int)(file - files));
            reset_arrives(file);
            reset_arrives(file->peer);
            return true;
        }
    }
    return false;
}
