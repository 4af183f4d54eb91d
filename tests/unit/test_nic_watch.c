/*
 * Shows that an interface which is shut down or removed is told about, also when so much happens at
 * once that the kernel drops messages: then the state itself is looked at.
 */
#include "base/clock.h"
#include "net/nic/nic.h"
#include "tests/limit.h"
#include "tests/skip.h"
#include "tests/unit/checks.h"

#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* More messages than the socket's buffer has room for, whatever its default is. */
enum { FLOOD = 4000, PATIENCE_MS = 10000 };

static bool in_a_net; /* of our own, where interfaces may be changed */
static int asking = -1;
static unsigned watched;

/* --- what the watcher says ------------------------------------------------------------------ */

static atomic_bool hold; /* the watcher stays in its call, and reads nothing meanwhile */
static atomic_uint is_held;
static atomic_uint downs; /* that were told, or seen after a loss */
static atomic_uint losses;

static void down(unsigned ifindex)
{
    uint64_t deadline = deadline_after_ms(limit_ms(30000));

    if (ifindex == NIC_WATCH_LOST)
        atomic_fetch_add(&losses, 1);
    if (ifindex == watched || (ifindex == NIC_WATCH_LOST && !nic_watch_is_up(watched)))
        atomic_fetch_add(&downs, 1);
    while (atomic_load(&hold) && !deadline_passed(deadline)) {
        atomic_store(&is_held, 1);
        usleep(1000);
    }
    atomic_store(&is_held, 0);
}

static bool await(atomic_uint *counter, unsigned count)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);

    while (atomic_load(counter) < count && !deadline_passed(deadline))
        usleep(1000);
    return atomic_load(counter) >= count;
}

static void begin(const char *interface)
{
    if (!in_a_net)
        skip_because("no network namespace can be made");
    watched = if_nametoindex(interface);
    assert_int_not_equal(watched, 0);
    atomic_store(&hold, false);
    atomic_store(&downs, 0);
    atomic_store(&losses, 0);
    assert_int_equal(nic_watch_begin(down), TCPX_SUCCESS);
}

/* --- changes -------------------------------------------------------------------------------- */

static void set_up(const char *interface, bool up)
{
    struct ifreq request = {.ifr_flags = 0};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    assert_int_equal(ioctl(asking, SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    assert_int_equal(ioctl(asking, SIOCSIFFLAGS, &request), 0);
}

static void flood(const char *interface)
{
    struct ifreq request = {.ifr_mtu = 0};

    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    for (int i = 0; i < FLOOD; i++) {
        request.ifr_mtu = 1400 + i % 2;
        assert_int_equal(ioctl(asking, SIOCSIFMTU, &request), 0);
    }
}

static void make_pair(void)
{
    if (!in_a_net || system("ip link add tcpxw0 type veth peer name tcpxw1 >/dev/null 2>&1") != 0)
        skip_because("no pair of virtual interfaces can be made");
}

static void remove_pair(void)
{
    assert_int_equal(system("ip link del tcpxw0"), 0);
}

/* The watcher is held in a call, so that what follows fills its socket. */
static void hold_watcher(const char *interface)
{
    atomic_store(&hold, true);
    set_up(interface, false);
    assert_true(await(&is_held, 1));
    set_up(interface, true);
    flood(interface);
    atomic_store(&downs, 0);
}

/* --- tests ---------------------------------------------------------------------------------- */

TEST(test_state)
{
    if (!in_a_net)
        skip_because("no network namespace can be made");
    set_up("lo", true);
    assert_true(nic_watch_is_up(if_nametoindex("lo")));
    set_up("lo", false);
    assert_false(nic_watch_is_up(if_nametoindex("lo")));
    assert_false(nic_watch_is_up(0));
    assert_false(nic_watch_is_up(54321));
    assert_false(nic_watch_is_up(UINT32_MAX));
    set_up("lo", true);
}

static const struct end {
    const char *test;
    bool in_overrun; /* the message about the end does not fit any more */
    enum { SHUT_DOWN, REMOVED, NO_END } end;
    unsigned times;
} ends[] = {
    {"test_shut_down", false, SHUT_DOWN, 3},          {"test_overrun", true, SHUT_DOWN, 3},
    {"test_overrun_while_up", true, NO_END, 1},       {"test_removed", false, REMOVED, 1},
    {"test_removed_in_an_overrun", true, REMOVED, 1},
};

TABLE_TEST(ends)
{
    const char *interface = row->end == REMOVED ? "tcpxw0" : "lo";

    if (row->end == REMOVED)
        make_pair();
    begin(interface);
    for (unsigned i = 0; i < row->times; i++) {
        set_up(interface, true);
        if (row->in_overrun)
            hold_watcher(interface);
        if (row->end == SHUT_DOWN)
            set_up(interface, false);
        else if (row->end == REMOVED)
            remove_pair();
        atomic_store(&hold, false);
        assert_true(await(row->end == NO_END ? &losses : &downs, row->in_overrun ? 1 : i + 1));
        assert_true(!row->in_overrun || row->end == REMOVED || atomic_load(&losses) != 0);
        assert_true(row->end != NO_END || atomic_load(&downs) == 0); /* it is up */
    }
    if (row->end != REMOVED)
        set_up(interface, true);
    nic_watch_end();
}

TEST(test_again_and_again)
{
    for (int i = 0; i < 50; i++) {
        assert_int_equal(nic_watch_begin(down), TCPX_SUCCESS);
        assert_int_equal(nic_watch_begin(down), TCPX_SUCCESS);
        nic_watch_end();
        nic_watch_end();
    }
}

static void *end_watch(void *unused)
{
    nic_watch_end();
    return unused;
}

/* The last user waits for the watcher, which is in a long call. The next user does not. */
TEST(test_begin_while_one_ends)
{
    pthread_t ending;

    begin("lo");
    set_up("lo", true);
    hold_watcher("lo");
    assert_int_equal(pthread_create(&ending, NULL, end_watch, NULL), 0);
    usleep(50000);
    assert_int_equal(nic_watch_begin(down), TCPX_SUCCESS);
    assert_int_equal(atomic_load(&is_held), 1);
    atomic_store(&hold, false);
    assert_int_equal(pthread_join(ending, NULL), 0);
    atomic_store(&downs, 0);
    set_up("lo", false);
    assert_true(await(&downs, 1));
    nic_watch_end();
    set_up("lo", true);
}

static int begin_suite(void)
{
    in_a_net = unshare(CLONE_NEWNET) == 0;
    asking = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return 0;
}

SUITE(.name = "nic watch", .begin = begin_suite);
