/*
 * Who is named slow: a rank by what it sends or receives, a host by all of its ranks, a link beside
 * others of both its ends; nobody where all are alike, where too little is known, or where two
 * measurements of a pair differ by more than that. The program's own file is part of this test.
 */
#include "tests/unit/checks.h"
#include "tools/matrix_verdict.c" /* NOLINT(bugprone-suspicious-include) */

static struct matrix_result result;

/* All pairs alike, on a host each. */
static void make_even(unsigned ranks, double rate)
{
    memset(&result, 0, sizeof result);
    result.ranks = ranks;
    for (unsigned phase = 0; phase < MATRIX_PHASES; phase++)
        for (unsigned pass = 0; pass < MATRIX_PASSES; pass++)
            for (unsigned i = 0; i < ranks; i++)
                for (unsigned k = 0; k < ranks; k++)
                    result.passes[phase][pass].list[i][k] = i == k ? -1 : rate;
    for (unsigned i = 0; i < ranks; i++)
        snprintf(result.rank[i].host, sizeof result.rank[i].host, "node%u", i);
}

static void set_pair(unsigned reader, unsigned source, double rate)
{
    for (unsigned pass = 0; pass < MATRIX_PASSES; pass++)
        result.passes[MATRIX_ALONE][pass].list[reader][source] = rate;
}

static void set_receiver(unsigned rank, double rate)
{
    for (unsigned i = 0; i < result.ranks; i++)
        if (i != rank)
            set_pair(rank, i, rate);
}

static void set_sender(unsigned rank, double rate)
{
    for (unsigned i = 0; i < result.ranks; i++)
        if (i != rank)
            set_pair(i, rank, rate);
}

static void assert_only(enum matrix_finding_kind kind, unsigned rank, bool sends, bool receives,
                        const char *words)
{
    matrix_find_slow(&result);
    assert_int_equal(result.finding_count, 1);
    assert_int_equal(result.findings[0].phase, MATRIX_ALONE);
    assert_int_equal(result.findings[0].kind, kind);
    assert_int_equal(result.findings[0].rank, rank);
    assert_int_equal(result.findings[0].sends, sends);
    assert_int_equal(result.findings[0].receives, receives);
    assert_non_null(strstr(result.findings[0].text, words));
}

static void assert_nobody(void)
{
    matrix_find_slow(&result);
    assert_int_equal(result.finding_count, 0);
}

TEST(test_even)
{
    for (unsigned ranks = 2; ranks <= 9; ranks++) {
        make_even(ranks, 10);
        assert_nobody();
    }
    make_even(MATRIX_MOST_RANKS, 10);
    assert_nobody();
}

TEST(test_a_rank)
{
    for (unsigned ranks = 3; ranks <= 8; ranks++) {
        make_even(ranks, 10);
        set_sender(2, 6.6);
        assert_only(MATRIX_SLOW_RANK, 2, true, false, "rank 2 (node2) sends slowly");
        set_receiver(2, 1);
        assert_only(MATRIX_SLOW_RANK, 2, true, true, "sends and receives slowly: median 1 GB/s");
        make_even(ranks, 10);
        set_receiver(0, 5);
        assert_only(MATRIX_SLOW_RANK, 0, false, true, "rank 0 (node0) receives slowly");
        make_even(ranks, 10);
        set_receiver(0, 6.8);
        set_sender(0, 6.8);
        assert_nobody();
    }
}

/* Two slow ranks of eight do not hide each other. */
TEST(test_two_ranks)
{
    make_even(8, 10);
    set_sender(1, 2);
    set_receiver(6, 3);
    matrix_find_slow(&result);
    assert_int_equal(result.finding_count, 2);
    assert_int_equal(result.findings[0].rank, 1);
    assert_int_equal(result.findings[1].rank, 6);
}

TEST(test_a_host)
{
    make_even(6, 10);
    for (unsigned i = 0; i < 6; i++)
        snprintf(result.rank[i].host, sizeof result.rank[i].host, "node%u", i / 2);
    set_sender(2, 1);
    assert_only(MATRIX_SLOW_RANK, 2, true, false, "look at its NIC");
    set_sender(3, 1);
    assert_only(MATRIX_SLOW_HOST, 2, true, false, "host node1, all 2 ranks of it, sends slowly");
}

TEST(test_a_link)
{
    make_even(4, 10);
    set_pair(3, 1, 4.9);
    assert_only(MATRIX_SLOW_LINK, 3, false, false, "from rank 1 (node1) to rank 3 (node3)");
    set_pair(3, 1, 5.1);
    assert_nobody();
    /* with two ranks only the way back says what is usual */
    make_even(2, 10);
    set_pair(0, 1, 4.9);
    assert_only(MATRIX_SLOW_LINK, 0, false, false, "4.9 GB/s");
}

/* What is not known counts for nothing. */
TEST(test_missing)
{
    make_even(4, 10);
    set_sender(1, -1);
    set_receiver(1, -1);
    assert_nobody();
    set_sender(2, 1);
    set_pair(1, 2, -1);
    assert_only(MATRIX_SLOW_RANK, 2, true, false, "rank 2");
    make_even(2, -1);
    assert_nobody();
    assert_true(result.rates[MATRIX_ALONE].list[0][1] < 0);
}

/* The better of two passes counts, and nothing is slow by as much as they differ anyway. */
TEST(test_noise)
{
    make_even(4, 10);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++)
            if (i != k)
                result.passes[MATRIX_ALONE][(i + k) % 2].list[i][k] = 7.5;
    set_sender(2, 2.6);
    assert_nobody();
    assert_int_equal(result.noise_percent[MATRIX_ALONE], 25);
    assert_int_equal(result.rank_percent[MATRIX_ALONE], 25);
    assert_int_equal(result.link_percent[MATRIX_ALONE], 25);
    assert_int_equal(result.noise_percent[MATRIX_ALL_AT_ONCE], 0);
    assert_int_equal(result.rank_percent[MATRIX_ALL_AT_ONCE], MATRIX_RANK_PERCENT);
    assert_int_equal(result.link_percent[MATRIX_ALL_AT_ONCE], MATRIX_LINK_PERCENT);
    assert_true(result.rates[MATRIX_ALONE].list[0][1] > 9.9);
    set_sender(2, 2.4);
    assert_only(MATRIX_SLOW_RANK, 2, true, false, "rank 2");
    /* where all is noise, what is still named is far off */
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++)
            if (i != k && k != 2)
                result.passes[MATRIX_ALONE][(i + k) % 2].list[i][k] = 1;
    assert_nobody();
    assert_int_equal(result.rank_percent[MATRIX_ALONE], MATRIX_LEAST_PERCENT);
    set_sender(2, 1.4);
    assert_only(MATRIX_SLOW_RANK, 2, true, false, "rank 2");
}

SUITE(.name = "the verdict of a matrix");
