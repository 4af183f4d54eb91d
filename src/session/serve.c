/*
 * Reads and writes of the peer in windows of this process. An access begins when its whole list is
 * here and every part of it was found to be allowed. One that is refused gets its place, too: that
 * of a write discards the bytes, which are on their way; that of a read tells the peer that none
 * come. An inline access has no place: it is over when its message was read, or its answer sent.
 */
#include "session/access.h"

#include "base/checked.h"
#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the end ------------------------------------------------------------------------------- */

static int serve_say_cancelled(struct tcpx_session *session, uint64_t id)
{
    const uint64_t wire = htole64(id);

    return control_send(session->control, ACCESS_CANCELLED, &wire, sizeof wire);
}

static int serve_answer(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct access_answer answer = {.id = access->id, .result = access->result};
    uint8_t bytes[ACCESS_ANSWER_BYTES];
    size_t length;

    /* Results that a peer is not told: its own cancel has an answer of its own. */
    if (answer.result > TCPX_REMOTE_ERROR)
        answer.result = TCPX_REMOTE_ERROR;
    snprintf(answer.text, sizeof answer.text, "%.*s", (int)sizeof answer.text - 1, access->why);
    length = access_answer_write(&answer, bytes);
    return control_send(session->control, ACCESS_ANSWER, bytes, length);
}

static int serve_hand_out_note(struct access *access, bool is_done)
{
    if (!access->has_note)
        return TCPX_SUCCESS;
    return is_done ? notes_keep(access->session, access->note, access->note_bytes)
                   : notes_drop(access->session, access->note_bytes);
}

static void serve_count(const struct access *access)
{
    struct tcpx_session_statistics *statistics = &access->session->statistics;

    if (access->result != TCPX_SUCCESS) {
        statistics->served_refusals++;
        return;
    }
    *(access->is_read ? &statistics->served_reads : &statistics->served_writes) += 1;
    statistics->served_bytes += access->bytes;
}

static void serve_forget(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct accesses *accesses = session->accesses;

    if (access == accesses->assembled)
        accesses->assembled = NULL;
    else
        access_list_remove(access->has_begun ? &accesses->theirs : &accesses->pending, access);
    access_id_remove(session, THEIRS, access);
    accesses->parts_held[THEIRS] -= access->items_read;
    bindings_release(access);
    access_free(access);
}

/*
 * A write says that it is done, a read only that it is not. A peer that has cancelled it needs to
 * know that a write is done all the same, and what it waits for.
 */
static int serve_finish(struct access *access)
{
    bool is_done = access->result == TCPX_SUCCESS;
    bool says_done = !access->is_read || access->bytes == 0;
    int result = TCPX_SUCCESS;

    serve_count(access);
    if (is_done ? says_done : !access->peer_cancelled)
        result = serve_answer(access);
    if (result == TCPX_SUCCESS && access->peer_cancelled)
        result = serve_say_cancelled(access->session, access->id);
    if (result == TCPX_SUCCESS)
        result = serve_hand_out_note(access, is_done);
    serve_forget(access);
    return result;
}

/* A read with a note is over when the peer has its bytes. */
static int serve_end_if_over(struct access *access)
{
    bool waits = access->is_read && access->has_note && access->bytes > 0 &&
                 access->result == TCPX_SUCCESS && !access->peer_finished &&
                 !access->peer_cancelled;

    return access->request != NULL || waits ? TCPX_SUCCESS : serve_finish(access);
}

/* --- a list that comes ----------------------------------------------------------------------- */

/* The first reason counts. Of a list that is still coming the rest is only read over. */
static void serve_refuse(struct access *access, const char *why)
{
    access_set_result(access, error_set(TCPX_INVALID_USAGE, "%s", why));
    if (!access->has_begun)
        bindings_release(access);
}

static void serve_refuse_range(struct access *access, const struct access_item *item,
                               const struct tcpx_window *window)
{
    char why[120];

    snprintf(why, sizeof why, "%llu bytes at %llu are not in a window of %llu bytes",
             (unsigned long long)item->bytes, (unsigned long long)item->offset,
             (unsigned long long)window->bytes);
    serve_refuse(access, why);
}

static void serve_check_item(struct access *access, const struct access_item *item,
                             struct binding *binding)
{
    const struct tcpx_window *window = binding != NULL ? binding->use.window : NULL;
    int needed = access->is_read ? TCPX_WINDOW_READ : TCPX_WINDOW_WRITE;

