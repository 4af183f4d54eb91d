/*
 * Windows in a session. This side binds a number to a window of the peer, by a proof that it has
 * the window's key; the key itself does not travel. A window of this process is used from the first
 * access of either side on, until it is being closed and quiet.
 */
#include "session/access.h"

#include "base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- proofs -------------------------------------------------------------------------------- */

enum { CONTEXT_BYTES = 2 * 16 + 12 };

/* What a proof is about: the session, who asks whom, the window and its number. */
static void binding_context(const struct accesses *accesses, int asking, uint64_t id,
                            uint32_t number, uint8_t context[CONTEXT_BYTES])
{
    const uint64_t wire_id = htole64(id);
    const uint32_t wire_number = htole32(number);

    memcpy(context, accesses->nonces[asking], 16);
    memcpy(context + 16, accesses->nonces[1 - asking], 16);
    memcpy(context + 32, &wire_id, sizeof wire_id);
    memcpy(context + 40, &wire_number, sizeof wire_number);
}

/* --- windows of this process --------------------------------------------------------------- */

/* With the lock of the table of windows: wakes the worker, which looks. */
static void binding_closing(struct window_use *use)
{
    struct binding *binding = (struct binding *)use;
    struct accesses *accesses = binding->session->accesses;

    atomic_store_explicit(&accesses->windows_close, true, memory_order_release);
    pthread_mutex_lock(&accesses->wake_lock);
    if (!accesses->is_gone)
        worker_wake(binding->session);
    pthread_mutex_unlock(&accesses->wake_lock);
}

static struct binding *binding_create(struct tcpx_session *session)
{
    struct binding *binding = calloc(1, sizeof *binding);

    if (binding != NULL) {
        binding->session = session;
        binding->use.closing = binding_closing;
    }
    return binding;
}

static void binding_destroy(struct binding *binding)
{
    window_use_end(&binding->use);
    free(binding);
}

static int binding_check_gpu(const struct tcpx_session *session, const struct tcpx_window *window)
{
    if (window->gpu < 0 || window->gpu == session->gpu_number)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_USAGE, "a window of GPU %d cannot be used in a session for %s",
                     window->gpu, session->gpu_number < 0 ? "host memory only" : "another GPU");
}

static struct binding **binding_row(struct accesses *accesses, const struct tcpx_window *window)
{
    return &accesses->rows[(window->id * 0x9e3779b97f4a7c15u >> 56) % BUCKETS];
}

int bindings_use_window(struct tcpx_session *session, struct tcpx_window *window,
                        struct binding **out)
{
    struct binding **row = binding_row(session->accesses, window);
    struct binding *binding = *row;
    int result;

    while (binding != NULL && binding->use.window != window)
        binding = binding->next;
    if (binding != NULL && window_is_closing(window))
        return error_set(TCPX_INVALID_USAGE, "the window is being closed");
    if (binding == NULL) {
        binding = binding_create(session);
        if (binding == NULL)
            return error_system(ENOMEM, "a window of a session");
        result = binding_check_gpu(session, window);
        if (result == TCPX_SUCCESS)
            result = window_use_begin(window, &binding->use);
        if (result != TCPX_SUCCESS) {
            binding_destroy(binding);
            return result;
        }
        binding->next = *row;
        *row = binding;
    }
    *out = binding;
    return TCPX_SUCCESS;
}

/* --- bindings of an access ----------------------------------------------------------------- */

/* For one more element. An array of `count` elements has room for the next power of 2. */
static void *array_make_room(void *array, uint32_t count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return array;
    return realloc(array, (count == 0 ? 1 : 2 * (size_t)count) * size);
}

int bindings_hold(struct access *access, struct binding *binding)
{
    struct binding **more;

    if (binding->seen_by == access)
        return TCPX_SUCCESS;
    more = array_make_room(access->bindings, access->binding_count, sizeof *more);
    if (more == NULL)
        return error_system(ENOMEM, "the windows of an access");
    access->bindings = more;
    binding->seen_by = access;
    binding->accesses++;
    access->bindings[access->binding_count++] = binding;
    return TCPX_SUCCESS;
}

static void binding_drop_if_unbound(struct binding *binding)
{
    if (binding->is_unbound && binding->accesses == 0)
        binding_destroy(binding);
}

void bindings_release(struct access *access)
{
    for (uint32_t i = 0; i < access->binding_count; i++) {
        struct binding *binding = access->bindings[i];

        if (binding->seen_by == access)
            binding->seen_by = NULL;
        binding->accesses--;
        binding_drop_if_unbound(binding);
    }
    access->binding_count = 0;
}

