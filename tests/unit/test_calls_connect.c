/*
 * The public calls until there is a connection: loading a plugin, its devices, and how two ends
 * meet. tests/unit/calls.h says how these tests run.
 */
#include "tests/unit/calls.h"

/* --- loading ------------------------------------------------------------------------------- */

/* By itself, by NULL and by name it is the same plugin, however often. */
CASE(load, ALWAYS)
{
    start();
    CHECK_SUCCESS(tcpx_load_plugin(NULL));
    CHECK_SUCCESS(tcpx_load_plugin(getenv("UCCL_TCPX_PLUGIN_PATH")));
    check_new_way();
}

/* What cannot be loaded is named, and what was loaded before goes on. */
CASE(load_bad, ALWAYS)
{
    start();
    CHECK_ERROR(tcpx_load_plugin("/nowhere/libplugin.so"), TCPX_SYSTEM_ERROR,
                "/nowhere/libplugin.so");
    CHECK(check_said("No such file"));
    CHECK_ERROR(tcpx_load_plugin("/etc/passwd"), TCPX_SYSTEM_ERROR, "/etc/passwd");
    CHECK_REFUSED(tcpx_load_plugin(path_in_build("libtcpx.so")), "libtcpx.so");
    CHECK_REFUSED(tcpx_load_plugin(path_in_build("tests/quirky_plugin/libnameless.so")),
                  "has no name");
    CHECK(tcpx_load_plugin("") != TCPX_SUCCESS);
    CHECK(tcpx_get_device_count() >= 1);
    check_new_way();
}

/* The first call says it if the variable names nothing; another plugin can be taken then. */
CASE(load_named, ALWAYS)
{
    struct tcpx_net_properties properties;
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *listener;

    setenv("UCCL_TCPX_PLUGIN_PATH", "/nowhere/libplugin.so", 1);
    CHECK(tcpx_get_device_count() == -1);
    CHECK(check_said("UCCL_TCPX_PLUGIN_PATH") && check_said("/nowhere/libplugin.so"));
    CHECK_ERROR(tcpx_get_properties(0, &properties), TCPX_SYSTEM_ERROR, "/nowhere/libplugin.so");
    CHECK_ERROR(tcpx_listen(0, handle, &listener), TCPX_SYSTEM_ERROR, "/nowhere/libplugin.so");
    CHECK_ERROR(tcpx_load_plugin(NULL), TCPX_SYSTEM_ERROR, "/nowhere/libplugin.so");
    CHECK_SUCCESS(tcpx_load_plugin("builtin"));
    CHECK(tcpx_get_device_count() >= 1);
}

static void check_device_name(bool of_quirky)
{
    struct tcpx_net_properties properties;

    CHECK_SUCCESS(tcpx_get_properties(0, &properties));
    CHECK(strcmp(properties.name, of_quirky ? "quirky0" : "lo") == 0);
}

/* What is open stays with its plugin when another is loaded. */
CASE(load_other, ALWAYS)
{
    struct way ways[2];
    bool was_quirky;

    setenv("QUIRKY_CUDA", "0", 1);
    start();
    was_quirky = facts.quirky;
    facts.kinds = 1;
    facts.unpacks = false;
    ways[0] = make_way();
    CHECK_SUCCESS(tcpx_load_plugin(
        was_quirky ? "builtin" : path_in_build("tests/quirky_plugin/libquirky_v8.so")));
    check_device_name(!was_quirky);
    facts.quirky = true; /* one of them is */
    ways[1] = make_way();
    check_way(&ways[0]);
    check_way(&ways[1]);
    CHECK_SUCCESS(tcpx_load_plugin(NULL));
    check_device_name(was_quirky);
    check_way(&ways[1]);
    close_receiver(&ways[1]);
    check_way(&ways[0]);
    close_receiver(&ways[0]);
}

/* --- devices ------------------------------------------------------------------------------- */

static void check_device(int dev)
{
    struct tcpx_net_properties properties;

    memset(&properties, POISON, sizeof properties);
    CHECK_SUCCESS(tcpx_get_properties(dev, &properties));
    CHECK(properties.name != NULL && *properties.name != '\0');
    CHECK(properties.pci_path == NULL || *properties.pci_path == '/');
    CHECK((properties.ptr_support & NCCL_PTR_HOST) != 0);
    CHECK(properties.speed > 0 && properties.max_comms > 0 && properties.max_recvs == 1);
    CHECK(properties.net_device_type == 0 || properties.net_device_type == 1);
    CHECK(properties.net_device_version == (properties.net_device_type == 1 ? 7 : 0));
    if (facts.quirky)
        CHECK(strcmp(properties.name, "quirky0") == 0 && properties.guid == 0x1122334455667788 &&
              properties.speed == 12345 && properties.port == 2 && properties.latency == 1.5f &&
              properties.max_comms == 65536);
    else
        CHECK(strcmp(properties.name, "lo") == 0);
    CHECK(!facts.builtin || (properties.net_device_type == 1 && facts.kinds == 2));
}