    if (window == NULL)
        serve_refuse(access, binding != NULL ? binding->refusal : "no such window");
    else if (window_is_closing(window))
        serve_refuse(access, "the window was closed");
    else if ((window->access & needed) == 0)
        serve_refuse(access, access->is_read ? "the window cannot be read"
                                             : "the window cannot be written");
    else if (!range_inside(item->offset, item->bytes, window->bytes))
        serve_refuse_range(access, item, window);
    else if (access->is_inline && window->gpu >= 0)
        serve_refuse(access, "an inline access of GPU memory");
    else if (access->binding_count > 0 && access->bindings[0]->use.window->gpu != window->gpu)
        serve_refuse(access, "windows in GPU memory and in host memory in one access");
}

/* The sum is what tells whether an access is what it says. */
static int serve_take_item(struct access *access, const uint8_t *bytes)
{
    struct tcpx_session *session = access->session;
    struct access_item item;
    struct binding *binding;
    int result = access_item_read(bytes, &item);

    if (result != TCPX_SUCCESS)
        return result;
    if (!checked_add(access->listed_bytes, item.bytes, &access->listed_bytes) ||
        access->listed_bytes > access->bytes)
        return accesses_violation(session, "the parts of access %llu have more bytes than it",
                                  (unsigned long long)access->id);
    binding = bindings_numbered(session, item.number);
    if (access->result == TCPX_SUCCESS)
        serve_check_item(access, &item, binding);
    if (access->result != TCPX_SUCCESS || item.bytes == 0)
        return TCPX_SUCCESS;
    result = bindings_hold(access, binding);
    if (result == TCPX_SUCCESS)
        access_add_part(access, binding->use.window->address + item.offset, item.bytes);
    return result;
}

/* It needs no turn: its data lie in the message that is being read. */
static int serve_take_data(struct access *access)
{
    if (access->result == TCPX_SUCCESS)
        access_scatter(access, access->data);
    return serve_finish(access);
}

static int serve_list_is_whole(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct accesses *accesses = session->accesses;
    bool moved = false;

    if (access->listed_bytes != access->bytes)
        return accesses_violation(session, "the parts of access %llu have fewer bytes than it",
                                  (unsigned long long)access->id);
    if (access->is_inline && !access->is_read)
        return serve_take_data(access);
    accesses->assembled = NULL;
    access_list_add(&accesses->pending, access);
    return serve_start_pending(session, &moved);
}

static int serve_take_items(struct access *access, const uint8_t *items, size_t count)
{
    int result = TCPX_SUCCESS;

    if (count > access->item_count - access->items_read)
        return accesses_violation(access->session, "more parts than access %llu has",
                                  (unsigned long long)access->id);
    access->items_read += (uint32_t)count;
    access->session->accesses->parts_held[THEIRS] += count;
    for (size_t i = 0; i < count && result == TCPX_SUCCESS; i++)
        result = serve_take_item(access, items + i * ACCESS_ITEM_BYTES);
    if (result == TCPX_SUCCESS && access->items_read == access->item_count)
        result = serve_list_is_whole(access);
    return result;
}

static int serve_check_head(struct tcpx_session *session, const struct access_head *head)
{
    const struct accesses *accesses = session->accesses;
    const uint32_t *next = accesses->next_place[THEIRS];
    bool is_read = head->kind == ACCESS_READ;

    if (!accesses->allowed[OURS])
        return accesses_violation(session, "an access in a session without windows");
    if (accesses->assembled != NULL || head->id != accesses->next_served)
        return accesses_violation(session, "access %llu where access %llu is expected",
                                  (unsigned long long)head->id,
                                  (unsigned long long)accesses->next_served);
    /* The reader of a place can know of its end before its sender does: thus twice as many. */
    if (accesses->count[THEIRS] >= 2 * MOST_ACCESSES ||
        (accesses->parts_held[THEIRS] > 0 &&
         accesses->parts_held[THEIRS] + head->items > (uint64_t)2 * MOST_PARTS_HELD))
        return accesses_violation(session, "more than %d accesses or %d parts of them",
                                  2 * MOST_ACCESSES, 2 * MOST_PARTS_HELD);
    if (head->channel >= session->channels ||
        (head->bytes > 0 && !head->is_inline &&
         (is_read ? head->place < NET_OPEN_PLACE
                  : head->place != next[head->channel] % (NET_OPEN_PLACE - 1) + 1)))
        return accesses_violation(session, "place %u of channel %u for a %s", head->place,
                                  head->channel, is_read ? "read" : "write");
    return TCPX_SUCCESS;
}

