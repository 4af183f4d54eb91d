/*
 * How the two sides of a transfer in chunks find each other, over the control connection:
 *
 *   OFFER   id, tag, bytes   the sender has this; id is its own number
 *   GRANT   id               the receive for it is there; chunks travel in the order of the grants
 *   REFUSE  id, bytes        the receive for it has another length
 *   DONE    id               all of it is in the receiver's memory
 *   GOODBYE                  nothing more will be sent or received
 *
 * The k-th offer of a tag meets the k-th receive of that tag. Numbers are 8 bytes, little endian.
 */
#include "session/session.h"

#include "base/clock.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum message { OFFER = 2, GRANT = 3, REFUSE = 4, DONE = 5, GOODBYE = 6 };

enum {
    MOST_OFFERED = 4096,   /* of ours in flight; the others wait here */
    MOST_OFFERS = 1 << 16, /* of a peer, which obeys the limit above */
};

static int send_message(struct tcpx_session *session, enum message message, const uint64_t *numbers,
                        size_t count)
{
    uint64_t wire[3] = {0};

    for (size_t i = 0; i < count; i++)
        wire[i] = htole64(numbers[i]);
    return control_send(session->control, (uint8_t)message, wire, count * sizeof *wire);
}

/* --- tables -------------------------------------------------------------------------------- */

static struct keyed_row *row_of(struct keyed_row table[BUCKETS], uint64_t key)
{
    return &table[((key * 0x9e3779b97f4a7c15u) >> 56) % BUCKETS];
}

static void keyed_add(struct keyed_row table[BUCKETS], uint64_t key, struct keyed *added)
{
    struct keyed_row *row = row_of(table, key);

    *added = (struct keyed){.key = key};
    if (row->first == NULL)
        row->last = &row->first;
    *row->last = added;
    row->last = &added->next;
}

/* The link to the oldest element of the key, or the NULL at the end. */
static struct keyed **keyed_find(struct keyed_row *row, uint64_t key)
{
    struct keyed **at = &row->first;

