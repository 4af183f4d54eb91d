/* All accesses of a session: their state, messages of the peer about them, and a step of them. */
#include "session/access.h"

#include "base/config.h"
#include "base/log.h"
#include "net/socket/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- life ------------------------------------------------------------------------------------ */

int accesses_create(struct tcpx_session *session)
{
    const struct config *config;
    struct accesses *accesses;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    accesses = calloc(1, sizeof *accesses);
    if (accesses == NULL)
        return error_system(ENOMEM, "the accesses of a session");
    pthread_mutex_init(&accesses->wake_lock, NULL);
    accesses->session = session;
    accesses->inline_bytes = config->inline_bytes;
    accesses->first_deadline = UINT64_MAX;
    accesses->last_note = &accesses->first_note;
    session->accesses = accesses;
    accesses->message = malloc(CONTROL_LARGEST);
    if (accesses->message == NULL)
        return error_system(ENOMEM, "the accesses of a session");
    return socket_random(accesses->nonces[OURS], sizeof accesses->nonces[OURS]);
}

/* One memory for each channel and direction. */
static int accesses_register_gpu(struct tcpx_session *session,
                                 struct net_memory *memory[2][MOST_CHANNELS])
{
    struct gpu_scope scope;
    int result = gpu_enter(session->gpu, &scope);

    if (result != TCPX_SUCCESS)
        return result;
    for (unsigned i = 0; i < 2 * session->channels && result == TCPX_SUCCESS; i++)
        result = net_register_gpu(session_channel(session, i % 2, i / 2)->builtin,
                                  session->gpu_number, &memory[i % 2][i / 2]);
    gpu_leave(session->gpu, &scope);
    return result;
}

/* Of two threads that come here at the same time one gives back what it has. */
int accesses_take_gpu_memory(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;
    struct net_memory *memory[2][MOST_CHANNELS] = {0};
    bool is_first = false;
    int result;

    if (session->gpu == NULL ||
        atomic_load_explicit(&accesses->takes_gpu_memory, memory_order_acquire))
        return TCPX_SUCCESS;
    result = accesses_register_gpu(session, memory);
    session_lock(session);
    if (result == TCPX_SUCCESS && !atomic_load(&accesses->takes_gpu_memory)) {
        memcpy(accesses->gpu_memory, memory, sizeof memory);
        atomic_store_explicit(&accesses->takes_gpu_memory, true, memory_order_release);
        is_first = true;
    }
    session_unlock(session);
    for (unsigned i = 0; i < 2 * session->channels && !is_first; i++)
        net_deregister(session_channel(session, i % 2, i / 2)->builtin, memory[i % 2][i / 2]);
    return result;
}

void accesses_stop(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;

    if (accesses == NULL)
        return;
    pthread_mutex_lock(&accesses->wake_lock);
    accesses->is_gone = true;
    pthread_mutex_unlock(&accesses->wake_lock);
}

static void access_list_free(struct access_list *list)
{
    while (list->first != NULL) {
        struct access *access = list->first;

        access_list_remove(list, access);
        bindings_release(access);
        access_free(access);
    }
}

void accesses_free(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;

    if (accesses == NULL)
        return;
    if (accesses->assembled != NULL) {
        bindings_release(accesses->assembled);
        access_free(accesses->assembled);
    }
    access_list_free(&accesses->waiting);
    access_list_free(&accesses->ours);
    access_list_free(&accesses->pending);
    access_list_free(&accesses->theirs);
    bindings_free(session);
    notes_free(session);
    pthread_mutex_destroy(&accesses->wake_lock);
    free(accesses->message);
    free(accesses);
    session->accesses = NULL;
}

/* --- messages -------------------------------------------------------------------------------- */

bool accesses_is_message(const struct tcpx_session *session, uint8_t type)
{
    return session->accesses != NULL && type >= ACCESS_BIND && type <= ACCESS_DATA;
}

static int accesses_on_number(struct tcpx_session *session, enum access_message type,
                              const uint8_t *bytes, size_t length)
{
    uint64_t number;
    int result = access_number_read(bytes, length, &number);

    if (result != TCPX_SUCCESS)
        return result;
    switch (type) {
    case ACCESS_UNBIND:
        return bindings_on_unbind(session, number);
    case ACCESS_FINISHED:
        return serve_on_finished(session, number);
    case ACCESS_CANCEL:
        return serve_on_cancel(session, number);
    case ACCESS_CANCELLED:
        return accesses_on_cancelled(session, number);
    default: /* ACCESS_TAKEN */
        return notes_on_taken(session, number);
    }
}