static struct access *serve_create(struct tcpx_session *session, const struct access_head *head,
                                   const uint8_t *note)
{
    struct access *access = calloc(1, sizeof *access);

    if (access == NULL)
        return NULL;
    *access = (struct access){.session = session,
                              .id = head->id,
                              .is_read = head->kind == ACCESS_READ,
                              .channel = head->channel,
                              .place = head->place,
                              .bytes = head->bytes,
                              .item_count = head->items,
                              .has_note = head->has_note,
                              .is_inline = head->is_inline,
                              .note_bytes = head->note_bytes};
    access->parts = calloc(head->items > 0 ? head->items : 1, sizeof *access->parts);
    access->note = malloc(head->note_bytes > 0 ? head->note_bytes : 1);
    if (access->parts == NULL || access->note == NULL) {
        access_free(access);
        return NULL;
    }
    memcpy(access->note, note, head->note_bytes);
    return access;
}

int serve_on_access(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct accesses *accesses = session->accesses;
    struct access_head head;
    const uint8_t *note;
    const uint8_t *items;
    size_t count;
    struct access *access;
    int result = access_head_read(bytes, length, &head, &note, &items, &count);

    if (result == TCPX_SUCCESS)
        result = serve_check_head(session, &head);
    if (result == TCPX_SUCCESS && head.has_note)
        result = notes_expect(session, head.note_bytes);
    if (result != TCPX_SUCCESS)
        return result;
    access = serve_create(session, &head, note);
    if (access == NULL)
        return error_system(ENOMEM, "an access of %s with %u parts", control_peer(session->control),
                            head.items);
    worker_watch_channels(session);
    accesses->next_served++;
    if (!access->is_read && access->place != 0)
        accesses->next_place[THEIRS][access->channel] = access->place;
    access_id_add(session, THEIRS, access);
    accesses->assembled = access;
    access->data = access->is_inline ? items + count * ACCESS_ITEM_BYTES : NULL;
    return serve_take_items(access, items, count);
}

int serve_on_more(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct access *access = session->accesses->assembled;

    if (access == NULL || length == 0 || length % ACCESS_ITEM_BYTES != 0)
        return accesses_violation(session, "%zu bytes of parts that no access waits for", length);
    return serve_take_items(access, bytes, length / ACCESS_ITEM_BYTES);
}

/* --- beginning ------------------------------------------------------------------------------- */

/* The data of a read, unless the peer does not read the answers that it has. */
static int serve_send_data(struct access *access, bool *sent)
{
    struct tcpx_session *session = access->session;
    uint8_t *message = session->accesses->message;
    const uint64_t id = htole64(access->id);

    *sent = control_unsent_bytes(session->control) < CONTROL_MOST_UNSENT / 4;
    if (!*sent)
        return TCPX_SUCCESS;
    memcpy(message, &id, sizeof id);
    access_gather(access, message + ACCESS_DATA_HEAD_BYTES);
    bindings_release(access);
    return control_send(session->control, ACCESS_DATA, message,
                        ACCESS_DATA_HEAD_BYTES + access->bytes);
}

/* Gives it a place. Without memory that discards what comes, or ends the peer's. */
static int serve_post(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct net_comm *comm = session_channel(session, access->is_read, access->channel)->builtin;
    struct net_buffer buffer = {.bytes = access->bytes};

    if (access->result == TCPX_SUCCESS)
        buffer = access_buffer(access);
    else
        access->is_stopped = true;
    return (access->is_read ? net_isend_place : net_irecv_place)(comm, &buffer, access->place,
                                                                 access, &access->request);
}

/* *begun: it was not put off. */
static int serve_move(struct access *access, bool *begun)
{
    int result;

    *begun = true;
    if (access->is_inline)
        return access->is_read && access->result == TCPX_SUCCESS ? serve_send_data(access, begun)
                                                                 : TCPX_SUCCESS;
    if (access->bytes == 0)
        return TCPX_SUCCESS;
    result = serve_post(access);
    *begun = access->request != NULL;
    return result;
}

