/* tcpx devices: the GPUs that tcpx would use, and why these. */
#include "base/json.h"
#include "gpu/gpu.h"
#include "tools/command.h"

#include <string.h>

static double gibibytes(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

static void print_text(int index, const struct tcpx_gpu_properties *gpu)
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

static void print_json(int index, const struct tcpx_gpu_properties *gpu)
{
    printf("%s    {\"index\": %d, \"name\": ", index != 0 ? ",\n" : "", index);
    json_string(stdout, gpu->name);
    printf(", \"memory_bytes\": %llu, \"compute_capability\": \"%d.%d\", \"pci_path\": ",
           (unsigned long long)gpu->memory_bytes, gpu->compute_major, gpu->compute_minor);
    json_string(stdout, gpu->pci_path);
    printf(", \"numa_node\": %d, \"dmabuf\": %s}", gpu->numa_node, gpu->dmabuf ? "true" : "false");
}

static int run(int argument_count, char **arguments)
{
    const char *backend;
    const char *reason;
    bool json = false;
    int count;

    for (int i = 0; i < argument_count; i++) {
        if (strcmp(arguments[i], "--json") != 0)
            return command_usage(&command_devices, "unknown argument", arguments[i]);
        json = true;
    }
    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS || gpu_count(&count) != TCPX_SUCCESS)
        return command_failed();
    if (json) {
        printf("{\n  \"gpu_backend\": \"%s\",\n  \"reason\": ", backend);
        json_string(stdout, reason);
        printf(",\n  \"gpus\": [\n");
    } else {
        printf("GPU layer: %s (%s)\n", backend, reason);
    }
    for (int i = 0; i < count; i++) {
        struct tcpx_gpu_properties gpu;

        if (gpu_properties(i, &gpu) != TCPX_SUCCESS)
            return command_failed();
        (json ? print_json : print_text)(i, &gpu);
    }
    if (json)
        printf("\n  ]\n}\n");
    return command_finish();
}

const struct command command_devices = {
    .name = "devices",
    .arguments = "[--json]",
    .summary = "List the GPUs that tcpx uses on this machine.",
    .help = "\n"
            "  --json  for scripts\n"
            "\n"
            "UCCL_TCPX_GPU=cuda or =host asks for real or for emulated GPUs only.\n",
    .run = run,
};
