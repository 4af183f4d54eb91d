/*
 * Where each member of NCCL's properties and tables lies, in all versions. The numbers are those of
 * NCCL's headers on LP64 machines, written down apart from the lists of members that they check.
 */
#include "abi/net_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define ADD_MEMBER(type, member)                                                                   \
    used += (size_t)snprintf(text + used, sizeof text - used, #member " %zu, ",                    \
                             (size_t)((char *)&object.member - (char *)&object));

/* The members in their order with their offsets, and the size. */
#define CHECK_LAYOUT(list, name, expected)                                                         \
    do {                                                                                           \
        struct name object;                                                                        \
        char text[600];                                                                            \
        size_t used = 0;                                                                           \
                                                                                                   \
        list(ADD_MEMBER);                                                                          \
        snprintf(text + used, sizeof text - used, "%zu", sizeof object);                           \
        assert_string_equal(text, expected);                                                       \
    } while (0)

#define BEGIN      "name 0, pci_path 8, guid 16, pointer_support 24, "
#define LINK_AT_28 "speed 28, port 32, latency 36, max_comms 40, max_receives 44, "
#define UP_TO_PARTS                                                                                \
    BEGIN "registration_is_global 28, force_flush 32, speed 36, port 40, latency 44, "             \
          "max_comms 48, max_receives 52, device_type 56, device_version 60, parts 64, "

static void test_properties(void **state)
{
    (void)state;
    CHECK_LAYOUT(NET_PROPERTIES_V6, net_properties_v6, BEGIN LINK_AT_28 "48");
    CHECK_LAYOUT(NET_PROPERTIES_V7, net_properties_v7,
                 BEGIN LINK_AT_28 "device_type 48, device_version 52, 56");
    CHECK_LAYOUT(NET_PROPERTIES_V8, net_properties_v8,
                 BEGIN "registration_is_global 28, speed 32, port 36, latency 40, max_comms 44, "
                       "max_receives 48, device_type 52, device_version 56, 64");
    CHECK_LAYOUT(NET_PROPERTIES_V9, net_properties_v9,
                 UP_TO_PARTS "max_p2p_bytes 88, max_collective_bytes 96, 104");
    CHECK_LAYOUT(NET_PROPERTIES_V11, net_properties_v11,
                 UP_TO_PARTS
                 "max_p2p_bytes 88, max_collective_bytes 96, max_multi_request 104, 112");
    CHECK_LAYOUT(NET_PROPERTIES_V12, net_properties_v12,
                 UP_TO_PARTS "max_p2p_bytes 104, max_collective_bytes 112, max_multi_request 120, "
                             "rail 124, plane 126, 128");
}

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
