/*
 * Where the members of NCCL's properties and tables lie, in all versions, against layouts that were
 * written down apart from those that are checked.
 */
#include "abi/net_tables.h"
#include "tests/plugin/nccl_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* --- properties ---------------------------------------------------------------------------- */

static char device_name[] = "name";
static char device_path[] = "path";

/* No two members are alike, and what a version does not have is 0. */
#define SINCE_V6(support, receives)                                                                \
    .name = device_name, .pci_path = device_path, .guid = 0x1122334455667788, .support = 1,        \
    .speed = 2, .port = 3, .latency = 4, .max_comms = 5, .receives = 6
#define OURS_V6      SINCE_V6(pointer_support, max_receives)
#define OURS_V7      OURS_V6, .device_type = 7, .device_version = 8
#define OURS_V8      OURS_V7, .registration_is_global = 9
#define OURS_SINCE_9 OURS_V8, .force_flush = 10, .max_p2p_bytes = 16, .max_collective_bytes = 17
#define OURS_V9      OURS_SINCE_9, .parts = {11, {12, 13, 14, 15}}
#define OURS_V11     OURS_V9, .max_multi_request = 18
#define OURS_V12                                                                                   \
    OURS_SINCE_9, .parts = {11, {12, 13, 14, 15, 0, 0, 0, 19}}, .max_multi_request = 18,           \
                  .rail = 20, .plane = 21
#define THEIRS_V6      SINCE_V6(ptr_support, max_recvs)
#define THEIRS_V7      THEIRS_V6, .net_device_type = 7, .net_device_version = 8
#define THEIRS_V8      THEIRS_V7, .reg_is_global = 9
#define THEIRS_SINCE_9 THEIRS_V8, .force_flush = 10, .max_p2p_bytes = 16, .max_coll_bytes = 17
#define THEIRS_V9      THEIRS_SINCE_9, .virtual_device = {11, {12, 13, 14, 15}}
#define THEIRS_V11     THEIRS_V9, .max_multi_request_size = 18
#define THEIRS_V12                                                                                 \
    THEIRS_SINCE_9, .virtual_device = {11, {12, 13, 14, 15, 0, 0, 0, 19}},                         \
                    .max_multi_request_size = 18, .rail_id = 20, .plane_id = 21

/* Both ways, and nothing is written behind the end of the older version. */
static void check_properties(int version, const struct net_properties_v12 *ours, const void *theirs,
                             size_t bytes)
{
    struct net_properties_v12 read = {.rail = NET_UNDEFINED, .plane = NET_UNDEFINED};
    uint8_t written[2 * sizeof read] = {0};

    net_properties_from(version, theirs, &read);
    if (version < 12) { /* not even bytes behind the last member of an older version */
        assert_int_equal(read.rail, NET_UNDEFINED);
        assert_int_equal(read.plane, NET_UNDEFINED);
        read.rail = read.plane = 0;
    }
    assert_memory_equal(&read, ours, sizeof read);
    net_properties_to(version, ours, written);
    assert_memory_equal(written, theirs, bytes);
    for (size_t i = bytes; i < sizeof written; i++)
        assert_int_equal(written[i], 0);
}

#define CHECK_PROPERTIES(version, layout)                                                          \
    do {                                                                                           \
        static const struct net_properties_v12 ours = {OURS_V##layout};                            \
        static const struct nccl_props_v##layout theirs = {THEIRS_V##layout};                      \
                                                                                                   \
        check_properties(version, &ours, &theirs, sizeof theirs);                                  \
    } while (0)

static void test_properties(void **state)
{
    (void)state;
    CHECK_PROPERTIES(6, 6);
    CHECK_PROPERTIES(7, 7);
    CHECK_PROPERTIES(8, 8);
    CHECK_PROPERTIES(9, 9);
    CHECK_PROPERTIES(10, 9);
    CHECK_PROPERTIES(11, 11);
    CHECK_PROPERTIES(12, 12);
}

/* --- tables -------------------------------------------------------------------------------- */

#define ADD_MEMBER(type, member)                                                                   \
    used += (size_t)snprintf(text + used, sizeof text - used, #member " %zu, ",                    \
                             offsetof(struct net_table_v11, member));

/* The members in their order with their offsets, and the size. */
#define CHECK_LAYOUT(list, name, expected)                                                         \
    do {                                                                                           \
        char text[600];                                                                            \
        size_t used = 0;                                                                           \
                                                                                                   \
        list(ADD_MEMBER);                                                                          \
        snprintf(text + used, sizeof text - used, "%zu", sizeof(struct name));                     \
        assert_string_equal(text, expected);                                                       \
    } while (0)

#define CALLS_OF_V6                                                                                \
    "name 0, init 8, devices 16, get_properties 24, listen 32, connect 40, accept 48, reg_mr 56, " \
    "reg_mr_dmabuf 64, dereg_mr 72, isend 80, irecv 88, iflush 96, test 104, close_send 112, "     \
    "close_recv 120, close_listen 128, "
#define CALLS_OF_V7 CALLS_OF_V6 "get_device_mr 136, irecv_consumed 144, "

static void test_tables(void **state)
{
    (void)state;
    CHECK_LAYOUT(NET_TABLE_V6, net_table_v6, CALLS_OF_V6 "136");
    CHECK_LAYOUT(NET_TABLE_V7, net_table_v7, CALLS_OF_V7 "152");
    CHECK_LAYOUT(NET_TABLE_V9, net_table_v9, CALLS_OF_V7 "make_virtual 152, 160");
    CHECK_LAYOUT(NET_TABLE_V11, net_table_v11,
                 CALLS_OF_V7 "make_virtual 152, finalize 160, set_attributes 168, 176");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_properties),
                                       cmocka_unit_test(test_tables)};

    return cmocka_run_group_tests_name("net_tables", tests, NULL, NULL);
}
