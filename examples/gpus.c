/* Asks the library for the GPUs: real ones, or emulated ones where there is no CUDA driver. */
#include <stdio.h>
#include <tcpx.h>

int main(void)
{
    struct tcpx_gpu_properties gpu;
    int count;

    if (tcpx_gpu_count(&count) != TCPX_SUCCESS)
        return fprintf(stderr, "%s\n", tcpx_last_error()), 1;
    for (int i = 0; i < count; i++)
        if (tcpx_gpu_get_properties(i, &gpu) == TCPX_SUCCESS)
            printf("GPU %d: %s\n", i, gpu.name);
    return 0;
}
