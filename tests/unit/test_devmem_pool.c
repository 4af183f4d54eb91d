/*
 * Shows that nobody waits for a pool of another NIC that is opened or closed, which may take as
 * long as the drivers of NIC and GPU like; and that those who want the same one wait for it, and
 * share it. The NICs are made up: this file has their operations in place of the library's (by the
 * linker's --wrap).
 */
#include "net/devmem/devmem_queues.h"
#include "tests/unit/net_pair.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLOW = 1, OTHER = 2, NICS = 3 };

#define HOLD_MS limit_ms(20000)

/* --- NICs ----------------------------------------------------------------------------------- */

static atomic_bool hold; /* operations of the slow NIC wait */
static atomic_uint held;
static atomic_uint failures; /* of opens to come */
static atomic_uint opens[NICS];
static atomic_uint open_now[NICS];

static void wait_while_held(const struct devmem_memory *memory)
{
    uint64_t deadline = deadline_after_ms(HOLD_MS);

    if (memory->ifindex != SLOW)
        return;
    atomic_fetch_add(&held, 1);
    while (atomic_load(&hold) && !deadline_passed(deadline))
        nap_ms(1);
    atomic_fetch_sub(&held, 1);
}

static int nic_open(struct devmem_memory *memory)
{
    wait_while_held(memory);
    atomic_fetch_add(&opens[memory->ifindex], 1);
    if (atomic_load(&failures) > 0) {
        atomic_fetch_sub(&failures, 1);
        return error_set(TCPX_SYSTEM_ERROR, "made up");
    }
    /* Its queues are free again when the last pool has been closed. */
    return atomic_fetch_add(&open_now[memory->ifindex], 1) == 0
               ? TCPX_SUCCESS
               : error_set(TCPX_INTERNAL_ERROR, "two pools of one NIC and GPU");
}

static void nic_close(struct devmem_memory *memory)
{
    wait_while_held(memory);
    atomic_fetch_sub(&open_now[memory->ifindex], 1);
}

static unsigned nic_next_queue(struct devmem_memory *memory)
{
    return memory->ifindex;
}

extern const struct devmem_pool_ops __wrap_devmem_queues_ops;
const struct devmem_pool_ops __wrap_devmem_queues_ops = {
    .open = nic_open, .close = nic_close, .next_queue = nic_next_queue};

/* --- users ---------------------------------------------------------------------------------- */

struct user {
    pthread_t thread;
    struct devmem_pool *pool;
    int result;
};

static int take(int ifindex, struct devmem_pool **pool)
{
    struct net_device device = {.ifindex = ifindex};

    snprintf(device.name, sizeof device.name, "fake%d", ifindex);
    return devmem_pool_take(&device, 0, pool);
}

static void *take_slow(void *argument)
{
    struct user *user = argument;

    user->result = take(SLOW, &user->pool);
    return NULL;
}

static void *give_slow(void *argument)
{
    struct user *user = argument;

    devmem_pool_give(user->pool);
    return NULL;
}

static void start(struct user *user, void *(*call)(void *))
{
    assert_int_equal(pthread_create(&user->thread, NULL, call, user), 0);
}

/* Returns when the NIC holds it. */
static void start_held(struct user *user, void *(*call)(void *))
{
    atomic_store(&hold, true);
    start(user, call);
    until(atomic_load(&held) == 1, nap_ms(1));
}

static void end(struct user *user)
{
    assert_int_equal(pthread_join(user->thread, NULL), 0);
}

/* The slow NIC is busy before and afterwards. */
static void use_the_other(void)
{
    struct devmem_pool *pool = NULL;
    uint64_t pages;

    assert_success(take(OTHER, &pool));
    assert_int_equal(devmem_pool_join(pool, &pages), OTHER);
    devmem_pool_leave(pool, 1);
    devmem_pool_give(devmem_pool_share(pool));
    devmem_pool_give(pool);
    assert_int_equal(open_now[OTHER], 0);
    assert_int_equal(atomic_load(&held), 1);
}

/* --- tests ---------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    atomic_store(&hold, false);
    for (int i = 0; i < NICS; i++)
        atomic_store(&opens[i], 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return open_now[SLOW] == 0 && open_now[OTHER] == 0 ? 0 : -1;
}

#define POOL_TEST(test) TEST_WITH(test, set_up, tear_down)

POOL_TEST(test_slow_open)
{
    struct user first = {.result = -1};
    struct user second = {.result = -1};

    start_held(&first, take_slow);
    start(&second, take_slow);
    use_the_other();
    atomic_store(&hold, false);
    end(&first);
    end(&second);
    assert_int_equal(first.result, TCPX_SUCCESS);
    assert_int_equal(second.result, TCPX_SUCCESS);
    assert_ptr_equal(first.pool, second.pool);
    assert_int_equal(opens[SLOW], 1);
    devmem_pool_give(first.pool);
    assert_int_equal(open_now[SLOW], 1);
    devmem_pool_give(second.pool);
}

/* The second one tries by itself. */
POOL_TEST(test_open_that_fails)
{
    struct user users[2] = {{.result = -1}, {.result = -1}};

    atomic_store(&failures, 1);
    start_held(&users[0], take_slow);
    start(&users[1], take_slow);
    atomic_store(&hold, false);
    end(&users[0]);
    end(&users[1]);
    assert_int_equal(users[0].result, TCPX_SYSTEM_ERROR);
    assert_int_equal(users[1].result, TCPX_SUCCESS);
    assert_int_equal(opens[SLOW], 2);
    devmem_pool_give(users[1].pool);
}

/* One that comes while the pool is closed has to wait: the queues are not free before. */
POOL_TEST(test_slow_close)
{
    struct user last = {.result = -1};
    struct user next = {.result = -1};

    assert_success(take(SLOW, &last.pool));
    start_held(&last, give_slow);
    start(&next, take_slow);
    use_the_other();
    atomic_store(&hold, false);
    end(&last);
    end(&next);
    assert_int_equal(next.result, TCPX_SUCCESS);
    assert_int_equal(opens[SLOW], 2);
    devmem_pool_give(next.pool);
}

SUITE(.name = "devmem pool");
