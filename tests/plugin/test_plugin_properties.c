/*
 * What the plugin says about its devices, in every version: every field is written, devices can be
 * told apart, and what NCCL keeps pointers to stays where it is. All interfaces of the machine are
 * offered, so that there may be several devices; nothing is sent.
 */
#include "tests/plugin/plugin_test.h"

#include <math.h>
#include <net/if.h>
#include <pthread.h>

enum { UNWRITTEN = 0xee };

/* --- fields ---------------------------------------------------------------------------------- */

/* The bytes of a field, as the plugin left them. */
#define assert_written(props, field)                                                               \
    do {                                                                                           \
        uint8_t untouched_[sizeof(props).field];                                                   \
        memset(untouched_, UNWRITTEN, sizeof untouched_);                                          \
        if (memcmp(&(props).field, untouched_, sizeof untouched_) == 0)                            \
            fail_msg("%s is not written", #field);                                                 \
    } while (0)

static int expected_pointers(void)
{
    return mode_is("host") ? NCCL_PTR_HOST : NCCL_PTR_HOST | NCCL_PTR_CUDA;
}

static void check_path(const char *path)
{
    if (path != NULL)
        assert_memory_equal(path, "/sys/", 5);
}

#define check_common(props)                                                                        \
    do {                                                                                           \
        assert_written(props, name);                                                               \
        assert_written(props, pci_path);                                                           \
        assert_written(props, guid);                                                               \
        assert_written(props, port);                                                               \
        assert_non_null((props).name);                                                             \
        assert_true(strlen((props).name) > 0);                                                     \
        check_path((props).pci_path);                                                              \
        assert_int_equal((props).ptr_support, expected_pointers());                                \
        assert_in_range((props).speed, 1, 10000000);                                               \
        /* unwritten, it would be far below 0 */                                                   \
        assert_true(isfinite((props).latency) && (props).latency >= 0);                            \
        assert_in_range((props).max_comms, 256, 0x7fffffff);                                       \
        assert_int_equal((props).max_recvs, 1);                                                    \
    } while (0)

#define check_offload(props)                                                                       \
    do {                                                                                           \
        bool unpack_ = mode_is("unpack");                                                          \
        assert_int_equal((props).net_device_type,                                                  \
                         unpack_ ? NCCL_DEVICE_UNPACK : NCCL_DEVICE_HOST);                         \
        assert_written(props, net_device_version);                                                 \
        if (unpack_)                                                                               \
            assert_int_equal((props).net_device_version, NCCL_UNPACK_VERSION);                     \
    } while (0)

#define check_virtual(props, device)                                                               \
    do {                                                                                           \
        assert_in_range((props).force_flush, 0, 1);                                                \
        assert_int_equal((props).virtual_device.count, 1);                                         \
        assert_int_equal((props).virtual_device.devices[0], (device));                             \
        assert_in_range((props).max_p2p_bytes, 1, (uint64_t)1 << 40);                              \
        assert_in_range((props).max_coll_bytes, 1, (uint64_t)1 << 40);                             \
    } while (0)

union any_props {
    struct nccl_props_v6 v6;
    struct nccl_props_v7 v7;
    struct nccl_props_v8 v8;
    struct nccl_props_v9 v9;
    struct nccl_props_v11 v11;
    struct nccl_props_v12 v12;
    uint8_t bytes[256];
};

static void check_newest(const union any_props *props, int version, int device)
{
    if (version == 11) {
        check_common(props->v11);
        check_offload(props->v11);
        check_virtual(props->v11, device);
        assert_int_equal(props->v11.reg_is_global, 0);
        assert_int_equal(props->v11.max_multi_request_size, 1);
    } else {
        check_common(props->v12);
        check_offload(props->v12);
        check_virtual(props->v12, device);
        assert_int_equal(props->v12.reg_is_global, 0);
        assert_int_equal(props->v12.max_multi_request_size, 1);
        assert_int_equal(props->v12.rail_id, -1);
        assert_int_equal(props->v12.plane_id, -1);
    }
}

static void check_fields(const union any_props *props, int version, int device)
{
    switch (version) {
    case 6:
        check_common(props->v6);
        break;
    case 7:
        check_common(props->v7);
        check_offload(props->v7);
        break;
    case 8:
        check_common(props->v8);
        check_offload(props->v8);
        assert_int_equal(props->v8.reg_is_global, 0);
        break;
    case 9:
    case 10:
        check_common(props->v9);
        check_offload(props->v9);
        check_virtual(props->v9, device);
        assert_int_equal(props->v9.reg_is_global, 0);
        break;
    default:
        check_newest(props, version, device);
        break;
    }
}

/* NCCL does not clear the struct: every field is written, and nothing behind the last one. */
static void test_every_field(void **state)
{
    const struct plugin *plugin = plugin_of(state);
    int count = 0;

    assert_works(plugin_devices(plugin, &count));
    assert_in_range(count, 1, 1000);
    for (int device = 0; device < count; device++) {
        union any_props props;
        size_t bytes = 0;

        memset(&props, UNWRITTEN, sizeof props);
        assert_works(plugin_raw_properties(plugin, device, &props, &bytes));
        check_fields(&props, plugin->version, device);
        for (size_t i = bytes; i < sizeof props; i++)
            assert_int_equal(props.bytes[i], UNWRITTEN);
    }
}

/* --- devices --------------------------------------------------------------------------------- */

/* NCCL's topology knows a device by its name, and a port by its guid. */
static void test_devices_differ(void **state)
{
    const struct plugin *plugin = plugin_of(state);
    struct plugin_properties props[64];
    int count = 0;

    assert_works(plugin_devices(plugin, &count));
    assert_in_range(count, 1, 64);
    for (int i = 0; i < count; i++) {
        assert_works(plugin_properties(plugin, i, &props[i]));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(props[i].name, props[k].name);
            assert_true(props[i].guid != props[k].guid);
        }
    }
}

