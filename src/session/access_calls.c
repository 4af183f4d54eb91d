/* The calls of tcpx.h for one-sided access: remotes, reads, writes, and their cancel. */
#include "session/access.h"

#include "base/checked.h"
#include "base/config.h"
#include "base/fork.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- remotes --------------------------------------------------------------------------------- */

static int calls_check_session(const struct tcpx_session *session, const char *call)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: session is NULL", call);
    if (session->accesses == NULL)
        return error_set(TCPX_INVALID_USAGE,
                         "%s: over the plugin %s there is no access to windows; the built-in "
                         "transport has it (plugin_path \"builtin\")",
                         call, session->plugin->table.name);
    return TCPX_SUCCESS;
}

int tcpx_remote_open(struct tcpx_session *session, const void *key, size_t bytes,
                     struct tcpx_remote **out)
{
    struct window_key parsed;
    struct tcpx_remote *remote;
    int result = calls_check_session(session, "tcpx_remote_open");

    if (result == TCPX_SUCCESS && (key == NULL || out == NULL))
        result = error_set(TCPX_INVALID_ARGUMENT, "tcpx_remote_open: an argument is NULL");
    if (result == TCPX_SUCCESS)
        result = window_key_read(key, bytes, &parsed);
    if (result == TCPX_SUCCESS && !session->accesses->allowed[THEIRS])
        result = error_set(TCPX_INVALID_USAGE,
                           "%s does not allow access to its windows (options.windows is 0 there)",
                           control_peer(session->control));
    if (result != TCPX_SUCCESS)
        return result;
    remote = calloc(1, sizeof *remote);
    if (remote == NULL)
        return error_system(ENOMEM, "a window of a peer");
    remote->session = session;
    remote->key = parsed;
    session_lock(session);
    bindings_add_remote(remote);
    session_unlock(session);
    *out = remote;
    return TCPX_SUCCESS;
}

int tcpx_remote_close(struct tcpx_remote *remote)
{
    struct tcpx_session *session;
    int result = fork_check();

    if (result != TCPX_SUCCESS || remote == NULL)
        return result;
    session = remote->session;
    session_lock(session);
    if (remote->is_closed) {
        result = error_set(TCPX_INVALID_USAGE, "tcpx_remote_close: it was closed already");
    } else {
        remote->is_closed = true;
        bindings_drop_remote(remote);
    }
    session_unlock(session);
    return result;
}

/* --- checks, which need no lock ------------------------------------------------------------ */

static int calls_check_access(const struct tcpx_session *session, const struct tcpx_access *access,
                              struct tcpx_transfer **out, bool is_read)
{
    const char *call = is_read ? "tcpx_read" : "tcpx_write";
    int result = calls_check_session(session, call);

    if (result != TCPX_SUCCESS)
        return result;
    if (access == NULL || out == NULL || (access->parts == NULL && access->part_count > 0) ||
        (access->note == NULL && access->note_bytes > 0))
        return error_set(TCPX_INVALID_ARGUMENT, "%s: an argument is NULL", call);
    if (access->part_count > MOST_PARTS)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: %zu parts, at most %d are possible", call,
                         access->part_count, MOST_PARTS);
    if (access->note_bytes > TCPX_NOTE_BYTES)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: a note of %zu bytes, at most %d are possible",
                         call, access->note_bytes, TCPX_NOTE_BYTES);
    if (access->after != TCPX_AFTER_NOTHING && access->after != TCPX_AFTER_STREAM &&
        access->after != TCPX_AFTER_EVENT)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: after is %d: expected 0, 1 or 2", call,
                         (int)access->after);
    if (!session->accesses->allowed[THEIRS])
        return error_set(TCPX_INVALID_USAGE,
                         "%s: %s does not allow access to its windows (options.windows is 0 there)",
                         call, control_peer(session->control));
    return TCPX_SUCCESS;
}

static int calls_refuse_range(size_t index, const char *where, uint64_t offset, uint64_t bytes,
                              uint64_t size)
{
    return error_set(TCPX_INVALID_ARGUMENT,
                     "part %zu: %llu bytes at %llu are not in %s window of %llu bytes", index,
                     (unsigned long long)bytes, (unsigned long long)offset, where,
                     (unsigned long long)size);
}

