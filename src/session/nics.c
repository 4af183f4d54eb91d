/* Nearness of network devices to a GPU. */
#include "session/nics.h"

#include "base/topology.h"

#include <limits.h>

/* The less, the nearer. */
static long far_away(const struct nic *nic, const char *gpu_path, int gpu_node)
{
    int steps = topology_pci_distance(nic->pci_path, gpu_path);
    bool other_node = nic->numa_node >= 0 && gpu_node >= 0 && nic->numa_node != gpu_node;

    return (steps == INT_MAX ? INT_MAX / 4 : steps) * 2L + other_node;
}

int nics_choose(struct nic *nics, int count, const char *gpu_path, int gpu_node)
{
    int near = 0;

    /* The order among equals stays. */
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && far_away(&nics[k], gpu_path, gpu_node) <
                                     far_away(&nics[k - 1], gpu_path, gpu_node);
             k--) {
            struct nic other = nics[k];

            nics[k] = nics[k - 1];
            nics[k - 1] = other;
        }
    while (near < count &&
           far_away(&nics[near], gpu_path, gpu_node) == far_away(&nics[0], gpu_path, gpu_node))
        near++;
    return near;
}
