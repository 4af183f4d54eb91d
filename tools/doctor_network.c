/* The interfaces that tcpx uses: speed, packets, and device-memory TCP on them. */
#include "base/config.h"
#include "tools/command.h"
#include "tools/doctor.h"

#include <dirent.h>
#include <limits.h>
#include <netdb.h>
#include <string.h>

/* A packet of this MTU fills a page of 4096 bytes with payload. */
enum { GOOD_MTU = 4096 + 52 };

static void describe_name(const struct net_device *nic, const char *what, char *name, size_t room)
{
    snprintf(name, room, "%s %s", nic->name, what);
}

/* --- what sysfs says ----------------------------------------------------------------------- */

static unsigned count_receive_queues(const struct doctor *doctor, const struct net_device *nic)
{
    char path[PATH_MAX];
    unsigned count = 0;
    DIR *folder;

    snprintf(path, sizeof path, "%s/sys/class/net/%s/queues", doctor->root, nic->name);
    folder = opendir(path);
    if (folder == NULL)
        return 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += strncmp(entry->d_name, "rx-", 3) == 0;
    closedir(folder);
    return count;
}

/* --- one interface ------------------------------------------------------------------------- */

static void check_speed(struct doctor *doctor, const struct net_device *nic)
{
    const struct config *config;
    char path[PATH_MAX];
    char name[48];
    uint64_t speed;

    snprintf(path, sizeof path, "/sys/class/net/%s/speed", nic->name);
    if ((doctor_read_number(doctor, path, &speed) && speed > 0) ||
        config_get(&config) != TCPX_SUCCESS || config->speed != 0)
        return;
    describe_name(nic, "speed", name, sizeof name);
    doctor_find(doctor, DOCTOR_NOTE, name,
                "the interface does not say how fast it is; %d Mbit/s is assumed", nic->speed_mbps);
    doctor_advise(doctor, "set UCCL_TCPX_SPEED to its speed in Mbit/s");
}

static void check_mtu(struct doctor *doctor, const struct net_device *nic)
{
    char name[48];

    if (nic->mtu == 0 || nic->mtu >= GOOD_MTU)
        return;
    describe_name(nic, "MTU", name, sizeof name);
    doctor_find(doctor, DOCTOR_NOTE, name,
                "packets of %d bytes cost more CPU time than large ones, and fill a page only in "
                "part",
                nic->mtu);
    doctor_advise(doctor,
                  "where the whole network allows it, 'ip link set %s mtu 9000' (8244 on Google's) "
                  "at both ends",
                  nic->name);
}

/* --- all of them --------------------------------------------------------------------------- */

static void check_one(struct doctor *doctor, const struct net_device *nic)
{
    unsigned queues = count_receive_queues(doctor, nic);
    char address[NI_MAXHOST];
    char driver[64];
    char mtu[16] = "unknown";

    if (getnameinfo((const struct sockaddr *)&nic->address, sizeof nic->address, address,
                    sizeof address, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(address, sizeof address, "an address that cannot be shown");
    nic_driver(doctor->root, nic->name, driver, sizeof driver);
    if (nic->mtu != 0)
        snprintf(mtu, sizeof mtu, "%d", nic->mtu);
    doctor_find(doctor, DOCTOR_OK, nic->name, "up, %s, %d Mbit/s, MTU %s, %u receive queue%s%s%s",
                address, nic->speed_mbps, mtu, queues, queues == 1 ? "" : "s",
                *driver != '\0' ? ", driver " : "", driver);
    if (nic->is_loopback)
        return;
    check_speed(doctor, nic);
    check_mtu(doctor, nic);
    doctor_check_devmem(doctor, nic, driver);
}

static bool only_loopback(const struct doctor *doctor)
{
    for (int i = 0; i < doctor->nic_count; i++)
        if (!doctor->nics[i].is_loopback)
            return false;
    return true;
}

static const char *ifname_variable(void)
{
    const char *name = "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME";

    return *command_variable(name) != '\0' ? name : "NCCL_SOCKET_IFNAME";
}

void doctor_check_network(struct doctor *doctor)
{
    if (net_devices_find_configured(doctor->nics, NET_DEVICES_MOST, &doctor->nic_count) !=
        TCPX_SUCCESS) {
        doctor->nic_count = 0;
        doctor_find(doctor, DOCTOR_PROBLEM, "interfaces", "%s", error_text());
        doctor_advise(doctor,
                      "bring one up ('ip link set DEVICE up') and give it an address, or correct "
                      "%s",
                      ifname_variable());
        return;
    }
    for (int i = 0; i < doctor->nic_count; i++)
        check_one(doctor, &doctor->nics[i]);
    if (only_loopback(doctor)) {
        doctor_find(doctor, DOCTOR_NOTE, "interfaces",
                    "only loopback: nothing leaves this machine");
        doctor_advise(doctor, "to reach others, have another interface up or name it in %s",
                      ifname_variable());
    }
}
