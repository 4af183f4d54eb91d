/*
 * Random scatter lists, good and spoilt, for the descriptor builder. The model that judges what it
 * makes of them is that of the fuzz target, which ends the program where the two differ.
 */
#include "tests/unit/checks.h"

#include "tests/fuzz/fuzz_rx_descriptor.c" /* NOLINT(bugprone-suspicious-include) */

enum { ROUNDS = 4000, MOST_BYTES = 65536, POOL_BYTES = 1 << 20, HOST_BYTES = 65536 };

static struct scatter_list scatter;
static struct scatter_sizes sizes;

static uint32_t below(uint32_t limit)
{
    static uint64_t state = 21;

    return (uint32_t)random_below(&state, limit);
}

/* Many fragments go on where the one before them ends. */
static void random_list(void)
{
    uint32_t count = below(4) == 0 ? 1 + below(MAX_FRAGMENTS) : 1 + below(12);
    uint32_t longest = 1 + below(MOST_BYTES / count);
    bool host = below(3) != 0;
    uint64_t previous_end = 0;
    enum scatter_source source = SCATTER_POOL;

    scatter_list_init(&scatter, fragments, MAX_FRAGMENTS);
    sizes = (struct scatter_sizes){.pool = POOL_BYTES, .host = HOST_BYTES};
    while (scatter.count < count) {
        uint32_t length = 1 + below(longest);
        uint64_t offset = previous_end;
        uint64_t size;

        if (below(2) == 0)
            source = host && below(4) == 0 ? SCATTER_HOST : SCATTER_POOL;
        size = source == SCATTER_HOST ? HOST_BYTES : POOL_BYTES;
        if (below(2) == 0 || offset + length > size)
            offset = below((uint32_t)(size - length + 1));
        fragments[scatter.count++] =
            (struct scatter_fragment){offset, sizes.message, length, source};
        sizes.message += length;
        previous_end = offset + length;
    }
}

TEST(says_what_random_lists_say)
{
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t count;

        random_list();
        assert_true(is_good(&scatter, &sizes));
        count = count_runs(&scatter);
        check_build(&scatter, &sizes, count);
        if (count > 0)
            check_build(&scatter, &sizes, count - 1);
    }
}

static void spoil(void)
{
    struct scatter_fragment *victim = &fragments[below(scatter.count)];

    switch (below(6)) {
    case 0:
        victim->length++;
        break;
    case 1:
        victim->destination_offset--;
        break;
    case 2:
        victim->destination_offset += 1 + below(5);
        break;
    case 3:
        victim->source_offset += below(POOL_BYTES);
        break;
    case 4:
        *victim = fragments[--scatter.count];
        break;
    default:
        sizes.message += below(2);
        break;
    }
}

TEST(judges_spoilt_lists_as_the_model_does)
{
    uint32_t refused = 0;

    for (int round = 0; round < ROUNDS; round++) {
        random_list();
        spoil();
        refused += !is_good(&scatter, &sizes);
        check_build(&scatter, &sizes, MAX_FRAGMENTS);
    }
    assert_in_range(refused, 1000, 3900);
}

SUITE(.name = "rx_random");
