/*
 * Shows what is said of device-memory TCP on an interface: each need that is not met is the reason,
 * by itself and before those behind it; receiving and sending need different things; and nothing is
 * asked of interfaces that cannot have it.
 */
#include "base/config.h"
#include "gpu/gpu.h"
#include "net/nic/nic.h"
#include "tests/unit/checks.h"
#include "tools/nic_devmem.h"

#include <errno.h>
#include <stdlib.h>

/* A machine that answers as it is told. */
static struct {
    bool kernel_is_silent;
    bool kernel_receives;
    bool kernel_sends;
    int rings_error; /* 0: there is an answer */
    struct nic_rings rings;
    bool is_root;
    bool has_no_flags;
    bool has_rules;
    unsigned queues;
    bool bound[NIC_MOST_QUEUES];
    bool has_no_gpu;
    const char *backend;
    int gpus;
    bool exports[4];
    unsigned asked;
} machine;

static int fail_unless(bool good, const char *text)
{
    machine.asked++;
    return good ? TCPX_SUCCESS : error_set(TCPX_SYSTEM_ERROR, "%s", text);
}

static int fake_kernel_binds(bool *receive, bool *send)
{
    *receive = machine.kernel_receives;
    *send = machine.kernel_sends;
    return fail_unless(!machine.kernel_is_silent, "silence");
}

static int fake_get_rings(const char *interface, struct nic_rings *rings, int *os_error)
{
    assert_string_equal(interface, "nic0");
    *rings = machine.rings;
    if (os_error != NULL)
        *os_error = machine.rings_error;
    return fail_unless(machine.rings_error == 0, "nic0: no header split");
}

static int fake_has_rules(const char *interface, bool *has_rules)
{
    assert_string_equal(interface, "nic0");
    *has_rules = machine.has_rules;
    return fail_unless(!machine.has_no_flags, "nic0: no flags");
}

static int fake_count_queues(const char *interface, unsigned *queues)
{
    assert_string_equal(interface, "nic0");
    *queues = machine.queues;
    return fail_unless(true, "");
}

static int fake_find_bound_queues(unsigned ifindex, bool bound[NIC_MOST_QUEUES])
{
    assert_int_equal(ifindex, 7);
    memcpy(bound, machine.bound, sizeof machine.bound);
    return fail_unless(true, "");
}

static int fake_check_net_admin(void)
{
    return fail_unless(machine.is_root, "no CAP_NET_ADMIN");
}

static int fake_gpu_backend(const char **name, const char **reason)
{
    *name = machine.backend;
    *reason = "the test";
    return fail_unless(!machine.has_no_gpu, "no driver");
}

static int fake_gpu_count(int *count)
{
    *count = machine.gpus;
    return fail_unless(true, "");
}

static int fake_gpu_properties(int index, struct tcpx_gpu_properties *properties)
{
    *properties = (struct tcpx_gpu_properties){.dmabuf = machine.exports[index]};
    return fail_unless(index < machine.gpus, "no such GPU");
}

#define nic_kernel_binds      fake_kernel_binds
#define nic_get_rings         fake_get_rings
#define nic_has_rules         fake_has_rules
#define nic_count_queues      fake_count_queues
#define nic_find_bound_queues fake_find_bound_queues
#define nic_check_privilege   fake_check_net_admin
#define gpu_backend           fake_gpu_backend
#define gpu_count             fake_gpu_count
#define gpu_properties        fake_gpu_properties
#include "tools/nic_devmem.c" /* NOLINT(bugprone-suspicious-include) */

static const struct net_device nic0 = {.name = "nic0", .ifindex = 7};

static struct nic_devmem devmem;

/* A machine that can do everything. */
static int set_up(void **state)
{
    (void)state;
    memset(&machine, 0, sizeof machine);
    machine.kernel_receives = machine.kernel_sends = true;
    machine.rings = (struct nic_rings){.split = NIC_SPLIT_ON, .has_threshold = true};
    machine.is_root = machine.has_rules = true;
    machine.queues = 4;
    machine.backend = "cuda";
    machine.gpus = 1;
    machine.exports[0] = true;
    return 0;
}

