/* Transfers that were begun, and all that must stay alive until they have ended. */
#include "python/src/record.h"

#include "base/clock.h"
#include "python/src/errors.h"
#include "python/src/patience.h"
#include "python/src/session.h"

/* --- life ------------------------------------------------------------------------------------ */

struct record *record_new(void)
{
    struct record *record = PyMem_Calloc(1, sizeof *record);

    if (record == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    record->references = 1;
    record->memory.gpu = -1;
    return record;
}

void record_hold(struct record *record)
{
    record->references++;
}

void record_drop(struct record *record)
{
    if (--record->references > 0)
        return;
    memory_give(&record->memory);
    Py_XDECREF(record->kept);
    Py_XDECREF(record->waiters);
    free(record->why);
    PyMem_Free(record);
}

void record_list(struct session *session, struct record *record)
{
    record_hold(record);
    record->is_listed = true;
    record->next = session->records;
    record->here = &session->records;
    if (record->next != NULL)
        record->next->here = &record->next;
    session->records = record;
    session->record_count++;
}

static void record_unlist(struct session *session, struct record *record)
{
    if (!record->is_listed)
        return;
    record->is_listed = false;
    *record->here = record->next;
    if (record->next != NULL)
        record->next->here = record->here;
    session->record_count--;
    record_drop(record);
}

/* --- asking ---------------------------------------------------------------------------------- */

void record_begin(struct record *record)
{
    record_hold(record);
    record->is_busy = true;
}

/*
 * The memory of a send or a receive that has failed may be the network's until the session is
 * closed. That of a cancelled one is not, and neither is that of accesses.
 */
static bool record_keeps_memory(const struct record *record)
{
    return !record->is_access && record->result != TCPX_SUCCESS && record->result != TCPX_CANCELLED;
}

/* It has ended. Objects that are released here may run any code. */
static void record_settle(struct session *session, struct record *record)
{
    PyObject *kept = record->kept;

    record->kept = NULL;
    Py_XDECREF(kept);
    if (record_keeps_memory(record) && session->handle != NULL)
        return;
    memory_give(&record->memory);
    if (record->waiters == NULL)
        record_unlist(session, record);
}

void record_end(struct session *session, struct record *record)
{
    record->is_busy = false;
    if (record->has_ended)
        record->transfer = NULL;
    patience_changed();
    if (record->transfer == NULL)
        record_settle(session, record);
    if (record->transfer == NULL && record->waiters != NULL)
        session_wake(session);
    record_drop(record);
}

void record_note(struct session *session, struct record *record, int result, bool is_done)
{
    if (result == TCPX_IN_PROGRESS || (result == TCPX_SUCCESS && !is_done))
        return;
    record->result = result;
    if (result != TCPX_SUCCESS)
        record->why = strdup(tcpx_last_error());
    record->has_ended = true;
    if (record->registered != NULL && !record_keeps_memory(record) &&
        tcpx_session_deregister(session->handle, record->registered) == TCPX_SUCCESS)
        record->registered = NULL;
}

static void record_test(struct session *session, struct record *record)
{
    int done = 0;
    int result = tcpx_transfer_test(record->transfer, &done);

    record_note(session, record, result, done != 0);
}

typedef bool record_check(const struct record *record);

/*
 * Those that are chosen, held, as an array: what is let go of may run any code, which may change
 * the list. NULL: no memory.
 */
static struct record **records_choose(struct session *session, record_check *is_chosen,
                                      size_t *count)
{
    struct record **all = PyMem_Calloc(session->record_count + 1, sizeof *all);

    *count = 0;
    for (struct record *at = session->records; at != NULL && all != NULL; at = at->next)
        if (is_chosen(at)) {
            record_hold(at);
            all[(*count)++] = at;
        }
    return all;
}

static bool can_be_asked(const struct record *record)
{
    return record->transfer != NULL && !record->is_busy;
}

void records_ask(struct session *session)
{
    struct record **all;
    size_t count;

    if (session->records == NULL || !session_try_enter(session))
        return;
    all = records_choose(session, can_be_asked, &count);
    for (size_t i = 0; i < count; i++)
        record_begin(all[i]);
    Py_BEGIN_ALLOW_THREADS;
    for (size_t i = 0; i < count; i++)
        record_test(session, all[i]);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < count; i++) {
        record_end(session, all[i]);
        record_drop(all[i]);
    }
    PyMem_Free(all);
    session_leave(session);
}

/* --- waiters --------------------------------------------------------------------------------- */

static bool has_waiters_to_tell(const struct record *record)
{
    return record->transfer == NULL && !record->is_busy && record->waiters != NULL;
}

/* One transfer's: 0, or -1 with an exception, and they stay. */
static int record_take_waiters(struct session *session, struct record *record, PyObject *all)
{
    PyObject *waiters = record->waiters;
    Py_ssize_t count = PyList_Size(waiters);

    for (Py_ssize_t i = 0; i < count; i++)
        if (PyList_Append(all, PyList_GetItem(waiters, i)) != 0)
            return -1;
    record->waiters = NULL;
    Py_DECREF(waiters);
    if (!record_keeps_memory(record) || session->handle == NULL)
        record_unlist(session, record);
    return 0;
}

PyObject *records_take_waiters(struct session *session)
{
    PyObject *list = PyList_New(0);
    struct record **all;
    size_t count;
    int result = 0;

    if (list == NULL)
        return NULL;
    all = records_choose(session, has_waiters_to_tell, &count);
    for (size_t i = 0; i < count; i++) {
        if (result == 0 && all[i]->waiters != NULL)
            result = record_take_waiters(session, all[i], list);
        record_drop(all[i]);
    }
    PyMem_Free(all);
    if (result == 0)
        return list;
    Py_DECREF(list);
    return NULL;
}

/* --- the end --------------------------------------------------------------------------------- */

void records_end_all(struct session *session)
{
    struct record *next;

    for (struct record *at = session->records; at != NULL; at = at->next)
        if (at->transfer != NULL) {
            at->transfer = NULL;
            at->is_cancelled = true;
            at->result = TCPX_CANCELLED;
            at->why = strdup("the session was closed before the transfer had ended");
        }
    /* Whatever a settled one releases may change the list: it is begun again. */
    do {
        for (next = session->records; next != NULL && next->kept == NULL &&
                                      next->memory.object == NULL && next->waiters != NULL;)
            next = next->next;
        if (next != NULL)
            record_settle(session, next);
    } while (next != NULL);
}

void records_drop_all(struct session *session)
{
    while (session->records != NULL)
        record_unlist(session, session->records);
}

PyObject *record_report(const struct record *record)
{
    const char *why = record->why != NULL ? record->why : "a transfer has failed";
    bool expired = record->result == TCPX_CANCELLED && record->is_access && !record->is_cancelled &&
                   deadline_passed(record->expires);

    if (record->result == TCPX_SUCCESS)
        Py_RETURN_NONE;
    return errors_raise_text(expired ? (int)TCPX_IN_PROGRESS : record->result, why);
}

int records_visit(struct session *session, visitproc visit, void *arg)
{
    for (struct record *at = session->records; at != NULL; at = at->next) {
        int result = memory_visit(&at->memory, visit, arg);

        if (result != 0)
            return result;
        Py_VISIT(at->kept);
        Py_VISIT(at->waiters);
    }
    return 0;
}