/* Every device says what it can do, and all that it says arrives. */
CASE(properties, ALWAYS)
{
    int count;

    setenv("QUIRKY_DEVICES", "3", 1);
    start();
    count = tcpx_get_device_count();
    CHECK(count == tcpx_get_device_count());
    CHECK(!facts.quirky || count == 3);
    for (int dev = 0; dev < count; dev++)
        check_device(dev);
}

/* A device that is not there is named. */
CASE(no_device, ALWAYS)
{
    struct tcpx_net_properties properties = {.port = 4711};
    const int wrong[] = {-1, INT_MIN, INT_MAX, 0};
    uint8_t handle[TCPX_HANDLE_BYTES];
    uint8_t untouched[TCPX_HANDLE_BYTES];
    void *listener = &listener;
    void *comm = NULL;

    start();
    memset(handle, POISON, sizeof handle);
    memset(untouched, POISON, sizeof untouched);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        int dev = wrong[i] != 0 ? wrong[i] : tcpx_get_device_count();

        CHECK_REFUSED(tcpx_get_properties(dev, &properties), "device");
        CHECK(said_number(dev) && said_number(tcpx_get_device_count()));
        CHECK_REFUSED(tcpx_listen(dev, handle, &listener), "device");
        CHECK(said_number(dev));
        CHECK_REFUSED(tcpx_connect_v5(dev, handle, &comm, NULL), "device");
        CHECK(said_number(dev));
    }
    CHECK(properties.port == 4711 && listener == &listener && comm == NULL);
    CHECK(memcmp(handle, untouched, sizeof handle) == 0);
}

/* --- connections --------------------------------------------------------------------------- */

/* NCCL's ncclNetDeviceHandle. */
struct device_handle {
    int type;
    int version;
    void *handle;
    size_t size;
    int needs_proxy_progress;
};

static void check_device_handle(const struct device_handle *handle)
{
    CHECK(sizeof *handle == 32);
    CHECK(handle->type == (facts.has_queue ? 1 : 0));
    CHECK(handle->version == (facts.has_queue ? 7 : 0));
    CHECK((handle->handle != NULL) == facts.has_queue);
    CHECK(handle->size == (facts.has_queue ? 24u : 0u));
    CHECK(handle->needs_proxy_progress == (facts.has_queue ? 1 : 0));
}

/*
 * Both ends say "not yet" until the other is there, the handle stays as it is, and the caller's 32
 * bytes get the device handle, when there is a comm.
 */
CASE(connect, ALWAYS)
{
    struct {
        struct device_handle handle;
        uint8_t behind[64];
    } own;
    uint8_t handle[TCPX_HANDLE_BYTES + 16];
    uint8_t before[TCPX_HANDLE_BYTES + 16];
    void *to_own = &own.handle;
    void *send_handle = &send_handle;
    void *sender = NULL;
    void *receiver = &receiver;
    void *listener = NULL;
    int polls = 0;

    start();
    memset(handle, POISON, sizeof handle);
    memset(&own, POISON, sizeof own);
    CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
    CHECK(listener != NULL);
    for (size_t i = TCPX_HANDLE_BYTES; i < sizeof handle; i++)
        CHECK(handle[i] == POISON);
    memcpy(before, handle, sizeof before);
    for (int i = 0; i < 20; i++) {
        receiver = &receiver;
        CHECK_SUCCESS(tcpx_accept_v5(listener, &receiver, &to_own));
        CHECK(receiver == NULL); /* nobody has come */
    }
    while (sender == NULL || receiver == NULL) {
        if (sender == NULL)
            CHECK_SUCCESS(tcpx_connect_v5(0, handle, &sender, &send_handle));
        if (receiver == NULL)
            CHECK_SUCCESS(tcpx_accept_v5(listener, &receiver, &to_own));
        CHECK(memcmp(handle, before, sizeof handle) == 0);
        CHECK(receiver != NULL || own.handle.type == (int)0xA5A5A5A5);
        polls++;
        sched_yield();
    }
    CHECK(!facts.quirky || polls > 1);
    CHECK(send_handle == &send_handle);
    CHECK(to_own == &own.handle);
    check_device_handle(&own.handle);
    for (size_t i = 0; i < sizeof own.behind; i++)
        CHECK(own.behind[i] == POISON);
    CHECK_SUCCESS(tcpx_close_listen(listener));
    CHECK_SUCCESS(tcpx_close_send(sender));
    CHECK_SUCCESS(tcpx_close_recv(receiver));
    check_device_handle(&own.handle);
}

