/*
 * Which paths lead to a listener, and that a link takes one that works: handles with further
 * addresses, listeners that are at several, and devices that have lost theirs. Every test also
 * shows that no descriptor is kept.
 */
#include "net/link/path.h"
#include "tests/unit/links.h"

#include <arpa/inet.h>

static struct net_link_options options;
static struct net_listener *listener;
static uint8_t handle[NET_HANDLE_BYTES];
static int descriptors;

static int set_up(void **state)
{
    (void)state;
    descriptors = open_descriptors();
    options = (struct net_link_options){
        .sockets = 3, USUAL_LINK, .timeout_ms = 60000, .handshake_ms = 5000};
    listener = listen_locally(&options, handle);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    net_listener_close(listener);
    return open_descriptors() == descriptors ? 0 : -1;
}

#define PATH_TEST(function) TEST_WITH(function, set_up, tear_down)

static struct net_handle parsed_handle(void)
{
    struct net_handle parsed;

    assert_success(net_handle_read(handle, &parsed));
    return parsed;
}

static struct sockaddr_storage address_of(const char *text, uint16_t number)
{
    union socket_address any = {0};
    bool is_ipv6 = strchr(text, ':') != NULL;

    any.storage.ss_family = is_ipv6 ? AF_INET6 : AF_INET;
    assert_int_equal(inet_pton(any.storage.ss_family, text,
                               is_ipv6 ? (void *)&any.ipv6.sin6_addr : &any.ipv4.sin_addr),
                     1);
    any.ipv4.sin_port = number; /* at the same place in both families */
    return any.storage;
}

/* --- handles ------------------------------------------------------------------------------- */

static void expect_refused(size_t at, uint8_t value, const char *text)
{
    struct net_handle parsed;
    uint8_t before = handle[at];

    handle[at] = value;
    assert_int_equal(net_handle_read(handle, &parsed), TCPX_INVALID_ARGUMENT);
    assert_string_equal(error_text(), text);
    handle[at] = before;
}

/* They come back, and older versions see what they always saw. */
PATH_TEST(test_further_addresses_of_a_handle)
{
    static const char *const texts[] = {"192.0.2.1", "2001:db8::7", "192.0.2.3"};
    static const uint8_t zeros[64];
    struct net_handle parsed = parsed_handle();
    uint16_t number = ((const union socket_address *)&parsed.address)->ipv4.sin_port;
    uint8_t plain[NET_HANDLE_BYTES];

    assert_int_equal(parsed.other_count, 0);
    assert_memory_equal(handle + 64, zeros, 64);
    memcpy(plain, handle, sizeof plain);
    for (int i = 0; i < 3; i++)
        parsed.others[parsed.other_count++] = address_of(texts[i], number);
    net_handle_write(&parsed, handle);
    assert_memory_equal(handle, plain, 64);
    assert_int_equal(parsed_handle().other_count, 3);
    assert_memory_equal(parsed_handle().others, parsed.others, sizeof parsed.others);
    expect_refused(64, 5, "further address 0 of the handle is of family 5 and has 63 bytes");
    expect_refused(64 + 5 + 17 + 5, 7,
                   "further address 3 of the handle is of family 7 and has 36 bytes");
}

PATH_TEST(test_as_many_addresses_as_fit)
{
    struct net_handle parsed = parsed_handle();

    parsed.other_count = NET_HANDLE_OTHERS;
    for (int i = 0; i < NET_HANDLE_OTHERS; i++)
        parsed.others[i] = address_of("192.0.2.1", 0);
    net_handle_write(&parsed, handle);
    assert_int_equal(parsed_handle().other_count, NET_HANDLE_OTHERS);
    expect_refused(64 + 5 * 12, 6,
                   "further address 12 of the handle is of family 6 and has 3 bytes");
    for (int i = 0; i < NET_HANDLE_OTHERS; i++)
        parsed.others[i] = address_of("2001:db8::7", 0);
    net_handle_write(&parsed, handle);
    assert_int_equal(parsed_handle().other_count, 3);
}

/* --- paths --------------------------------------------------------------------------------- */

/* Loopback with these last numbers of 127.0.0.x. */
static void make_devices(struct net_device *devices, const char *numbers)
{
    for (int i = 0; numbers[i] != '\0'; i++) {
        char text[] = "127.0.0.x";

        text[sizeof text - 2] = numbers[i];
        devices[i] =
            (struct net_device){.address = address_of(text, 0), .ifindex = 1, .is_loopback = true};
        snprintf(devices[i].name, sizeof devices[i].name, "lo%c", numbers[i]);
    }
}

/* Listens on both devices, first on the first. */
static void listen_on(const struct net_device devices[2])
{
    options.devices = devices;
    options.device_count = 2;
    net_listener_close(listener);
    assert_success(net_listen(&devices[0], &options, handle, &listener));
}

/* A link from the first of two devices to the handle with another first address. */
static struct net_link link_from(const struct net_device devices[2], struct sockaddr_storage first)
{
    struct net_link_options from = options;
    struct net_handle parsed = parsed_handle();
    struct net_link sender = {.reverse = -1};
    struct net_link receiver;
    bool connected = false;
    bool accepted = false;

    from.devices = devices;
    parsed.address = first;
    net_handle_write(&parsed, handle);
    until(connected && accepted, {
        if (!connected)
            assert_success(net_connect(devices, &from, handle, &sender, &connected));
        if (!accepted)
            assert_success(net_accept(listener, &receiver, &accepted));
    });
    close_joined(&sender, &receiver);
    return sender;
}

