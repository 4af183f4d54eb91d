/* How many pages comms keep, whoever lets go of them and when. */
#include "net/devmem/devmem.h"
#include "tests/support/suite.h"
#include "tests/unit/checks.h"

enum { PAGES = 1600, COMMS = 10 };

static struct devmem_pool pool;

static void start(void)
{
    pool = (struct devmem_pool){.users = 1, .memory.memory.bytes = PAGES * devmem_page_bytes()};
}

/* Each its share, half of the quarter at most; what it gives back it may take again. */
TEST(test_a_share)
{
    struct page_keeper keeper;

    start();
    page_keeper_join(&keeper, &pool);
    assert_int_equal(pool.users, 2);
    assert_false(page_keeper_take(&keeper, 201));
    assert_true(page_keeper_take(&keeper, 150));
    assert_false(page_keeper_take(&keeper, 51));
    assert_true(page_keeper_take(&keeper, 50));
    page_keeper_give(&keeper, 20);
    assert_false(page_keeper_take(&keeper, 21));
    assert_true(page_keeper_take(&keeper, 20));
    page_keeper_leave(&keeper);
    assert_int_equal(pool.users, 1);
    assert_int_equal(pool.kept, 0);
    assert_int_equal(pool.keepers, 0);
}

/* Those that came first have more; three quarters stay free all the same, and what is left is
 * shared. */
TEST(test_shares_of_many)
{
    struct page_keeper keepers[COMMS];

    start();
    for (int i = 0; i < COMMS; i++) {
        page_keeper_join(&keepers[i], &pool);
        while (page_keeper_take(&keepers[i], 1))
            ;
        assert_true(pool.kept <= PAGES / 4);
    }
    assert_int_equal(keepers[0].pages, 200);
    assert_int_equal(pool.kept, PAGES / 4);
    page_keeper_give(&keepers[0], 200);
    assert_true(page_keeper_take(&keepers[COMMS - 1], PAGES / 4 / COMMS));
    assert_false(page_keeper_take(&keepers[COMMS - 1], 1));
    assert_true(page_keeper_take(&keepers[0], PAGES / 4 / COMMS));
    assert_false(page_keeper_take(&keepers[0], 1));
    for (int i = 0; i < COMMS; i++)
        page_keeper_leave(&keepers[i]);
    assert_int_equal(pool.kept, 0);
    assert_int_equal(pool.users, 1);
}

SUITE(.name = "page_quota");