/* Every version tells the same about the same device. */
static void test_versions_agree(void **state)
{
    const struct plugin *plugin = plugin_of(state);
    const struct plugin *newest = &plugins[LAST_VERSION];
    int count = 0;
    int expected = 0;

    assert_works(plugin_devices(plugin, &count));
    assert_works(plugin_devices(newest, &expected));
    assert_int_equal(count, expected);
    for (int i = 0; i < count; i++) {
        struct plugin_properties here;
        struct plugin_properties there;

        assert_works(plugin_properties(plugin, i, &here));
        assert_works(plugin_properties(newest, i, &there));
        assert_string_equal(here.name, there.name);
        assert_true(here.guid == there.guid);
        assert_int_equal(here.speed, there.speed);
        assert_int_equal(here.max_comms, there.max_comms);
    }
}

/* Loopback was offered by name, so it is among them. */
static void test_loopback_is_there(void **state)
{
    const struct plugin *plugin = &plugins[LAST_VERSION];
    bool found = false;
    int count = 0;

    (void)state;
    assert_works(plugin_devices(plugin, &count));
    for (int i = 0; i < count; i++) {
        struct plugin_properties props;

        assert_works(plugin_properties(plugin, i, &props));
        found = found || strcmp(props.name, "lo") == 0;
    }
    assert_true(found);
}

static void test_devices_that_do_not_exist(void **state)
{
    static const int beyond[] = {0, 1, 1000, 0x40000000};
    const struct plugin *plugin = plugin_of(state);
    union any_props props;
    size_t bytes;
    int count = 0;

    assert_works(plugin_devices(plugin, &count));
    assert_int_equal(plugin_raw_properties(plugin, -1, &props, &bytes), NCCL_INVALID_ARGUMENT);
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        assert_int_equal(plugin_raw_properties(plugin, count + beyond[i], &props, &bytes),
                         NCCL_INVALID_ARGUMENT);
}

/* --- threads --------------------------------------------------------------------------------- */

struct reader {
    const struct plugin *plugin;
    struct plugin_properties expected;
    int wrong;
};

static void *read_again_and_again(void *argument)
{
    struct reader *reader = argument;

    for (int i = 0, turns = turns_of(1000); i < turns; i++) {
        struct plugin_properties props;

        if (plugin_properties(reader->plugin, 0, &props) != NCCL_SUCCESS ||
            props.name != reader->expected.name || props.pci_path != reader->expected.pci_path)
            reader->wrong++;
    }
    return NULL;
}

/* NCCL keeps name and path without a copy: the same pointers whoever asks, whenever. */
static void test_pointers_stay(void **state)
{
    enum { THREADS = 4 };
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    struct plugin_properties expected;
    struct plugin other = *plugin_of(state);

    assert_works(plugin_properties(plugin_of(state), 0, &expected));
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){.plugin = plugin_of(state), .expected = expected};
        assert_int_equal(pthread_create(&threads[i], NULL, read_again_and_again, &readers[i]), 0);
    }
    /* also while another communicator comes and goes */
    for (int i = 0; i < 20; i++) {
        other.context = NULL;
        assert_works(plugin_init(&other));
        assert_works(plugin_finalize(&other));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
}

/* All interfaces by their whole names. */
static void offer_all_interfaces(void)
{
    struct if_nameindex *all = if_nameindex();
    char list[200] = "=lo";
    size_t used = 3;

    for (int i = 0; all != NULL && all[i].if_index != 0; i++)
        if (strcmp(all[i].if_name, "lo") != 0 && used + strlen(all[i].if_name) + 2 < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, ",%s", all[i].if_name);
    if (all != NULL)
        if_freenameindex(all);
    setenv("NCCL_SOCKET_IFNAME", list, 1);
    unsetenv("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH_VERSION(test_every_field),
        EACH_VERSION(test_devices_differ),
        EACH_VERSION(test_versions_agree),
        cmocka_unit_test(test_loopback_is_there),
        EACH_VERSION(test_devices_that_do_not_exist),
        EACH_VERSION(test_pointers_stay),
    };

    offer_all_interfaces();
    return cmocka_run_group_tests_name("plugin properties", tests, load_all, unload_all);
}