    while (*at != NULL && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

/* Removes the oldest element of the key; NULL: none. Its owner begins with it. */
static void *keyed_take(struct keyed_row table[BUCKETS], uint64_t key)
{
    struct keyed_row *row = row_of(table, key);
    struct keyed **at = keyed_find(row, key);
    struct keyed *found = *at;

    if (found == NULL)
        return NULL;
    *at = found->next;
    if (row->last == &found->next)
        row->last = at;
    return found;
}

static struct tcpx_transfer *find_offered(struct tcpx_session *session, uint64_t id)
{
    return (struct tcpx_transfer *)*keyed_find(row_of(session->offered, id), id);
}

static void remove_offered(struct tcpx_transfer *transfer)
{
    keyed_take(transfer->session->offered, transfer->id);
    transfer->session->offered_count--;
}

static int keep_offer(struct tcpx_session *session, uint64_t tag, const struct offer *offer)
{
    struct offer *kept;

    if (session->offer_count == MOST_OFFERS)
        return error_set(TCPX_REMOTE_ERROR,
                         "%s has begun more than %d sends for which no receive was posted",
                         control_peer(session->control), MOST_OFFERS);
    kept = malloc(sizeof *kept);
    if (kept == NULL)
        return error_system(ENOMEM, "an offered transfer");
    *kept = *offer;
    keyed_add(session->offers, tag, &kept->keyed);
    session->offer_count++;
    return TCPX_SUCCESS;
}

/* --- this side's transfers ----------------------------------------------------------------- */

static void count_matching(struct tcpx_transfer *transfer)
{
    transfer->session->statistics.matching_ns += clock_now() - transfer->since;
}

int matching_receive_done(struct tcpx_transfer *transfer)
{
    int result = send_message(transfer->session, DONE, &transfer->id, 1);

    if (result == TCPX_SUCCESS)
        transfer_end(transfer, TCPX_SUCCESS);
    return result;
}

/* A receive is matched with an offer. */
static int match_receive(struct tcpx_transfer *receive, const struct offer *offer)
{
    struct tcpx_session *session = receive->session;
    const uint64_t refusal[] = {offer->id, receive->total};
    int result;

    receive->id = offer->id;
    count_matching(receive);
    if (offer->bytes != receive->total) {
        result = send_message(session, REFUSE, refusal, 2);
        if (result == TCPX_SUCCESS)
            transfer_end(receive, error_set(TCPX_INVALID_USAGE,
                                            "tag %llu: a receive of %llu bytes, but %s sends %llu",
                                            (unsigned long long)receive->tag,
                                            (unsigned long long)receive->total,
                                            control_peer(session->control),
                                            (unsigned long long)offer->bytes));
        return result;
    }
    result = send_message(session, GRANT, &offer->id, 1);
    if (result != TCPX_SUCCESS)
        return result;
    if (receive->total == 0)
        return matching_receive_done(receive);
    row_add(&session->directions[RECEIVING].moving, receive);
    return TCPX_SUCCESS;
}

static int match_begin_receive(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct offer *offer = keyed_take(session->offers, transfer->tag);
    int result;

    if (offer == NULL) {
        keyed_add(session->expected, transfer->tag, &transfer->keyed);
        return TCPX_SUCCESS;
    }
    session->offer_count--;
    result = match_receive(transfer, offer);
    free(offer);
    return result;
}

static int match_begin_send(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    const uint64_t offer[] = {session->next_id, transfer->tag, transfer->total};
    int result = send_message(session, OFFER, offer, 3);

    if (result != TCPX_SUCCESS)
        return result;
    transfer->id = session->next_id++;
    keyed_add(session->offered, transfer->id, &transfer->keyed);
    session->offered_count++;
    return TCPX_SUCCESS;
}

/* Begins transfers whose stream or event was reached, in their order: a later one never passes. */
static int match_begin_waiting(struct tcpx_session *session, struct direction *direction,
                               bool *moved)
{
    while (direction->waiting.first != NULL) {
        struct tcpx_transfer *transfer = direction->waiting.first;
        bool ready;
        int result = transfer_is_ready(transfer, &ready);

        if (result != TCPX_SUCCESS || !ready)
            return result;
        if (transfer->sending && session->offered_count == MOST_OFFERED)
            return TCPX_SUCCESS;
        row_take(&direction->waiting);
        result = transfer->sending ? match_begin_send(transfer) : match_begin_receive(transfer);
        if (result != TCPX_SUCCESS)
            return result;
        *moved = true;
    }
    return TCPX_SUCCESS;
}

int matching_begin(struct tcpx_transfer *transfer)
{
    struct tcpx_session *session = transfer->session;
    struct direction *direction = &session->directions[transfer->sending];
    bool moved;

    row_add(&direction->waiting, transfer);
    return match_begin_waiting(session, direction, &moved);
}

/* --- messages of the peer ------------------------------------------------------------------ */

static int wrong_message(const struct tcpx_session *session, const char *what, uint64_t id)
{
    return error_set(TCPX_REMOTE_ERROR, "%s: %s for transfer %llu, which does not wait for one",
                     control_peer(session->control), what, (unsigned long long)id);
}

static int on_offer(struct tcpx_session *session, const uint64_t *numbers)
{
    const struct offer offer = {.id = numbers[0], .bytes = numbers[2]};
    struct tcpx_transfer *receive = keyed_take(session->expected, numbers[1]);

    return receive != NULL ? match_receive(receive, &offer)
                           : keep_offer(session, numbers[1], &offer);
}

static int on_grant(struct tcpx_session *session, const uint64_t *numbers)
{
    struct tcpx_transfer *send = find_offered(session, numbers[0]);

    if (send == NULL || send->granted)
        return wrong_message(session, "a grant", numbers[0]);
    send->granted = true;
    count_matching(send);
    if (send->total != 0)
        row_add(&session->directions[SENDING].moving, send);
    return TCPX_SUCCESS;
}

static int on_refusal(struct tcpx_session *session, const uint64_t *numbers)
{
    struct tcpx_transfer *send = find_offered(session, numbers[0]);

    if (send == NULL || send->granted)
        return wrong_message(session, "a refusal", numbers[0]);
    remove_offered(send);
    transfer_end(send, error_set(TCPX_INVALID_USAGE,
                                 "tag %llu: a send of %llu bytes, but %s expects %llu",
                                 (unsigned long long)send->tag, (unsigned long long)send->total,
                                 control_peer(session->control), (unsigned long long)numbers[1]));
    return TCPX_SUCCESS;
}

static int on_done(struct tcpx_session *session, const uint64_t *numbers)
{
    struct tcpx_transfer *send = find_offered(session, numbers[0]);

    if (send == NULL || !send->granted || send->begun != send->total)
        return wrong_message(session, "an acknowledgement", numbers[0]);
    remove_offered(send);
    send->acknowledged = true;
    if (send->moved == send->total)
        transfer_end(send, TCPX_SUCCESS);
    return TCPX_SUCCESS;
}

static int on_goodbye(struct tcpx_session *session, const uint64_t *numbers)
{
    (void)numbers;
    return error_set(TCPX_REMOTE_ERROR, "%s has closed the session",
                     control_peer(session->control));
}

int matching_on_message(struct tcpx_session *session, uint8_t type, const uint8_t *bytes,
                        size_t length)
{
    static const struct {
        size_t count; /* of numbers */
        int (*take)(struct tcpx_session *session, const uint64_t *numbers);
    } messages[] = {[OFFER] = {3, on_offer},
                    [GRANT] = {1, on_grant},
                    [REFUSE] = {2, on_refusal},
                    [DONE] = {1, on_done},
                    [GOODBYE] = {0, on_goodbye}};
    uint64_t numbers[3];

    if (type > GOODBYE || messages[type].take == NULL ||
        length != messages[type].count * sizeof *numbers)
        return error_set(TCPX_REMOTE_ERROR, "%s: there is no message of type %u and %zu bytes",
                         control_peer(session->control), type, length);
    if (length > 0)
        memcpy(numbers, bytes, length);
    for (size_t i = 0; i < messages[type].count; i++)
        numbers[i] = le64toh(numbers[i]);
    return messages[type].take(session, numbers);
}

int matching_step(struct tcpx_session *session, bool *moved)
{
    int result = match_begin_waiting(session, &session->directions[SENDING], moved);

    return result == TCPX_SUCCESS
               ? match_begin_waiting(session, &session->directions[RECEIVING], moved)
               : result;
}

int matching_goodbye(struct tcpx_session *session)
{
    return send_message(session, GOODBYE, NULL, 0);
}

void matching_free(struct tcpx_session *session)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        while (session->offers[i].first != NULL) {
            struct keyed *offer = session->offers[i].first;

            session->offers[i].first = offer->next;
            free(offer);
        }
}
