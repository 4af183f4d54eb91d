/*
 * Reads and writes of windows while one allocation after the other fails, at either end, or sends
 * of the session do: each access is done and right, or fails in words. The windows can be closed,
 * the sessions too, and nothing is left.
 */
#include "tests/net_calls/net_calls.h"
#include "tests/unit/access_memory.h"

#include <errno.h>

enum { PARTS = 40, PART = 100, MOST_CALLS = 400, NOTE = 50 };

/* Of a call, or of the end of an access: right, or an error in words. */
static void look_at(int result, bool *all_right)
{
    *all_right = *all_right && result == TCPX_SUCCESS;
    if (result == TCPX_IN_PROGRESS || (result != TCPX_SUCCESS && *tcpx_last_error() == '\0'))
        fail_msg("%s: %s", tcpx_result_name(result), tcpx_last_error());
}

/* Every other range of the first half here, and of one of the halves there. */
static void make_parts(struct tcpx_part parts[PARTS], uint64_t there)
{
    for (uint64_t i = 0; i < PARTS; i++)
        parts[i] = (struct tcpx_part){bystanders.windows[0], 2 * i * PART, bystanders.remote,
                                      there + 2 * i * PART, PART};
}

static void try_access(bool is_read, uint64_t there, bool is_cancelled, bool *all_right)
{
    struct tcpx_part parts[PARTS];
    const struct tcpx_access access = {
        .parts = parts, .part_count = PARTS, .note = parts, .note_bytes = NOTE};
    struct tcpx_transfer *transfer;
    int result;

    make_parts(parts, there);
    result = (is_read ? tcpx_read : tcpx_write)(bystanders.sessions[0], &access, &transfer);
    look_at(result, all_right);
    if (result != TCPX_SUCCESS)
        return;
    if (is_cancelled)
        look_at(tcpx_transfer_cancel(transfer), all_right);
    result = tcpx_transfer_wait(transfer, (int)LIMIT_MS);
    look_at(is_cancelled && result == TCPX_CANCELLED ? TCPX_SUCCESS : result, all_right);
}

static void check_bytes(uint64_t there, uint8_t byte)
{
    for (uint64_t i = 0; i < PARTS; i++)
        for (uint64_t k = 0; k < PART; k++)
            assert_int_equal(bystanders.memory[1][there + 2 * i * PART + k], byte);
}

static void take_notes(bool *all_right)
{
    uint8_t note[TCPX_NOTE_BYTES];
    size_t bytes;
    int there = 1;

    while (there != 0) {
        int result = tcpx_note_take(bystanders.sessions[1], note, sizeof note, &bytes, &there);

        look_at(result, all_right);
        if (result != TCPX_SUCCESS)
            return;
    }
}

/* True: nothing has failed. */
static bool use_all(uint8_t byte)
{
    const uint64_t half = sizeof bystanders.memory[0] / 2;
    bool all_right = true;

    memset(bystanders.memory[0], byte, sizeof bystanders.memory[0]);
    memset(bystanders.memory[1], 0, sizeof bystanders.memory[1]);
    try_access(false, 0, false, &all_right);
    if (all_right)
        check_bytes(0, byte);
    try_access(true, half, false, &all_right);
    if (all_right)
        assert_int_equal(bystanders.memory[0][0], 0);
    look_at(tcpx_note_send(bystanders.sessions[0], "note", 4), &all_right);
    try_access(false, half, true, &all_right);
    take_notes(&all_right);
    return all_right;
}

/* Call number `first` fails; false: there are not so many. */
static bool use_with(enum net_call call, unsigned first, int error)
{
    const struct tcpx_session_options options = {
        .size = sizeof options, .gpu = -1, .channels = 1, .plugin_path = "builtin", .windows = 1};
    unsigned made;

    bystanders_open(&options);
    calls_plan(call, &(const struct call_plan){.first = first, .count = 1, .error = error});
    if (!use_all((uint8_t)(1 + first % 200)) && first == UINT32_MAX)
        fail_msg("%s", tcpx_last_error());
    made = calls_made(call);
    calls_reset();
    bystanders_close();
    return made > first;
}

TEST(test_without_faults)
{
    calls_reset();
    assert_false(use_with(CALL_MEMORY, UINT32_MAX, ENOMEM));
}

TEST(test_no_memory)
{
    const unsigned step = number_of("TCPX_TEST_TURNS", 100) < 50 ? 5 : 1;
    unsigned first = 0;

    while (first < MOST_CALLS && use_with(CALL_MEMORY, first, ENOMEM))
        first += step;
    print_message("# %u allocations\n", first);
    assert_true(first > 20 && first < MOST_CALLS);
}

TEST(test_sends_that_fail)
{
    static const int errors[] = {EAGAIN, EINTR, ENOBUFS, EPIPE};

    for (unsigned i = 0; i < COUNT_OF(errors); i++)
        for (unsigned first = 0; first < 8; first++)
            (void)use_with(CALL_SEND, first, errors[i]);
}

static int set_up(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    calls_reset();
    return 0;
}

SUITE(.name = "accesses that lack something", .set_up = set_up);
