/* What an object's __dlpack__() hands out in a capsule named "dltensor": DLPack's layout. */
#ifndef TCPX_PYTHON_DLPACK_H
#define TCPX_PYTHON_DLPACK_H

#include <stdint.h>

enum dlpack_device { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_CUDA_HOST = 3, DLPACK_MANAGED = 13 };

struct dlpack_tensor {
    void *data;
    int32_t device_type;
    int32_t device;
    int32_t dimensions;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t offset;  /* of the first element, in bytes */
};

#endif