static void ask(void)
{
    struct nic_devmem_answer memory;

    nic_devmem_look(&nic0, "", &devmem);
    nic_devmem_ask_memory(-1, &memory);
    nic_devmem_ask(&nic0, &memory, &devmem);
}

/* It has the words, and whoever can do something about it is told what. */
static void expect_missing(const struct nic_devmem_answer *missing, const char *words,
                           const char *advice)
{
    assert_non_null(missing);
    assert_false(missing->is_met);
    expect_part(missing->text, words);
    expect_part(missing->advice, advice);
}

static void expect_not_received(const char *words, const char *advice)
{
    ask();
    expect_missing(nic_devmem_missing_to_receive(&devmem), words, advice);
}

/* This need alone is not met. */
static void expect_only(enum nic_devmem_need need, const char *words, const char *advice)
{
    expect_not_received(words, advice);
    for (int i = 0; i < NIC_DEVMEM_NEEDS; i++)
        assert_int_equal(devmem.needs[i].is_met, i != (int)need);
    assert_null(nic_devmem_missing_to_send(&devmem));
}

static void expect_met(enum nic_devmem_need need, const char *words)
{
    ask();
    assert_true(devmem.needs[need].is_met);
    expect_part(devmem.needs[need].text, words);
    assert_string_equal(devmem.needs[need].advice, "");
}

#define MACHINE_TEST(name) TEST_WITH(name, set_up, NULL)

MACHINE_TEST(test_all_is_there)
{
    ask();
    assert_true(devmem.knows);
    assert_null(nic_devmem_missing_to_receive(&devmem));
    assert_null(nic_devmem_missing_to_send(&devmem));
    expect_met(NIC_DEVMEM_QUEUES, "3 of 4 receive queues are free");
}

MACHINE_TEST(test_each_need_is_named)
{
    set_up(state);
    machine.kernel_receives = false;
    expect_only(NIC_DEVMEM_KERNEL_RECEIVES, "cannot receive into", "6.12");
    set_up(state);
    machine.is_root = false;
    expect_only(NIC_DEVMEM_PRIVILEGE, "CAP_NET_ADMIN is missing", "setcap");
    set_up(state);
    machine.has_rules = false;
    expect_only(NIC_DEVMEM_STEERING, "ntuple filters are off", "'ethtool -K nic0 ntuple on'");
    machine.has_no_flags = true;
    expect_only(NIC_DEVMEM_STEERING, "nic0: no flags", "ntuple");
    set_up(state);
    machine.queues = 1;
    expect_only(NIC_DEVMEM_QUEUES, "no more than one receive queue",
                "'ethtool -L nic0 combined 4'");
    machine.queues = 0;
    expect_only(NIC_DEVMEM_QUEUES, "no more than one receive queue",
                "'ethtool -L nic0 combined 4'");
}

MACHINE_TEST(test_queues_that_others_have)
{
    machine.bound[0] = true; /* which would not have been taken anyway */
    expect_met(NIC_DEVMEM_QUEUES, "3 of 4 receive queues are free");
    machine.bound[2] = machine.bound[3] = true;
    expect_met(NIC_DEVMEM_QUEUES, "1 of 4 receive queues is free");
    machine.bound[1] = true;
    expect_only(NIC_DEVMEM_QUEUES, "no receive queue is free: of 4",
                "'ethtool -L nic0 combined 8'");
}

/* tcpx switches it on, so that it is never the reason where the driver knows it. */
MACHINE_TEST(test_header_split)
{
    expect_met(NIC_DEVMEM_SPLIT, "tcp-data-split is on");
    machine.rings.threshold = 256;
    expect_met(NIC_DEVMEM_SPLIT, "hds-thresh of 256: tcpx makes that 0");
    machine.rings.split = NIC_SPLIT_OFF;
    expect_met(NIC_DEVMEM_SPLIT, "tcp-data-split is off: tcpx switches it on");
    machine.rings.split = NIC_SPLIT_UNKNOWN;
    expect_met(NIC_DEVMEM_SPLIT, "left to the driver: tcpx switches it on");
    machine.rings_error = EOPNOTSUPP;
    expect_met(NIC_DEVMEM_SPLIT, "the driver does not tell: tcpx tries");
    machine.rings_error = EIO;
    expect_only(NIC_DEVMEM_SPLIT, "no header split", "'ethtool -G nic0 tcp-data-split on'");
}

