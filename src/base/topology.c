/*
 * Reads the affinity mask, quotas and cpusets of both cgroup versions, and sysfs. A quota may stand
 * at any level above the process, so the whole chain is read from its own group to the mount's
 * root.
 */
#include "base/topology.h"

#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than any kernel is built for. */
enum { MOST_CPUS = 1 << 20, MOST_NODES = 1 << 10 };

/* --- small files --- */

static FILE *open_file(const char *root, const char *folder, const char *name)
{
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s%s/%s", root, folder, name) >= sizeof path)
        return NULL;
    return fopen(path, "re");
}

/* Reads a file of one line without its newline; false if it is missing, empty, long or binary. */
static bool read_line(const char *root, const char *folder, const char *name, char *line,
                      size_t size)
{
    FILE *file = open_file(root, folder, name);
    size_t length;
    bool whole;

    if (file == NULL)
        return false;
    length = fread(line, 1, size - 1, file);
    whole = fgetc(file) == EOF && ferror(file) == 0;
    fclose(file);
    if (length > 0 && line[length - 1] == '\n')
        length--;
    line[length] = '\0';
    return whole && strlen(line) == length && strchr(line, '\n') == NULL;
}

/* --- CPUs of the affinity mask --- */

static int count_mask_cpus(int *count)
{
    size_t size = CPU_ALLOC_SIZE(MOST_CPUS);
    cpu_set_t *set = CPU_ALLOC(MOST_CPUS);
    int error;

    if (set == NULL)
        return error_system(errno, "cannot allocate an affinity mask of %d CPUs", MOST_CPUS);
    error = sched_getaffinity(0, size, set) == 0 ? 0 : errno;
    if (error == 0)
        *count = CPU_COUNT_S(size, set);
    CPU_FREE(set);
    if (error == EINVAL)
        return error_set(TCPX_SYSTEM_ERROR, "the affinity mask has more than %d CPUs", MOST_CPUS);
    return error == 0 ? TCPX_SUCCESS : error_system(error, "cannot read the affinity mask");
}

/* --- lists of CPUs and nodes --- */

/*
 * How many numbers below `limit` "0-3,8,10-11" has, ascending, as the kernel prints it; 0: it is no
 * such list. Sets them in `members`, which may be NULL; a list that is refused may leave some
 * there.
 */
static int read_list(const char *text, unsigned long limit, cpu_set_t *members)
{
    unsigned long least = 0;
    int count = 0;

    for (;;) {
        unsigned long first;
        unsigned long last;
        char *end;

        if (!isdigit((unsigned char)*text))
            return 0;
        first = last = strtoul(text, &end, 10);
        if (*end == '-' && isdigit((unsigned char)end[1]))
            last = strtoul(end + 1, &end, 10);
        if (first < least || last < first || last >= limit)
            return 0;
        count += (int)(last - first + 1);
        least = last + 1;
        for (; members != NULL && first <= last; first++)
            CPU_SET(first, members);
        if (*end != ',')
            return *end == '\0' ? count : 0;
        text = end + 1;
    }
}

/* The same for a file with such a list. */
static int read_list_file(const char *root, const char *folder, const char *name,
                          unsigned long limit, cpu_set_t *members)
{
    char text[16384];

    return read_line(root, folder, name, text, sizeof text) ? read_list(text, limit, members) : 0;
}

/* --- cgroups --- */

/* One cgroup hierarchy: the process's place in it and where it is mounted. */
struct hierarchy {
    bool v2;
    const char *controller;     /* version 1: which hierarchy */
    char group[PATH_MAX];       /* from /proc/self/cgroup */
    char mount_root[PATH_MAX];  /* what of the hierarchy is mounted */
    char mount_point[PATH_MAX]; /* and where */
};

static bool has_controller(const struct hierarchy *hierarchy, const char *controllers)
{
    int place;

    return parse_word(hierarchy->controller, controllers, ',', &place);
}

static bool copy_text(char *to, size_t room, const char *from)
{
    size_t length = strlen(from);

    if (length >= room)
        return false;
    memcpy(to, from, length + 1);
    return true;
}