static int calls_check_part(const struct tcpx_session *session, const struct tcpx_part *part,
                            size_t index, bool is_read)
{
    int needed = is_read ? TCPX_WINDOW_READ : TCPX_WINDOW_WRITE;

    if (part->window == NULL || part->remote == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "part %zu: its %s is NULL", index,
                         part->window == NULL ? "window" : "remote");
    if (part->remote->session != session)
        return error_set(TCPX_INVALID_ARGUMENT, "part %zu: its remote belongs to another session",
                         index);
    if (!range_inside(part->offset, part->bytes, part->window->bytes))
        return calls_refuse_range(index, "this side's", part->offset, part->bytes,
                                  part->window->bytes);
    if (!range_inside(part->remote_offset, part->bytes, part->remote->key.bytes))
        return calls_refuse_range(index, "the peer's", part->remote_offset, part->bytes,
                                  part->remote->key.bytes);
    if ((part->remote->key.access & needed) == 0)
        return error_set(TCPX_INVALID_USAGE, "part %zu: the peer's window cannot be %s", index,
                         is_read ? "read" : "written");
    return TCPX_SUCCESS;
}

/* --- making -------------------------------------------------------------------------------- */

static struct access *calls_create(struct tcpx_session *session, const struct tcpx_access *given,
                                   bool is_read)
{
    size_t count = given->part_count > 0 ? given->part_count : 1;
    struct access *access = calloc(1, sizeof *access);

    if (access == NULL)
        return NULL;
    access->session = session;
    access->is_read = is_read;
    access->has_note = given->note != NULL;
    access->note_bytes = (uint32_t)given->note_bytes;
    access->parts = calloc(count, sizeof *access->parts);
    access->items = calloc(count, sizeof *access->items);
    access->note = malloc(given->note_bytes > 0 ? given->note_bytes : 1);
    if (access->parts == NULL || access->items == NULL || access->note == NULL) {
        access_free(access);
        return NULL;
    }
    if (given->note_bytes > 0)
        memcpy(access->note, given->note, given->note_bytes);
    return access;
}

/* Parts that lie behind each other on both sides are one. */
static void calls_add_item(struct access *access, uint32_t remote, const struct tcpx_part *part)
{
    struct access_item *items = access->items;
    uint32_t count = access->item_count;

    if (count > 0 && items[count - 1].number == remote &&
        items[count - 1].offset + items[count - 1].bytes == part->remote_offset) {
        items[count - 1].bytes += part->bytes;
        return;
    }
    items[count] =
        (struct access_item){.number = remote, .offset = part->remote_offset, .bytes = part->bytes};
    access->item_count++;
}

/* With the lock. */
static int calls_add_part(struct access *access, const struct tcpx_part *part, size_t index,
                          int *gpu)
{
    struct tcpx_session *session = access->session;
    struct binding *binding;
    uint32_t remote;
    int result = calls_check_part(session, part, index, access->is_read);

    if (result == TCPX_SUCCESS && part->remote->is_closed)
        result = error_set(TCPX_INVALID_ARGUMENT, "part %zu: its remote was closed", index);
    if (result != TCPX_SUCCESS || part->bytes == 0)
        return result;
    if (access->part_count > 0 && part->window->gpu != *gpu)
        return error_set(TCPX_INVALID_USAGE,
                         "part %zu: windows in GPU memory and in host memory in one access", index);
    *gpu = part->window->gpu;
    result = bindings_use_window(session, part->window, &binding);
    if (result == TCPX_SUCCESS)
        result = bindings_hold(access, binding);
    if (result == TCPX_SUCCESS)
        result = bindings_hold_remote(access, part->remote, &remote);
    if (result != TCPX_SUCCESS)
        return result;
    access_add_part(access, part->window->address + part->offset, part->bytes);
    calls_add_item(access, remote, part);
    if (!checked_add(access->bytes, part->bytes, &access->bytes))
        return error_set(TCPX_INVALID_ARGUMENT, "the sum of %zu parts is too large", index + 1);
    return TCPX_SUCCESS;
}

/* With the lock. */
static int calls_add_parts(struct access *access, const struct tcpx_access *given)
{
    int gpu = -1;
    int result = TCPX_SUCCESS;

    for (size_t i = 0; i < given->part_count && result == TCPX_SUCCESS; i++)
        result = calls_add_part(access, &given->parts[i], i, &gpu);
    return result;
}