MACHINE_TEST(test_the_first_one_is_the_reason)
{
    machine.exports[0] = false;
    expect_not_received("dma-buf", "open kernel modules");
    machine.queues = 1;
    expect_not_received("one receive queue", "");
    machine.has_rules = false;
    expect_not_received("ntuple", "");
    machine.is_root = false;
    expect_not_received("CAP_NET_ADMIN", "");
    machine.rings_error = EIO;
    expect_not_received("no header split", "");
    machine.kernel_receives = false;
    expect_not_received("kernel", "6.12");
}

MACHINE_TEST(test_sending_needs_less)
{
    machine.is_root = machine.has_rules = false;
    machine.queues = 1;
    ask();
    assert_null(nic_devmem_missing_to_send(&devmem));
    set_up(state);
    machine.kernel_sends = false;
    ask();
    assert_null(nic_devmem_missing_to_receive(&devmem));
    expect_missing(nic_devmem_missing_to_send(&devmem), "cannot send from", "6.16");
    set_up(state);
    machine.exports[0] = false;
    ask();
    expect_missing(nic_devmem_missing_to_send(&devmem), "dma-buf", "open kernel modules");
    set_up(state);
    machine.kernel_is_silent = true;
    ask();
    expect_missing(nic_devmem_missing_to_send(&devmem), "cannot send from", "6.16");
    expect_missing(nic_devmem_missing_to_receive(&devmem), "cannot receive into", "6.12");
}

MACHINE_TEST(test_memory_of_gpus)
{
    struct nic_devmem_answer memory;

    machine.gpus = 3;
    machine.exports[0] = false;
    machine.exports[2] = true;
    nic_devmem_ask_memory(-1, &memory);
    assert_true(memory.is_met);
    nic_devmem_ask_memory(2, &memory);
    assert_true(memory.is_met);
    nic_devmem_ask_memory(1, &memory);
    expect_missing(&memory, "GPU memory cannot be exported", "open kernel modules");
    machine.backend = "host";
    nic_devmem_ask_memory(1, &memory);
    expect_missing(&memory, "/dev/udmabuf", "modprobe udmabuf");
    machine.has_no_gpu = true;
    nic_devmem_ask_memory(-1, &memory);
    expect_missing(&memory, "no driver", "UCCL_TCPX_GPU=host");
}

MACHINE_TEST(test_interfaces_that_cannot)
{
    const struct net_device lo = {.name = "lo", .ifindex = 1, .is_loopback = true};

    nic_devmem_look(&lo, "", &devmem);
    assert_false(devmem.knows);
    expect_part(devmem.unfit, "loopback");
    assert_int_equal(machine.asked, 0);
    machine.rings.split = NIC_SPLIT_UNKNOWN; /* as drivers answer that have nothing to say */
    nic_devmem_look(&nic0, "virtio_net", &devmem);
    assert_false(devmem.knows);
    assert_string_equal(devmem.unfit, "not with the driver virtio_net");
    nic_devmem_look(&nic0, "", &devmem);
    assert_false(devmem.knows);
    assert_string_equal(devmem.unfit, "not with an interface without a device");
    machine.rings_error = EOPNOTSUPP;
    nic_devmem_look(&nic0, "virtio_net", &devmem);
    assert_false(devmem.knows);
    nic_devmem_look(&nic0, "gve", &devmem); /* which could, as it is known */
    assert_true(devmem.knows);
    machine.rings_error = 0;
    machine.rings.split = NIC_SPLIT_OFF;
    nic_devmem_look(&nic0, "virtio_net", &devmem);
    assert_true(devmem.knows);
}

SUITE(.name = "devmem of a NIC");
