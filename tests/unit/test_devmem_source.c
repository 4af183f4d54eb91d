/*
 * Shows which bindings end when an interface goes down or messages about interfaces were lost, and
 * that nobody waits while the kernel ends one, or tells its state. The NIC, the GPU and the watch
 * are made up: this file has their functions in place of the library's (by the linker's --wrap).
 */
#include "base/clock.h"
#include "net/devmem/devmem.h"
#include "net/nic/nic.h"
#include "tests/support/suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { SLOW_MS = 2000, MOST = 64, SLOW = 9 /* the interface whose calls take long */ };

/* --- what is made up ------------------------------------------------------------------------ */

static atomic_int bound[MOST];      /* by interface */
static atomic_bool is_slow;         /* such a call is under way */
static unsigned interface_of[MOST]; /* by binding, whose socket has this number + 1000 */
static atomic_uint made;
static bool is_down[MOST];
static void (*told)(unsigned ifindex);

int __wrap_nic_computes_checksums(const char *interface, bool *computes);
int __wrap_nic_kernel_binds(bool *receive, bool *send);
int __wrap_gpu_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd);
int __wrap_nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding, int *os_error);
void __wrap_nic_unbind(struct nic_binding *binding);
int __wrap_nic_watch_begin(void (*down)(unsigned ifindex));
void __wrap_nic_watch_end(void);
bool __wrap_nic_watch_is_up(unsigned ifindex);

int __wrap_nic_computes_checksums(const char *interface, bool *computes)
{
    (void)interface;
    *computes = true;
    return TCPX_SUCCESS;
}

int __wrap_nic_kernel_binds(bool *receive, bool *send)
{
    *receive = *send = true;
    return TCPX_SUCCESS;
}

int __wrap_gpu_export_dmabuf(struct gpu *gpu, gpu_address address, uint64_t bytes, int *fd)
{
    (void)gpu;
    (void)address;
    (void)bytes;
    *fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return TCPX_SUCCESS;
}

int __wrap_nic_bind_send(unsigned ifindex, int dmabuf, struct nic_binding *binding, int *os_error)
{
    unsigned number = atomic_fetch_add(&made, 1) % MOST;

    (void)dmabuf;
    (void)os_error;
    interface_of[number] = ifindex;
    atomic_fetch_add(&bound[ifindex], 1);
    *binding = (struct nic_binding){.socket = 1000 + (int)number, .id = 100 + number};
    return TCPX_SUCCESS;
}

static void be_slow(void)
{
    atomic_store(&is_slow, true);
    usleep(SLOW_MS * 1000);
    atomic_store(&is_slow, false);
}

void __wrap_nic_unbind(struct nic_binding *binding)
{
    unsigned ifindex;

    if (binding->socket < 0)
        return;
    ifindex = interface_of[binding->socket - 1000];
    if (ifindex == SLOW)
        be_slow();
    atomic_fetch_sub(&bound[ifindex], 1);
    *binding = (struct nic_binding){.socket = -1};
}

int __wrap_nic_watch_begin(void (*down)(unsigned ifindex))
{
    told = down;
    return TCPX_SUCCESS;
}

void __wrap_nic_watch_end(void)
{
}

bool __wrap_nic_watch_is_up(unsigned ifindex)
{
    if (ifindex == SLOW)
        be_slow();
    return !is_down[ifindex];
}

static struct devmem_source *take(int ifindex)
{
    struct net_device device = {.ifindex = ifindex};
    struct devmem_source *source = NULL;

    snprintf(device.name, sizeof device.name, "fake%d", ifindex);
    assert_int_equal(devmem_source_take(&device, NULL, 4096 * 5 + 1, 4096, &source), TCPX_SUCCESS);
    return source;
}

/* --- tests ---------------------------------------------------------------------------------- */

TEST(test_down)
{
    struct devmem_source *sources[] = {take(1), take(2), take(1), take(3)};
    uint32_t id = sources[0]->id;

    told(1);
    assert_int_equal(bound[1], 0);
    assert_int_equal(bound[2], 1);
    assert_int_equal(bound[3], 1);
    told(1);
    assert_int_equal(sources[0]->id, id);
    for (int i = 0; i < 4; i++)
        devmem_source_give(sources[i]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(bound[i], 0);
}

/* Nothing is known but that something happened: the state of each is what counts. */
TEST(test_lost)
{
    struct devmem_source *sources[] = {take(1), take(2), take(2), take(3)};

    told(NIC_WATCH_LOST);
    assert_int_equal(bound[1] + bound[2] + bound[3], 4);
    is_down[2] = true;
    told(NIC_WATCH_LOST);
    assert_int_equal(bound[2], 0);
    assert_int_equal(bound[1] + bound[3], 2);
    is_down[2] = false;
    for (int i = 0; i < 4; i++)
        devmem_source_give(sources[i]);
    assert_int_equal(bound[1] + bound[2] + bound[3], 0);
}

static void *give(void *source)
{
    devmem_source_give(source);
    return NULL;
}

static void *tell_slow(void *unused)
{
    told(SLOW);
    return unused;
}

static void *tell_lost(void *unused)
{
    told(NIC_WATCH_LOST);
    return unused;
}

/* Memory of other NICs is taken and given while `other` has the kernel end a slow binding. */
static void expect_nobody_waits(void *(*other)(void *), void *argument)
{
    uint64_t begun;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, other, argument), 0);
    while (!atomic_load(&is_slow))
        usleep(1000);
    begun = clock_now();
    for (int i = 0; i < 10; i++)
        devmem_source_give(take(1));
    told(1);
    assert_true(atomic_load(&is_slow)); /* and so it took less time than that does */
    assert_in_range(clock_now() - begun, 0, SLOW_MS * (uint64_t)1000000);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(bound[SLOW], 0);
}

TEST(test_slow_end)
{
    struct devmem_source *slow;

    expect_nobody_waits(give, take(SLOW));
    slow = take(SLOW);
    expect_nobody_waits(tell_slow, NULL);
    devmem_source_give(slow);
    slow = take(SLOW);
    is_down[SLOW] = true;
    expect_nobody_waits(tell_lost, NULL);
    is_down[SLOW] = false;
    devmem_source_give(slow);
}

SUITE(.name = "devmem source");