static bool binding_is_closing(const struct binding *binding)
{
    return binding->use.window != NULL && window_is_closing(binding->use.window);
}

/* Those of this side's accesses. */
static bool bindings_let_row_go(struct binding **at)
{
    bool all = true;

    while (*at != NULL) {
        struct binding *binding = *at;

        if (binding_is_closing(binding) && binding->accesses == 0) {
            *at = binding->next;
            binding_destroy(binding);
            continue;
        }
        all = all && !binding_is_closing(binding);
        at = &binding->next;
    }
    return all;
}

/* The number stays taken, for the peer may still name it. */
static bool binding_let_numbered_go(struct binding *binding)
{
    if (binding == NULL || !binding_is_closing(binding))
        return true;
    if (binding->accesses > 0)
        return false;
    window_use_end(&binding->use);
    snprintf(binding->refusal, sizeof binding->refusal, "the window was closed");
    return true;
}

bool bindings_let_go(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;
    bool all = true;

    for (unsigned i = 0; i < BUCKETS; i++)
        all = bindings_let_row_go(&accesses->rows[i]) && all;
    for (uint32_t i = 0; i < accesses->numbers; i++)
        all = binding_let_numbered_go(accesses->numbered[i]) && all;
    return all;
}

void bindings_free(struct tcpx_session *session)
{
    struct accesses *accesses = session->accesses;

    for (unsigned i = 0; i < BUCKETS; i++)
        while (accesses->rows[i] != NULL) {
            struct binding *binding = accesses->rows[i];

            accesses->rows[i] = binding->next;
            binding_destroy(binding);
        }
    for (uint32_t i = 0; i < accesses->numbers; i++)
        if (accesses->numbered[i] != NULL)
            binding_destroy(accesses->numbered[i]);
    free(accesses->numbered);
    free(accesses->free_numbers);
    while (accesses->remotes != NULL) {
        struct tcpx_remote *remote = accesses->remotes;

        accesses->remotes = remote->next;
        free(remote);
    }
}

/* --- windows of the peer, here ------------------------------------------------------------- */

void bindings_add_remote(struct tcpx_remote *remote)
{
    struct accesses *accesses = remote->session->accesses;

    remote->next = accesses->remotes;
    remote->here = &accesses->remotes;
    if (remote->next != NULL)
        remote->next->here = &remote->next;
    accesses->remotes = remote;
}

static int remote_take_number(struct tcpx_remote *remote)
{
    struct accesses *accesses = remote->session->accesses;

    if (accesses->free_number_count > 0)
        remote->number = accesses->free_numbers[--accesses->free_number_count];
    else if (accesses->next_number < MOST_NUMBERS)
        remote->number = accesses->next_number++;
    else
        return error_set(TCPX_INVALID_USAGE, "more than %d windows of one peer in use",
                         MOST_NUMBERS);
    remote->is_numbered = true;
    return TCPX_SUCCESS;
}

static void remote_give_number(struct accesses *accesses, uint32_t number)
{
    uint32_t *more =
        realloc(accesses->free_numbers, (accesses->free_number_count + 1) * sizeof *more);

    if (more == NULL)
        return; /* it is not used again */
    accesses->free_numbers = more;
    accesses->free_numbers[accesses->free_number_count++] = number;
}

int bindings_bind_remote(struct tcpx_remote *remote)
{
    struct tcpx_session *session = remote->session;
    struct access_bind bind = {.number = remote->number, .id = remote->key.id};
    uint8_t context[CONTEXT_BYTES];
    uint8_t bytes[ACCESS_BIND_BYTES];

    if (remote->is_bound)
        return TCPX_SUCCESS;
    binding_context(session->accesses, OURS, bind.id, bind.number, context);
    window_proof(remote->key.secret, context, sizeof context, bind.proof);
    access_bind_write(&bind, bytes);
    remote->is_bound = true;
    return control_send(session->control, ACCESS_BIND, bytes, sizeof bytes);
}

int bindings_hold_remote(struct access *access, struct tcpx_remote *remote, uint32_t *index)
{
    struct tcpx_remote **more;
    int result = remote->is_numbered ? TCPX_SUCCESS : remote_take_number(remote);

    if (result != TCPX_SUCCESS)
        return result;
    if (remote->seen_by != access) {
        more = array_make_room(access->remotes, access->remote_count, sizeof *more);
        if (more == NULL)
            return error_system(ENOMEM, "the remotes of an access");
        access->remotes = more;
        access->remotes[access->remote_count] = remote;
        remote->accesses++;
        remote->seen_by = access;
        remote->seen_as = access->remote_count++;
    }
    *index = remote->seen_as;
    return TCPX_SUCCESS;
}