static void expect_peer(const struct net_link *link, const char *host)
{
    assert_int_equal(strncmp(link->peer, host, strlen(host)), 0);
    assert_int_equal(link->peer[strlen(host)], ':');
}

PATH_TEST(test_an_address_that_does_not_work)
{
    struct net_device listening[2];
    struct net_device leaving[2];
    struct sockaddr_storage first;
    struct net_link link;
    uint16_t number;

    make_devices(listening, "34");
    make_devices(leaving, "56");
    listen_on(listening);
    first = parsed_handle().address;
    number = ((const union socket_address *)&first)->ipv4.sin_port;
    assert_int_equal(parsed_handle().other_count, 1);
    link = link_from(leaving, first);
    assert_string_equal(link.device.name, "lo5");
    expect_peer(&link, "127.0.0.3");
    link = link_from(leaving, address_of("255.255.255.255", number));
    assert_string_equal(link.device.name, "lo5");
    expect_peer(&link, "127.0.0.4");
}

/* No device can be left through, until the second of them, which the route leads over. */
PATH_TEST(test_a_device_that_has_lost_its_address)
{
    struct net_device listening[2];
    struct net_device leaving[2];
    struct net_link link;

    make_devices(listening, "34");
    make_devices(leaving, "51");
    listen_on(listening);
    leaving[0].address = address_of("192.0.2.1", 0);
    leaving[0].is_loopback = false;
    link = link_from(leaving, parsed_handle().address);
    expect_peer(&link, "127.0.0.3");
}

/* Though the listening socket is at all addresses of this host. */
PATH_TEST(test_connections_to_other_addresses_are_not_taken)
{
    struct net_device devices[2];
    struct net_handle parsed;
    struct net_link link;
    bool done;
    int result = TCPX_SUCCESS;

    make_devices(devices, "34");
    listen_on(devices);
    parsed = parsed_handle();
    parsed.other_count = 0;
    parsed.address =
        address_of("127.0.0.9", ((const union socket_address *)&parsed.address)->ipv4.sin_port);
    net_handle_write(&parsed, handle);
    until(result != TCPX_SUCCESS, {
        result = net_connect(NULL, &options, handle, &link, &done);
        assert_success(net_accept(listener, &link, &done));
        assert_false(done);
    });
}

PATH_TEST(test_no_address_works)
{
    struct net_device devices[2];
    struct net_link link;
    bool connected;
    int result = TCPX_SUCCESS;

    make_devices(devices, "34");
    listen_on(devices);
    net_listener_close(listener);
    listener = NULL;
    until(result != TCPX_SUCCESS,
          result = net_connect(devices, &options, handle, &link, &connected));
    assert_int_equal(result, TCPX_SYSTEM_ERROR);
    assert_non_null(strstr(error_text(), "lo3 (127.0.0.3): cannot connect to 127.0.0.3:"));
    assert_non_null(strstr(error_text(), "lo3 (127.0.0.3): cannot connect to 127.0.0.4:"));
}

static void expect_path(const struct path *path, const char *name,
                        const struct sockaddr_storage *target)
{
    assert_string_equal(path->device.name, name);
    assert_memory_equal(&path->target, target, sizeof *target);
}

/* A subnet that both are in goes before the order of the addresses. */
PATH_TEST(test_paths_within_a_subnet)
{
    struct net_device devices[2];
    struct net_handle parsed;
    struct path paths[PATHS_MOST];

    make_devices(devices, "34");
    listen_on(devices);
    parsed = parsed_handle();
    devices[0].prefix_bits = 31; /* 2 and 3 */
    devices[1].prefix_bits = 31; /* 4 and 5 */
    assert_in_range(paths_list(&devices[1], &options, &parsed, paths), 4, PATHS_MOST);
    expect_path(&paths[0], "lo4", &parsed.others[0]);
    expect_path(&paths[1], "lo3", &parsed.address);
    expect_path(&paths[2], "lo4", &parsed.address);
}

/* As those of docker0, which every host has. */
PATH_TEST(test_own_addresses_are_not_the_peers)
{
    struct net_device devices[2];
    struct net_handle parsed;
    struct path paths[PATHS_MOST];

    make_devices(devices, "34");
    listen_on(devices);
    parsed = parsed_handle();
    parsed.address = address_of("192.0.2.1", 7);
    for (unsigned i = paths_list(&devices[1], &options, &parsed, paths); i > 0; i--)
        assert_memory_equal(&paths[i - 1].target, &parsed.address, sizeof parsed.address);
}

/* A path that was left out is the last one for a while. */
PATH_TEST(test_paths_that_have_failed)
{
    struct net_device devices[2];
    struct path paths[PATHS_MOST];
    struct net_handle parsed;
    unsigned count;

    make_devices(devices, "78");
    listen_on(devices);
    parsed = parsed_handle();
    count = paths_list(&devices[0], &options, &parsed, paths);
    expect_path(&paths[0], "lo7", &parsed.address);
    path_fail(&paths[0], "no reason");
    path_leave_out(&paths[0]);
    assert_int_equal(paths_list(&devices[0], &options, &parsed, paths), count);
    expect_path(&paths[0], "lo7", &parsed.others[0]);
    expect_path(&paths[count - 1], "lo7", &parsed.address);
}

SUITE(.name = "net_path");
