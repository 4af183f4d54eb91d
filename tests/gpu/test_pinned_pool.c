/*
 * Pools of pinned memory, of 16 slots and at most 8 members: each member has one slot from the
 * start, whatever others have taken, pin now, could not pin or have lost; all of them together
 * never pin more than the pool has. Runs over the stand-in only, which holds calls until told.
 */
#include "net/gpu/pinned_pool.h"

#include "tests/fakecuda/controls.h"
#include "tests/support/basics.h"
#include "tests/unit/net_pair.h"

#include <pthread.h>
#include <stdatomic.h>

enum { SLOTS = 16, MEMBERS = 8, EXTRA = SLOTS - MEMBERS, GREEDY = 100, SLOT_BYTES = 16384 };

#define HOLD_MS limit_ms(20000)

struct member {
    struct pinned_share share;
    struct pinned_slot *slots[SLOTS];
    unsigned count;
    unsigned most;
    enum pinned_purpose purpose;
    pthread_t thread;
    int result;
};

static struct member members[MEMBERS];
static struct fakecuda_balance at_first;

static int join(struct member *member, unsigned most)
{
    *member = (struct member){.most = most};
    return pinned_join(PINNED_STAGING, 0, 0, most, NULL, &member->share);
}

static bool take(struct member *member)
{
    struct pinned_slot *slot = pinned_take(&member->share);

    if (slot == NULL)
        return false;
    memset(slot->host, 0x5a, SLOT_BYTES);
    member->slots[member->count++] = slot;
    return true;
}

static unsigned take_all(struct member *member)
{
    while (take(member))
        ;
    return member->count;
}

static void give(struct member *member)
{
    pinned_give(&member->share, member->slots[--member->count]);
}

static void leave(struct member *member)
{
    while (member->count > 0)
        give(member);
    pinned_leave(&member->share);
}

static void leave_all(unsigned from)
{
    for (unsigned i = from; i < MEMBERS; i++)
        leave(&members[i]);
}

static int remember_balance(void **state)
{
    (void)state;
    fakecuda.balance(&at_first);
    return 0;
}

static int check_balance(void **state)
{
    (void)state;
    assert_balance(&at_first, "a pool that has ended");
    return 0;
}

#define POOL_TEST(test) TEST_WITH(test, remember_balance, check_balance)

/* --- one after the other --------------------------------------------------------------------- */

POOL_TEST(test_one_member)
{
    assert_success(join(&members[0], 3));
    assert_int_equal(members[0].share.pool->pinned, 3);
    assert_int_equal(take_all(&members[0]), 3);
    give(&members[0]);
    assert_true(take(&members[0]));
    leave(&members[0]);
}

/* One that takes all it gets leaves a slot for each of the others, also for those who come later.
 */
POOL_TEST(test_a_slot_for_each)
{
    struct member ninth;

    assert_success(join(&members[0], GREEDY));
    assert_int_equal(take_all(&members[0]), 1 + EXTRA);
    for (unsigned i = 1; i < MEMBERS; i++)
        assert_success(join(&members[i], GREEDY));
    for (unsigned i = 1; i < MEMBERS; i++)
        assert_int_equal(take_all(&members[i]), 1);
    assert_int_equal(members[0].share.pool->pinned, SLOTS);
    assert_int_equal(join(&ninth, GREEDY), TCPX_SYSTEM_ERROR);
    assert_non_null(strstr(error_text(), "UCCL_TCPX_STAGING_BYTES"));
    leave(&members[0]);
    assert_int_equal(take_all(&members[1]), 1 + EXTRA);
    assert_success(join(&members[0], GREEDY));
    assert_int_equal(take_all(&members[0]), 1);
    leave_all(0);
}

/* The member that lost slots gets no more; the next one that joins replaces them. */
POOL_TEST(test_lost_slots)
{
    assert_success(join(&members[0], GREEDY));
    for (unsigned i = 1; i < MEMBERS - 1; i++)
        assert_success(join(&members[i], GREEDY));
    assert_int_equal(take_all(&members[0]), 1 + EXTRA);
    while (members[0].count > 1)
        pinned_retire(&members[0].share, members[0].slots[--members[0].count]);
    assert_false(take(&members[0]));
    give(&members[0]);
    assert_false(take(&members[0]));
    assert_int_equal(take_all(&members[1]), 2); /* its own, and what the first one gave */
    for (unsigned i = 2; i < MEMBERS - 1; i++)
        assert_int_equal(take_all(&members[i]), 1);
    leave(&members[0]);
    assert_success(join(&members[0], GREEDY));
    assert_int_equal(take_all(&members[0]), EXTRA);
    assert_success(join(&members[MEMBERS - 1], GREEDY));
    assert_true(take(&members[MEMBERS - 1]));
    leave_all(0);
}