void bindings_release_remotes(struct access *access)
{
    for (uint32_t i = 0; i < access->remote_count; i++) {
        struct tcpx_remote *remote = access->remotes[i];

        if (remote->seen_by == access)
            remote->seen_by = NULL;
        remote->accesses--;
        bindings_drop_remote(remote);
    }
    access->remote_count = 0;
}

void bindings_drop_remote(struct tcpx_remote *remote)
{
    struct accesses *accesses = remote->session->accesses;
    const uint64_t number = htole64(remote->number);

    if (!remote->is_closed || remote->accesses > 0)
        return;
    *remote->here = remote->next;
    if (remote->next != NULL)
        remote->next->here = remote->here;
    if (remote->is_bound && remote->session->failure == TCPX_SUCCESS &&
        control_send(remote->session->control, ACCESS_UNBIND, &number, sizeof number) !=
            TCPX_SUCCESS)
        log_debug("%s", error_text()); /* the peer still has the number: it is not used again */
    else if (remote->is_numbered)
        remote_give_number(accesses, remote->number);
    free(remote);
}

/* --- windows of this side, for the peer ---------------------------------------------------- */

static int numbered_make_room(struct accesses *accesses, uint32_t number)
{
    struct binding **more;

    if (number < accesses->numbers)
        return TCPX_SUCCESS;
    more = realloc(accesses->numbered, (number + (size_t)1) * 2 * sizeof *more);
    if (more == NULL)
        return error_system(ENOMEM, "the windows of a peer");
    memset(more + accesses->numbers, 0,
           ((number + (size_t)1) * 2 - accesses->numbers) * sizeof *more);
    accesses->numbered = more;
    accesses->numbers = (number + 1) * 2;
    return TCPX_SUCCESS;
}

/* A key that is refused is not the session's failure: the accesses with it are. */
static void binding_find(struct binding *binding, const struct access_bind *bind)
{
    uint8_t context[CONTEXT_BYTES];
    int result;

    binding_context(binding->session->accesses, THEIRS, bind->id, bind->number, context);
    result = window_find(bind->id, context, sizeof context, bind->proof, &binding->use);
    if (result == TCPX_SUCCESS)
        result = binding_check_gpu(binding->session, binding->use.window);
    if (result == TCPX_SUCCESS)
        return;
    snprintf(binding->refusal, sizeof binding->refusal, "%s", error_text());
    window_use_end(&binding->use);
}

int bindings_on_bind(struct tcpx_session *session, const uint8_t *bytes, size_t length)
{
    struct accesses *accesses = session->accesses;
    struct access_bind bind;
    int result = access_bind_read(bytes, length, &bind);

    if (result != TCPX_SUCCESS)
        return result;
    if (!accesses->allowed[OURS])
        return accesses_violation(session, "a window is bound in a session without windows");
    if (bind.number >= MOST_NUMBERS ||
        (bind.number < accesses->numbers && accesses->numbered[bind.number] != NULL))
        return accesses_violation(session, "window number %u, which is taken or not possible",
                                  bind.number);
    result = numbered_make_room(accesses, bind.number);
    if (result != TCPX_SUCCESS)
        return result;
    accesses->numbered[bind.number] = binding_create(session);
    if (accesses->numbered[bind.number] == NULL)
        return error_system(ENOMEM, "a window of a peer");
    binding_find(accesses->numbered[bind.number], &bind);
    return TCPX_SUCCESS;
}

struct binding *bindings_numbered(struct tcpx_session *session, uint32_t number)
{
    struct accesses *accesses = session->accesses;

    return number < accesses->numbers ? accesses->numbered[number] : NULL;
}

/* Bytes that the peer has may still be on their way out of the window, as far as is known here. */
int bindings_on_unbind(struct tcpx_session *session, uint64_t number)
{
    struct binding *binding =
        number < MOST_NUMBERS ? bindings_numbered(session, (uint32_t)number) : NULL;

    if (binding == NULL)
        return accesses_violation(session, "window number %llu, which stands for none, is given up",
                                  (unsigned long long)number);
    session->accesses->numbered[number] = NULL;
    binding->is_unbound = true;
    binding_drop_if_unbound(binding);
    return TCPX_SUCCESS;
}
