/* unpack_kernels.ptx as a string in the library: what the CUDA driver compiles for its GPU. */
#ifndef TCPX_GPU_PTX_H
#define TCPX_GPU_PTX_H

extern const char tcpx_ptx[];

#endif
