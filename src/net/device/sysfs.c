/* Files and folders of /sys/class/net. */
#include "net/device/sysfs.h"

#include "base/parse.h"
#include "base/topology.h"

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool sysfs_path(const char *root, const char *name, const char *file, char *path,
                       size_t size)
{
    return (size_t)snprintf(path, size, "%s/sys/class/net/%s/%s", root, name, file) < size;
}

int sysfs_number(const char *root, const char *name, const char *file)
{
    char path[PATH_MAX];
    char line[32];
    uint64_t number;
    FILE *stream;
    char *read;

    if (!sysfs_path(root, name, file, path, sizeof path))
        return 0;
    stream = fopen(path, "re");
    if (stream == NULL)
        return 0;
    read = fgets(line, sizeof line, stream);
    fclose(stream);
    if (read == NULL)
        return 0;
    line[strcspn(line, "\n")] = '\0';
    return parse_number(line, &number) && number <= INT_MAX ? (int)number : 0;
}

static bool sysfs_has(const char *root, const char *name, const char *file)
{
    char path[PATH_MAX];

    return sysfs_path(root, name, file, path, sizeof path) && access(path, F_OK) == 0;
}

bool sysfs_is_physical(const char *root, const char *name)
{
    return sysfs_has(root, name, "device");
}

static bool sysfs_has_hardware_below(const char *root, const char *name, int depth)
{
    enum { DEEPEST = 8 };
    static const char lower[] = "lower_";
    char path[PATH_MAX];
    struct dirent *entry;
    bool found = sysfs_is_physical(root, name);
    DIR *folder;

    if (found || depth == DEEPEST || !sysfs_path(root, name, "", path, sizeof path))
        return found;
    folder = opendir(path);
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found = strncmp(entry->d_name, lower, sizeof lower - 1) == 0 &&
                sysfs_has_hardware_below(root, entry->d_name + sizeof lower - 1, depth + 1);
    if (folder != NULL)
        closedir(folder);
    return found;
}

bool sysfs_has_hardware(const char *root, const char *name)
{
    return sysfs_has_hardware_below(root, name, 0);
}

bool sysfs_is_bridge(const char *root, const char *name)
{
    return sysfs_has(root, name, "bridge");
}

void sysfs_find_pci_path(const char *root, const char *name, char *pci_path, size_t size)
{
    char link[PATH_MAX];
    char real[PATH_MAX];
    char *slash;

    pci_path[0] = '\0';
    if (!sysfs_path(root, name, "device", link, sizeof link) || realpath(link, real) == NULL)
        return;
    while ((slash = strrchr(real, '/')) != NULL) {
        if (topology_pci_path(root, slash + 1, pci_path, size))
            return;
        *slash = '\0';
    }
}