/* Finds this process's group in lines of "id:controllers:path"; version 2 has no controllers. */
static bool find_group(const char *root, struct hierarchy *hierarchy)
{
    FILE *file = open_file(root, "/proc/self", "cgroup");
    char *line = NULL;
    size_t room = 0;
    bool found = false;

    if (file == NULL)
        return false;
    while (!found && getline(&line, &room, file) >= 0) {
        char *rest = line;
        const char *id = strsep(&rest, ":");
        const char *controllers = strsep(&rest, ":");

        if (rest == NULL || *rest != '/')
            continue;
        rest[strcspn(rest, "\n")] = '\0';
        if (hierarchy->v2 ? strcmp(id, "0") == 0 && *controllers == '\0'
                          : has_controller(hierarchy, controllers))
            found = copy_text(hierarchy->group, sizeof hierarchy->group, rest);
    }
    free(line);
    fclose(file);
    return found;
}

/* The kernel writes blanks and the like in paths as \040. */
static void undo_octal(char *text)
{
    char *to = text;

    for (const char *from = text; *from != '\0'; to++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' &&
            from[2] <= '7' && from[3] >= '0' && from[3] <= '7') {
            *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
            from += 4;
        } else {
            *to = *from++;
        }
    }
    *to = '\0';
}

static bool goes_up(const char *path)
{
    size_t length = strlen(path);

    return strstr(path, "/../") != NULL || (length >= 3 && strcmp(path + length - 3, "/..") == 0);
}

/* The part of `group` below `mount_root`; NULL if the group is not there. */
static const char *below_mount_root(const char *group, const char *mount_root)
{
    size_t length = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);

    if (goes_up(group) || goes_up(mount_root) || strncmp(group, mount_root, length) != 0 ||
        (group[length] != '/' && group[length] != '\0'))
        return NULL;
    return strcmp(group + length, "/") == 0 ? "" : group + length;
}

/*
 * Reads one line of mountinfo: "id parent device root point options [tags...] - type source
 * super-options". False if it is not a mount of this hierarchy.
 */
static bool parse_mount(char *line, const struct hierarchy *hierarchy, char **mount_root,
                        char **mount_point)
{
    char *separator = strstr(line, " - ");
    char *rest = line;
    char *type;
    char *options;

    if (separator == NULL)
        return false;
    *separator = '\0';
    for (int skipped = 0; skipped < 3; skipped++)
        strsep(&rest, " ");
    *mount_root = strsep(&rest, " ");
    *mount_point = strsep(&rest, " ");
    rest = separator + 3;
    type = strsep(&rest, " ");
    strsep(&rest, " ");
    options = strsep(&rest, " \n");
    if (*mount_point == NULL || options == NULL)
        return false;
    undo_octal(*mount_root);
    undo_octal(*mount_point);
    return hierarchy->v2 ? strcmp(type, "cgroup2") == 0
                         : strcmp(type, "cgroup") == 0 && has_controller(hierarchy, options);
}

/*
 * Takes the first mount that shows the process's group. In a cgroup namespace there may be none;
 * then the first mount's root is the nearest thing to it.
 */
static bool find_mount(const char *root, struct hierarchy *hierarchy)
{
    FILE *file = open_file(root, "/proc/self", "mountinfo");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    bool shows_group = false;

    if (file == NULL)
        return false;
    while (!shows_group && getline(&line, &room, file) >= 0) {
        char *mount_root;
        char *mount_point;

        if (!parse_mount(line, hierarchy, &mount_root, &mount_point))
            continue;
        shows_group = below_mount_root(hierarchy->group, mount_root) != NULL;
        if (found && !shows_group)
            continue;
        found = copy_text(hierarchy->mount_root, sizeof hierarchy->mount_root, mount_root) &&
                copy_text(hierarchy->mount_point, sizeof hierarchy->mount_point, mount_point);
    }
    free(line);
    fclose(file);
    return found;
}

/* Whole CPUs for `quota` of `period`, rounded up; 0 when they make no sense. */
static int quota_to_cpus(const char *quota, const char *period)
{
    uint64_t used;
    uint64_t of;
    uint64_t cpus;

    if (!parse_number(quota, &used) || !parse_number(period, &of) || of == 0)
        return 0;
    cpus = used / of + (used % of != 0);
    return cpus > INT_MAX ? INT_MAX : (int)cpus;
}

