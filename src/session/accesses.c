/*
 * Reads and writes of this side: they wait for their turn, are told to the peer, and are over when
 * the bytes of a read are here, or when the peer has answered.
 */
#include "session/access.h"

#include "base/config.h"
#include "base/log.h"

#include <endian.h>
#include <string.h>

/* --- the end ------------------------------------------------------------------------------- */

static const char *access_name(const struct access *access)
{
    return access->is_read ? "read" : "write";
}

/* Both sides are done with it. */
static void access_is_over(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct accesses *accesses = session->accesses;
    int result = access->result;

    if (access->is_begun) {
        access_list_remove(&accesses->ours, access);
        access_id_remove(session, OURS, access);
        accesses->parts_held[OURS] -= access->item_count;
    } else {
        access_list_remove(&accesses->waiting, access);
    }
    if (accesses->listed == access)
        accesses->listed = NULL;
    bindings_release(access);
    bindings_release_remotes(access);
    if (result != TCPX_SUCCESS)
        error_keep("%s", access->why);
    access->transfer->access = NULL;
    transfer_end(access->transfer, result);
    access_free(access);
}

/* The list has to be sent whole: the peer waits for the rest of it. */
static void access_end_if_over(struct access *access)
{
    bool has_ended = access->is_read && access->has_arrived;

    if (access->request != NULL || access->session->accesses->listed == access)
        return;
    if (access->cancel_sent ? access->is_confirmed : has_ended || access->is_answered)
        access_is_over(access);
}

/* --- beginning ----------------------------------------------------------------------------- */

/* Only after all numbers have been used once: another read may have kept its number since then. */
static bool access_place_is_taken(const struct accesses *accesses, uint32_t place)
{
    if (accesses->next_id < NET_OPEN_PLACE)
        return false;
    for (const struct access *other = accesses->ours.first; other != NULL; other = other->next)
        if (other->place == place)
            return true;
    return false;
}

/* Where the bytes go. Both sides count the places of writes; those of reads are free when chosen.
 */
static uint32_t access_choose_place(struct access *access)
{
    struct accesses *accesses = access->session->accesses;
    uint32_t *next = &accesses->next_place[OURS][access->channel];
    uint32_t place;

    if (access->bytes == 0 || access->is_inline)
        return 0;
    if (!access->is_read) {
        *next = *next % (NET_OPEN_PLACE - 1) + 1;
        return *next;
    }
    do
        place = NET_OPEN_PLACE + (accesses->next_read++ & (NET_OPEN_PLACE - 1));
    while (access_place_is_taken(accesses, place));
    return place;
}

static struct net_comm *access_comm(const struct access *access)
{
    return session_channel(access->session, !access->is_read, access->channel)->builtin;
}

/* The channel was found to have room. */
static int access_post(struct access *access)
{
    const struct net_buffer buffer = access_buffer(access);
    int result;

    if (access->bytes == 0 || access->is_inline)
        return TCPX_SUCCESS;
    result = (access->is_read ? net_irecv_place : net_isend_place)(
        access_comm(access), &buffer, access->place, access, &access->request);
    if (result == TCPX_SUCCESS && access->request == NULL)
        result = error_set(TCPX_INTERNAL_ERROR, "no request for a %s", access_name(access));
    return result;
}

/* As many items as fit behind so many bytes of the message; returns how many bytes it has then. */
static size_t access_add_items(struct access *access, size_t bytes)
{
    uint8_t *message = access->session->accesses->message;

    while (access->items_sent < access->item_count &&
           bytes + ACCESS_ITEM_BYTES <= CONTROL_LARGEST) {
        access_item_write(&access->items[access->items_sent++], message + bytes);
        bytes += ACCESS_ITEM_BYTES;
    }
    return bytes;
}

/* Whether it is small, of host memory on both sides, and all of it fits into one message. */
static bool access_fits_inline(const struct access *access)
{
    size_t whole = ACCESS_HEAD_BYTES + access->note_bytes +
                   (size_t)access->item_count * ACCESS_ITEM_BYTES + access->bytes;

    if (access->bytes == 0 || access->bytes > access->session->accesses->inline_bytes ||
        whole > CONTROL_LARGEST || access->bindings[0]->use.window->gpu >= 0)
        return false;
    for (uint32_t i = 0; i < access->remote_count; i++)
        if (access->remotes[i]->key.on_gpu)
            return false;
    return true;
}

/*
 * The first message: the head, the note, and as many items as fit; with them the bytes of an inline
 * write, whose memory is quiet from then on.
 */
