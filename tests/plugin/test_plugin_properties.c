/*
 * What the plugin says about its devices, in every version: every field is written, devices can be
 * told apart, and what NCCL keeps pointers to stays where it is. All interfaces of the machine are
 * offered, so that there may be several devices; nothing is sent.
 */
#include "tests/plugin/plugin_test.h"

#include <math.h>
#include <net/if.h>
#include <pthread.h>

enum { UNWRITTEN = 0xee, MOST_DEVICES = 64 };

/* --- fields ---------------------------------------------------------------------------------- */

/* Not the bytes that were there before. */
#define assert_written(props, field)                                                               \
    do {                                                                                           \
        uint8_t untouched_[sizeof(props)->field];                                                  \
        memset(untouched_, UNWRITTEN, sizeof untouched_);                                          \
        if (memcmp(&(props)->field, untouched_, sizeof untouched_) == 0)                           \
            fail_msg("%s is not written", #field);                                                 \
    } while (0)

/* Those of every version; unwritten, numbers would be far below 0. */
static void check_common(const struct nccl_props *props)
{
    assert_written(props, name);
    assert_written(props, pci_path);
    assert_written(props, guid);
    assert_written(props, port);
    assert_non_null(props->name);
    assert_true(strlen(props->name) > 0);
    if (props->pci_path != NULL)
        assert_memory_equal(props->pci_path, "/sys/", 5);
    assert_int_equal(props->ptr_support, NCCL_PTR_HOST | (mode_is("host") ? 0 : NCCL_PTR_CUDA));
    assert_in_range(props->speed, 1, 10000000);
    assert_true(isfinite(props->latency) && props->latency >= 0);
    assert_in_range(props->max_comms, 256, 0x7fffffff);
    assert_int_equal(props->max_recvs, 1);
}

static void check_fields(const struct nccl_props *props, int version, int device)
{
    bool unpack = mode_is("unpack");

    check_common(props);
    if (version >= 7) {
        assert_int_equal(props->net_device_type, unpack ? NCCL_DEVICE_UNPACK : NCCL_DEVICE_HOST);
        assert_written(props, net_device_version);
        if (unpack)
            assert_int_equal(props->net_device_version, NCCL_UNPACK_VERSION);
    }
    if (version >= 8)
        assert_int_equal(props->reg_is_global, 0);
    if (version >= 9) {
        assert_in_range(props->force_flush, 0, 1);
        assert_int_equal(props->vdevice_count, 1);
        assert_int_equal(props->vdevices[0], device);
        assert_in_range(props->max_p2p_bytes, 1, (uint64_t)1 << 40);
        assert_in_range(props->max_coll_bytes, 1, (uint64_t)1 << 40);
    }
    if (version >= 11)
        assert_int_equal(props->max_multi_request_size, 1);
    if (version >= 12) {
        assert_int_equal(props->rail_id, -1);
        assert_int_equal(props->plane_id, -1);
    }
}

static int count_devices(const struct plugin *plugin)
{
    int count = 0;

    assert_works(plugin->table->devices(&count));
    assert_in_range(count, 1, MOST_DEVICES);
    return count;
}

/* NCCL does not clear the struct: every field is written, and nothing behind the last one. */
VERSIONS_CASE(every_field, ALL_VERSIONS)
{
    for (int device = 0, count = count_devices(plugin); device < count; device++) {
        _Alignas(uint64_t) uint8_t raw[256];
        struct nccl_props props;

        memset(raw, UNWRITTEN, sizeof raw);
        assert_works(plugin->table->get_properties(device, raw));
        props = plugin_read_properties(plugin->version, raw);
        check_fields(&props, plugin->version, device);
        for (size_t i = nccl_props_bytes[plugin->version - FIRST_VERSION]; i < sizeof raw; i++)
            assert_int_equal(raw[i], UNWRITTEN);
    }
}

/* --- devices --------------------------------------------------------------------------------- */

/* NCCL's topology knows a device by its name, and a port by its guid. */
VERSIONS_CASE(devices_differ, ALL_VERSIONS)
{
    struct nccl_props props[MOST_DEVICES];

    for (int i = 0, count = count_devices(plugin); i < count; i++) {
        assert_works(plugin_properties(plugin, i, &props[i]));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(props[i].name, props[k].name);
            assert_true(props[i].guid != props[k].guid);
        }
    }
}

/* Every version tells the same about the same device. */
VERSIONS_CASE(versions_agree, ALL_VERSIONS)
{
    const struct plugin *newest = &plugins[LAST_VERSION];
    int count = count_devices(plugin);

    assert_int_equal(count, count_devices(newest));
    for (int i = 0; i < count; i++) {
        struct nccl_props here;
        struct nccl_props there;

        assert_works(plugin_properties(plugin, i, &here));
        assert_works(plugin_properties(newest, i, &there));
        assert_string_equal(here.name, there.name);
        assert_true(here.guid == there.guid);
        assert_int_equal(here.speed, there.speed);
        assert_int_equal(here.max_comms, there.max_comms);
    }
}

/* Loopback was offered by name, so it is among them. */
TEST(test_loopback_is_there)
{
    const struct plugin *plugin = &plugins[LAST_VERSION];
    bool found = false;

    for (int i = 0, count = count_devices(plugin); i < count; i++) {
        struct nccl_props props;

        assert_works(plugin_properties(plugin, i, &props));
        found = found || strcmp(props.name, "lo") == 0;
    }
    assert_true(found);
}

VERSIONS_CASE(devices_that_do_not_exist, ALL_VERSIONS)
{
    int count = count_devices(plugin);
    const int devices[] = {-1, count, count + 1, count + 1000, count + 0x40000000};
    struct nccl_props props;

    for (size_t i = 0; i < COUNT_OF(devices); i++)
        assert_int_equal(plugin_properties(plugin, devices[i], &props), NCCL_INVALID_ARGUMENT);
}

/* --- threads --------------------------------------------------------------------------------- */

struct reader {
    const struct plugin *plugin;
    struct nccl_props expected;
    int wrong;
};

static void *read_again_and_again(void *argument)
{
    struct reader *reader = argument;

    for (int i = 0, turns = turns_of(1000); i < turns; i++) {
        struct nccl_props props;

        if (plugin_properties(reader->plugin, 0, &props) != NCCL_SUCCESS ||
            props.name != reader->expected.name || props.pci_path != reader->expected.pci_path)
            reader->wrong++;
    }
    return NULL;
}

/* NCCL keeps name and path without a copy: the same pointers whoever asks, whenever. */
VERSIONS_CASE(pointers_stay, ALL_VERSIONS)
{
    enum { THREADS = 4 };
    struct reader readers[THREADS];
    pthread_t threads[THREADS];
    struct nccl_props expected;

    assert_works(plugin_properties(plugin, 0, &expected));
    for (int i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){.plugin = plugin, .expected = expected};
        assert_int_equal(pthread_create(&threads[i], NULL, read_again_and_again, &readers[i]), 0);
    }
    /* also while another communicator comes and goes */
    for (int i = 0; i < 20; i++) {
        struct plugin other = another_context(plugin);

        assert_works(plugin_finalize(&other));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
}

/* All interfaces by their whole names. */
static int offer_all_interfaces(void)
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
    return 0;
}

PLUGIN_SUITE("plugin properties", offer_all_interfaces);
