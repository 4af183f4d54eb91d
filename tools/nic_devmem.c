/* The questions, one after the other. */
#include "tools/nic_devmem.h"

#include "base/config.h"
#include "gpu/gpu.h"
#include "net/nic/nic.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void answer_set(struct nic_devmem_answer *answer, bool is_met, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void answer_advise(struct nic_devmem_answer *answer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void answer_set(struct nic_devmem_answer *answer, bool is_met, const char *format, ...)
{
    va_list arguments;

    *answer = (struct nic_devmem_answer){.is_met = is_met};
    va_start(arguments, format);
    vsnprintf(answer->text, sizeof answer->text, format, arguments);
    va_end(arguments);
}

static void answer_advise(struct nic_devmem_answer *answer, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(answer->advice, sizeof answer->advice, format, arguments);
    va_end(arguments);
}

/* --- the machine --------------------------------------------------------------------------- */

static void ask_direction(struct nic_devmem_answer *answer, bool has_it, const char *what,
                          const char *since)
{
    if (has_it) {
        answer_set(answer, true, "the kernel can %s device memory", what);
        return;
    }
    answer_set(answer, false, "the kernel cannot %s device memory", what);
    answer_advise(answer, "use Linux %s or later with CONFIG_NET_DEVMEM", since);
}

static void ask_kernel(struct nic_devmem *devmem)
{
    bool receives;
    bool sends;
    /* A kernel that cannot be asked cannot be told to bind, either. */
    bool says = nic_kernel_binds(&receives, &sends) == TCPX_SUCCESS;

    ask_direction(&devmem->needs[NIC_DEVMEM_KERNEL_RECEIVES], says && receives, "receive into",
                  "6.12");
    ask_direction(&devmem->needs[NIC_DEVMEM_KERNEL_SENDS], says && sends, "send from", "6.16");
}

static void ask_privilege(struct nic_devmem_answer *answer)
{
    if (nic_check_privilege() == TCPX_SUCCESS) {
        answer_set(answer, true, "this process has CAP_NET_ADMIN");
        return;
    }
    answer_set(answer, false, "CAP_NET_ADMIN is missing");
    answer_advise(answer,
                  "run as root, or as root: 'setcap cap_net_admin+ep PROGRAM'; a container needs "
                  "the capability NET_ADMIN");
}

static bool gpu_exports_memory(int gpu)
{
    struct tcpx_gpu_properties properties;

    return gpu_properties(gpu, &properties) == TCPX_SUCCESS && properties.dmabuf;
}

static bool any_exports(int gpu, int count)
{
    if (gpu >= 0)
        return gpu_exports_memory(gpu);
    for (int i = 0; i < count; i++)
        if (gpu_exports_memory(i))
            return true;
    return false;
}

void nic_devmem_ask_memory(int gpu, struct nic_devmem_answer *memory)
{
    const char *backend;
    const char *reason;
    int count;

    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS || gpu_count(&count) != TCPX_SUCCESS) {
        answer_set(memory, false, "there is no GPU: %s", error_text());
        answer_advise(memory,
                      "install the NVIDIA driver, or set UCCL_TCPX_GPU=host for emulated GPUs");
    } else if (any_exports(gpu, count)) {
        answer_set(memory, true, "GPU memory can be exported as a dma-buf");
    } else if (strcmp(backend, "host") == 0) {
        answer_set(memory, false,
                   "memory of emulated GPUs can be exported as a dma-buf only where "
                   "/dev/udmabuf can be opened");
        answer_advise(memory, "as root: 'modprobe udmabuf', and let this user read and write it");
    } else {
        answer_set(memory, false, "GPU memory cannot be exported as a dma-buf");
        answer_advise(memory, "use the open kernel modules of the NVIDIA driver, 515 or later");
    }
}

/* --- its driver ---------------------------------------------------------------------------- */

void nic_driver(const char *root, const char *interface, char *driver, size_t room)
{
    char path[PATH_MAX];
    char target[PATH_MAX];
    ssize_t length;
    const char *slash;

    snprintf(path, sizeof path, "%s/sys/class/net/%s/device/driver", root, interface);
    length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = '\0';
    slash = strrchr(target, '/');
    snprintf(driver, room, "%.*s", (int)room - 1, slash != NULL ? slash + 1 : target);
}

bool nic_driver_binds_memory(const char *driver)
{
    static const char *const drivers[] = {"mlx5_core", "bnxt_en", "gve", "fbnic"};

    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        if (strcmp(driver, drivers[i]) == 0)
            return true;
    return false;
}

/* --- the interface ------------------------------------------------------------------------- */

/*
 * What the driver knows tcpx switches on by itself. Some that are known to bind memory do not tell,
 * as mlx5 until it was set once; these are tried.
 */
static void ask_split(const char *name, struct nic_devmem_answer *answer)
{
    static const char *const states[] = {
        [NIC_SPLIT_UNKNOWN] = "left to the driver", [NIC_SPLIT_OFF] = "off", [NIC_SPLIT_ON] = "on"};
    static const char then[] = "when it starts to receive, which takes CAP_NET_ADMIN";
    struct nic_rings rings;
    int error = 0;
    bool is_told = nic_get_rings(name, &rings, &error) == TCPX_SUCCESS;

    if (!is_told && error == EOPNOTSUPP) {
        answer_set(answer, true, "the driver does not tell: tcpx tries to switch it on %s", then);
    } else if (!is_told) {
        answer_set(answer, false, "%s", error_text());
        answer_advise(answer, "as root: 'ethtool -G %s tcp-data-split on' says more", name);
    } else if (rings.split != NIC_SPLIT_ON) {
        answer_set(answer, true, "tcp-data-split is %s: tcpx switches it on %s",
                   states[rings.split], then);
    } else if (rings.has_threshold && rings.threshold != 0) {
        answer_set(answer, true,
                   "tcp-data-split is on, with an hds-thresh of %u: tcpx makes that 0 %s",
                   rings.threshold, then);
    } else {
        answer_set(answer, true, "tcp-data-split is on");
    }
}

