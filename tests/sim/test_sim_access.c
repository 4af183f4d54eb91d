/*
 * Reads and writes of windows over the simulated kernel: one process has a window and does nothing
 * but take notes, the other one reads, writes and gives up. What is done is right, what was given
 * up is quiet, every access ends in bounded time, and a note comes once, for an access that is
 * done.
 */
#include "flow.h"

#include <stdio.h>
#include <string.h>

enum {
    PORT = 12345,
    OPEN_MS = 5000,
    ACCESSES = 24,
    AT_ONCE = 5,
    SLOT = 20000, /* of an access, at both sides */
    PARTS = 4,
    UNTOUCHED = 0xaa,
    RELEASED = 0xdd,
};

/* One access, each with a slot of its own. */
static struct trial {
    struct tcpx_transfer *transfer; /* NULL: not begun, or ended */
    bool is_read;
    uint64_t bytes;
    bool was_cancelled;
    bool is_done;
    unsigned notes;
    uint64_t begun_at;
} trials[ACCESSES];

enum { OWNER, READER };

static uint8_t memory[SIM_PROCESSES][ACCESSES * SLOT];
static uint8_t key[TCPX_KEY_BYTES];
static bool reader_ended;

static const struct sim_library *library(void)
{
    return &sim_libraries[sim_process()];
}

/* What the source of an access has in its slot. */
static uint8_t byte_of(size_t trial, uint64_t at)
{
    return (uint8_t)(trial * 31 + at * 7 + at / 251) & 0x7f;
}

static uint8_t *slot_of(int process, size_t trial)
{
    return memory[process] + trial * SLOT;
}

static void fill_source(size_t trial)
{
    uint8_t *slot = slot_of(trials[trial].is_read ? OWNER : READER, trial);

    for (uint64_t i = 0; i < trials[trial].bytes; i++)
        slot[i] = byte_of(trial, i);
}

static void choose_options(struct tcpx_session_options *options)
{
    tcpx_session_options_init(options);
    options->gpu = -1;
    options->plugin_path = "builtin";
    options->windows = 1;
}

static struct tcpx_window *open_window(int access)
{
    struct tcpx_window *window;

    if (library()->tcpx_window_open(-1, memory[sim_process()], sizeof memory[0], access, &window) !=
        TCPX_SUCCESS)
        sim_found("a window cannot be opened: %s", library()->error_text());
    return window;
}

/* It needs no peer. */
static void close_window(struct tcpx_window *window)
{
    if (library()->tcpx_window_close(window, 1000) != TCPX_SUCCESS)
        sim_found("a window cannot be closed: %s", library()->error_text());
}

/* Whatever happened outside, a text says so; without that nothing fails. */
static void check_failure(const char *what, int result)
{
    if (result == TCPX_IN_PROGRESS || *library()->error_text() == '\0')
        sim_found("%s with %d: %s", what, result, library()->error_text());
    if (!flow_went_wrong())
        sim_found("%s, and nothing was wrong: %s", what, library()->error_text());
}

/* --- the side with the window ---------------------------------------------------------------- */

static bool take_notes(struct tcpx_session *session)
{
    for (;;) {
        uint8_t note[8];
        size_t bytes;
        int there;
        int result = library()->tcpx_note_take(session, note, sizeof note, &bytes, &there);

        if (result != TCPX_SUCCESS)
            return false;
        if (there == 0)
            return true;
        if (bytes != 1 || note[0] >= ACCESSES || ++trials[note[0]].notes > 1)
            sim_found("a note of %zu bytes that no access has, or a second one", bytes);
    }
}

static void owner(void *ignored)
{
    struct tcpx_window *window = open_window(TCPX_WINDOW_READ | TCPX_WINDOW_WRITE);
    struct tcpx_session_listener *listener;
    struct tcpx_session_options options;
    struct tcpx_session *session;
    int result;

    (void)ignored;
    if (library()->tcpx_window_key(window, key) != TCPX_SUCCESS)
        sim_found("a window has no key");
    choose_options(&options);
    if (library()->tcpx_session_listen(NULL, PORT, &options, &listener) != TCPX_SUCCESS)
        sim_found("the session cannot listen: %s", library()->error_text());
    result = library()->tcpx_session_accept(listener, OPEN_MS, &session);
    library()->tcpx_session_stop_listening(listener);
    if (result == TCPX_SUCCESS) {
        while (!reader_ended && sim_is_alive(READER) && take_notes(session))
            sim_sleep(SIM_MS);
        sim_sleep(2 * flow_faults.timeout_ns); /* notes that are on their way */
        (void)take_notes(session);
    }
    close_window(window);
    if (result == TCPX_SUCCESS)
        library()->tcpx_session_close(session);
}

/* --- the side that accesses it --------------------------------------------------------------- */

/* Both sides of a part have the same place in their slots. */
static int begin(size_t number, struct tcpx_session *session, struct tcpx_window *window,
                 struct tcpx_remote *remote)
{
    struct trial *trial = &trials[number];
    const uint8_t note = (uint8_t)number;
    struct tcpx_part parts[PARTS];
    const struct tcpx_access access = {
        .parts = parts, .part_count = PARTS, .note = &note, .note_bytes = 1};
    uint64_t at = 0;