static int access_send_head(struct access *access)
{
    struct tcpx_session *session = access->session;
    const struct access_head head = {.id = access->id,
                                     .kind = access->is_read ? ACCESS_READ : ACCESS_WRITE,
                                     .has_note = access->has_note,
                                     .is_inline = access->is_inline,
                                     .channel = (uint16_t)access->channel,
                                     .place = access->place,
                                     .bytes = access->bytes,
                                     .items = access->item_count,
                                     .note_bytes = access->note_bytes};
    uint8_t *message = session->accesses->message;
    size_t bytes;

    access_head_write(&head, message);
    if (access->note_bytes > 0)
        memcpy(message + ACCESS_HEAD_BYTES, access->note, access->note_bytes);
    bytes = access_add_items(access, ACCESS_HEAD_BYTES + access->note_bytes);
    if (access->is_inline && !access->is_read) {
        access_gather(access, message + bytes);
        bytes += access->bytes;
        bindings_release(access);
    }
    return control_send(session->control, ACCESS_BEGIN, message, bytes);
}

static int access_send_more(struct access *access)
{
    size_t bytes = access_add_items(access, 0);

    return control_send(access->session->control, ACCESS_MORE, access->session->accesses->message,
                        bytes);
}

static int access_bind_remotes(struct access *access)
{
    int result = TCPX_SUCCESS;

    for (uint32_t i = 0; i < access->remote_count && result == TCPX_SUCCESS; i++)
        result = bindings_bind_remote(access->remotes[i]);
    for (uint32_t i = 0; i < access->item_count && result == TCPX_SUCCESS; i++)
        access->items[i].number = access->remotes[access->items[i].number]->number;
    return result;
}

/*
 * A read has its place here before the peer knows of it. The bytes of a write follow what is said
 * of it, so that they do not wait for that. A failure is the session's.
 */
static int access_begin(struct access *access)
{
    struct tcpx_session *session = access->session;
    struct accesses *accesses = session->accesses;
    int result;

    access_list_remove(&accesses->waiting, access);
    access->id = accesses->next_id++;
    access->place = access_choose_place(access);
    access->is_begun = true;
    access_list_add(&accesses->ours, access);
    access_id_add(session, OURS, access);
    accesses->parts_held[OURS] += access->item_count;
    if (access->has_note) {
        notes_charge(session, access->note_bytes);
        session->statistics.notes_sent++;
    }
    result = access_bind_remotes(access);
    if (result == TCPX_SUCCESS && access->is_read)
        result = access_post(access);
    if (result == TCPX_SUCCESS)
        result = access_send_head(access);
    if (result == TCPX_SUCCESS && access->items_sent < access->item_count)
        accesses->listed = access;
    return result == TCPX_SUCCESS && !access->is_read ? access_post(access) : result;
}

/* Whether any access can begin now. */
static bool accesses_have_room(const struct tcpx_session *session)
{
    const struct accesses *accesses = session->accesses;

    return accesses->listed == NULL && accesses->count[OURS] < MOST_ACCESSES &&
           control_unsent_bytes(session->control) < CONTROL_MOST_UNSENT / 4;
}

/* Whether this one can. A stream or event that fails is its failure. */
static int access_may_begin(struct access *access, bool *may)
{
    struct tcpx_session *session = access->session;
    const struct accesses *accesses = session->accesses;

    access->channel = (unsigned)(accesses->next_id % session->channels);
    *may = (accesses->parts_held[OURS] == 0 ||
            accesses->parts_held[OURS] + access->item_count <= MOST_PARTS_HELD) &&
           (!access->has_note || notes_have_room(session, access->note_bytes)) &&
           (access->is_inline || net_has_room(access_comm(access)));
    return *may ? transfer_is_ready(access->transfer, may) : TCPX_SUCCESS;
}

/* A failure is the session's. */
static int access_try_to_begin(struct access *access, bool *moved)
{
    bool may;
    int result = access_may_begin(access, &may);

    if (result != TCPX_SUCCESS || may)
        *moved = true;
    if (result == TCPX_SUCCESS)
        return may ? access_begin(access) : TCPX_SUCCESS;
    access_set_result(access, result);
    access_is_over(access);
    return TCPX_SUCCESS;
}

