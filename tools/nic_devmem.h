/*
 * What device-memory TCP needs on an interface, asked without changing anything. What is missing
 * has a text that fits behind "not used: ", and advice. Also the interface's driver.
 */
#ifndef TCPX_TOOLS_NIC_DEVMEM_H
#define TCPX_TOOLS_NIC_DEVMEM_H

#include "net/device/device.h"

#include <stdbool.h>

/* In the order in which a missing one is named. */
enum nic_devmem_need {
    NIC_DEVMEM_KERNEL_RECEIVES,
    NIC_DEVMEM_KERNEL_SENDS,
    NIC_DEVMEM_SPLIT,
    NIC_DEVMEM_PRIVILEGE,
    NIC_DEVMEM_STEERING,
    NIC_DEVMEM_QUEUES,
    NIC_DEVMEM_MEMORY, /* of the GPU, as a dma-buf */
    NIC_DEVMEM_NEEDS
};

struct nic_devmem_answer {
    bool is_met;
    char text[384];
    char advice[256]; /* "" where it is met */
};

struct nic_devmem {
    bool knows;     /* the driver knows header split, or is known to bind memory */
    char unfit[96]; /* otherwise, why not; there are no answers then */
    struct nic_devmem_answer needs[NIC_DEVMEM_NEEDS];
};

/*
 * Whether memory of a GPU can be exported; -1: of any. Starts the GPU's driver, after which a child
 * of this process cannot use it.
 */
void nic_devmem_ask_memory(int gpu, struct nic_devmem_answer *memory);

/* `root`: before /sys, "" but for tests. "": it has none, as loopback. */
void nic_driver(const char *root, const char *interface, char *driver, size_t room);

/* Whether it can bind receive queues to device memory, as of Linux 7.2. */
bool nic_driver_binds_memory(const char *driver);

/* Whether there is something to ask. `driver`: as nic_driver() says. */
void nic_devmem_look(const struct net_device *nic, const char *driver, struct nic_devmem *devmem);

/* Of an interface that knows; `memory` is taken over. */
void nic_devmem_ask(const struct net_device *nic, const struct nic_devmem_answer *memory,
                    struct nic_devmem *devmem);

/* The first need that is not met; NULL: there is none. */
const struct nic_devmem_answer *nic_devmem_missing_to_receive(const struct nic_devmem *devmem);
const struct nic_devmem_answer *nic_devmem_missing_to_send(const struct nic_devmem *devmem);

/* Why it is not used on any interface; NULL: it may be. */
const char *nic_devmem_switched_off(void);

#endif
