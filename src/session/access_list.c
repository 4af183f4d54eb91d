/* What accesses of this side and of the peer have in common: lists, ids, buffers, ends. */
#include "session/access.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void access_list_add(struct access_list *list, struct access *access)
{
    access->next = NULL;
    access->previous = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = access;
    list->last = access;
}

void access_list_remove(struct access_list *list, struct access *access)
{
    *(access->previous != NULL ? &access->previous->next : &list->first) = access->next;
    *(access->next != NULL ? &access->next->previous : &list->last) = access->previous;
}

static struct access **access_row(struct tcpx_session *session, int side, uint64_t id)
{
    return &session->accesses->by_id[side][id % ACCESS_ROWS];
}

void access_id_add(struct tcpx_session *session, int side, struct access *access)
{
    struct access **row = access_row(session, side, access->id);

    access->next_of_id = *row;
    *row = access;
    session->accesses->count[side]++;
}

void access_id_remove(struct tcpx_session *session, int side, struct access *access)
{
    struct access **at = access_row(session, side, access->id);

    while (*at != access)
        at = &(*at)->next_of_id;
    *at = access->next_of_id;
    session->accesses->count[side]--;
}

struct access *access_by_id(struct tcpx_session *session, int side, uint64_t id)
{
    struct access *access = *access_row(session, side, id);

    while (access != NULL && access->id != id)
        access = access->next_of_id;
    return access;
}

void access_add_part(struct access *access, uint8_t *data, uint64_t bytes)
{
    struct net_part *parts = access->parts;
    uint32_t count = access->part_count;
    uint64_t offset = count > 0 ? parts[count - 1].offset + parts[count - 1].bytes : 0;

    if (count > 0 && (uint8_t *)parts[count - 1].data + parts[count - 1].bytes == data) {
        parts[count - 1].bytes += bytes;
        return;
    }
    parts[count] = (struct net_part){.data = data, .bytes = bytes, .offset = offset};
    access->part_count++;
}

void access_expect_deadline(const struct access *access)
{
    struct accesses *accesses = access->session->accesses;

    if (access->deadline < accesses->first_deadline)
        accesses->first_deadline = access->deadline;
}

/* The side that sends the bytes has the memory on its sending comm. */
struct net_buffer access_buffer(const struct access *access)
{
    bool sends = access->is_read == (access->transfer == NULL);
    struct net_buffer buffer = {.bytes = access->bytes};

    if (access->binding_count > 0 && access->bindings[0]->use.window->gpu >= 0)
        buffer.memory = access->session->accesses->gpu_memory[sends][access->channel];
    if (access->part_count == 1)
        buffer.data = access->parts[0].data;
    buffer.parts = access->part_count > 1 ? access->parts : NULL;
    buffer.part_count = access->part_count > 1 ? access->part_count : 0;
    return buffer;
}

void access_gather(const struct access *access, uint8_t *bytes)
{
    for (uint32_t i = 0; i < access->part_count; i++)
        memcpy(bytes + access->parts[i].offset, access->parts[i].data, access->parts[i].bytes);
}

void access_scatter(const struct access *access, const uint8_t *bytes)
{
    for (uint32_t i = 0; i < access->part_count; i++)
        memcpy(access->parts[i].data, bytes + access->parts[i].offset, access->parts[i].bytes);
}

void access_set_result(struct access *access, int result)
{
    if (access->result != TCPX_SUCCESS)
        return;
    access->result = result;
    snprintf(access->why, sizeof access->why, "%s", error_text());
}

void access_free(struct access *access)
{
    free(access->parts);
    free(access->bindings);
    free(access->items);
    free(access->remotes);
    free(access->note);
    free(access);
}

int accesses_violation(const struct tcpx_session *session, const char *format, ...)
{
    char what[200];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(TCPX_REMOTE_ERROR, "%s: %s", control_peer(session->control), what);
}