/* The rest of a list goes as fast as the peer reads. */
static int accesses_send_list(struct tcpx_session *session, bool *moved)
{
    struct accesses *accesses = session->accesses;
    struct access *access = accesses->listed;
    int result = TCPX_SUCCESS;

    while (result == TCPX_SUCCESS && access->items_sent < access->item_count &&
           control_unsent_bytes(session->control) < CONTROL_MOST_UNSENT / 4) {
        result = access_send_more(access);
        *moved = true;
    }
    if (result == TCPX_SUCCESS && access->items_sent == access->item_count) {
        accesses->listed = NULL;
        access_end_if_over(access);
    }
    return result;
}

/* One that waits for a stream or for room does not hold up the next ones, of a bounded number. */
int accesses_start_more(struct tcpx_session *session, bool *moved)
{
    struct accesses *accesses = session->accesses;
    struct access *access = accesses->waiting.first;
    int result = TCPX_SUCCESS;

    if (accesses->listed != NULL)
        result = accesses_send_list(session, moved);
    for (int tried = 0; result == TCPX_SUCCESS && access != NULL && tried < MOST_TRIED &&
                        accesses_have_room(session);
         tried++) {
        struct access *next = access->next;
        bool begun = false;

        result = access_try_to_begin(access, &begun);
        tried -= begun;
        if (begun)
            *moved = true;
        access = next;
    }
    return result;
}

/*
 * What a program begins in a loop goes to the peer together: where several accesses are under way
 * already, the worker sends the message, or the call that has queued enough.
 */
static bool access_goes_with_others(const struct tcpx_session *session)
{
    enum { FEW = 8, ENOUGH_BYTES = 4096 };

    return session->worker == WORKER_TASK && session->accesses->count[OURS] > FEW &&
           control_unsent_bytes(session->control) < ENOUGH_BYTES;
}

int accesses_start(struct access *access)
{
    struct tcpx_session *session = access->session;
    bool moved = false;
    int result;

    access->is_inline = access_fits_inline(access);
    access_expect_deadline(access);
    access_list_add(&session->accesses->waiting, access);
    control_hold(session->control, access_goes_with_others(session));
    result = accesses_start_more(session, &moved);
    control_hold(session->control, false);
    return result;
}

/* --- what happens to it -------------------------------------------------------------------- */

static int access_send_id(struct access *access, enum access_message type)
{
    const uint64_t id = htole64(access->id);

    return control_send(access->session->control, (uint8_t)type, &id, sizeof id);
}

/* A cancel that was sent is too late for the bytes, but the peer drops the note. */
static int access_has_arrived(struct access *access)
{
    access->has_arrived = true;
    if (access->cancel_sent && access->has_note)
        return TCPX_SUCCESS;
    access->result = TCPX_SUCCESS;
    return access->has_note ? access_send_id(access, ACCESS_FINISHED) : TCPX_SUCCESS;
}

/* Its memory here is not touched any more. */
int accesses_request_ended(struct access *access, int result)
{
    access->request = NULL;
    bindings_release(access);
    if (result != TCPX_SUCCESS && result != TCPX_CANCELLED)
        return result;
    if (access->is_read && result == TCPX_SUCCESS)
        result = access_has_arrived(access);
    else
        result = TCPX_SUCCESS;
    access_end_if_over(access);
    return result;
}

static int access_stop_request(struct access *access)
{
    if (access->is_stopped || access->request == NULL)
        return TCPX_SUCCESS;
    access->is_stopped = true;
    return net_cancel(access->request);
}

int accesses_on_answer(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct access_answer answer;
    struct access *access;
    int result = access_answer_read(bytes, length, &answer);

    if (result != TCPX_SUCCESS)
        return result;
    access = access_by_id(session, OURS, answer.id);
    if (access == NULL || access->is_answered || access->is_confirmed || access->has_data ||
        (access->is_read && access->bytes > 0 && answer.result == TCPX_SUCCESS))
        return accesses_violation(session, "an answer to access %llu, which it cannot be for",
                                  (unsigned long long)answer.id);
    access->is_answered = true;
    if (answer.result == TCPX_SUCCESS) {
        access->result = TCPX_SUCCESS; /* all of it is there, whatever was tried since */
    } else {
        access_set_result(access, error_set(answer.result, "%s refused a %s of %llu bytes: %s",
                                            control_peer(session->control), access_name(access),
                                            (unsigned long long)access->bytes, answer.text));
        result = access_stop_request(access);
    }
    if (result == TCPX_SUCCESS)
        access_end_if_over(access);
    return result;
}

/* --- giving up ----------------------------------------------------------------------------- */

