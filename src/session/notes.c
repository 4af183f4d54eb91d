/*
 * Notes: short messages for the peer's program, by themselves or with an access. The sender keeps
 * within MOST_NOTES bytes that the peer's program has not taken, so that they need no memory beyond
 * that; the receiver says now and then how many have been taken.
 */
#include "session/access.h"

#include "base/fork.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- of this side -------------------------------------------------------------------------- */

bool notes_have_room(const struct tcpx_session *session, size_t bytes)
{
    const struct accesses *accesses = session->accesses;

    return accesses->notes_charged - accesses->notes_freed + bytes + NOTE_CHARGE <= MOST_NOTES;
}

void notes_charge(struct tcpx_session *session, size_t bytes)
{
    session->accesses->notes_charged += bytes + NOTE_CHARGE;
}

int notes_on_taken(struct tcpx_session *session, uint64_t sum)
{
    struct accesses *accesses = session->accesses;

    if (sum <= accesses->notes_freed || sum > accesses->notes_charged)
        return accesses_violation(
            session, "%llu bytes of notes taken after %llu, of %llu", (unsigned long long)sum,
            (unsigned long long)accesses->notes_freed, (unsigned long long)accesses->notes_charged);
    accesses->notes_freed = sum;
    if (accesses->notes_are_awaited)
        session_signal(session);
    accesses->notes_are_awaited = false;
    return TCPX_SUCCESS;
}

static int notes_check_call(const struct tcpx_session *session, const char *call)
{
    int result = fork_check();

    if (result != TCPX_SUCCESS)
        return result;
    if (session == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "%s: session is NULL", call);
    if (session->accesses == NULL)
        return error_set(TCPX_INVALID_USAGE, "%s: a session over a plugin has no notes", call);
    return TCPX_SUCCESS;
}

/* What the socket has not taken is sent later by the worker, which may be asleep. */
static void notes_send_rest(struct tcpx_session *session)
{
    if (control_has_unsent(session->control))
        worker_wake(session);
}

/* With the lock. */
static int notes_send(struct tcpx_session *session, const void *note, size_t bytes)
{
    int result;

    if (session->failure != TCPX_SUCCESS)
        return error_set(session->failure, "%s", session->why);
    session->accesses->notes_are_awaited = !notes_have_room(session, bytes);
    if (session->accesses->notes_are_awaited)
        return error_set(TCPX_IN_PROGRESS, "%s has not taken %llu bytes of notes: try again later",
                         control_peer(session->control),
                         (unsigned long long)(session->accesses->notes_charged -
                                              session->accesses->notes_freed));
    result = control_send(session->control, ACCESS_NOTE, note, bytes);
    if (result != TCPX_SUCCESS)
        return result;
    notes_send_rest(session);
    notes_charge(session, bytes);
    session->statistics.notes_sent++;
    return TCPX_SUCCESS;
}

int tcpx_note_send(struct tcpx_session *session, const void *note, size_t bytes)
{
    int result = notes_check_call(session, "tcpx_note_send");

    if (result != TCPX_SUCCESS)
        return result;
    if ((note == NULL && bytes > 0) || bytes > TCPX_NOTE_BYTES)
        return error_set(TCPX_INVALID_ARGUMENT, "a note of %zu bytes at %p: expected at most %d",
                         bytes, note, TCPX_NOTE_BYTES);
    session_lock(session);
    result = notes_send(session, note, bytes);
    session_unlock(session);
    return result;
}

/* --- of the peer --------------------------------------------------------------------------- */

int notes_expect(struct tcpx_session *session, size_t bytes)
{
    struct accesses *accesses = session->accesses;

    accesses->charged_here += bytes + NOTE_CHARGE;
    if (accesses->charged_here - accesses->taken_said > MOST_NOTES)
        return accesses_violation(session, "more than %d bytes of notes that are not taken",
                                  MOST_NOTES);
    return TCPX_SUCCESS;
}

/* A sender that waits for room is told when a quarter is free. */
int notes_drop(struct tcpx_session *session, size_t bytes)
{
    struct accesses *accesses = session->accesses;
    uint64_t sum;

    accesses->taken_here += bytes + NOTE_CHARGE;
    if (session->failure != TCPX_SUCCESS ||
        accesses->taken_here - accesses->taken_said < MOST_NOTES / 4)
        return TCPX_SUCCESS;
    accesses->taken_said = accesses->taken_here;
    sum = htole64(accesses->taken_said);
    return control_send(session->control, ACCESS_TAKEN, &sum, sizeof sum);
}

int notes_keep(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct accesses *accesses = session->accesses;
    struct note *note = malloc(sizeof *note + length);

    if (note == NULL)
        return error_system(ENOMEM, "a note");
    note->next = NULL;
    note->bytes = length;
    if (length > 0)
        memcpy(note->data, bytes, length);
    *accesses->last_note = note;
    accesses->last_note = &note->next;
    atomic_store(&session->note_is_due, true);
    session_signal(session);
    return TCPX_SUCCESS;
}

int notes_on_note(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    int result;

    if (length > TCPX_NOTE_BYTES)
        return accesses_violation(session, "a note of %zu bytes, at most %d are possible", length,
                                  TCPX_NOTE_BYTES);
    result = notes_expect(session, length);
    return result == TCPX_SUCCESS ? notes_keep(session, bytes, length) : result;
}

/* With the lock. Notes that had come before a failure are still handed out. */
static int notes_take(struct tcpx_session *session, void *out, size_t room, size_t *bytes,
                      int *there)
{
    struct accesses *accesses = session->accesses;
    struct note *note = accesses->first_note;
    int result;

    if (note == NULL && session->failure != TCPX_SUCCESS)
        return error_set(session->failure, "%s", session->why);
    if (note == NULL) {
        atomic_store(&session->note_is_due, false);
        *there = 0;
        return TCPX_SUCCESS;
    }
    if (note->bytes > room)
        return error_set(TCPX_INVALID_ARGUMENT,
                         "the next note has %zu bytes, and there is room for %zu", note->bytes,
                         room);
    if (note->bytes > 0)
        memcpy(out, note->data, note->bytes);
    *bytes = note->bytes;
    *there = 1;
    accesses->first_note = note->next;
    if (accesses->first_note == NULL)
        accesses->last_note = &accesses->first_note;
    free(note);
    session->statistics.notes_taken++;
    result = notes_drop(session, *bytes);
    if (result != TCPX_SUCCESS) /* the session's: the note is here */
        session_fail(session, result);
    notes_send_rest(session);
    return TCPX_SUCCESS;
}

int tcpx_note_take(struct tcpx_session *session, void *note, size_t room, size_t *bytes, int *there)
{
    int result = notes_check_call(session, "tcpx_note_take");

    if (result != TCPX_SUCCESS)
        return result;
    if ((note == NULL && room > 0) || bytes == NULL || there == NULL)
        return error_set(TCPX_INVALID_ARGUMENT, "tcpx_note_take: an argument is NULL");
    /* Without the lock, which programs that ask all the time would keep from others. */
    if (!atomic_load(&session->note_is_due)) {
        *there = 0;
        return TCPX_SUCCESS;
    }
    session_lock(session);
    result = notes_take(session, note, room, bytes, there);
    session_unlock(session);
    return result;
}

void notes_free(struct tcpx_session *session)
{
    while (session->accesses->first_note != NULL) {
        struct note *note = session->accesses->first_note;

        session->accesses->first_note = note->next;
        free(note);
    }
}