    *trial = (struct trial){.is_read = sim_one_in(2),
                            .bytes = sim_one_in(3) ? sim_between(1, 100) : sim_between(1, SLOT),
                            .begun_at = sim_now()};
    for (int i = 0; i < PARTS; i++) {
        uint64_t bytes = i == PARTS - 1 ? trial->bytes - at : sim_below(trial->bytes - at + 1);

        parts[i] =
            (struct tcpx_part){window, number * SLOT + at, remote, number * SLOT + at, bytes};
        at += bytes;
    }
    fill_source(number);
    return (trial->is_read ? library()->tcpx_read : library()->tcpx_write)(session, &access,
                                                                           &trial->transfer);
}

static void give_up(size_t number)
{
    struct trial *trial = &trials[number];

    if (library()->tcpx_transfer_cancel(trial->transfer) != TCPX_SUCCESS)
        sim_found("access %zu cannot be cancelled: %s", number, library()->error_text());
    trial->was_cancelled = true;
    memset(slot_of(READER, number), RELEASED, trial->bytes);
}

/* True: it has ended. */
static bool look_at(size_t number)
{
    struct trial *trial = &trials[number];
    int done = 0;
    int result = library()->tcpx_transfer_test(trial->transfer, &done);

    if (result == TCPX_SUCCESS && done == 0) {
        if (sim_now() > trial->begun_at + 20 * flow_faults.timeout_ns && !flow_went_wrong())
            sim_found("access %zu does not end", number);
        return false;
    }
    trial->is_done = result == TCPX_SUCCESS;
    if (!trial->is_done && !(trial->was_cancelled && result == TCPX_CANCELLED))
        check_failure("an access failed", result);
    trial->transfer = NULL;
    return true;
}

static void run_accesses(struct tcpx_session *session, struct tcpx_window *window,
                         struct tcpx_remote *remote)
{
    size_t begun = 0;
    size_t ended = 0;

    while (ended < ACCESSES) {
        if (begun < ACCESSES && begun - ended < AT_ONCE && sim_one_in(2)) {
            int result = begin(begun, session, window, remote);

            if (result != TCPX_SUCCESS) {
                check_failure("an access cannot begin", result);
                return;
            }
            begun++;
        }
        for (size_t i = 0; i < begun; i++) {
            if (trials[i].transfer == NULL)
                continue;
            if (!trials[i].was_cancelled && sim_one_in(40))
                give_up(i);
            ended += look_at(i);
        }
        sim_sleep(sim_below(2) * 50000);
    }
}

static void reader(void *ignored)
{
    struct tcpx_session_options options;
    struct tcpx_session *session;
    struct tcpx_window *window = open_window(0);
    struct tcpx_remote *remote;
    int result;

    (void)ignored;
    choose_options(&options);
    result = library()->tcpx_session_connect("10.0.0.1", PORT, &options, OPEN_MS, &session);
    if (result == TCPX_SUCCESS) {
        if (library()->tcpx_remote_open(session, key, sizeof key, &remote) != TCPX_SUCCESS)
            sim_found("a remote cannot be opened: %s", library()->error_text());
        run_accesses(session, window, remote);
    } else if (!flow_went_wrong()) {
        sim_found("no session: %s", library()->error_text());
    }
    close_window(window);
    reader_ended = true;
    if (result == TCPX_SUCCESS)
        library()->tcpx_session_close(session);
}

/* --- the end --------------------------------------------------------------------------------- */

static void found_byte(const char *where, size_t number, uint64_t at, uint8_t byte)
{
    const struct trial *trial = &trials[number];

    sim_found(
        "byte %llu of %llu of access %zu, a %s that was%s cancelled and is%s done, is 0x%02x %s",
        (unsigned long long)at, (unsigned long long)trial->bytes, number,
        trial->is_read ? "read" : "write", trial->was_cancelled ? "" : " not",
        trial->is_done ? "" : " not", byte, where);
}

static void check_slot(size_t number)
{
    const struct trial *trial = &trials[number];
    const uint8_t *here = slot_of(READER, number);
    const uint8_t *there = slot_of(OWNER, number);

    for (uint64_t i = 0; i < trial->bytes; i++) {
        uint8_t wanted = byte_of(number, i);

        if (trial->was_cancelled ? here[i] != RELEASED : trial->is_done && here[i] != wanted)
            found_byte("here", number, i, here[i]);
        if (trial->is_done ? there[i] != wanted : there[i] != wanted && there[i] != UNTOUCHED)
            found_byte("there", number, i, there[i]);
    }
    for (uint64_t i = trial->bytes; i < SLOT; i++)
        if (here[i] != UNTOUCHED || there[i] != UNTOUCHED)
            sim_found("byte %u behind access %zu has changed", (unsigned)i, number);
    if (!flow_went_wrong() && trial->notes != (trial->is_done ? 1 : 0))
        sim_found("%u notes of access %zu, which is%s done", trial->notes, number,
                  trial->is_done ? "" : " not");
}

static void run_access(const struct sim_scenario *scenario)
{
    memset(memory, UNTOUCHED, sizeof memory);
    flow_plan_world();
    sim_spawn(OWNER, "owner", owner, NULL);
    sim_spawn(READER, "reader", reader, NULL);
    flow_run_world(scenario);
    for (size_t i = 0; i < ACCESSES; i++)
        check_slot(i);
}

int main(void)
{
    static const struct sim_scenario scenarios[] = {
        {"access", run_access, NULL},
        {"access-faults", run_access, flow_some_fault},
    };

    return sim_main(scenarios, sizeof scenarios / sizeof *scenarios);
}