/* The quota of one group in CPUs; 0: none. "max" and "-1" are not numbers and so mean none. */
static int read_quota(const char *root, const char *folder, bool v2)
{
    char quota[64];
    char period[64];
    char *blank;

    if (!read_line(root, folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", quota, sizeof quota))
        return 0;
    if (!v2)
        return read_line(root, folder, "cpu.cfs_period_us", period, sizeof period)
                   ? quota_to_cpus(quota, period)
                   : 0;
    blank = strchr(quota, ' ');
    if (blank == NULL)
        return 0;
    *blank = '\0';
    return quota_to_cpus(quota, blank + 1);
}

/* The CPUs of a group's cpuset; 0: this group has none of its own. */
static int read_cpuset(const char *root, const char *folder, bool v2)
{
    return read_list_file(root, folder, v2 ? "cpuset.cpus.effective" : "cpuset.effective_cpus",
                          MOST_CPUS, NULL);
}

/* What one group has, in CPUs; 0: nothing. */
typedef int group_reader(const char *root, const char *folder, bool v2);

/* The least value that a group has, from the process's own up to the root of the mount; 0: none. */
static int read_least(const char *root, const char *controller, bool v2, group_reader *reader)
{
    struct hierarchy hierarchy = {.v2 = v2, .controller = controller};
    char folder[2 * PATH_MAX];
    const char *below;
    size_t mount_length;
    int least = 0;

    if (!find_group(root, &hierarchy) || !find_mount(root, &hierarchy))
        return 0;
    below = below_mount_root(hierarchy.group, hierarchy.mount_root);
    mount_length = strlen(hierarchy.mount_point);
    snprintf(folder, sizeof folder, "%s%s", hierarchy.mount_point, below != NULL ? below : "");
    for (;;) {
        int cpus = reader(root, folder, v2);
        char *end = strrchr(folder + mount_length, '/');

        if (cpus != 0 && (least == 0 || cpus < least))
            least = cpus;
        if (end == NULL)
            return least;
        *end = '\0';
    }
}

/* The same over both versions. */
static int read_least_of_both(const char *root, const char *controller, group_reader *reader)
{
    int v1 = read_least(root, controller, false, reader);
    int v2 = read_least(root, controller, true, reader);

    if (v1 == 0 || v2 == 0)
        return v1 + v2;
    return v1 < v2 ? v1 : v2;
}

/* All CPUs that the processes of this cgroup have; 0: unknown. */
static int count_group_cpus(const char *root)
{
    int cpus = read_least_of_both(root, "cpuset", read_cpuset);

    return cpus != 0 ? cpus
                     : read_list_file(root, "/sys/devices/system/cpu", "online", MOST_CPUS, NULL);
}

/* --- memory --- */

enum { KIBIBYTE = 1024, MEBIBYTE = 1024 * KIBIBYTE };

/* The number behind the first word of the line that begins with it, such as "MemAvailable: "; 0:
 * none. */
static uint64_t read_entry(const char *root, const char *folder, const char *name, const char *word)
{
    FILE *file = open_file(root, folder, name);
    uint64_t number = 0;
    char line[256];

    if (file == NULL)
        return 0;
    while (number == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, word, strlen(word)) == 0)
            number = strtoull(line + strlen(word), NULL, 10);
    fclose(file);
    return number;
}

static uint64_t read_bytes(const char *root, const char *folder, const char *name)
{
    char text[64];
    uint64_t bytes;

    return read_line(root, folder, name, text, sizeof text) && parse_number(text, &bytes) ? bytes
                                                                                          : 0;
}

/* What a group may still take, in MiB: the kernel drops files in its cache before it refuses. */
static int read_memory_left(const char *root, const char *folder, bool v2)
{
    uint64_t most = read_bytes(root, folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = read_bytes(root, folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t cache =
        read_entry(root, folder, "memory.stat", v2 ? "inactive_file " : "total_inactive_file ");
    uint64_t left;

    if (most == 0)
        return 0;
    used -= cache < used ? cache : used;
    left = (most > used ? most - used : 0) / MEBIBYTE;
    return left == 0 ? 1 : left > INT_MAX ? 0 : (int)left;
}

uint64_t topology_available_memory(const char *root)
{
    uint64_t system = read_entry(root, "/proc", "meminfo", "MemAvailable:") * KIBIBYTE;
    uint64_t group = (uint64_t)read_least_of_both(root, "memory", read_memory_left) * MEBIBYTE;

    return group != 0 && (system == 0 || group < system) ? group : system;
}

/* --- NUMA nodes --- */

static const char nodes_folder[] = "/sys/devices/system/node";

static int count_numa_nodes(const char *root)
{
    int count = read_list_file(root, nodes_folder, "online", MOST_NODES, NULL);

    return count > 0 ? count : 1;
}

bool topology_node_cpus(const char *root, int node, cpu_set_t *cpus)
{
    char folder[sizeof nodes_folder + 32];
    cpu_set_t fresh;

    CPU_ZERO(&fresh);
    snprintf(folder, sizeof folder, "%s/node%d", nodes_folder, node);
    if (node < 0 || read_list_file(root, folder, "cpulist", CPU_SETSIZE, &fresh) == 0)
        return false;
    *cpus = fresh;
    return true;
}

int topology_read(const char *root, struct topology *topology)
{
    struct topology fresh = {0};
    int result = count_mask_cpus(&fresh.mask_cpus);

    if (result != TCPX_SUCCESS)
        return result;
    fresh.quota_cpus = read_least_of_both(root, "cpu", read_quota);
    fresh.group_cpus = count_group_cpus(root);
    fresh.usable_cpus = fresh.mask_cpus;
    if (fresh.quota_cpus != 0 && fresh.quota_cpus < fresh.usable_cpus)
        fresh.usable_cpus = fresh.quota_cpus;
    if (fresh.usable_cpus < 1)
        fresh.usable_cpus = 1;
    fresh.numa_nodes = count_numa_nodes(root);
    *topology = fresh;
    return TCPX_SUCCESS;
}

/* --- PCI devices --- */

static const char devices_folder[] = "/sys/devices/";

/*
 * Writes the address as the kernel does: lower case, no more digits of domain than needed. All of
 * it are 4 to 8 digits of domain and ":bb:dd.f".
 */
static bool normalise_address(const char *address, char *text, size_t size)
{
    static const char digits[] = "0123456789abcdefABCDEF:.";
    size_t length = strlen(address);
    size_t domain_digits = strspn(address, "0123456789abcdefABCDEF");
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned function;

    if (domain_digits < 4 || domain_digits > 8 || length != domain_digits + strlen(":bb:dd.f") ||
        strspn(address, digits) != length ||
        sscanf(address, "%8x:%2x:%2x.%1x", &domain, &bus, &device, &function) != 4)
        return false;
    snprintf(text, size, "%04x:%02x:%02x.%x", domain, bus, device, function);
    return true;
}

static bool is_device_folder(const char *path)
{
    return strncmp(path, devices_folder, sizeof devices_folder - 1) == 0 && !goes_up(path);
}

bool topology_pci_path(const char *root, const char *address, char *path, size_t size)
{
    char real_root[PATH_MAX] = "";
    char real_path[PATH_MAX];
    char link[PATH_MAX];
    char name[32];
    size_t root_length;

    if (!normalise_address(address, name, sizeof name) ||
        (size_t)snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, name) >=
            sizeof link ||
        realpath(link, real_path) == NULL || (*root != '\0' && realpath(root, real_root) == NULL))
        return false;
    root_length = strlen(real_root);
    if (strncmp(real_path, real_root, root_length) != 0 ||
        !is_device_folder(real_path + root_length))
        return false;
    return copy_text(path, size, real_path + root_length);
}

int topology_numa_node(const char *root, const char *pci_path)
{
    char text[16];
    uint64_t node;

    if (!is_device_folder(pci_path) || !read_line(root, pci_path, "numa_node", text, sizeof text) ||
        !parse_number(text, &node) || node > INT_MAX)
        return -1;
    return (int)node;
}

static int count_slashes(const char *path)
{
    int count = 0;

    for (; *path != '\0'; path++)
        count += *path == '/';
    return count;
}

int topology_pci_distance(const char *path_a, const char *path_b)
{
    size_t shared = 0; /* whole components */

    if (!is_device_folder(path_a) || !is_device_folder(path_b))
        return INT_MAX;
    for (size_t i = 0;; i++) {
        bool ends_a = path_a[i] == '/' || path_a[i] == '\0';
        bool ends_b = path_b[i] == '/' || path_b[i] == '\0';

        if (ends_a && ends_b)
            shared = i;
        if (path_a[i] != path_b[i] || path_a[i] == '\0')
            return count_slashes(path_a + shared) + count_slashes(path_b + shared);
    }
}
