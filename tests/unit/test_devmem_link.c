/*
 * Shows that connections are steered without waiting for another process that changes the NIC's
 * rules: the call comes back, and the next one goes on where it stopped. The pool is made up: this
 * file has its functions in place of the library's (by the linker's --wrap).
 */
#include "base/clock.h"
#include "net/devmem/devmem.h"
#include "tests/support/tcp_pair.h"
#include "tests/unit/journal.h"

enum { SOCKETS = 5 };

/* --- the pool ------------------------------------------------------------------------------ */

static unsigned users;
static unsigned connections;
static struct devmem_pool made_up = {.memory.interface = FAKE_NIC};

struct devmem_pool *__wrap_devmem_pool_share(struct devmem_pool *pool);
void __wrap_devmem_pool_give(struct devmem_pool *pool);
unsigned __wrap_devmem_pool_join(struct devmem_pool *pool, uint64_t *pages);
void __wrap_devmem_pool_leave(struct devmem_pool *pool, unsigned count);

struct devmem_pool *__wrap_devmem_pool_share(struct devmem_pool *pool)
{
    users++;
    return pool;
}

void __wrap_devmem_pool_give(struct devmem_pool *pool)
{
    (void)pool;
    users--;
}

unsigned __wrap_devmem_pool_join(struct devmem_pool *pool, uint64_t *pages)
{
    (void)pool;
    *pages = 1000;
    return 1 + connections++;
}

void __wrap_devmem_pool_leave(struct devmem_pool *pool, unsigned count)
{
    (void)pool;
    connections -= count;
}

/* --- connections, and another process ------------------------------------------------------- */

static int forward[SOCKETS];
static int backward[SOCKETS];

static int set_up(void **state)
{
    (void)state;
    return journal_make() == 0 && tcp_pairs(backward, forward, SOCKETS) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < SOCKETS; i++) {
        close(forward[i]);
        close(backward[i]);
    }
    return tree_remove();
}

static struct devmem_link *open_link(void)
{
    struct devmem_link *link = NULL;

    assert_int_equal(devmem_link_open(&made_up, &link), TCPX_SUCCESS);
    return link;
}

static void close_link(struct devmem_link *link)
{
    devmem_link_close(link);
    assert_int_equal(fake_nic_rules(), 0);
    assert_int_equal(connections, 0);
    assert_int_equal(users, 0);
}

#define STEERED(test) TEST_WITH(test, set_up, tear_down)

STEERED(test_at_once)
{
    struct devmem_link *link = open_link();

    assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_SUCCESS);
    assert_int_equal(link->count, SOCKETS - 1);
    assert_int_equal(connections, SOCKETS - 1);
    assert_int_equal(fake_nic_rules(), SOCKETS - 1);
    for (unsigned i = 0; i < SOCKETS - 1; i++)
        assert_int_equal(link->rules[i].queue, i + 1);
    close_link(link);
}

STEERED(test_one_socket)
{
    struct devmem_link *link = open_link();

    assert_int_equal(devmem_link_steer(link, forward, 1), TCPX_SUCCESS);
    assert_int_equal(fake_nic_rules(), 0);
    close_link(link);
}

/* Calls come back at once, no connection joins twice, and all are steered in the end. */
STEERED(test_another_process)
{
    struct devmem_link *link = open_link();
    uint64_t begun = clock_now();
    int lock = journal_hold_lock();

    for (int i = 0; i < 20; i++)
        assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_IN_PROGRESS);
    assert_in_range(clock_now() - begun, 0, 1000000000); /* one wait was 2 s */
    assert_int_equal(fake_nic_rules(), 0);
    close(lock);
    assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_SUCCESS);
    assert_int_equal(connections, SOCKETS - 1);
    assert_int_equal(fake_nic_rules(), SOCKETS - 1);
    close_link(link);
}

/* One that never lets go does not keep connections out for ever. */
STEERED(test_end_of_patience)
{
    struct devmem_link *link = open_link();
    int lock = journal_hold_lock();

    assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_IN_PROGRESS);
    link->patience_ends = clock_now();
    assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_SUCCESS);
    assert_int_equal(fake_nic_rules(), SOCKETS - 1);
    close(lock);
    close_link(link);
}

/* A link that is closed while it waits. */
STEERED(test_closed_meanwhile)
{
    struct devmem_link *link = open_link();
    int lock = journal_hold_lock();

    assert_int_equal(devmem_link_steer(link, forward, SOCKETS), TCPX_IN_PROGRESS);
    close_link(link);
    close(lock);
}

SUITE(.name = "devmem link");
