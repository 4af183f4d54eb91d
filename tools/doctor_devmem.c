/* Whether an interface carries GPU memory by device-memory TCP, and else why not. */
#include "base/clock.h"
#include "base/config.h"
#include "tools/child.h"
#include "tools/doctor.h"

#include <stdio.h>
#include <unistd.h>

enum { PATIENCE_MS = 60000 };

/* What is missing is worth knowing, and wrong only where it was asked for. */
static enum doctor_level level_of_missing(void)
{
    const struct config *config;

    return config_get(&config) == TCPX_SUCCESS && config->devmem == CONFIG_DEVMEM_ON
               ? DOCTOR_PROBLEM
               : DOCTOR_NOTE;
}

/* --- the GPU's memory, in a process of its own ---------------------------------------------- */

static int ask_in_child(void *argument, int to_parent)
{
    const struct doctor *doctor = argument;
    struct nic_devmem_answer memory;

    nic_devmem_ask_memory(doctor->gpu, &memory);
    return write(to_parent, &memory, sizeof memory) == (ssize_t)sizeof memory ? 0 : 1;
}

static void ask_memory(struct doctor *doctor)
{
    struct nic_devmem_answer answer;
    struct child child;
    bool answered;

    if (doctor->has_asked_memory)
        return;
    doctor->has_asked_memory = true;
    doctor->memory = (struct nic_devmem_answer){
        .text = "the GPU's driver does not say whether memory can be exported as a dma-buf",
        .advice = "see what the checks of the GPU say"};
    if (child_start(ask_in_child, doctor, &child) != TCPX_SUCCESS)
        return;
    /* Otherwise the driver crashed, or takes too long; the GPU's checks will tell. */
    answered = child_read(&child, &answer, sizeof answer, deadline_after_ms(PATIENCE_MS)) ==
               (ssize_t)sizeof answer;
    if (answered)
        doctor->memory = answer;
    child_end(&child, !answered);
}

/* --- findings -------------------------------------------------------------------------------- */

static void tell_need(struct doctor *doctor, const struct net_device *nic, const char *what,
                      const struct nic_devmem_answer *need)
{
    char name[48];

    snprintf(name, sizeof name, "%s %s", nic->name, what);
    doctor_find(doctor, need->is_met ? DOCTOR_OK : level_of_missing(), name, "%s", need->text);
    doctor_advise(doctor, "%s", need->advice);
}

static void tell_verdict(struct doctor *doctor, const char *name, const struct nic_devmem *devmem)
{
    const struct nic_devmem_answer *to_receive = nic_devmem_missing_to_receive(devmem);
    const struct nic_devmem_answer *to_send = nic_devmem_missing_to_send(devmem);

    if (to_receive == NULL && to_send == NULL)
        doctor_find(doctor, DOCTOR_OK, name, "receives into GPU memory and sends from it");
    else if (to_receive == NULL)
        doctor_find(doctor, level_of_missing(), name,
                    "receives into GPU memory, but does not send from it: %s", to_send->text);
    else if (to_send == NULL)
        doctor_find(doctor, level_of_missing(), name,
                    "sends from GPU memory, but does not receive into it: %s", to_receive->text);
    else
        doctor_find(doctor, level_of_missing(), name, "not used: %s", to_receive->text);
    if (to_receive != NULL || to_send != NULL)
        doctor_advise(doctor, "%s", (to_receive != NULL ? to_receive : to_send)->advice);
}

static void tell_unfit(struct doctor *doctor, const char *name, const struct nic_devmem *devmem)
{
    if (level_of_missing() == DOCTOR_NOTE) {
        doctor_find(doctor, DOCTOR_OK, name,
                    "%s: data goes through pinned host memory, which needs nothing else",
                    devmem->unfit);
        return;
    }
    doctor_find(doctor, DOCTOR_PROBLEM, name, "%s, and UCCL_TCPX_DEVMEM=on asks for it",
                devmem->unfit);
    doctor_advise(doctor, "name a NIC that has it in NCCL_SOCKET_IFNAME, or set "
                          "UCCL_TCPX_DEVMEM=auto");
}

void doctor_check_devmem(struct doctor *doctor, const struct net_device *nic, const char *driver)
{
    const char *off = nic_devmem_switched_off();
    struct nic_devmem devmem;
    char name[48];

    snprintf(name, sizeof name, "%s devmem", nic->name);
    if (off != NULL) {
        doctor_find(doctor, DOCTOR_OK, name, "not used: %s", off);
        return;
    }
    nic_devmem_look(nic, driver, &devmem);
    if (!devmem.knows) {
        tell_unfit(doctor, name, &devmem);
        return;
    }
    ask_memory(doctor);
    nic_devmem_ask(nic, &doctor->memory, &devmem);
    tell_need(doctor, nic, "header split", &devmem.needs[NIC_DEVMEM_SPLIT]);
    tell_need(doctor, nic, "privilege", &devmem.needs[NIC_DEVMEM_PRIVILEGE]);
    tell_need(doctor, nic, "steering", &devmem.needs[NIC_DEVMEM_STEERING]);
    tell_need(doctor, nic, "queues", &devmem.needs[NIC_DEVMEM_QUEUES]);
    tell_verdict(doctor, name, &devmem);
}
