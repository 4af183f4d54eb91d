/*
 * The GPUs, looked at in a process of its own: a driver that crashes or hangs is a finding, and
 * what comes after can still fork. The child sends its findings through a pipe, one at a time.
 */
#include "base/clock.h"
#include "base/topology.h"
#include "gpu/gpu.h"
#include "tools/child.h"
#include "tools/doctor.h"

#include <limits.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 120000, EXPORT_BYTES = 1 << 16 };

/* --- in the child -------------------------------------------------------------------------- */

static void check_layer(struct doctor *doctor, const char *backend, const char *reason)
{
    char version[256];

    if (strcmp(backend, "host") == 0) {
        doctor_find(doctor, DOCTOR_NOTE, "layer", "emulated GPUs in ordinary memory (%s)", reason);
        doctor_advise(doctor,
                      "for real ones, install the NVIDIA driver and set UCCL_TCPX_GPU=cuda");
        return;
    }
    doctor_find(doctor, DOCTOR_OK, "layer", "%s (%s)", backend, reason);
    if (doctor_read_line(doctor, "/proc/driver/nvidia/version", version, sizeof version))
        doctor_find(doctor, DOCTOR_OK, "driver", "%s", version);
}

static void check_dmabuf(struct doctor *doctor, int index, bool emulated)
{
    struct gpu_memory memory = {0};
    struct gpu *gpu = NULL;
    char name[48];
    int fd = -1;
    int result = gpu_open(index, &gpu);

    if (result == TCPX_SUCCESS)
        result = gpu_memory_alloc(gpu, EXPORT_BYTES, 4096, &memory);
    if (result == TCPX_SUCCESS)
        result = gpu_export_dmabuf(gpu, memory.address, EXPORT_BYTES, &fd);
    snprintf(name, sizeof name, "GPU %d dma-buf", index);
    if (result == TCPX_SUCCESS) {
        close(fd);
        doctor_find(doctor, DOCTOR_OK, name, "its memory can be exported");
    } else if (emulated) {
        doctor_find(doctor, DOCTOR_OK, name,
                    "not possible, and needed for device-memory TCP only: %s", error_text());
    } else {
        doctor_find(doctor, DOCTOR_NOTE, name,
                    "its memory cannot be exported, which device-memory TCP needs: %s",
                    error_text());
        doctor_advise(doctor, "use the open kernel modules of the NVIDIA driver, 515 or later");
    }
    gpu_memory_free(gpu, &memory);
    gpu_close(gpu);
}

static const struct net_device *nearest_nic(const struct doctor *doctor,
                                            const struct tcpx_gpu_properties *gpu)
{
    const struct net_device *nearest = NULL;
    int least = INT_MAX;

    for (int i = 0; i < doctor->nic_count; i++) {
        int distance = topology_pci_distance(gpu->pci_path, doctor->nics[i].pci_path);

        if (distance < least) {
            least = distance;
            nearest = &doctor->nics[i];
        }
    }
    return nearest;
}

static void check_place(struct doctor *doctor, int index, const struct tcpx_gpu_properties *gpu)
{
    const struct net_device *nic = nearest_nic(doctor, gpu);
    char name[48];

    if (nic == NULL)
        return;
    snprintf(name, sizeof name, "GPU %d to NIC", index);
    if (gpu->numa_node < 0 || nic->numa_node < 0 || gpu->numa_node == nic->numa_node) {
        doctor_find(doctor, DOCTOR_OK, name, "%s is nearest, %d steps on the PCI bus", nic->name,
                    topology_pci_distance(gpu->pci_path, nic->pci_path));
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, name,
                "even the nearest, %s, is on NUMA node %d, and the GPU on %d", nic->name,
                nic->numa_node, gpu->numa_node);
    doctor_advise(doctor, "name an interface of node %d in NCCL_SOCKET_IFNAME, if there is one",
                  gpu->numa_node);
}

static void check_gpu(struct doctor *doctor, int index, bool emulated)
{
    const double gibibyte = 1 << 30;
    struct tcpx_gpu_properties gpu;
    char name[48];

    snprintf(name, sizeof name, "GPU %d", index);
    if (gpu_properties(index, &gpu) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, name, "%s", error_text());
        doctor_advise(doctor, "'tcpx devices' lists those there are");
        return;
    }
    doctor_find(doctor, DOCTOR_OK, name, "%s, %.1f GiB", gpu.name,
                (double)gpu.memory_bytes / gibibyte);
    check_dmabuf(doctor, index, emulated);
    check_place(doctor, index, &gpu);
    doctor_check_unpack(doctor, index);
}

static void check_gpus(struct doctor *doctor)
{
    const char *backend;
    const char *reason;
    bool emulated;
    int count;

    if (gpu_backend(&backend, &reason) != TCPX_SUCCESS || gpu_count(&count) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "layer", "%s", error_text());
        doctor_advise(doctor,
                      "install the NVIDIA driver, or set UCCL_TCPX_GPU=host for emulated GPUs");
        return;
    }
    emulated = strcmp(backend, "host") == 0;
    check_layer(doctor, backend, reason);
    if (doctor->gpu >= 0) {
        check_gpu(doctor, doctor->gpu, emulated);
        return;
    }
    for (int i = 0; i < count; i++)
        check_gpu(doctor, i, emulated);
}

static int check_in_child(void *argument, int to_parent)
{
    struct doctor *doctor = argument;
    unsigned first = doctor->finding_count;
    FILE *out = fdopen(to_parent, "w");
    size_t count;

    if (out == NULL)
        return 1;
    check_gpus(doctor);
    count = doctor->finding_count - first;
    if (fwrite(&doctor->findings[first], sizeof *doctor->findings, count, out) != count)
        return 1;
    return fclose(out) == 0 ? 0 : 1;
}

/* --- in the parent ------------------------------------------------------------------------- */

/* False: the child is too late. */
static bool take_findings(struct doctor *doctor, const struct child *child)
{
    uint64_t deadline = deadline_after_ms(PATIENCE_MS);
    struct doctor_finding finding;
    ssize_t got;

    while ((got = child_read(child, &finding, sizeof finding, deadline)) == sizeof finding) {
        doctor_find(doctor, finding.level, finding.name, "%s", finding.text);
        doctor_advise(doctor, "%s", finding.advice);
    }
    return got >= 0;
}

static void check_end(struct doctor *doctor, bool in_time, int status)
{
    if (in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (!in_time)
        doctor_find(doctor, DOCTOR_PROBLEM, "checks", "they did not end within %d s",
                    PATIENCE_MS / 1000);
    else if (WIFSIGNALED(status))
        doctor_find(doctor, DOCTOR_PROBLEM, "checks", "they crashed: %s",
                    strsignal(WTERMSIG(status)));
    else
        doctor_find(doctor, DOCTOR_PROBLEM, "checks", "they ended with status %d",
                    WEXITSTATUS(status));
    doctor_advise(doctor, "see how far they get with UCCL_TCPX_DEBUG=1, and the kernel's log");
}

void doctor_check_gpus(struct doctor *doctor)
{
    struct child child;
    bool in_time;

    if (child_start(check_in_child, doctor, &child) != TCPX_SUCCESS) {
        doctor_find(doctor, DOCTOR_PROBLEM, "checks", "%s", error_text());
        doctor_advise(doctor, "raise the limits on open files and processes (ulimit -n, -u)");
        return;
    }
    in_time = take_findings(doctor, &child);
    check_end(doctor, in_time, child_end(&child, !in_time));
}