/* --- at the same time ------------------------------------------------------------------------ */

static void *join_in_thread(void *argument)
{
    struct member *member = argument;

    member->result =
        pinned_join(member->purpose, 0, SLOT_BYTES, member->most, NULL, &member->share);
    return NULL;
}

static void join_start(struct member *member, enum pinned_purpose purpose, unsigned most)
{
    *member = (struct member){.most = most, .purpose = purpose};
    assert_int_equal(pthread_create(&member->thread, NULL, join_in_thread, member), 0);
}

static int join_end(struct member *member)
{
    assert_int_equal(pthread_join(member->thread, NULL), 0);
    return member->result;
}

/* All join at once, and none waits for another: the driver holds all of them. */
POOL_TEST(test_all_at_once)
{
    struct pinned_pool *pool;

    assert_success(join(&members[0], GREEDY));
    pool = members[0].share.pool;
    assert_int_equal(take_all(&members[0]), 1 + EXTRA);
    fakecuda.hold("cuMemHostRegister_v2", HOLD_MS);
    for (unsigned i = 1; i < MEMBERS; i++)
        join_start(&members[i], PINNED_STAGING, GREEDY);
    until(fakecuda.held() == MEMBERS - 1, nap_ms(1));
    for (int i = 0; i < 100; i++) {
        give(&members[0]);
        assert_true(take(&members[0]));
    }
    assert_int_equal(fakecuda.held(), MEMBERS - 1);
    fakecuda.hold(NULL, 0);
    for (unsigned i = 1; i < MEMBERS; i++) {
        assert_success(join_end(&members[i]));
        assert_int_equal(take_all(&members[i]), 1);
    }
    assert_int_equal(pool->pinned, SLOTS);
    leave_all(0);
}

/* One of two cannot pin: the other one has its slot, and later ones pin what is missing. */
POOL_TEST(test_one_of_two_fails)
{
    fakecuda.fault("cuMemHostRegister_v2@1=2");
    fakecuda.hold("cuMemHostRegister_v2", HOLD_MS);
    join_start(&members[0], PINNED_STAGING, GREEDY);
    until(fakecuda.held() == 1, nap_ms(1));
    join_start(&members[1], PINNED_STAGING, GREEDY);
    until(fakecuda.held() == 2, nap_ms(1));
    fakecuda.hold(NULL, 0);
    (void)join_end(&members[0]);
    (void)join_end(&members[1]);
    fakecuda.fault(NULL);
    assert_true(members[0].result != members[1].result);
    if (members[0].result == TCPX_SUCCESS)
        members[1] = members[0];
    assert_int_equal(members[1].share.pool->growing, 0);
    assert_int_equal(members[1].share.pool->members, 1);
    assert_true(take_all(&members[1]) >= 1);
    for (unsigned i = 2; i < MEMBERS; i++) {
        assert_success(join(&members[i], GREEDY));
        assert_true(take(&members[i]));
    }
    assert_success(join(&members[0], GREEDY));
    assert_true(take(&members[0]));
    assert_int_equal(members[0].share.pool->pinned, SLOTS);
    leave_all(0);
}

/* Bounce memory is one piece: the second member waits for the first, and pins it if that failed. */
POOL_TEST(test_bounce_memory)
{
    for (int fails = 0; fails < 2; fails++) {
        unsigned good = 0;

        fakecuda.fault(fails ? "cuMemHostRegister_v2@1=2" : NULL);
        fakecuda.hold("cuMemHostRegister_v2", HOLD_MS);
        for (unsigned i = 0; i < 3; i++)
            join_start(&members[i], PINNED_BOUNCE, 1);
        until(fakecuda.held() == 1, nap_ms(1));
        fakecuda.hold(NULL, 0);
        for (unsigned i = 0; i < 3; i++)
            good += join_end(&members[i]) == TCPX_SUCCESS;
        fakecuda.fault(NULL);
        assert_int_equal(good, fails ? 2 : 3);
        for (unsigned i = 0; i < 3; i++)
            if (members[i].result == TCPX_SUCCESS) {
                assert_int_equal(take_all(&members[i]), 1);
                assert_true(members[i].slots[0]->device >= pinned_base(&members[i].share));
            }
        for (unsigned i = 0; i < 3; i++)
            if (members[i].result == TCPX_SUCCESS)
                leave(&members[i]);
    }
}

/*
 * Bounce memory has one base, and so has device memory beside it: in the 4 GiB that begin with the
 * lower one, if both are there. `bytes`: of that memory; 0: there is none.
 */
