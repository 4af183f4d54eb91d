/* tcpx devices: the GPUs, network interfaces, I/O threads and plugin that tcpx would use. */
#include "base/json.h"
#include "base/topology.h"
#include "gpu/gpu.h"
#include "net/device/device.h"
#include "tools/command.h"
#include "tools/io_threads.h"
#include "tools/nic_devmem.h"
#include "tools/plugin_probe.h"

#include <limits.h>
#include <netdb.h>
#include <string.h>

enum { MOST_GPUS = 64, DRIVER_BYTES = 64 };

struct gpus {
    int count;
    struct tcpx_gpu_properties all[MOST_GPUS];
};

static double gibibytes(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

static void print_gpu_text(int index, const struct tcpx_gpu_properties *gpu)
{
    printf("GPU %d: %s, %.1f GiB\n", index, gpu->name, gibibytes(gpu->memory_bytes));
    if (gpu->compute_major != 0)
        printf("    compute capability  %d.%d\n", gpu->compute_major, gpu->compute_minor);
    printf("    PCI path            %s\n", gpu->pci_path[0] != '\0' ? gpu->pci_path : "none");
    if (gpu->numa_node >= 0)
        printf("    NUMA node           %d\n", gpu->numa_node);
    else
        printf("    NUMA node           unknown\n");
    printf("    dma-buf export      %s\n", gpu->dmabuf ? "yes" : "no");
}

static void print_gpu_json(int index, const struct tcpx_gpu_properties *gpu)
{
    printf("%s    {\"index\": %d, \"name\": ", index != 0 ? ",\n" : "", index);
    json_string(stdout, gpu->name);
    printf(", \"memory_bytes\": %llu, \"compute_capability\": \"%d.%d\", \"pci_path\": ",
           (unsigned long long)gpu->memory_bytes, gpu->compute_major, gpu->compute_minor);
    json_string(stdout, gpu->pci_path);
    printf(", \"numa_node\": %d, \"dmabuf\": %s}", gpu->numa_node, gpu->dmabuf ? "true" : "false");
}

static int find_gpus(struct gpus *gpus)
{
    int result = gpu_count(&gpus->count);

    if (gpus->count > MOST_GPUS)
        gpus->count = MOST_GPUS;
    for (int i = 0; i < gpus->count && result == TCPX_SUCCESS; i++)
        result = gpu_properties(i, &gpus->all[i]);
    return result;
}

static int print_gpus(const struct gpus *gpus, bool json)
{
    const char *backend;
    const char *reason;

    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS)
        return command_failed();
    if (json) {
        printf("{\n  \"gpu_backend\": \"%s\",\n  \"reason\": ", backend);
        json_string(stdout, reason);
        printf(",\n  \"gpus\": [\n");
    } else {
        printf("GPU layer: %s (%s)\n", backend, reason);
    }
    for (int i = 0; i < gpus->count; i++)
        (json ? print_gpu_json : print_gpu_text)(i, &gpus->all[i]);
    return EXIT_OK;
}