static void ask_steering(const char *name, struct nic_devmem_answer *answer)
{
    bool has_rules;

    if (nic_has_rules(name, &has_rules) != TCPX_SUCCESS) {
        answer_set(answer, false, "%s", error_text());
    } else if (!has_rules) {
        answer_set(answer, false, "ntuple filters are off");
    } else {
        answer_set(answer, true, "ntuple filters are on");
        return;
    }
    answer_advise(answer, "as root: 'ethtool -K %s ntuple on'", name);
}

/* Queue 0 stays with ordinary traffic, and a bound one with whoever has it. */
static unsigned count_free(const bool bound[NIC_MOST_QUEUES], unsigned queues)
{
    unsigned count = 0;

    for (unsigned i = 1; i < queues; i++)
        count += !bound[i];
    return count;
}

static void ask_queues(const struct net_device *nic, struct nic_devmem_answer *answer)
{
    bool bound[NIC_MOST_QUEUES];
    unsigned queues;
    unsigned free_ones;

    if (nic_count_queues(nic->name, &queues) != TCPX_SUCCESS ||
        nic_find_bound_queues((unsigned)nic->ifindex, bound) != TCPX_SUCCESS) {
        answer_set(answer, false, "%s", error_text());
        answer_advise(answer, "see whether 'ethtool -l %s' shows several", nic->name);
        return;
    }
    free_ones = count_free(bound, queues);
    if (free_ones > 0) {
        answer_set(answer, true, "%u of %u receive queues %s free", free_ones, queues,
                   free_ones == 1 ? "is" : "are");
    } else if (queues < 2) {
        answer_set(answer, false,
                   "it has no more than one receive queue, and everything else needs that");
        answer_advise(answer, "as root: 'ethtool -L %s combined 4'", nic->name);
    } else {
        answer_set(answer, false,
                   "no receive queue is free: of %u all but the first are bound to somebody's "
                   "memory",
                   queues);
        answer_advise(answer, "end a program that has one, or as root: 'ethtool -L %s combined %u'",
                      nic->name, queues * 2);
    }
}

void nic_devmem_look(const struct net_device *nic, const char *driver, struct nic_devmem *devmem)
{
    struct nic_rings rings;

    *devmem = (struct nic_devmem){0};
    if (nic->is_loopback) {
        snprintf(devmem->unfit, sizeof devmem->unfit, "not with loopback");
        return;
    }
    devmem->knows = nic_driver_binds_memory(driver) ||
                    (nic_get_rings(nic->name, &rings, NULL) == TCPX_SUCCESS &&
                     rings.split != NIC_SPLIT_UNKNOWN);
    if (*driver != '\0')
        snprintf(devmem->unfit, sizeof devmem->unfit, "not with the driver %s", driver);
    else
        snprintf(devmem->unfit, sizeof devmem->unfit, "not with an interface without a device");
}

void nic_devmem_ask(const struct net_device *nic, const struct nic_devmem_answer *memory,
                    struct nic_devmem *devmem)
{
    ask_kernel(devmem);
    ask_split(nic->name, &devmem->needs[NIC_DEVMEM_SPLIT]);
    ask_privilege(&devmem->needs[NIC_DEVMEM_PRIVILEGE]);
    ask_steering(nic->name, &devmem->needs[NIC_DEVMEM_STEERING]);
    ask_queues(nic, &devmem->needs[NIC_DEVMEM_QUEUES]);
    devmem->needs[NIC_DEVMEM_MEMORY] = *memory;
}

/* --- all together -------------------------------------------------------------------------- */

const struct nic_devmem_answer *nic_devmem_missing_to_receive(const struct nic_devmem *devmem)
{
    for (int i = 0; i < NIC_DEVMEM_NEEDS; i++)
        if (i != NIC_DEVMEM_KERNEL_SENDS && !devmem->needs[i].is_met)
            return &devmem->needs[i];
    return NULL;
}

/* What its driver can send is known to the kernel only, which says it when memory is bound. */
const struct nic_devmem_answer *nic_devmem_missing_to_send(const struct nic_devmem *devmem)
{
    static const enum nic_devmem_need needs[] = {NIC_DEVMEM_KERNEL_SENDS, NIC_DEVMEM_MEMORY};

    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (!devmem->needs[needs[i]].is_met)
            return &devmem->needs[needs[i]];
    return NULL;
}

const char *nic_devmem_switched_off(void)
{
    const struct config *config;

    if (config_get(&config) != TCPX_SUCCESS)
        return NULL;
    if (config->devmem == CONFIG_DEVMEM_OFF)
        return "UCCL_TCPX_DEVMEM=off";
    return config->soft_devmem != 0 ? "UCCL_TCPX_SOFT_DEVMEM makes up a NIC instead" : NULL;
}
