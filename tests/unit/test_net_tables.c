/*
 * Where the members of NCCL's properties and tables lie, in all versions, against layouts that were
 * written down apart from those that are checked.
 */
#include "abi/net_tables.h"
#include "tests/plugin/nccl_tables.h"
#include "tests/support/basics.h"
#include "tests/support/suite.h"

/* --- properties ---------------------------------------------------------------------------- */

static char device_name[] = "name";
static char device_path[] = "path";

/* No two members are alike. */
#define SAME_MEMBERS                                                                               \
    .name = device_name, .pci_path = device_path, .guid = 0x1122334455667788, .speed = 2,          \
    .port = 3, .latency = 4, .max_comms = 5, .force_flush = 10, .max_p2p_bytes = 16

static const struct net_properties_v12 our_newest = {SAME_MEMBERS,
                                                     .pointer_support = 1,
                                                     .max_receives = 6,
                                                     .device_type = 7,
                                                     .device_version = 8,
                                                     .registration_is_global = 9,
                                                     .parts = {11, {12, 13, 14, 15, 0, 0, 0, 19}},
                                                     .max_collective_bytes = 17,
                                                     .max_multi_request = 18,
                                                     .rail = 20,
                                                     .plane = 21};

static const struct nccl_props their_newest = {SAME_MEMBERS,
                                               .ptr_support = 1,
                                               .max_recvs = 6,
                                               .net_device_type = 7,
                                               .net_device_version = 8,
                                               .reg_is_global = 9,
                                               .vdevice_count = 11,
                                               .vdevices = {12, 13, 14, 15},
                                               .more_vdevices = {0, 0, 0, 19},
                                               .max_coll_bytes = 17,
                                               .max_multi_request_size = 18,
                                               .rail_id = 20,
                                               .plane_id = 21};

/* Both ways, and nothing is written behind the end of the older version. */
static void check_properties(int version)
{
    uint8_t written[2 * sizeof our_newest] = {0};
    uint8_t theirs[sizeof written] = {0};
    struct net_properties_v12 read = {.rail = NET_UNDEFINED, .plane = NET_UNDEFINED};
    struct net_properties_v12 ours = read; /* a member that the version does not have stays */

    for (size_t i = 0; i < COUNT_OF(nccl_props_members); i++) {
        const struct nccl_props_member *member = &nccl_props_members[i];
        const char *from = (const char *)&their_newest + member->newest;
        int at = member->at[version - NCCL_FIRST];

        if (at < 0)
            continue;
        memcpy(theirs + at, from, member->bytes);
        memcpy((char *)&ours + member->newest, from, member->bytes);
    }
    net_properties_from(version, theirs, &read);
    assert_memory_equal(&read, &ours, sizeof read);
    net_properties_to(version, &our_newest, written);
    assert_memory_equal(written, theirs, sizeof written);
}

TEST(test_properties)
{
    assert_memory_equal(&our_newest, &their_newest, sizeof our_newest);
    for (size_t i = 0; i < COUNT_OF(nccl_props_members); i++)
        assert_int_equal(nccl_props_members[i].at[NCCL_VERSIONS - 1], nccl_props_members[i].newest);
    for (int i = 0; i < NCCL_VERSIONS; i++)
        check_properties(NCCL_FIRST + i);
}

/* --- tables -------------------------------------------------------------------------------- */

#define SAME_PLACE(ours, theirs)                                                                   \
    assert_int_equal(offsetof(struct net_table, ours), offsetof(struct nccl_net, theirs))

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
    assert_int_equal(sizeof(struct net_table), sizeof(struct nccl_net));
    /* The first member that an older version does not have. */
    assert_int_equal(offsetof(struct net_table, get_device_mr), nccl_net_members[0] * 8);
    assert_int_equal(offsetof(struct net_table, make_virtual), nccl_net_members[2] * 8);
    assert_int_equal(offsetof(struct net_table, finalize), nccl_net_members[4] * 8);
}

SUITE(.name = "net_tables");
