/*
 * Where the members of NCCL's properties and tables lie, in all versions, against layouts that were
 * written down apart from those that are checked.
 */
#include "abi/net_tables.h"
#include "tests/plugin/nccl_tables.h"
#include "tests/support/suite.h"

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

TEST(test_properties)
{
    CHECK_PROPERTIES(6, 6);
    CHECK_PROPERTIES(7, 7);
    CHECK_PROPERTIES(8, 8);
    CHECK_PROPERTIES(9, 9);
    CHECK_PROPERTIES(10, 9);
    CHECK_PROPERTIES(11, 11);
    CHECK_PROPERTIES(12, 12);
}

/* --- tables -------------------------------------------------------------------------------- */

#define SAME_PLACE(ours, theirs)                                                                   \
    assert_int_equal(offsetof(struct net_table, ours), offsetof(struct nccl_net_v12, theirs))

TEST(test_tables)
{
    SAME_PLACE(name, name);
    SAME_PLACE(init, init);
    SAME_PLACE(devices, devices);
    SAME_PLACE(get_properties, get_properties);
    SAME_PLACE(listen, listen);
    SAME_PLACE(connect, connect);
    SAME_PLACE(accept, accept);
    SAME_PLACE(reg_mr, reg_mr);
    SAME_PLACE(reg_mr_dmabuf, reg_mr_dmabuf);
    SAME_PLACE(dereg_mr, dereg_mr);
    SAME_PLACE(isend, isend);
    SAME_PLACE(irecv, irecv);
    SAME_PLACE(iflush, iflush);
    SAME_PLACE(test, test);
    SAME_PLACE(close_send, close_send);
    SAME_PLACE(close_recv, close_recv);
    SAME_PLACE(close_listen, close_listen);
    SAME_PLACE(get_device_mr, get_device_mr);
    SAME_PLACE(irecv_consumed, irecv_consumed);
    SAME_PLACE(make_virtual, make_vdevice);
    SAME_PLACE(finalize, finalize);
    SAME_PLACE(set_attributes, set_net_attr);
    assert_int_equal(sizeof(struct net_table), sizeof(struct nccl_net_v12));
    /* The first member that an older version does not have. */
    assert_int_equal(offsetof(struct net_table, get_device_mr), sizeof(struct nccl_net_v6));
    assert_int_equal(offsetof(struct net_table, make_virtual), sizeof(struct nccl_net_v8));
    assert_int_equal(offsetof(struct net_table, finalize), sizeof(struct nccl_net_v10));
}

SUITE(.name = "net_tables");
