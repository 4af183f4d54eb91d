/* What sysfs says about a driver, and a list of those that have device-memory TCP. */
#include "tools/nic_driver.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
