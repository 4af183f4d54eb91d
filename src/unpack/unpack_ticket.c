/*
 * Tickets: which submits are done. An event is recorded when a ticket that none covers is first
 * polled, not for each submit: recording one costs as much as a small unpack.
 */
#include "unpack/unpack_engine.h"

static struct unpack_mark *mark_at(struct unpack_engine *engine, uint32_t index)
{
    return &engine->mark[(engine->first_mark + index) % UNPACK_MARKS];
}

/* Passes every mark that has been reached. */
static int advance(struct unpack_engine *engine)
{
    while (engine->marks > 0) {
        bool done = false;
        int result = gpu_event_query(mark_at(engine, 0)->event, &done);

        if (result != TCPX_SUCCESS)
            return result;
        if (!done)
            break;
        engine->completed = mark_at(engine, 0)->ticket;
        engine->first_mark = (engine->first_mark + 1) % UNPACK_MARKS;
        engine->marks--;
    }
    return TCPX_SUCCESS;
}

/* Records a mark behind `ticket`. With all marks in use, a later call does it. */
static int cover(struct unpack_engine *engine, uint64_t ticket)
{
    struct unpack_mark *mark;
    int result;

    if (engine->marks == UNPACK_MARKS ||
        (engine->marks > 0 && mark_at(engine, engine->marks - 1)->ticket >= ticket))
        return TCPX_SUCCESS;
    mark = mark_at(engine, engine->marks);
    result = gpu_event_record(mark->event, engine->stream);
    if (result != TCPX_SUCCESS)
        return result;
    mark->ticket = engine->submitted;
    engine->marks++;
    return TCPX_SUCCESS;
}

static int check_ticket(const struct unpack_engine *engine, uint64_t ticket)
{
    if (ticket >= 1 && ticket <= engine->submitted)
        return TCPX_SUCCESS;
    return error_set(TCPX_INVALID_ARGUMENT, "there is no unpack %llu: the latest is %llu",
                     (unsigned long long)ticket, (unsigned long long)engine->submitted);
}

int unpack_poll(struct unpack_engine *engine, uint64_t ticket, bool *done)
{
    int result = check_ticket(engine, ticket);

    if (result == TCPX_SUCCESS && ticket > engine->completed)
        result = advance(engine);
    if (result == TCPX_SUCCESS && ticket > engine->completed)
        result = cover(engine, ticket);
    if (result == TCPX_SUCCESS)
        *done = ticket <= engine->completed;
    return result;
}

int unpack_wait(struct unpack_engine *engine, uint64_t ticket, uint64_t deadline)
{
    bool done = false;
    int result = unpack_poll(engine, ticket, &done);

    while (result == TCPX_SUCCESS && !done) {
        uint32_t covering = 0;

        while (covering + 1 < engine->marks && mark_at(engine, covering)->ticket < ticket)
            covering++;
        result = gpu_event_wait(mark_at(engine, covering)->event, deadline);
        if (result == TCPX_SUCCESS)
            result = unpack_poll(engine, ticket, &done);
    }
    return result;
}