static int serve_begin(struct access *access)
{
    struct accesses *accesses = access->session->accesses;
    bool begun;
    int result = serve_move(access, &begun);

    if (result != TCPX_SUCCESS || !begun)
        return result;
    access_list_remove(&accesses->pending, access);
    access_list_add(&accesses->theirs, access);
    access->has_begun = true;
    if (access->request == NULL || access->is_stopped)
        bindings_release(access);
    return serve_end_if_over(access);
}

/* Writes have to get their places in order, so that one that waits holds up those behind it. */
int serve_start_pending(struct tcpx_session *session, bool *moved)
{
    struct accesses *accesses = session->accesses;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && accesses->pending.first != NULL) {
        struct access *first = accesses->pending.first;

        result = serve_begin(first);
        if (accesses->pending.first == first)
            return result;
        *moved = true;
    }
    return result;
}

/* --- what happens to it ---------------------------------------------------------------------- */

int serve_request_ended(struct access *access, int result)
{
    access->request = NULL;
    bindings_release(access);
    if (result != TCPX_SUCCESS && result != TCPX_CANCELLED)
        return result;
    /*
     * The sender of a write has stopped, and its CANCEL is on its way; or this side has. All bytes
     * of a read that were sent do not help a peer that has stopped reading.
     */
    if (result == TCPX_CANCELLED)
        access_set_result(access, result);
    else if (!access->is_read || !access->peer_cancelled)
        access->result = TCPX_SUCCESS;
    return serve_end_if_over(access);
}

int serve_on_finished(struct tcpx_session *session, uint64_t id)
{
    struct access *access = access_by_id(session, THEIRS, id);
    int result;

    if (access == NULL || !access->is_read || !access->has_note || access->peer_finished ||
        access == session->accesses->assembled)
        return accesses_violation(session, "access %llu has no end to be told of",
                                  (unsigned long long)id);
    access->peer_finished = true;
    result = serve_hand_out_note(access, true);
    access->has_note = false;
    return result == TCPX_SUCCESS ? serve_end_if_over(access) : result;
}

static int serve_stop(struct access *access)
{
    if (access->is_stopped || access->request == NULL)
        return TCPX_SUCCESS;
    access->is_stopped = true;
    return net_cancel(access->request);
}

/* One that is over here is cancelled as well. */
int serve_on_cancel(struct tcpx_session *session, uint64_t id)
{
    struct access *access = access_by_id(session, THEIRS, id);
    int result;

    if (id >= session->accesses->next_served || (access != NULL && access->peer_cancelled))
        return accesses_violation(session, "a cancel of access %llu, which is none",
                                  (unsigned long long)id);
    if (access == NULL)
        return serve_say_cancelled(session, id);
    access->peer_cancelled = true;
    access_set_result(access, error_set(TCPX_CANCELLED, "the peer has cancelled it"));
    if (!access->has_begun) {
        bindings_release(access);
        return TCPX_SUCCESS;
    }
    result = serve_stop(access);
    return result == TCPX_SUCCESS ? serve_end_if_over(access) : result;
}

static bool serve_window_closes(const struct access *access)
{
    for (uint32_t i = 0; i < access->binding_count; i++)
        if (window_is_closing(access->bindings[i]->use.window))
            return true;
    return false;
}

int serve_stop_closing(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;
    struct access_list *const lists[] = {&accesses->theirs, &accesses->pending};
    int result = TCPX_SUCCESS;

    if (accesses->assembled != NULL && serve_window_closes(accesses->assembled))
        serve_refuse(accesses->assembled, "the window was closed");
    for (int i = 0; i < 2; i++)
        for (struct access *access = lists[i]->first; access != NULL && result == TCPX_SUCCESS;
             access = access->next) {
            if (!serve_window_closes(access))
                continue;
            serve_refuse(access, "the window was closed");
            if (access->has_begun)
                result = serve_stop(access);
        }
    return result;
}

bool serve_abandon(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;
    bool all = true;

    if (accesses->assembled != NULL)
        serve_forget(accesses->assembled);
    while (accesses->pending.first != NULL)
        serve_forget(accesses->pending.first);
    for (struct access *access = accesses->theirs.first, *next; access != NULL; access = next) {
        next = access->next;
        if (serve_stop(access) != TCPX_SUCCESS)
            log_debug("%s", error_text());
        if (access->request == NULL)
            serve_forget(access);
        else
            all = false;
    }
    return all;
}