static gpu_address base_beside(gpu_address address, uint64_t bytes, bool *reached,
                               gpu_address *bounce)
{
    const struct gpu_memory beside = {.address = address, .bytes = bytes};
    struct member member = {.count = 0};
    struct pinned_slot *slot;
    gpu_address base;

    assert_success(
        pinned_join(PINNED_BOUNCE, 0, SLOT_BYTES, 1, bytes > 0 ? &beside : NULL, &member.share));
    slot = pinned_take(&member.share); /* the first one */
    *bounce = slot->device;
    pinned_give(&member.share, slot);
    base = pinned_base(&member.share);
    *reached = pinned_base_reaches(&member.share, &beside);
    pinned_leave(&member.share);
    return base;
}

POOL_TEST(test_base)
{
    const uint64_t REACH = (uint64_t)1 << 32;
    const uint64_t bytes = 64 << 20;
    gpu_address first;
    gpu_address bounce;
    bool reached;

    assert_true(base_beside(0, 0, &reached, &first) == first);
    /* right below it */
    assert_true(base_beside(first - bytes, bytes, &reached, &bounce) == first - bytes);
    assert_true(bounce > first - bytes && reached);
    /* far below: bounce memory goes there, too */
    assert_true(base_beside(first - REACH + bytes, bytes, &reached, &bounce) ==
                first - REACH + bytes);
    assert_true(reached);
    /* where there can be none: the kernel itself has the upper half of all addresses */
    assert_true(base_beside((gpu_address)1 << 63, bytes, &reached, &bounce) == bounce);
    assert_false(reached);
}

/* Memory that the driver does not take at the wanted address is pinned elsewhere. */
POOL_TEST(test_a_base_that_is_refused)
{
    const uint64_t bytes = 64 << 20;
    gpu_address first;
    gpu_address bounce;
    bool reached;

    assert_true(base_beside(0, 0, &reached, &first) == first);
    fakecuda.fault("cuMemHostRegister_v2@1=2");
    (void)base_beside(first - bytes, bytes, &reached, &bounce);
    fakecuda.fault(NULL);
    assert_true(bounce != 0);
}

/* --- in any order ---------------------------------------------------------------------------- */

static atomic_uint wrong;
static atomic_uint joined;
static atomic_uint refused;

/* Whether the pool has what it has promised. */
static bool pool_is_sound(struct pinned_pool *pool)
{
    bool sound;

    pthread_mutex_lock(&pool->lock);
    sound = pool->pinned + pool->growing <= SLOTS && pool->unused_count >= pool->reserved &&
            pool->extra <= EXTRA && pool->members <= MEMBERS;
    pthread_mutex_unlock(&pool->lock);
    return sound;
}

static void live_a_life(struct member *member, uint64_t *seed)
{
    enum { STEPS = 30 };
    bool lost = false;

    for (int step = 0; step < STEPS; step++) {
        struct pinned_slot *slot = NULL;

        if (random_below(seed, 3) > 0 && member->count < SLOTS) {
            slot = pinned_take(&member->share);
            wrong += slot == NULL && member->count == 0 && !lost;
            wrong += slot != NULL && lost;
            if (slot != NULL)
                member->slots[member->count++] = slot;
        } else if (member->count > 0 && random_below(seed, 40) == 0) {
            pinned_retire(&member->share, member->slots[--member->count]);
            lost = true;
        } else if (member->count > 0) {
            give(member);
        }
        wrong += !pool_is_sound(member->share.pool);
    }
}

static void *live(void *argument)
{
    enum { LIVES = 60 };
    struct member member;
    uint64_t seed = (uintptr_t)argument;

    for (int i = 0; i < LIVES; i++) {
        int result = join(&member, 1 + (unsigned)random_below(&seed, 20));

        if (result == TCPX_SUCCESS) {
            atomic_fetch_add(&joined, 1);
            live_a_life(&member, &seed);
            leave(&member);
        } else {
            atomic_fetch_add(&refused, 1);
        }
    }
    return NULL;
}

POOL_TEST(test_any_order)
{
    enum { THREADS = 12 };
    pthread_t threads[THREADS];

    assert_success(join(&members[0], 2)); /* the pool stays */
    for (uintptr_t seed = 1; seed <= THREADS; seed++)
        assert_int_equal(pthread_create(&threads[seed - 1], NULL, live, (void *)seed), 0);
    for (int i = 0; i < 200; i++) {
        fakecuda.fault(i % 2 == 0 ? "cuMemHostRegister_v2@1=2,cuEventCreate@3=2" : NULL);
        assert_int_equal(take_all(&members[0]) >= 1, 1);
        while (members[0].count > 0)
            give(&members[0]);
        nap_us(200);
    }
    fakecuda.fault(NULL);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    print_message("# %u joined, %u refused\n", joined, refused);
    assert_int_equal(wrong, 0);
    assert_true(joined > 0);
    assert_int_equal(members[0].share.pool->members, 1);
    assert_int_equal(members[0].share.pool->growing, 0);
    leave(&members[0]);
}

SUITE(.name = "pinned_pool", .begin = fakecuda_find);