/* --- beginning ----------------------------------------------------------------------------- */

static bool calls_use_gpu(const struct tcpx_access *access)
{
    for (size_t i = 0; i < access->part_count; i++)
        if (access->parts[i].window != NULL && access->parts[i].window->gpu >= 0)
            return true;
    return false;
}

/* With the lock. On failure the access is the caller's. */
static int calls_begin_locked(struct access *access, const struct tcpx_access *given)
{
    struct tcpx_session *session = access->session;
    struct tcpx_transfer *transfer = access->transfer;
    int result = TCPX_SUCCESS;

    if (session->failure != TCPX_SUCCESS)
        result = error_set(session->failure, "%s", session->why);
    if (result == TCPX_SUCCESS)
        result = worker_start(session);
    if (result == TCPX_SUCCESS)
        result = calls_add_parts(access, given);
    if (result == TCPX_SUCCESS && given->after != TCPX_AFTER_NOTHING)
        result = transfer_order_after(transfer, given->after, given->after_what);
    if (result != TCPX_SUCCESS) {
        bindings_release(access);
        bindings_release_remotes(access);
        return result;
    }
    transfer->total = access->bytes;
    transfer->access = access;
    transfer_add(transfer);
    worker_watch_channels(session);
    result = accesses_start(access);
    if (result != TCPX_SUCCESS) /* of the session; the transfer ends with it */
        session_fail(session, result);
    if (result != TCPX_SUCCESS || session->worker == WORKER_THREAD || transfer->access != NULL)
        worker_wake(session);
    return TCPX_SUCCESS;
}

static int calls_begin_access(struct tcpx_session *session, const struct tcpx_access *given,
                              bool is_read, struct tcpx_transfer **out)
{
    struct access *access = NULL;
    struct tcpx_transfer *transfer;
    uint64_t deadline;
    int result = calls_check_access(session, given, out, is_read);

    if (result == TCPX_SUCCESS)
        result = config_deadline(given->timeout_ms == 0 ? TCPX_DEFAULT_TIMEOUT : given->timeout_ms,
                                 &deadline);
    if (result == TCPX_SUCCESS && calls_use_gpu(given))
        result = accesses_take_gpu_memory(session);
    if (result != TCPX_SUCCESS)
        return result;
    transfer = transfer_allocate(session, !is_read);
    if (transfer != NULL)
        access = calls_create(session, given, is_read);
    if (access == NULL) {
        if (transfer != NULL)
            transfer_free(transfer);
        return error_system(ENOMEM, "an access of %zu parts", given->part_count);
    }
    transfer->is_access = true;
    access->transfer = transfer;
    access->deadline = deadline;
    session_lock(session);
    result = calls_begin_locked(access, given);
    session_unlock(session);
    if (result == TCPX_SUCCESS) {
        *out = transfer;
        return TCPX_SUCCESS;
    }
    access_free(access);
    transfer_free(transfer);
    return result;
}

int tcpx_read(struct tcpx_session *session, const struct tcpx_access *access,
              struct tcpx_transfer **transfer)
{
    return calls_begin_access(session, access, true, transfer);
}

int tcpx_write(struct tcpx_session *session, const struct tcpx_access *access,
               struct tcpx_transfer **transfer)
{
    return calls_begin_access(session, access, false, transfer);
}

/* --- cancelling ---------------------------------------------------------------------------- */

int accesses_cancel_call(struct tcpx_transfer *transfer, bool *is_quiet)
{
    struct tcpx_session *session = transfer->session;
    bool moved = false;
    int result = TCPX_SUCCESS;

    session_lock(session);
    if (transfer->access != NULL && session->failure == TCPX_SUCCESS) {
        error_keep("a %s of %llu bytes was cancelled", transfer->sending ? "write" : "read",
                   (unsigned long long)transfer->total);
        result = accesses_cancel(transfer->access);
        if (result == TCPX_SUCCESS)
            result = accesses_step(session, &moved);
        if (result != TCPX_SUCCESS) /* the session's */
            session_fail(session, result);
        worker_wake(session);
    }
    *is_quiet = transfer->access == NULL || transfer->access->request == NULL;
    session_unlock(session);
    return TCPX_SUCCESS;
}