static void address_text(const struct net_device *nic, char *text, size_t room)
{
    if (getnameinfo((const struct sockaddr *)&nic->address, sizeof nic->address, text,
                    (socklen_t)room, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text, room, "unknown");
}

/* How far a NIC is from each GPU. */
static void print_distances_text(const struct net_device *nic, const struct gpus *gpus)
{
    for (int i = 0; i < gpus->count; i++) {
        int distance = topology_pci_distance(gpus->all[i].pci_path, nic->pci_path);

        printf("    to GPU %-12d ", i);
        if (distance == INT_MAX)
            printf("unknown\n");
        else
            printf("%d steps on the PCI bus\n", distance);
    }
}

static void print_distances_json(const struct net_device *nic, const struct gpus *gpus)
{
    printf(", \"gpu_distances\": [");
    for (int i = 0; i < gpus->count; i++) {
        int distance = topology_pci_distance(gpus->all[i].pci_path, nic->pci_path);

        printf("%s", i > 0 ? ", " : "");
        if (distance == INT_MAX)
            printf("null");
        else
            printf("%d", distance);
    }
    printf("]");
}

/* --- device memory ------------------------------------------------------------------------- */

struct carrying {
    bool receives;
    bool sends;
    bool is_unfit;    /* nothing can be done about it */
    char reason[400]; /* why one of them is missing; "": none is */
};

static void find_carrying(const struct net_device *nic, const char *driver,
                          struct carrying *carrying)
{
    const char *off = nic_devmem_switched_off();
    const struct nic_devmem_answer *missing;
    struct nic_devmem_answer memory;
    struct nic_devmem devmem;

    nic_devmem_look(nic, driver, &devmem);
    *carrying = (struct carrying){.is_unfit = !devmem.knows};
    if (!devmem.knows || off != NULL) {
        snprintf(carrying->reason, sizeof carrying->reason, "%s",
                 devmem.knows ? off : devmem.unfit);
        return;
    }
    nic_devmem_ask_memory(-1, &memory);
    nic_devmem_ask(nic, &memory, &devmem);
    missing = nic_devmem_missing_to_receive(&devmem);
    carrying->receives = missing == NULL;
    carrying->sends = nic_devmem_missing_to_send(&devmem) == NULL;
    if (carrying->receives)
        missing = nic_devmem_missing_to_send(&devmem);
    if (missing != NULL)
        snprintf(carrying->reason, sizeof carrying->reason, "%s", missing->text);
}

static void print_carrying_text(const struct net_device *nic, const char *driver)
{
    struct carrying carrying;

    find_carrying(nic, driver, &carrying);
    printf("    device memory       ");
    if (carrying.receives && carrying.sends)
        printf("receive and send\n");
    else if (carrying.receives || carrying.sends)
        printf("%s only: %s\n", carrying.receives ? "receive" : "send", carrying.reason);
    else
        printf("no: %s\n", carrying.is_unfit ? "by way of pinned host memory" : carrying.reason);
}

static void print_carrying_json(const struct net_device *nic, const char *driver)
{
    struct carrying carrying;

    find_carrying(nic, driver, &carrying);
    printf(", \"devmem_receive\": %s, \"devmem_send\": %s, \"devmem_reason\": ",
           carrying.receives ? "true" : "false", carrying.sends ? "true" : "false");
    json_string(stdout, carrying.reason);
}

/* --- interfaces ---------------------------------------------------------------------------- */

static void print_nic_text(int index, const struct net_device *nic, const struct gpus *gpus)
{
    char address[NI_MAXHOST];
    char driver[DRIVER_BYTES];

    nic_driver("", nic->name, driver, sizeof driver);
    address_text(nic, address, sizeof address);
    printf("NIC %d: %s, %s, %d Mbit/s%s\n", index, nic->name, address, nic->speed_mbps,
           nic->is_loopback  ? ", loopback"
           : nic->is_virtual ? ", virtual"
                             : "");
    printf("    PCI path            %s\n", nic->pci_path[0] != '\0' ? nic->pci_path : "none");
    if (nic->numa_node >= 0)
        printf("    NUMA node           %d\n", nic->numa_node);
    else
        printf("    NUMA node           unknown\n");
    printf("    MTU                 %d\n", nic->mtu);
    printf("    driver              %s\n", driver[0] != '\0' ? driver : "none");
    print_carrying_text(nic, driver);
    print_distances_text(nic, gpus);
}

static void print_nic_json(int index, const struct net_device *nic, const struct gpus *gpus)
{
    char address[NI_MAXHOST];
    char driver[DRIVER_BYTES];

    nic_driver("", nic->name, driver, sizeof driver);
    address_text(nic, address, sizeof address);
    printf("%s    {\"index\": %d, \"name\": ", index != 0 ? ",\n" : "", index);
    json_string(stdout, nic->name);
    printf(", \"address\": \"%s\", \"speed_mbps\": %d, \"mtu\": %d, \"pci_path\": ", address,
           nic->speed_mbps, nic->mtu);
    json_string(stdout, nic->pci_path);
    printf(", \"numa_node\": %d, \"loopback\": %s, \"virtual\": %s, \"driver\": ", nic->numa_node,
           nic->is_loopback ? "true" : "false", nic->is_virtual ? "true" : "false");
    json_string(stdout, driver);
    printf(", \"driver_has_devmem\": %s", nic_driver_binds_memory(driver) ? "true" : "false");
    print_distances_json(nic, gpus);
    print_carrying_json(nic, driver);
    printf("}");
}

static void print_nics(const struct net_device *nics, int count, const struct gpus *gpus, bool json)
{
    if (json)
        printf("\n  ],\n  \"nics\": [\n");
    for (int i = 0; i < count; i++)
        (json ? print_nic_json : print_nic_text)(i, &nics[i], gpus);
    if (json)
        printf("\n  ],\n");
}

static void print_io_threads(const struct io_plan *plan, bool json)
{
    char text[IO_THREADS_TEXT_BYTES];

    if (json) {
        printf("  \"io_threads\": {");
        io_threads_print_json(plan);
        printf("},\n");
    } else {
        io_threads_describe(plan, text);
        printf("I/O threads: %s\n", text);
    }
}

static void print_plugin(const struct plugin_probe *probe, bool json)
{
    if (json) {
        printf("  \"plugin\": {\"builtin\": %s, \"path\": ", probe->builtin ? "true" : "false");
        json_string(stdout, probe->path);
        printf(", \"works\": %s, \"text\": ", probe->works ? "true" : "false");
        json_string(stdout, probe->text);
        printf("}\n}\n");
    } else if (probe->builtin) {
        printf("Network plugin: none, the built-in transport\n");
    } else {
        printf("Network plugin: %s\n    %s%s\n", probe->path,
               probe->works ? "" : "DOES NOT WORK: ", probe->text);
    }
}

static int devices_main(int argument_count, char **arguments)
{
    static struct gpus gpus;
    struct net_device nics[NET_DEVICES_MOST];
    struct plugin_probe probe;
    struct io_plan plan;
    bool json = false;
    const struct option options[] = {{.name = "--json", .flag = &json}, {.name = NULL}};
    int nic_count;
    int status = options_read(&command_devices, argument_count, arguments, options, NULL);

    if (status != EXIT_OK)
        return status;
    /* What can fail comes first, so that a script never reads half an answer. */
    if (plugin_probe(&probe) != TCPX_SUCCESS ||
        net_devices_find_configured(nics, NET_DEVICES_MOST, &nic_count) != TCPX_SUCCESS ||
        find_gpus(&gpus) != TCPX_SUCCESS || io_plan(&plan) != TCPX_SUCCESS)
        return command_failed();
    status = print_gpus(&gpus, json);
    if (status != EXIT_OK)
        return status;
    print_nics(nics, nic_count, &gpus, json);
    print_io_threads(&plan, json);
    print_plugin(&probe, json);
    return command_finish();
}

const struct command command_devices = {
    .name = "devices",
    .arguments = "[--json]",
    .summary =
        "List the GPUs, network interfaces, threads and plugin that tcpx uses on this machine.",
    .help = "\n"
            "  --json  for scripts\n"
            "\n"
            "UCCL_TCPX_GPU=cuda or =host asks for real or for emulated GPUs only;\n"
            "NCCL_SOCKET_IFNAME chooses the interfaces, UCCL_TCPX_PLUGIN_PATH the plugin,\n"
            "UCCL_TCPX_THREADS the number of I/O threads.\n",
    .run = devices_main,
};