int accesses_cancel(struct access *access)
{
    int result;

    if (access->cancel_sent || access->has_arrived)
        return TCPX_SUCCESS;
    if (access->is_answered) /* it is known how it ends, though the peer may have lied */
        return access_stop_request(access);
    access_set_result(access, TCPX_CANCELLED);
    if (!access->is_begun) {
        access_is_over(access);
        return TCPX_SUCCESS;
    }
    access->cancel_sent = true;
    if (access->is_inline)
        bindings_release(access);
    result = config_deadline(TCPX_DEFAULT_TIMEOUT, &access->deadline);
    access_expect_deadline(access);
    if (result == TCPX_SUCCESS)
        result = access_stop_request(access);
    return result == TCPX_SUCCESS ? access_send_id(access, ACCESS_CANCEL) : result;
}

/* Of a read that was cancelled the bytes are dropped: its memory is quiet already. */
static int access_take_data(struct access *access, const uint8_t *data)
{
    int result;

    access->has_data = true;
    if (access->cancel_sent)
        return TCPX_SUCCESS;
    access_scatter(access, data);
    bindings_release(access);
    result = access_has_arrived(access);
    if (result == TCPX_SUCCESS)
        access_end_if_over(access);
    return result;
}

int accesses_on_data(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct access_data data;
    struct access *access;
    int result = access_data_read(bytes, length, &data);

    if (result != TCPX_SUCCESS)
        return result;
    access = access_by_id(session, OURS, data.id);
    if (access == NULL || !access->is_inline || !access->is_read || access->has_data ||
        access->is_answered || access->is_confirmed || data.bytes != access->bytes)
        return accesses_violation(session,
                                  "%zu bytes for access %llu, which does not wait for them",
                                  data.bytes, (unsigned long long)data.id);
    return access_take_data(access, data.data);
}

int accesses_on_cancelled(struct tcpx_session *session, uint64_t id)
{
    struct access *access = access_by_id(session, OURS, id);

    if (access == NULL || !access->cancel_sent || access->is_confirmed)
        return accesses_violation(session, "access %llu was not cancelled", (unsigned long long)id);
    access->is_confirmed = true;
    access_end_if_over(access);
    return TCPX_SUCCESS;
}

static bool access_window_closes(const struct access *access)
{
    for (uint32_t i = 0; i < access->binding_count; i++)
        if (window_is_closing(access->bindings[i]->use.window))
            return true;
    return false;
}

/* A copy of the GPU may need its memory here for longer than the peer needs to confirm. */
static int access_check(struct access *access, bool windows_close, bool *moved)
{
    if (access->cancel_sent && !access->is_confirmed && deadline_passed(access->deadline))
        return error_set(TCPX_REMOTE_ERROR,
                         "the cancel of a %s of %llu bytes was not confirmed in time: the peer is "
                         "stopped or lost",
                         access_name(access), (unsigned long long)access->bytes);
    if (access->cancel_sent)
        return TCPX_SUCCESS;
    if (windows_close && access_window_closes(access))
        error_keep("a %s of %llu bytes was cancelled: its window was closed", access_name(access),
                   (unsigned long long)access->bytes);
    else if (deadline_passed(access->deadline))
        error_keep("a %s of %llu bytes was cancelled: it was not done in time", access_name(access),
                   (unsigned long long)access->bytes);
    else
        return TCPX_SUCCESS;
    *moved = true;
    return accesses_cancel(access);
}

int accesses_check(struct tcpx_session *session, bool windows_close, bool *moved)
{
    struct accesses *accesses = session->accesses;
    struct access_list *const lists[] = {&accesses->waiting, &accesses->ours};
    int result = TCPX_SUCCESS;

    accesses->first_deadline = UINT64_MAX;
    for (int i = 0; i < 2; i++)
        for (struct access *access = lists[i]->first, *next;
             access != NULL && result == TCPX_SUCCESS; access = next) {
            next = access->next;
            access_expect_deadline(access);
            result = access_check(access, windows_close, moved);
        }
    return result;
}

bool accesses_abandon(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;
    struct access_list *const lists[] = {&accesses->waiting, &accesses->ours};
    bool all = true;

    accesses->listed = NULL;
    for (int i = 0; i < 2; i++)
        for (struct access *access = lists[i]->first, *next; access != NULL; access = next) {
            next = access->next;
            if (access_stop_request(access) != TCPX_SUCCESS)
                log_debug("%s", error_text());
            if (access->request != NULL) {
                all = false;
                continue;
            }
            error_keep("%s; a %s of %llu bytes %s", session->why, access_name(access),
                       (unsigned long long)access->bytes,
                       access->is_begun ? "may have happened or not" : "had not begun");
            access_set_result(access, session->failure);
            access_is_over(access);
        }
    return all;
}