/* Without a place for it, the device handle is the comm's own; nobody needs one to receive. */
CASE(device_handle, ALWAYS)
{
    struct way ways[2] = {{0}};
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *listener;
    void *given = NULL;

    start();
    CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
    while (!poll_way(&ways[0], handle, listener, &given))
        CHECK(ways[0].receiver != NULL || given == NULL);
    CHECK_SUCCESS(tcpx_close_listen(listener));
    CHECK(given != NULL);
    check_device_handle(given);
    ways[1] = make_way(); /* NULL for the place */
    close_receiver(&ways[1]);
    give_memory(&ways[0]);
    check_way(&ways[0]);
    check_device_handle(given); /* as long as the comm lives */
    end_way(&ways[0]);
}

/* What a peer puts where the plugin keeps its pointer does no harm. */
CASE(strange_state, QUIRKY)
{
    struct way way = {0};
    uint8_t handle[TCPX_HANDLE_BYTES];
    uint8_t before[TCPX_HANDLE_BYTES];
    void *listener;

    start();
    CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
    for (size_t i = 80; i < 88; i++)
        handle[i] = (uint8_t)(0x11 * (i - 79));
    memcpy(before, handle, sizeof before);
    meet(&way, handle, listener, NULL);
    CHECK(memcmp(handle, before, sizeof handle) == 0);
    CHECK_SUCCESS(tcpx_close_listen(listener));
    check_way(&way);
    end_way(&way);
}

/* Another handle in the same place is another attempt. */
CASE(other_handle, ALWAYS)
{
    struct way way = {0};
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *listeners[2];
    void *nobody = NULL;
    void *early = NULL;

    start();
    CHECK_SUCCESS(tcpx_listen(0, handle, &listeners[0]));
    CHECK_SUCCESS(tcpx_connect_v5(0, handle, &early, NULL));
    CHECK_SUCCESS(tcpx_listen(0, handle, &listeners[1]));
    while (!poll_way(&way, handle, listeners[1], NULL))
        if (early == NULL && nobody == NULL)
            CHECK_SUCCESS(tcpx_accept_v5(listeners[0], &nobody, NULL));
    for (int i = 0; i < 2; i++)
        CHECK_SUCCESS(tcpx_close_listen(listeners[i]));
    give_memory(&way);
    check_way(&way);
    end_way(&way);
}

/* A listener takes further peers where the plugin does, and says so where it does not. */
CASE(second_peer, ALWAYS)
{
    struct way ways[2] = {{0}};
    uint8_t handle[TCPX_HANDLE_BYTES];
    void *listener;
    void *receiver = NULL;

    start();
    CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
    for (int i = 0; i < 2; i++) {
        meet(&ways[i], handle, listener, NULL);
        if (facts.quirky) {
            CHECK_MISUSE(tcpx_accept_v5(listener, &receiver, NULL), "one peer");
            CHECK_SUCCESS(tcpx_close_listen(listener));
            CHECK_SUCCESS(tcpx_listen(0, handle, &listener));
        }
    }
    CHECK_SUCCESS(tcpx_close_listen(listener));
    for (int i = 0; i < 2; i++)
        check_way(&ways[i]);
    for (int i = 0; i < 2; i++)
        end_way(&ways[i]);
}

/* Several connections come about at once, and stay apart. */
CASE(listeners, ALWAYS)
{
    enum { WAYS = 4 };
    struct way ways[WAYS] = {{0}};
    uint8_t handles[WAYS + 1][TCPX_HANDLE_BYTES];
    void *listeners[WAYS + 1]; /* nobody comes to the last one */
    int left = WAYS;

    start();
    for (int i = 0; i <= WAYS; i++)
        CHECK_SUCCESS(tcpx_listen(0, handles[i], &listeners[i]));
    while (left > 0) {
        left = WAYS;
        for (int i = 0; i < WAYS; i++)
            left -= poll_way(&ways[i], handles[i], listeners[i], NULL);
    }
    for (int i = 0; i < WAYS; i++) {
        CHECK_SUCCESS(tcpx_close_listen(listeners[i]));
        give_memory(&ways[i]);
    }
    for (int i = 0; i < WAYS; i++)
        check_way(&ways[(i + 1) % WAYS]);
    for (int i = 0; i < WAYS; i++)
        end_way(&ways[i]);
    CHECK_SUCCESS(tcpx_close_listen(listeners[WAYS]));
}

CALLS_SUITE("calls_connect");