int accesses_on_message(struct tcpx_session *session, uint8_t type, const uint8_t *bytes,
                        size_t length)
{
    switch ((enum access_message)type) {
    case ACCESS_BIND:
        return bindings_on_bind(session, bytes, length);
    case ACCESS_BEGIN:
        return serve_on_access(session, bytes, length);
    case ACCESS_MORE:
        return serve_on_more(session, bytes, length);
    case ACCESS_ANSWER:
        return accesses_on_answer(session, bytes, length);
    case ACCESS_NOTE:
        return notes_on_note(session, bytes, length);
    case ACCESS_DATA:
        return accesses_on_data(session, bytes, length);
    default:
        return accesses_on_number(session, (enum access_message)type, bytes, length);
    }
}

/* --- a step ---------------------------------------------------------------------------------- */

static int access_request_ended(struct access *access)
{
    bool done;
    int result = net_test(access->request, &done, NULL);

    if (result == TCPX_SUCCESS && !done)
        return error_set(TCPX_INTERNAL_ERROR, "an access was reported as ended, and has not ended");
    return access->transfer != NULL ? accesses_request_ended(access, result)
                                    : serve_request_ended(access, result);
}

/* Those whose requests have ended in the channels. */
static int accesses_take_ended(struct tcpx_session *session, bool *moved)
{
    const struct accesses *accesses = session->accesses;
    int result = TCPX_SUCCESS;

    if (accesses->count[OURS] + accesses->count[THEIRS] == 0 && session->has_io_threads)
        return TCPX_SUCCESS;
    for (unsigned i = 0; i < 2 * session->channels; i++) {
        struct net_comm *comm = session_channel(session, i % 2, i / 2)->builtin;
        struct access *access;

        while (result == TCPX_SUCCESS && (access = net_next_ended(comm)) != NULL) {
            result = access_request_ended(access);
            *moved = true;
        }
    }
    return result;
}

/* The flag is set again where a window is not quiet yet. */
static int accesses_close_windows(struct tcpx_session *session, bool *moved)
{
    struct accesses *accesses = session->accesses;
    int result = serve_stop_closing(session);

    if (result == TCPX_SUCCESS)
        result = accesses_check(session, true, moved);
    if (result == TCPX_SUCCESS)
        result = accesses_take_ended(session, moved);
    if (!bindings_let_go(session))
        atomic_store_explicit(&accesses->windows_close, true, memory_order_relaxed);
    return result;
}

static int accesses_check_deadlines(struct tcpx_session *session, bool *moved)
{
    const uint64_t pause_ns = 5000000;
    uint64_t now = clock_now();

    if (now < session->accesses->next_check || now < session->accesses->first_deadline)
        return TCPX_SUCCESS;
    session->accesses->next_check = now + pause_ns;
    return accesses_check(session, false, moved);
}

int accesses_step(struct tcpx_session *session, bool *moved)
{
    struct accesses *accesses = session->accesses;
    int result;

    if (accesses == NULL)
        return TCPX_SUCCESS;
    result = accesses_take_ended(session, moved);
    if (result == TCPX_SUCCESS &&
        atomic_exchange_explicit(&accesses->windows_close, false, memory_order_acquire))
        result = accesses_close_windows(session, moved);
    if (result == TCPX_SUCCESS)
        result = serve_start_pending(session, moved);
    if (result == TCPX_SUCCESS)
        result = accesses_check_deadlines(session, moved);
    return result == TCPX_SUCCESS ? accesses_start_more(session, moved) : result;
}

bool accesses_step_failed(struct tcpx_session *session)
{
    bool all;
    bool moved = false;

    if (session->accesses == NULL)
        return true;
    /* Failures of single requests are the session's, which has one. */
    while (accesses_take_ended(session, &moved) != TCPX_SUCCESS)
        log_debug("%s", error_text());
    all = accesses_abandon(session);
    all = serve_abandon(session) && all;
    bindings_let_go(session);
    return all;
}

/* What was copied when an access ended, and that another one was refused, has to be sent. */
static bool accesses_have_unsent(const struct tcpx_session *session)
{
    bool have_unsent = false;

    for (unsigned i = 0; i < session->channels; i++)
        have_unsent =
            have_unsent || net_has_unsent(session->directions[SENDING].lanes[i].channel.builtin);
    return have_unsent;
}

bool accesses_are_underway(const struct tcpx_session *session)
{
    const struct accesses *accesses = session->accesses;

    return accesses != NULL &&
           (accesses->waiting.first != NULL || accesses->count[OURS] > 0 ||
            accesses->pending.first != NULL || atomic_load(&accesses->windows_close) ||
            (!session->has_io_threads &&
             (accesses->count[THEIRS] > 0 || accesses_have_unsent(session))));
}

bool accesses_wait_for_gpu(const struct tcpx_session *session)
{
    const struct access *access =
        session->accesses != NULL ? session->accesses->waiting.first : NULL;

    for (int i = 0; i < MOST_TRIED && access != NULL; i++, access = access->next)
        if (access->transfer->after != NULL)
            return true;
    return false;
}
